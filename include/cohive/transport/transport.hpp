/// \file
/// The transport seam: from an address to a secured, multiplexed connection. TCP is one implementation
/// (stream_transport.hpp), a circuit through a relay another one. A host has a list of them. Loop thread only.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "cohive/transport/network.hpp"
#include "cohive/transport/stream.hpp"

namespace cohive::transport {

/// Which side of the handshakes a peer plays.
enum class Role {
  initiator,
  responder,
  either,  ///< begins, and responds if the other side began too: both may have dialled
};

/// An inbound connection before its handshake, so that the host decides first whether it has room. Dropping it closes
/// it.
class PendingConnection {
 public:
  virtual ~PendingConnection() = default;
  /// Returns the other end, as we see it.
  virtual const Multiaddr& remote_address() const = 0;
  /// Runs the handshakes, which have a time-out of their own. To be called once, and the object kept until it ends.
  virtual Task<Result<ConnectionPtr>> finish() = 0;
};

/// Takes inbound connections, secured and multiplexed.
class ConnectionListener {
 public:
  virtual ~ConnectionListener() = default;
  /// Waits for the next inbound connection; an error only when the listener is closed.
  virtual Task<Result<std::unique_ptr<PendingConnection>>> accept() = 0;
  /// The bound address, port resolved; unspecified hosts stay (0.0.0.0).
  virtual const Multiaddr& address() const = 0;
  /// The addresses that peers can dial: one per interface for an unspecified host.
  virtual std::vector<Multiaddr> dialable_addresses() const = 0;
  /// Accepts no more connections; those that there are go on.
  virtual void close() noexcept = 0;
};

/// How an address is dialled.
struct DialOptions {
  std::optional<PeerId> expected;         ///< the peer that must answer; nullopt accepts any
  Deadline deadline = Deadline::never();  ///< of the dial and its handshakes
  /// From a port that we listen on, if the transport does that: behind a NAT, peers then see the address at which other
  /// peers may reach us, and hole punching works.
  bool from_listen_port = true;
  Role role = Role::initiator;  ///< in the handshakes: when both sides dial at once, one of them must respond
};

/// An address leads straight to this port of a machine, as its transport reads it.
struct Endpoint {
  std::uint16_t port = 0;  ///< 0 where to listen: any
  bool mappable = false;   ///< a router forwards the TCP port of this number when it is asked to
  bool punchable = false;  ///< two peers that dial each other at once get through their address translators
};

/// A way to reach peers at one kind of address.
class Transport {
 public:
  virtual ~Transport() = default;
  /// Returns whether dial() and listen() know this kind of address. Names are resolved before (resolver.hpp).
  virtual bool handles(const Multiaddr& address) const = 0;
  /// Reads an address of the kind that this transport dials directly, with the IP address of a machine or a name in
  /// place of one; nullopt for all other addresses, and for all of a transport that has no such kind.
  virtual std::optional<Endpoint> endpoint(const Multiaddr& /*address*/) const { return std::nullopt; }
  /// Dials one address (a trailing /p2p is ignored) and runs the handshakes. Errors name the stage and the address.
  virtual Task<Result<ConnectionPtr>> dial(Multiaddr address, DialOptions options) = 0;
  /// Binds at once; a port in use or a foreign address is an error that names the address.
  virtual Result<std::unique_ptr<ConnectionListener>> listen(const Multiaddr& address) = 0;
  /// The caps of the network below.
  virtual BandwidthLimits limits() const { return {}; }
  /// How many connections the machine lets this process have, counted over all that use them.
  virtual std::size_t max_connections() const { return std::numeric_limits<std::size_t>::max(); }
};

/// Transports, of which the first that handles an address dials it.
using Transports = std::vector<std::unique_ptr<Transport>>;

/// Returns the first transport that handles an address; null when none does.
Transport* transport_for(const Transports& transports, const Multiaddr& address);

/// Reads an address by the first transport that knows how: Transport::endpoint.
std::optional<Endpoint> endpoint_of(const Transports& transports, const Multiaddr& address);

class Upgrader;
/// Makes a transport under an identity. A host calls it for itself, and once more under an identity that no peer knows,
/// to tell other peers whether their addresses are open to everyone.
using MakeTransport = std::function<std::unique_ptr<Transport>(const Upgrader& upgrader)>;

}  // namespace cohive::transport
