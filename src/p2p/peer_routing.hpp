// Kademlia peer routing, as hivemind's daemon needs it: PeerID -> addresses. Values and providers are not served.
//   client -> FIND_NODE(key);  server -> the 20 nearest peers it knows, and the target itself whenever it knows it.
// Source: docs/wire/libp2p.md, section 9; docs/wire/hivemind.md, section 0.1.
#pragma once

#include "identify.hpp"
#include "kad_client.hpp"
#include "lookup.hpp"
#include "routing_table.hpp"

namespace cohive::p2p {

class PeerRouting {
 public:
  PeerRouting(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, Dialler& dialler,
              Identify& identify, const OwnAddresses& own);

  /// Begins to look ourselves up now and then, and to come back when all connections are lost.
  void start();
  /// Drops all lookups; their callers get `reason`.
  void close(const Error& reason);

  /// Connects by id: by known addresses, then by those that a lookup finds. Concurrent calls for one peer share it.
  Task<Result<>> connect(PeerId peer, Deadline deadline);
  /// See Host::connect_via.
  Task<Result<>> connect_via(PeerId peer, PeerId referrer, Deadline deadline);
  /// Opens a stream, connecting first.
  Task<Result<transport::StreamPtr>> open_stream(PeerId peer, std::string protocol, Deadline deadline);
  /// See Host::find_peer.
  Task<Result<std::vector<Multiaddr>>> find(PeerId peer, Deadline deadline);
  /// Walks towards ourselves in the background, so that the peers near us know us.
  void look_up_self();
  /// Walks towards a random place, and so connects to peers that were not met before.
  Task<void> refresh_random_bucket();
  std::size_t table_size() const noexcept { return routes_.size(); }

 private:
  Task<void> serve(transport::StreamPtr stream);
  std::optional<std::string> reply_to(ByteView request, const transport::Stream& stream) const;
  proto::KadMessage answer(const proto::KadMessage& request, const PeerId& asker, Multiaddr::Scope asker_scope) const;
  std::vector<Multiaddr> tellable(const PeerId& peer, Multiaddr::Scope asker_scope) const;
  void consider(const PeerId& peer);
  static Task<void> check(PeerRouting& routing, PeerId peer);
  void insert(const PeerId& peer);
  std::vector<PeerId> seeds(const RoutingTable::Key& key) const;
  static Task<void> dial_known(PeerRouting& routing, PeerId peer, Deadline deadline, struct KnownDials& dials);
  static Task<Result<>> search(PeerRouting& routing, PeerId peer);
  static Task<void> feed(PeerRouting& routing, DialRace& race, Deadline deadline);
  static Task<Result<std::vector<Multiaddr>>> look_up(PeerRouting& routing, PeerId peer);
  static Task<void> walk_to_self(PeerRouting& routing);
  static Task<void> rejoin(PeerRouting& routing);
  static Task<void> keep_in_touch(PeerRouting& routing);

  Self& self_;
  ConnectionTable& table_;
  AddressBook& book_;
  Dialler& dialler_;
  const OwnAddresses& own_;
  RoutingTable routes_;
  KadClient client_;
  LookupContext context_;
  Subscription described_;
  Semaphore lookup_slots_;
  std::set<PeerId> checking_;
  enum class Walk { none, under_way, once_more } walk_ = Walk::none;  ///< towards ourselves
  // What callers wait for.
  SharedWork<PeerId, void> searches_;
  SharedWork<PeerId, std::vector<Multiaddr>> finds_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
