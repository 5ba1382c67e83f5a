#include "lookup.hpp"

#include <algorithm>

namespace cohive::p2p {
namespace {

constexpr std::size_t kParallel = 10;  // alpha
constexpr Duration kQueryTimeout = 10s;
constexpr Duration kLookupTimeout = 60s;
constexpr std::size_t kMaxQueries = 100;
constexpr std::size_t kMaxDials = 50;  // of these, peers that we are not connected to
constexpr std::size_t kMaxCandidates = 512;
constexpr std::size_t kMaxHeard = 64;        // addresses of the target
constexpr std::size_t kMaxHeardAtOnce = 10;  // of these, from one peer

}  // namespace

Lookup::Lookup(LookupContext& context, PeerId target, Deadline deadline)
    : context_(context),
      target_(target),
      key_(RoutingTable::key_of(target)),
      deadline_(deadline.min(context.self.runtime.after(kLookupTimeout))),
      started_(context.self.runtime.now()),
      changed_(context.self.runtime, "lookup"),
      workers_(context.self.runtime, "lookup") {
  for (const auto& peer : context_.seeds(key_)) add(peer);
  for (std::size_t i = 0; i < kParallel; ++i) workers_.spawn(work(*this), "lookup worker");
  context_.self.metrics.lookups_active.add(1);
}

Lookup::~Lookup() {
  workers_.cancel();
  HostMetrics& metrics = context_.self.metrics;
  metrics.lookups_active.add(-1);
  metrics.lookup_queries.increment(static_cast<double>(asked_.size()));
  if (explores_) return;
  (heard_.empty() ? metrics.lookups_not_found : metrics.lookups_found).increment();
  metrics.lookup_seconds.observe(to_seconds(context_.self.runtime.now() - started_));
}

void Lookup::add(const PeerId& peer) {
  candidates_.emplace(RoutingTable::distance(RoutingTable::key_of(peer), key_), peer);
  if (candidates_.size() > kMaxCandidates) candidates_.erase(std::prev(candidates_.end()));
}

bool Lookup::over() const {
  return workers_.empty() || deadline_.passed(context_.self.runtime.now());
}

Task<std::vector<KnownAddress>> Lookup::next(Deadline deadline) {
  const Deadline limit = deadline.min(deadline_);
  wanted_ = true;
  changed_.notify_all();
  while (fresh_.empty() && !over())
    if (!co_await changed_.wait(limit)) break;
  wanted_ = false;
  co_return std::exchange(fresh_, {});
}

Task<void> Lookup::finish() {
  explores_ = true;
  wanted_ = true;
  changed_.notify_all();
  co_await workers_.join();
}

/// The nearest peer not asked yet among the k nearest. Once enough unknown peers were dialled, only connected ones.
std::optional<PeerId> Lookup::next_peer() {
  if (asked_.size() >= kMaxQueries) return std::nullopt;
  std::size_t seen = 0;
  for (const auto& [gap, peer] : candidates_) {
    if (++seen > RoutingTable::kBucketSize) break;
    if (asked_.contains(peer)) continue;
    if (dials_ >= kMaxDials && !context_.connections.connected(peer)) continue;
    return peer;
  }
  return std::nullopt;
}

Task<void> Lookup::work(Lookup& lookup) {
  const LookupContext& context = lookup.context_;
  for (;;) {
    if (!lookup.wanted_) {
      if (!co_await lookup.changed_.wait(lookup.deadline_)) break;
      continue;
    }
    const auto peer = lookup.next_peer();
    if (!peer) {
      if (lookup.active_ == 0) break;  // no peer can tell us more
      if (!co_await lookup.changed_.wait(lookup.deadline_)) break;
      continue;
    }
    lookup.asked_.insert(*peer);
    if (!context.connections.connected(*peer)) ++lookup.dials_;
    ++lookup.active_;
    const Deadline limit = lookup.deadline_.min(context.self.runtime.after(kQueryTimeout));
    auto reply = co_await context.client.ask(*peer, lookup.target_.binary(), limit);
    --lookup.active_;
    if (reply) {
      context.report(*peer, true);
      lookup.take(*peer, *reply);
    } else {
      lookup.candidates_.erase(RoutingTable::distance(RoutingTable::key_of(*peer), lookup.key_));
      // When the time was cut short by us it says nothing about the peer.
      if (!lookup.deadline_.passed(context.self.runtime.now())) context.report(*peer, false);
    }
    lookup.changed_.notify_all();
  }
  lookup.changed_.notify_all();
}

void Lookup::take(const PeerId& referrer, const proto::KadMessage& reply) {
  for (auto& [peer, addresses, scope] : context_.client.learn(referrer, reply)) {
    if (peer == target_) {
      // One liar must not use up what may be tried.
      if (addresses.size() > kMaxHeardAtOnce) addresses.resize(kMaxHeardAtOnce);
      for (const auto& address : addresses)
        if (heard_.size() < kMaxHeard && heard_.insert(address).second)
          fresh_.push_back({address, KnownAddress::Source::announced, scope, referrer});
    } else if (!addresses.empty() || context_.connections.connected(peer)) {
      add(peer);
    }
  }
}

}  // namespace cohive::p2p
