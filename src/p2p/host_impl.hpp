// What the parts of a host share: the connection table (connections.cpp), dialling (dialling.cpp), identify
// (identify.cpp), routing (routing.cpp, lookup.cpp).
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include "address_book.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/p2p/metrics.hpp"
#include "dialling.hpp"
#include "lookup.hpp"
#include "routing.hpp"
#include "shared_work.hpp"

namespace cohive::p2p {

inline const std::string kIdentifyProtocol = "/ipfs/id/1.0.0";
inline const std::string kIdentifyPushProtocol = "/ipfs/id/push/1.0.0";
inline const std::string kPingProtocol = "/ipfs/ping/1.0.0";

/// What peers get to take what they were sent and to end their side of a connection.
inline constexpr Duration kFarewell = 2s;

/// Which addresses a peer may be reached by: those known now, or also those that a lookup would find.
enum class Reach { in_hand, peer_routing };

/// One connection and the tasks that serve its streams.
struct Link {
  Link(Runtime& runtime, transport::ConnectionPtr c)
      : connection(std::move(c)), tasks(runtime, "streams"), opened(runtime.now()), used(runtime.now()) {}
  bool idle() const {
    const auto stats = connection->stats();
    return stats.streams_in + stats.streams_out == 0;
  }
  transport::ConnectionPtr connection;
  TaskGroup tasks;  // goes before the connection
  transport::ConnectionStats counted;
  TimePoint opened;
  TimePoint used;  ///< when a stream was opened last
  std::string ip;  ///< counted for it; empty when not
};
using LinkPtr = std::shared_ptr<Link>;

using Protocols = std::set<std::string>;

/// A connected peer.
struct Peer {
  bool serves(const std::string& protocol) const { return protocols && protocols->contains(protocol); }

  std::vector<LinkPtr> links;  // newest last
  std::shared_ptr<const Protocols> protocols;
  std::string agent;
  std::optional<Multiaddr> observed;  // how it sees us
  bool identified = false;
  double pushes_left = 0;  ///< identify pushes it may send now; refilled with time
  TimePoint pushes_counted{};
};

struct Host::Impl {
  Impl(Host& facade, transport::Network& net, KeyPair key, HostOptions opts);

  // connections.cpp
  Result<> listen();
  static Task<void> accept_loop(Impl& self, transport::Listener& listener);
  static Task<void> welcome(Impl& self, std::unique_ptr<transport::RawConnection> raw, std::string ip);
  Result<> adopt(transport::ConnectionPtr connection, std::string ip = {});
  bool has_room(bool inbound) const;
  bool make_room(bool inbound);
  LinkPtr longest_idle() const;
  static Task<void> run_link(Impl& self, LinkPtr link);
  static Task<void> serve_stream(Impl& self, transport::StreamPtr stream);
  static Task<void> close_surplus(Impl& self);
  bool may_close(const Link& link, const Link& kept) const;
  const PeerId& dialler(const Link& link) const;
  bool take_out(const LinkPtr& link);
  void drop_link(const LinkPtr& link, const Error& reason);
  void let_go(const LinkPtr& link, Error reason, Deadline deadline);
  static Task<void> finish_link(Impl& self, LinkPtr link, Error reason, Deadline deadline);
  LinkPtr link_to(const PeerId& peer) const;
  Task<Result<transport::StreamPtr>> open_stream(PeerId peer, std::string protocol, Deadline deadline, Reach reach);
  void count_bytes(Link& link);
  static void add_traffic(Traffic& sum, const Link& link);
  static Task<void> measure(Impl& self);

  // dialling.cpp
  Task<Result<>> connect(PeerId peer, Deadline deadline, Reach reach);
  static Task<Result<PeerId>> connect_to(Impl& self, Multiaddr address);
  static Task<Result<>> search(Impl& self, PeerId peer);
  static Task<Result<>> dial_book(Impl& self, PeerId peer);
  Task<Result<>> dial_one(PeerId peer, Multiaddr address, Deadline deadline);
  static Task<Result<>> dial_now(Impl& self, PeerId peer, Multiaddr address);
  Task<std::vector<KnownAddress>> resolve(std::vector<KnownAddress> addresses, PeerId peer, Deadline deadline);

  // identify.cpp
  static Task<void> identify_peer(Impl& self, LinkPtr link);
  Task<void> serve_identify(transport::StreamPtr stream);
  Task<void> receive_push(transport::StreamPtr stream);
  static Task<void> push_to(Impl& self, PeerId peer);
  static Task<void> push_later(Impl& self);
  void schedule_push();
  std::string identify_message(const Multiaddr& remote);
  const std::string& signed_record(const std::vector<Multiaddr>& own);
  Result<> learn_identify(const PeerId& peer, const Multiaddr& remote, ByteView message);
  void warn_if_hidden(const Multiaddr& observed, const Multiaddr& teller);
  bool may_push(Peer& peer) const;
  std::shared_ptr<const Protocols> shared(Protocols protocols);
  std::vector<Multiaddr> addresses() const;

  // host.cpp
  static Task<Result<std::vector<Multiaddr>>> find(Impl& self, PeerId peer);
  static Task<void> rejoin(Impl& self);
  static Task<void> wind_up(Impl& self, LinkPtr link, Deadline deadline);
  static Task<void> keep_in_touch(Impl& self);
  void end_waits();
  void notify(const PeerId& peer, bool connected);

  Host& host;
  transport::Network& network;
  Runtime& runtime;
  KeyPair identity;
  PeerId id;
  HostOptions options;
  HostMetrics metrics;
  AddressBook book;
  std::string record;  ///< our signed peer record for these addresses
  std::vector<Multiaddr> record_addresses;
  DialBackoff backoff;
  std::vector<std::unique_ptr<transport::Listener>> listeners;
  /// Open streams of services that are limited, per peer.
  std::map<std::pair<PeerId, std::string>, std::size_t> service_streams;
  std::unordered_map<PeerId, Peer> peers;
  std::map<std::string, StreamHandler> handlers;
  std::vector<std::weak_ptr<const Protocols>> protocol_sets;  ///< most peers serve the same
  std::vector<std::weak_ptr<PeerEvent>> subscribers;
  std::size_t link_count = 0;
  Traffic past_traffic;  ///< of connections that have ended
  std::size_t pending_inbound = 0;
  /// Connections that wait for their handshake, and inbound ones that are open, by network.
  std::unordered_map<std::string, std::size_t> pending_per_ip, links_per_ip;
  std::set<PeerId> surplus;  ///< peers with several connections
  bool closing_surplus = false;
  bool push_scheduled = false;
  bool warned_hidden = false;
  bool closed = false;
  Routing routing;
  Semaphore dial_slots, lookup_slots;
  std::vector<DialRace*> races;
  // What callers of this host wait for; each uses those above it.
  SharedWork<std::pair<PeerId, Multiaddr>, void> address_dials;
  SharedWork<PeerId, void> book_dials;
  SharedWork<PeerId, void> searches;
  SharedWork<PeerId, std::vector<Multiaddr>> finds;
  SharedWork<Multiaddr, PeerId> given_dials;
  TaskGroup tasks;
  TaskGroup farewells;  ///< connections that are out of the table and wait for the peer's end
};

}  // namespace cohive::p2p
