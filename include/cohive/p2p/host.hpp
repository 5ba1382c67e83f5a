/// \file
/// Host: a libp2p peer. It listens, dials, keeps one table of connections, knows addresses, answers identify, ping and
/// Kademlia peer routing, and opens and accepts negotiated streams. Source: docs/wire/libp2p.md, sections 2, 5 and 9.
/// Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/keys.hpp"
#include "cohive/core/multiaddr.hpp"
#include "cohive/core/signal.hpp"
#include "cohive/core/task_group.hpp"  // IWYU pragma: export
#include "cohive/p2p/port_mapper.hpp"
#include "cohive/p2p/reachability.hpp"
#include "cohive/p2p/relay.hpp"
#include "cohive/p2p/reputation.hpp"
#include "cohive/transport/resolver.hpp"
#include "cohive/transport/stream.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::p2p {

/// Bounds and times of a host; the values are p2pd's unless noted.
struct HostOptions {
  std::vector<Multiaddr> listen;  ///< empty: dial only
  /// Replaces the advertised addresses entirely when not empty; what nobody can dial is an error of start():
  /// announce.hpp.
  std::vector<Multiaddr> announce;
  bool routing_server = true;             ///< serve Kademlia peer routing (false for client-mode peers)
  std::string agent = "cohive/0.1";       ///< what identify tells other peers about this program
  transport::TransportOptions transport;  ///< of all connections
  Duration dial_timeout = 15s;            ///< one address
  Duration connect_timeout = 60s;         ///< one peer, all addresses
  Duration negotiation_timeout = 10s;     ///< protocol of one stream
  Duration identify_timeout = 10s;        ///< for a peer to describe itself
  Duration backoff_base = 5s;             ///< after a failed dial; grows, at most 5 min
  /// At it, an idle connection makes room for each new one. An eighth is kept for connections that we open. This, the
  /// inbound ones pending and the dials shrink together where the machine allows fewer connections.
  std::size_t max_connections = 1024;
  /// Above the high one, idle connections are closed down to the low one: the longest unused first, none that is
  /// younger than the grace or of a protected peer. Those of the routing table's peers stay unless they are more alone.
  std::size_t high_water = 512,           ///< connections above which trimming begins
      low_water = 384;                    ///< connections at which it ends
  Duration trim_grace = 2min;             ///< age below which trimming leaves a connection alone
  std::size_t max_pending_inbound = 256;  ///< inbound connections before the handshake is done
  /// The same from one IPv4 address or IPv6 /64 network; this machine itself may take all of them.
  std::size_t max_pending_per_ip = 64;
  std::size_t max_addresses_per_peer = 32;   ///< kept in the address book
  std::size_t max_connections_per_peer = 4;  ///< open at once
  std::size_t max_connections_per_ip = 256;  ///< inbound; large networks hide behind one address. Not for this machine
  std::size_t max_dials = 160;               ///< at once, as p2pd
  std::size_t max_lookups = 32;              ///< walks through peer routing at once; further ones wait
  /// Ask peers outside to dial us back, and dial back peers that ask us (AutoNAT): see Host::reachability.
  bool autonat = true;
  /// What is known about reachability without asking; nullopt: ask.
  std::optional<Reachability> force_reachability;
  /// Have the router forward the IPv4 ports that we listen on, unless only this machine can connect to them.
  bool nat_port_map = true;
  /// Of so many networks peers must see us at an address before it is announced, unless a dial-back has reached it.
  std::size_t observed_confirmations = 4;
  /// Relay other peers' connections within these bounds; nullopt: do not.
  std::optional<RelayServiceOptions> relay_service;
  /// When peers outside cannot reach us, be reached through relays: the ones named here, and connected peers that
  /// relay.
  bool use_relay = true;
  std::vector<Multiaddr> trusted_relays;  ///< with /p2p; see use_relay
  std::size_t wanted_relays = 2;          ///< reservations to hold
  bool hole_punching = true;  ///< replace circuits by direct connections where address translators allow it (DCUtR)
  /// By what algorithm of the kernel connections to other cohive peers send: "" for BBR where the kernel has it,
  /// "kernel" for the kernel's own choice, else the name of one (transport/congestion_control.hpp). Other peers'
  /// connections keep the kernel's choice.
  std::string congestion_control;
  /// Connections to one cohive peer that carry its bytes together where one does not fill the link (docs/tuning.md);
  /// 1: never several.
  std::size_t max_bundled_connections = 16;
  /// Bytes of all buffers together that peers fill (MemoryBudget); 0: from the machine's memory.
  std::size_t memory_budget = 0;
  std::size_t max_known_peers = 4096;  ///< peers only heard of, and peers connected lately, whose addresses are kept
  // Ours, against an attacker with many identities in few networks. A block is an IPv4 /24 or IPv6 /48 of public
  // addresses; private ones and this machine's are not counted. 0: any number.
  std::size_t max_routing_peers_per_block = 64;            ///< in the routing table
  std::size_t max_routing_peers_per_block_in_bucket = 10;  ///< of 20
};

