#include "lookup.hpp"

#include <algorithm>

#include "host_impl.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kParallel = 10;  // alpha
constexpr Duration kQueryTimeout = 10s;
constexpr Duration kLookupTimeout = 60s;
constexpr std::size_t kMaxQueries = 100;
constexpr std::size_t kMaxDials = 50;  // of these, peers that we are not connected to
constexpr std::size_t kMaxCandidates = 512;
constexpr std::size_t kMaxTold = 64;        // addresses of the target
constexpr std::size_t kMaxToldAtOnce = 10;  // of these, by one peer

}  // namespace

Lookup::Lookup(Routing& routing, Host::Impl& host, PeerId target, Deadline deadline)
    : routing_(routing),
      host_(host),
      target_(target),
      key_(Routing::key_of(target)),
      deadline_(deadline.min(host.runtime.after(kLookupTimeout))),
      started_(host.runtime.now()),
      changed_(host.runtime, "lookup"),
      workers_(host.runtime, "lookup") {
  for (const auto& peer : routing_.seeds(key_)) add(peer);
  for (std::size_t i = 0; i < kParallel; ++i) workers_.spawn(work(*this), "lookup worker");
  host_.metrics.lookups_active.add(1);
}

Lookup::~Lookup() {
  workers_.cancel();
  host_.metrics.lookups_active.add(-1);
  host_.metrics.lookup_queries.increment(static_cast<double>(asked_.size()));
  if (target_ == host_.id) return;
  (told_.empty() ? host_.metrics.lookups_not_found : host_.metrics.lookups_found).increment();
  host_.metrics.lookup_seconds.observe(to_seconds(host_.runtime.now() - started_));
}

void Lookup::add(const PeerId& peer) {
  candidates_.emplace(Routing::distance(Routing::key_of(peer), key_), peer);
  if (candidates_.size() > kMaxCandidates) candidates_.erase(std::prev(candidates_.end()));
}

bool Lookup::over() const {
  return workers_.empty() || deadline_.passed(host_.runtime.now());
}

Task<std::vector<KnownAddress>> Lookup::next(Deadline deadline) {
  const Deadline limit = deadline.min(deadline_);
  wanted_ = true;
  changed_.notify_all();
  while (fresh_.empty() && !over() && co_await changed_.wait(limit)) continue;
  wanted_ = false;
  co_return std::exchange(fresh_, {});
}

Task<void> Lookup::finish() {
  wanted_ = true;
  changed_.notify_all();
  co_await workers_.join();
}

/// The nearest peer not asked yet among the k nearest. Once enough strangers were dialled, only connected ones.
std::optional<PeerId> Lookup::next_peer() {
  if (asked_.size() >= kMaxQueries) return std::nullopt;
  std::size_t seen = 0;
  for (const auto& [gap, peer] : candidates_) {
    if (++seen > Routing::kBucketSize) break;
    if (asked_.contains(peer)) continue;
    if (!host_.link_to(peer) && dials_ >= kMaxDials) continue;
    return peer;
  }
  return std::nullopt;
}

Task<void> Lookup::work(Lookup& self) {
  for (;;) {
    if (!self.wanted_) {
      if (!co_await self.changed_.wait(self.deadline_)) break;
      continue;
    }
    const auto peer = self.next_peer();
    if (!peer) {
      if (self.active_ == 0) break;  // nobody can tell us more
      if (!co_await self.changed_.wait(self.deadline_)) break;
      continue;
    }
    self.asked_.insert(*peer);
    if (!self.host_.link_to(*peer)) ++self.dials_;
    ++self.active_;
    const Deadline limit = self.deadline_.min(self.host_.runtime.after(kQueryTimeout));
    auto reply = co_await self.routing_.ask(*peer, self.target_.binary(), limit);
    --self.active_;
    if (reply) {
      self.routing_.insert(*peer);
      self.take(*peer, *reply);
    } else {
      self.candidates_.erase(Routing::distance(Routing::key_of(*peer), self.key_));
      // When the time was cut short by us it says nothing about the peer.
      if (!self.deadline_.passed(self.host_.runtime.now())) self.routing_.remove(*peer);
    }
    self.changed_.notify_all();
  }
  self.changed_.notify_all();
}

void Lookup::take(const PeerId& teller, const proto::KadMessage& reply) {
  for (auto& [peer, addresses, scope] : routing_.learn(teller, reply)) {
    if (peer == target_) {
      // One liar must not use up what may be tried.
      if (addresses.size() > kMaxToldAtOnce) addresses.resize(kMaxToldAtOnce);
      for (const auto& address : addresses)
        if (told_.size() < kMaxTold && told_.insert(address).second)
          fresh_.push_back({address, KnownAddress::Source::told, scope});
    } else if (!addresses.empty() || host_.link_to(peer)) {
      add(peer);
    }
  }
}

}  // namespace cohive::p2p
