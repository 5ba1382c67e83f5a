// A walk through the peer routing of other peers towards one PeerID, asking ever nearer peers.
// Source: docs/wire/libp2p.md, section 9.4.
//
// Every answer comes from an unknown peer, so a walk is bounded: queries, dials, candidates, and addresses of the
// target.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "kad_client.hpp"
#include "routing_table.hpp"

namespace cohive::p2p {

/// What a walk works with. It tells how the peers that it asked behave.
struct LookupContext {
  Self& self;
  ConnectionTable& connections;
  KadClient& client;
  std::function<std::vector<PeerId>(const RoutingTable::Key&)> seeds;  ///< the peers to ask first
  std::function<void(const PeerId&, bool answered)> report;
};

/// Lives in the coroutine that wants it, and walks only while that one waits.
class Lookup {
 public:
  Lookup(LookupContext& context, PeerId target, Deadline deadline);
  ~Lookup();
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  /// Addresses of the target that were not known before; empty when the walk or the time is over.
  Task<std::vector<KnownAddress>> next(Deadline deadline);
  /// Walks until no nearer peer is left.
  Task<void> finish();

 private:
  static Task<void> work(Lookup& lookup);
  std::optional<PeerId> next_peer();
  bool over() const;
  void take(const PeerId& referrer, const proto::KadMessage& reply);
  void add(const PeerId& peer);

  LookupContext& context_;
  PeerId target_;
  RoutingTable::Key key_;
  Deadline deadline_;
  TimePoint started_;
  Condition changed_;
  std::map<RoutingTable::Key, PeerId> candidates_;  // by distance; every peer heard of and not found wanting
  std::set<PeerId> asked_;
  std::set<Multiaddr> heard_;        // addresses of the target
  std::vector<KnownAddress> fresh_;  // of these, the ones not handed out yet
  std::size_t active_ = 0;
  std::size_t dials_ = 0;
  bool wanted_ = false;
  bool explores_ = false;  // the target is not what is wanted
  Nursery workers_;
};

}  // namespace cohive::p2p
