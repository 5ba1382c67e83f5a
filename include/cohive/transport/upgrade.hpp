/// \file
/// From a byte connection to an authenticated, multiplexed one: multistream-select, Noise or TLS 1.3, yamux.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "cohive/core/keys.hpp"
#include "cohive/core/memory_budget.hpp"
#include "cohive/transport/transport.hpp"

namespace cohive::transport {

/// Ways to authenticate and encrypt a connection.
enum class Security { noise, tls };

/// Bounds of one connection. Source: docs/wire/libp2p.md, sections 4, 10 and 13.
struct TransportOptions {
  /// What a dialler proposes, in this order, and what a listener accepts. Not empty.
  std::vector<Security> security = {Security::noise, Security::tls};
  /// Peers only claim their ids and nothing is encrypted: for simulations of thousands of peers.
  bool plaintext = false;
  /// Dial from a port that we listen on, see DialOptions. When both sides dial at the same moment they get one
  /// connection that both opened: Noise then settles which side responds, and with peers that cannot it is dialled once
  /// more.
  bool dial_from_listen_port = true;
  Duration upgrade_timeout = 15s;          ///< security and muxer together, as p2pd
  bool aes = true;                         ///< Noise: offer AES-256-GCM to cohive peers if the processor has it
  Duration keepalive_interval = 30s;       ///< yamux ping after this much silence
  Duration keepalive_timeout = 10s;        ///< no pong within: the connection is dead
  Duration write_timeout = 10s;            ///< one flush to the socket
  std::size_t max_inbound_streams = 1024;  ///< open at once, per connection
  /// Bounds resets of streams that the peer opened, 16 s' worth at once; more end the connection. Those count that it
  /// resets, those that are too many, and those that we reset before it has asked for anything on them.
  double max_resets_per_second = 256;
  /// Bytes in one direction after which a connection ends, to be opened anew with new keys: AES-GCM protects 390 GB.
  /// From half of it on it ends when no stream is open.
  std::uint64_t max_key_bytes = std::uint64_t{256} << 30;
  std::size_t max_pending_streams = 256;        ///< opened by the peer and not yet accepted; more are reset
  std::size_t initial_window = 256 * 1024;      ///< fixed by yamux
  std::size_t max_window = 16 * 1024 * 1024;    ///< receive window auto-tuning stops here
  std::size_t max_buffered = 64 * 1024 * 1024;  ///< received, not yet read bytes per connection; windows grow
                                                ///< by half of it at most, and a stream that would exceed it is reset
  std::size_t send_buffer = 256 * 1024;         ///< encrypted, not yet written bytes; writers wait above it
};

/// Connections of one identity share an upgrader. What is signed with it is signed once, not for each connection.
/// Immutable, cheap to copy. `runtime` must outlive it.
class Upgrader {
 public:
  /// Makes one for connections under an identity.
  /// \param memory  what received bytes that no reader has taken are charged to; nullopt: they are not counted
  Upgrader(Runtime& runtime, KeyPair identity, TransportOptions options = {},
           std::optional<MemoryBudget> memory = std::nullopt);
  /// Returns the same under other options.
  Upgrader with_options(TransportOptions options) const;
  /// Returns the identity of the constructor.
  const KeyPair& identity() const noexcept;
  /// Returns the options of the constructor.
  const TransportOptions& options() const noexcept;

 private:
  friend struct Handshakes;
  struct State;
  std::shared_ptr<const State> state_;
};

/// Runs the handshakes within `upgrade_timeout`.
/// \param expected  the PeerID that must be at the other end; nullopt accepts any
/// Errors name the stage and, when known, the peer. The raw connection is closed on failure.
Task<Result<ConnectionPtr>> upgrade(Upgrader upgrader, std::unique_ptr<RawConnection> raw, Role role,
                                    std::optional<PeerId> expected);

/// Makes a multiplexed connection of one whose other end is known to be `peer` already, and which needs no encryption
/// of its own: what carries its bytes has both.
/// \param security  a constant of the program, for Connection::security()
ConnectionPtr multiplex(const Upgrader& upgrader, std::unique_ptr<RawConnection> raw, Role role, const PeerId& peer,
                        std::string_view security);

}  // namespace cohive::transport