/// What is known about a connected peer.
struct PeerInfo {
  PeerId id;                           ///< identity, as the handshake has proven it
  std::vector<Multiaddr> addresses;    ///< where it can be dialled, without /p2p
  std::vector<std::string> protocols;  ///< from identify, as far as this host uses or serves them; empty before
  std::string agent;                   ///< peer-supplied text: quote before logging
  bool connected = false;              ///< false: known from the address book only
  bool outbound = false;               ///< this host has dialled the connection
  std::string security;                ///< of the connection, "/noise" or "/tls/1.0.0"
  Duration round_trip{};               ///< of the connection; zero: not measured
};

/// The direction of a large transfer.
enum class Transfer { to_peer, from_peer };

/// Bytes on the wire of all connections, ended ones included.
struct Traffic {
  std::uint64_t bytes_in = 0;         ///< received
  std::uint64_t bytes_delivered = 0;  ///< sent, and acknowledged by the other machines
};

/// Proves that a peer is a member of the swarm; an error when it is none.
/// \param calls_us  false: we are about to call it, and it has to know that we are a member, too
using MemberCheck = std::function<Task<Result<>>(PeerId peer, bool calls_us, Deadline deadline)>;

/// Serves an inbound stream of a protocol; the host owns the task.
using StreamHandler = std::function<Task<void>(transport::StreamPtr)>;

/// What a host reaches peers through.
struct Connectivity {
  /// Each makes one of the host's transports, of which the first that handles an address dials it.
  std::vector<transport::MakeTransport> transports;
  std::unique_ptr<transport::Resolver> resolver;  ///< looks names of addresses up (DNS)
  PortMappers port_mappers = {};  ///< ways to ask the router for ports, in the order in which they are tried
};

/// A peer: it has a key, listens, dials, and opens streams of protocols to other peers. Loop thread only.
class Host {
 public:
  /// A host that reaches peers over `network` alone, which must outlive it.
  Host(transport::Network& network, KeyPair identity, HostOptions options = {});
  /// A host that reaches peers by these transports. What peers fill of them counts against the host's memory budget.
  Host(Runtime& runtime, Connectivity connectivity, KeyPair identity, HostOptions options = {});
  /// Closes everything at once.
  ~Host();

  /// Binds the listen addresses and starts serving. Errors name the address.
  Result<> start();
  /// Stops listening, sends what was written before, and closes each connection once the peer has ended its side too:
  /// a round trip, or two seconds when one does not answer.
  Task<void> close();

  /// Returns the id of this peer, the hash of its key.
  const PeerId& id() const noexcept;
  /// Returns the key of this peer.
  const KeyPair& identity() const noexcept;
  /// Returns the loop of the host.
  Runtime& runtime() const noexcept;
  /// Returns the addresses that other peers can use, without and with /p2p/ID.
  std::vector<Multiaddr> addresses() const;
  /// Returns the same addresses with /p2p/ID.
  std::vector<Multiaddr> visible_addresses() const;
  /// Returns the options that the host was made with.
  const HostOptions& options() const noexcept;
  /// Whether peers outside can connect to us, as far as it is known. A host that does not listen is private.
  Reachability reachability() const noexcept;
  /// Calls `callback` when reachability() has changed, while the result lives.
  [[nodiscard]] Subscription on_reachability(std::function<void(Reachability)> callback);
  /// Waits until reachability() is known; Errc::timeout when it is not by then.
  Task<Result<Reachability>> wait_for_reachability(Deadline deadline);
  /// The ports that a router forwards to us now.
  std::vector<PortMapping> port_mappings() const;
  /// The relays through which peers reach us now.
  std::vector<HeldReservation> relays() const;
  /// Returns the bytes that all connections have carried.
  Traffic traffic() const;
  /// Returns the budget of what peers may fill of our memory. Connections charge bytes that were received and not yet
  /// read, services charge what they keep for a peer.
  MemoryBudget& memory() const noexcept;
  /// What peers did to it: services report what honest ones hardly do.
  Reputation& reputation() const noexcept;
  /// The caps of its transports: the lowest of each direction.
  transport::BandwidthLimits limits() const;

