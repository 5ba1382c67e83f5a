/// \file
/// Error codes of the transport module.
#pragma once

#include <system_error>

namespace cohive::transport {

/// What may go wrong in the transport module.
enum class Errc {
  dial_failed = 1,      ///< the system would not connect: Error::system() says why
  address_unsupported,  ///< not a TCP address
  address_in_use,
  resolve_failed,
  handshake_failed,        ///< Noise or TLS: bad message, signature or key
  peer_mismatch,           ///< another PeerID answered than the one expected
  protocol_not_supported,  ///< multistream: every proposal was refused
  negotiation_failed,      ///< multistream: malformed or endless
  muxer_violation,         ///< yamux rules broken by the peer
  keepalive_timeout,       ///< the peer stopped answering pings
  too_many_streams,
  both_began,         ///< both sides opened one connection, and neither would respond
  decryption_failed,  ///< an encrypted record was forged or damaged; the connection is closed
  refused,            ///< the machine of the address is there, and no program listens
  unreachable,        ///< the network says that there is no way to the address
};

/// Returns the category of these codes, which has their sentences.
const std::error_category& transport_category() noexcept;
/// Makes a std::error_code of one of them, for the standard library.
inline std::error_code make_error_code(Errc code) noexcept {
  return {static_cast<int>(code), transport_category()};
}

}  // namespace cohive::transport

template <>
struct std::is_error_code_enum<cohive::transport::Errc> : std::true_type {};
