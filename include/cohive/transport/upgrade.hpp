/// \file
/// From a raw connection to a Connection: multistream-select, Noise XX (with the muxer extension), yamux.
#pragma once

#include <optional>

#include "cohive/core/keys.hpp"
#include "cohive/transport/network.hpp"
#include "cohive/transport/stream.hpp"

namespace cohive::transport {

enum class Role { initiator, responder };

/// Bounds of one connection. Source: libp2p wire spec, sections 4, 10 and 13.
struct TransportOptions {
  Duration upgrade_timeout = 15s;             ///< security and muxer together, as p2pd
  bool aes = true;                            ///< offer AES-256-GCM to cohive peers if the processor has it
  Duration keepalive_interval = 30s;          ///< yamux ping after this much silence
  Duration keepalive_timeout = 10s;           ///< no pong within: the connection is dead
  Duration write_timeout = 10s;               ///< one flush to the socket
  std::size_t max_inbound_streams = 1024;     ///< open at once, per connection
  std::size_t max_pending_streams = 256;      ///< opened by the peer and not yet accepted; more are reset
  std::size_t initial_window = 256 * 1024;    ///< fixed by yamux
  std::size_t max_window = 16 * 1024 * 1024;  ///< receive window auto-tuning stops here
  std::size_t max_buffered = 64 * 1024 * 1024;///< received, not yet read bytes per connection; windows grow
                                              ///< by half of it at most, and a stream that would exceed it is reset
  std::size_t send_buffer = 256 * 1024;       ///< encrypted, not yet written bytes; writers wait above it
};

/// Runs the handshakes within `options.upgrade_timeout`.
/// \param expected  as initiator: the PeerID that must answer; nullopt accepts any
/// Errors name the stage and, when known, the peer. The raw connection is closed on failure.
Task<Result<ConnectionPtr>> upgrade(Runtime& runtime, std::unique_ptr<RawConnection> raw, Role role, KeyPair identity,
                                    std::optional<PeerId> expected, TransportOptions options, bool plaintext = false);

}  // namespace cohive::transport