  /// Connects to a full address (…/p2p/ID), resolving DNS. An existing connection is used as it is. The address is
  /// kept for good: a host that has lost all connections comes back through such addresses.
  Task<Result<PeerId>> connect(Multiaddr address, Deadline deadline);
  /// Connects by id: known addresses, then peer routing. Concurrent calls for one peer share the dial.
  Task<Result<>> connect(PeerId peer, Deadline deadline);
  /// Closes all connections of a peer; its addresses stay known.
  void disconnect(const PeerId& peer);
  /// Keeps the connections of a peer open when idle ones are trimmed (HostOptions::high_water), while the result lives.
  [[nodiscard]] Subscription protect(const PeerId& peer);
  /// Whether there is a connection to the peer.
  bool connected(const PeerId& peer) const;
  /// Calls `callback` when the last connection of a peer has ended though neither side has closed it, while the result
  /// lives: the peer has died, or the way to it. Nothing is told of a peer whose machine is silent until the keepalive
  /// has given it up.
  [[nodiscard]] Subscription on_lost(std::function<void(const PeerId&)> callback);
  /// True when the last dials of all addresses of a peer failed a moment ago, and a machine refused one of them: as far
  /// as can be told, the peer's process has ended. False while it is connected.
  bool refuses(const PeerId& peer) const;
  /// The other end of a connection to the peer, which it cannot invent; nullopt when there is none.
  std::optional<Multiaddr> remote_address(const PeerId& peer) const;

  /// Connects to a peer, and makes sure that a new stream carries so many bytes in one direction. Where a limited relay
  /// lies between, waits for a direct connection to take its place, or opens another circuit. Errc::limit_exceeded:
  /// neither helps.
  Task<Result<>> ensure_capacity(PeerId peer, std::uint64_t bytes, Transfer transfer, Deadline deadline);
  /// Before a large transfer: has the streams to a peer that are opened from now on go over all connections that are
  /// added while they last. A stream that was opened before stays on the one that it began on. Returns whether that
  /// changes anything: to a cohive peer that this side has dialled, on a long path
  /// (HostOptions::max_bundled_connections).
  Task<bool> spread_streams(PeerId peer);
  /// A stream on which `protocol` has been proposed: lazily when identify listed it, else after the peer's answer.
  Task<Result<transport::StreamPtr>> open_stream(PeerId peer, std::string protocol, Deadline deadline);
  /// Serves a protocol. The handler's tasks belong to the host. Peers are told by identify push (coalesced).
  /// Throws std::invalid_argument when the protocol is taken.
  void set_handler(std::string protocol, StreamHandler handler);
  /// Refuses the protocol from now on; streams that are open go on.
  void remove_handler(const std::string& protocol);

  /// Has streaming calls (rpc.hpp) go to members and come from members only, while the result lives; once it
  /// is destroyed, with no peer at all.
  [[nodiscard]] Subscription serve_members_only(MemberCheck check);
  /// Asks that check; every peer passes where there is none.
  Task<Result<>> check_member(PeerId peer, bool calls_us, Deadline deadline);

  /// Connected peers; one peer; everything in the address book.
  std::vector<PeerInfo> peers() const;
  /// Returns what is known about one peer; nullopt: it is neither connected nor in the address book.
  std::optional<PeerInfo> peer(const PeerId& id) const;
  /// Tells whether a peer is connected and says that it is a cohive peer.
  bool runs_cohive(const PeerId& id) const;
  /// Adds addresses that another peer told of (kept for a short time, and bounded).
  void learn_addresses(const PeerId& peer, const std::vector<Multiaddr>& addresses);
  /// The addresses by which `peer` sees us, as reported by identify.
  std::vector<Multiaddr> observed_addresses() const;

  /// The known addresses of a peer, unless dialling them has just failed; else those that Kademlia finds.
  Task<Result<std::vector<Multiaddr>>> find_peer(PeerId peer, Deadline deadline);
  /// Connects to one of many peers that would serve: by its known addresses, then by those that the peer that named it
  /// knows. That is one query where a walk through peer routing takes dozens, so peer routing is left to peers of which
  /// neither knows an address.
  /// \param referrer  the peer that named it; empty for none
  Task<Result<>> connect_via(PeerId peer, PeerId referrer, Deadline deadline);
  /// Fills the routing table: dials the bootstrap addresses in parallel, succeeds when one answered, then looks itself
  /// up. All of them are kept as ways to come back.
  Task<Result<>> bootstrap(std::vector<Multiaddr> addresses, Deadline deadline);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Measures the round trip to a peer (ping 1.0).
Task<Result<Duration>> ping(Host& host, PeerId peer, Deadline deadline);

}  // namespace cohive::p2p
