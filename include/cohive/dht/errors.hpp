/// \file
/// Error codes of the dht module.
#pragma once

#include <system_error>

namespace cohive::dht {

/// What may go wrong in the dht module.
enum class Errc {
  bootstrap_failed = 1,  ///< none of the initial peers answered a DHT ping
  clock_differs,         ///< a bootstrap peer's clock is off by more than 3 s
  not_reachable,         ///< a bootstrap peer could not call us back
  malformed_reply,       ///< a reply that does not match its request
  malformed_request,     ///< told to the caller
  too_many_keys,         ///< told to the caller
  no_node_id,            ///< the peer is client-only
  closed,
  unauthorized,    ///< a peer did not prove that it belongs to this moderated swarm
  not_found,       ///< no node that answered has a valid record of the key
  unreachable,     ///< no node of the swarm answered
  record_refused,  ///< the nodes keep a record that expires no earlier, or do not take this one
  record_invalid,  ///< a validator of this node refuses the record, so those of other nodes do
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& dht_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), dht_category()};
}

}  // namespace cohive::dht

template <>
struct std::is_error_code_enum<cohive::dht::Errc> : std::true_type {};
