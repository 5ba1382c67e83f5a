/// \file
/// Error codes of the p2p module.
#pragma once

#include <system_error>

namespace cohive::p2p {

/// What may go wrong in the p2p module.
enum class Errc {
  no_addresses = 1,  ///< nothing known and peer routing found nothing
  all_dials_failed,  ///< every address was tried
  dial_backoff,      ///< failed a moment ago, not tried again yet
  dial_to_self,
  missing_peer_id,  ///< the multiaddr has no /p2p part
  ping_mismatch,
  too_many_connections,
  bootstrap_failed,  ///< no bootstrap peer answered
  identify_failed,
  host_closed,
  relay_refused,    ///< no reservation of the peer there, or too much asked
  identity_in_use,  ///< a peer of the swarm has proven the same identity
  banned,          ///< it has misbehaved: not dialled on the word of others (Reputation)
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& p2p_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), p2p_category()};
}

}  // namespace cohive::p2p

template <>
struct std::is_error_code_enum<cohive::p2p::Errc> : std::true_type {};
