#include "traversal.hpp"

#include <algorithm>

namespace cohive::dht {
namespace {

// How many nodes beyond the result are remembered, as a multiple of it.
constexpr std::size_t kReserve = 3;
// Calls for one query: several times what a swarm of a million nodes takes, so that only a chain of invented
// neighbours reaches it.
constexpr std::size_t kMaxCallsPerQuery = 200;
constexpr std::size_t kNearOfOneBlock = 2;
// Of the nodes that one node names; each costs a dial of several addresses. In a swarm that loses half of its nodes at
// once honest ones name as many.
constexpr std::size_t kMaxFailed = 8;

}  // namespace

bool Traversal::Named::invents() const {
  return failed >= kMaxFailed && failed > 2 * answered;
}

Traversal::Traversal(Runtime& runtime, DhtId self, TraversalOptions options, Guide& guide)
    : runtime_(runtime),
      self_(self),
      options_(options),
      guide_(guide),
      changed_(runtime, "replies of a DHT search"),
      all_finished_(runtime, "a DHT search") {
  options_.beam_size = std::max<std::size_t>(options_.beam_size, 1);
  options_.result_size = std::max(options_.result_size, options_.beam_size);
  options_.queries_per_call = std::max<std::size_t>(options_.queries_per_call, 1);
}

void Traversal::add_query(const DhtId& id, const std::vector<NodeAddress>& initial) {
  Query& query = queries_.emplace_back();
  query.id = id;
  query.index = queries_.size() - 1;
  query.settling = options_.quorum > 0;
  query.beam.reserve(initial.size() + 1);
  for (const auto& node : initial) learn(query, {node, {}}, 1, false);
}

void Traversal::learn(Query& query, const Contact& contact, std::size_t hops, bool asked) const {
  const NodeAddress& node = contact.node;
  if (node.id == self_) return;
  if (const auto by = named_.find(contact.teller); !asked && by != named_.end() && by->second.invents()) return;
  const DhtId distance = node.id.distance(query.id);
  auto& beam = query.beam;
  const auto at =
      std::lower_bound(beam.begin(), beam.end(), distance,
                       [](const Candidate& candidate, const DhtId& value) { return candidate.distance < value; });
  if (at != beam.end() && at->distance == distance) {
    at->asked |= asked;
    return;
  }
  const std::size_t limit = options_.result_size * (1 + kReserve);
  if (at == beam.end() && beam.size() >= limit) return;
  // A peer has one place, under however many node ids it is announced: the nearest until it is asked, and then that.
  if (!asked && was_asked(node.peer, query)) return;
  const auto twin =
      std::find_if(beam.begin(), beam.end(), [&](const Candidate& one) { return one.node.peer == node.peer; });
  if (twin < at) {
    twin->asked |= asked;
    return;
  }
  const auto place = at - beam.begin();
  if (twin != beam.end()) beam.erase(twin);
  beam.insert(beam.begin() + place, {distance, node, contact.teller, hops, asked, false});
  if (beam.size() <= limit) return;
  // Who has answered exists, whatever is said to be nearer.
  const auto answered = [](const Candidate& candidate) { return candidate.answered; };
  const auto farthest = std::find_if_not(beam.rbegin(), beam.rend(), answered);
  if (farthest != beam.rend()) beam.erase(std::next(farthest).base());
}

bool Traversal::was_asked(const PeerId& peer, const Query& query) const {
  const auto found = asked_.find(peer);
  return found != asked_.end() && found->second[query.index];
}

/// The place of a node in the beam, counted without those that are crowded out.
std::size_t Traversal::nth(const Query& query, std::size_t number) {
  std::size_t at = 0;
  for (; at < query.beam.size(); ++at)
    if (!query.beam[at].crowded && number-- == 0) break;
  return at;
}

/// Nodes of a block that has its share of the nearest ones make room for farther ones, unless there are hardly others.
void Traversal::find_crowds(Query& query) {
  std::unordered_map<std::uint64_t, std::size_t> counted;
  std::size_t answered = 0, largest = 0;
  for (Candidate& candidate : query.beam) {
    if (!candidate.answered) continue;
    ++answered;
    const std::size_t nearer = candidate.block ? counted[*candidate.block]++ : 0;
    largest = std::max(largest, nearer + 1);
    candidate.crowded = nearer >= kNearOfOneBlock;
  }
  if (answered - largest < kNearOfOneBlock)
    for (Candidate& candidate : query.beam) candidate.crowded = false;
}

/// How many of the nearest nodes are the quorum, without us.
std::size_t Traversal::quorum_of(const Query& query) const {
  const auto& beam = query.beam;
  const std::size_t others = options_.quorum - 1;
  const std::size_t last = nth(query, others);
  const bool with_us = options_.in_quorum && (last == beam.size() || self_.distance(query.id) < beam[last].distance);
  const auto near = static_cast<std::size_t>(std::ranges::count(beam, false, &Candidate::crowded));
  return std::min(near, std::max<std::size_t>(with_us ? others : options_.quorum, 1));
}

/// Ends the search, or goes on to the rest of the beam, once the quorum has answered.
void Traversal::settle(Query& query) {
  if (!query.settling || query.finished) return;
  const std::size_t size = quorum_of(query);
  std::vector<DhtId> quorum;
  for (const Candidate& candidate : query.beam) {
    if (quorum.size() == size) break;
    if (candidate.crowded) continue;
    if (!candidate.answered) return;
    quorum.push_back(candidate.node.id);
  }
  if (size < options_.quorum && options_.in_quorum) quorum.push_back(self_);
  if (size > 0 && guide_.agree(query.id, quorum)) return finish(query);
  query.settling = false;
  update_next(query);
}

/// To be called after every change of a query.
void Traversal::update_next(Query& query) {
  query.next = kNone;
  if (query.calls >= kMaxCallsPerQuery) return;
  const std::size_t size = query.settling ? quorum_of(query) : options_.beam_size;
  for (std::size_t i = 0, near = 0; i < query.beam.size() && near < size && query.next == kNone; ++i) {
    if (query.beam[i].crowded) continue;
    ++near;
    if (!query.beam[i].asked) query.next = i;
  }
}

/// Those that fell out of the beam were far away: they count as one hop.
std::size_t Traversal::hops_to(const Query& query, const PeerId& peer) {
  const auto& beam = query.beam;
  const auto at = std::find_if(beam.begin(), beam.end(), [&](const Candidate& one) { return one.node.peer == peer; });
  return at == beam.end() ? 1 : at->hops;
}

void Traversal::finish(Query& query) {
  if (std::exchange(query.finished, true)) return;
  std::erase(unfinished_, &query);
  std::vector<NodeAddress> nearest;
  nearest.reserve(std::min(options_.result_size, query.beam.size()));
  for (const bool crowded : {false, true})  // in a swarm of one block there are no others
    for (const Candidate& candidate : query.beam)
      if (candidate.crowded == crowded && nearest.size() < options_.result_size) nearest.push_back(candidate.node);
  const std::size_t hops = query.stopped_at || query.beam.empty() ? query.stopped_at : query.beam.front().hops;
  guide_.found(query.id, std::move(nearest), {query.calls, hops, cut_off_});
  if (unfinished_.empty()) all_finished_.set();
}

/// Picks the query with the fewest workers on it and, among those, the nearest candidate; then the other queries that
/// the same call may carry: those nearest to the node that have not asked it yet.
bool Traversal::choose(Contact& contact, std::vector<Query*>& batch) {
  Query* best = nullptr;
  for (std::size_t i = 0; i < unfinished_.size();) {
    Query* query = unfinished_[i];
    if (query->next == kNone && query->active == 0) {
      settle(*query);
      if (query->next == kNone) finish(*query);
      if (query->finished) continue;  // it left the list
    }
    ++i;
    if (query->next == kNone) continue;
    if (!best || query->active < best->active ||
        (query->active == best->active && query->beam[query->next].distance < best->beam[best->next].distance))
      best = query;
  }
  if (!best) return false;
  const Candidate& chosen = best->beam[best->next];
  contact = {chosen.node, chosen.teller};
  const NodeAddress& node = contact.node;
  const std::size_t best_hops = chosen.hops;
  batch.assign(1, best);
  auto& asked = asked_[node.peer];
  asked.resize(queries_.size());
  if (options_.queries_per_call > 1) {
    std::vector<std::pair<DhtId, Query*>> others;
    for (Query* query : unfinished_)
      if (query != best && query->calls < kMaxCallsPerQuery && !asked[query->index])
        others.emplace_back(query->id.distance(node.id), query);
    const std::size_t count = std::min(options_.queries_per_call - 1, others.size());
    std::partial_sort(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(count), others.end(),
                      [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < count; ++i) batch.push_back(others[i].second);
  }
  for (Query* query : batch) {
    asked[query->index] = true;
    ++query->calls;
    ++query->active;
    learn(*query, contact, best_hops, true);
    update_next(*query);
  }
  return true;
}

void Traversal::apply(Query& query, const PeerId& peer, TraversalStep* step) {
  --query.active;
  if (query.finished) return;
  const auto at = std::ranges::find(query.beam, peer, [](const Candidate& one) { return one.node.peer; });
  if (at != query.beam.end() && !at->teller.empty()) {
    const PeerId teller = at->teller;
    Named& named = named_[teller];
    ++(step ? named.answered : named.failed);
    if (named.invents())
      std::erase_if(query.beam, [&](const Candidate& one) { return one.teller == teller && !one.asked; });
  }
  if (!step) {
    std::erase_if(query.beam, [&](const Candidate& candidate) { return candidate.node.peer == peer; });
  } else {
    const std::size_t hops = hops_to(query, peer);
    for (Candidate& candidate : query.beam) {
      if (candidate.node.peer != peer) continue;
      candidate.answered = true;
      candidate.block = guide_.block_of(peer);
    }
    for (const auto& neighbour : step->nearest) learn(query, {neighbour, peer}, hops + 1, false);
    find_crowds(query);
    if (step->stop) {
      query.stopped_at = hops;
      return finish(query);
    }
  }
  update_next(query);
  settle(query);
}

Task<void> Traversal::work(Traversal& self) {
  while (!self.unfinished_.empty()) {
    Contact contact;
    std::vector<Query*> batch;
    if (!self.choose(contact, batch)) {
      if (!self.unfinished_.empty()) co_await self.changed_.wait();  // other workers are on them
      continue;
    }
    std::vector<DhtId> ids;
    for (const Query* query : batch) ids.push_back(query->id);
    auto steps = co_await self.guide_.ask(contact, std::move(ids));
    if (steps && steps->size() != batch.size()) steps.reset();
    for (std::size_t i = 0; i < batch.size(); ++i)
      self.apply(*batch[i], contact.node.peer, steps ? &(*steps)[i] : nullptr);
    self.changed_.notify_all();
  }
}

Task<bool> Traversal::run() {
  for (Query& query : queries_) {
    unfinished_.push_back(&query);
    update_next(query);
  }
  if (queries_.empty()) co_return true;
  // Calls that are still under way when the last query is answered are dropped: a silent node delays nobody.
  Nursery workers(runtime_, "dht search");
  for (std::size_t i = 0; i < std::max<std::size_t>(options_.num_workers, 1); ++i)
    workers.spawn(work(*this), "dht search worker");
  const bool in_time = co_await all_finished_.wait(options_.deadline);
  workers.cancel();
  cut_off_ = !in_time;
  while (!unfinished_.empty()) finish(*unfinished_.front());
  co_return in_time;
}

}  // namespace cohive::dht
