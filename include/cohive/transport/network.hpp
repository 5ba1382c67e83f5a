/// \file
/// Raw byte connections, real (tcp) or simulated: what stream transports are built on (stream_transport.hpp).
/// Loop thread only.
#pragma once

#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/transport/path.hpp"

namespace cohive::transport {

/// An ordered, reliable, unencrypted byte connection. One reader and one writer at a time. Dropping it closes it.
class RawConnection {
 public:
  virtual ~RawConnection() = default;
  /// At least one byte, or 0 at the end of the stream. The caller sets deadlines (core `within`).
  virtual Task<Result<std::size_t>> read_some(MutableBytes into) = 0;
  /// Waits until bytes, the end or an error can be read, for a reader that holds no memory meanwhile. It may also
  /// return at once: read_some() waits too.
  virtual Task<void> wait_readable() { co_return; }
  /// Writes all of all buffers, gathering them.
  virtual Task<Result<>> write_all(std::span<const ByteView> buffers) = 0;
  /// No more bytes from us: the other side reads what was written, then the end. Reading goes on. Idempotent.
  virtual void end_writing() noexcept = 0;
  /// Closes both directions at once; pending reads and writes end with Errc::closed. When bytes have come that were
  /// not read, or come later, the other side loses what it has not received yet: for an orderly end call end_writing()
  /// and read on to the end.
  virtual void close() noexcept = 0;
  /// Transport addresses without /p2p.
  virtual const Multiaddr& local_address() const = 0;
  /// The same of the other side.
  virtual const Multiaddr& remote_address() const = 0;
  /// True when writes wait for their turn, under a bandwidth cap or in a relay, for as long as it takes, and notice by
  /// themselves when the network takes nothing.
  virtual bool has_own_write_timeout() const { return false; }
  /// Bytes written that the other machine has not acknowledged yet.
  virtual std::size_t undelivered() const { return 0; }
  /// Has the kernel send by this algorithm from now on (congestion_control.hpp). Nothing changes on a connection within
  /// this machine, on one that is none of the kernel's, and where the kernel has no such algorithm.
  virtual void set_congestion_control(const std::string& /*name*/) noexcept {}
  virtual PathState path() const { return {}; }
  /// How many more bytes it carries from us: a relay may grant so many only.
  virtual std::uint64_t send_quota() const { return kUnlimited; }
  /// How many more bytes it carries to us.
  virtual std::uint64_t receive_quota() const { return kUnlimited; }
  /// Says that nothing bounds the bytes.
  static constexpr std::uint64_t kUnlimited = std::numeric_limits<std::uint64_t>::max();
};

/// Takes inbound connections that are bytes alone.
class Listener {
 public:
  virtual ~Listener() = default;
  /// The next inbound connection; an error only when the listener is closed.
  virtual Task<Result<std::unique_ptr<RawConnection>>> accept() = 0;
  /// The bound address, port resolved; unspecified hosts stay (0.0.0.0).
  virtual const Multiaddr& address() const = 0;
  /// The addresses that other peers can dial: one per interface for an unspecified host.
  virtual std::vector<Multiaddr> dialable_addresses() const = 0;
  /// Ends listening; accept() ends with an error.
  virtual void close() noexcept = 0;
};

/// Bytes per second of all connections together, handshakes and encryption included; 0: no limit.
struct BandwidthLimits {
  double upload = 0;    ///< bytes per second to other machines
  double download = 0;  ///< bytes per second from them
};

/// Where byte connections come from. One per peer in a simulation (it is the peer's machine), one per process in
/// reality.
class Network {
 public:
  virtual ~Network() = default;
  /// Returns the loop of all connections.
  virtual Runtime& runtime() = 0;
  /// Binds at once; a port in use or a foreign address is an error that names the address.
  virtual Result<std::unique_ptr<Listener>> listen(const Multiaddr& address) = 0;
  /// Dials one numeric transport address (a trailing /p2p is ignored). Unsupported address kinds fail at once.
  /// \param from  an address that a listener of this network is bound to: its port is used if it is free for this
  ///              connection; nullopt takes any port
  virtual Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                            Deadline deadline) = 0;
  /// The same from any port.
  Task<Result<std::unique_ptr<RawConnection>>> dial(Multiaddr address, Deadline deadline) {
    return dial(std::move(address), std::nullopt, deadline);
  }
  /// Returns the caps of limit_bandwidth(); zeros without it.
  virtual BandwidthLimits limits() const { return {}; }
  /// How many connections the machine lets this process have, all that use them together.
  virtual std::size_t max_connections() const { return std::numeric_limits<std::size_t>::max(); }
};

/// The same network under caps that all its connections share: busy ones get equal parts, a few bytes of a quiet one
/// pass before the next turn of the busy ones. After a pause at most a twentieth of a second's worth passes at once.
std::unique_ptr<Network> limit_bandwidth(std::unique_ptr<Network> network, BandwidthLimits limits);

/// TCP over Boost.Asio. `runtime` must be a real one and outlive the network. Raises the process's soft limit of open
/// files (up to 65,536, as the hard one allows): the usual 1,024 are fewer than a full host needs.
std::unique_ptr<Network> make_tcp_network(Runtime& runtime);

}  // namespace cohive::transport
