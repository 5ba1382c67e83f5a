// A walk through the peer routing of others towards one PeerID, asking ever nearer peers.
// Source: libp2p wire spec, section 9.4.
//
// Every answer comes from a stranger, so a walk is bounded: queries, dials, candidates, and addresses of the target.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "address_book.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "routing.hpp"

namespace cohive::p2p {

/// Lives in the coroutine that wants it, and walks only while that one waits.
class Lookup {
 public:
  Lookup(Routing& routing, Host::Impl& host, PeerId target, Deadline deadline);
  ~Lookup();
  Lookup(const Lookup&) = delete;
  Lookup& operator=(const Lookup&) = delete;

  /// Addresses of the target that were not known before; empty when the walk or the time is over.
  Task<std::vector<KnownAddress>> next(Deadline deadline);
  /// Walks until nobody nearer is left.
  Task<void> finish();

 private:
  static Task<void> work(Lookup& self);
  std::optional<PeerId> next_peer();
  bool over() const;
  void take(const PeerId& teller, const proto::KadMessage& reply);
  void add(const PeerId& peer);

  Routing& routing_;
  Host::Impl& host_;
  PeerId target_;
  Routing::Key key_;
  Deadline deadline_;
  TimePoint started_;
  Condition changed_;
  std::map<Routing::Key, PeerId> candidates_;  // by distance; everyone heard of and not found wanting
  std::set<PeerId> asked_;
  std::set<Multiaddr> told_;         // addresses of the target
  std::vector<KnownAddress> fresh_;  // of these, those not handed out yet
  std::size_t active_ = 0;
  std::size_t dials_ = 0;
  bool wanted_ = false;
  Nursery workers_;
};

}  // namespace cohive::p2p
