#include "traversal.hpp"

#include <algorithm>

#include "crowding.hpp"

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
// For each part of a path to a crowded key. Outside the region: as long as searches are in a swarm of a million nodes;
// inside there are two nodes in a part, without the crowd.
constexpr std::size_t kCallsOfLane = 6;

}  // namespace

bool Traversal::Named::is_fabricating() const {
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

void Traversal::add_query(const DhtId& id, const std::vector<NodeEntry>& initial) {
  Query& query = queries_.emplace_back();
  query.id = id;
  query.index = queries_.size() - 1;
  query.settling = options_.quorum > 0;
  query.beam.reserve(initial.size() + 1);
  query.seeds = initial;
  learn_seeds(query);
}

void Traversal::learn_seeds(Query& query) const {
  for (std::size_t i = 0; i < query.seeds.size(); ++i)
    learn(query, {query.seeds[i], {}}, 1, static_cast<Paths>(1u << i % kPaths), false);
}

void Traversal::learn(Query& query, const Contact& contact, std::size_t hops, Paths paths, bool asked) const {
  const NodeEntry& node = contact.node;
  if (node.id == self_) return;
  if (const auto by = named_.find(contact.referrer); !asked && by != named_.end() && by->second.is_fabricating())
    return;
  const DhtId distance = node.id.distance(query.id);
  auto& beam = query.beam;
  const auto at =
      std::lower_bound(beam.begin(), beam.end(), distance,
                       [](const Candidate& candidate, const DhtId& value) { return candidate.distance < value; });
  if (at != beam.end() && at->distance == distance) {
    if (!at->asked) at->paths |= paths;
    at->asked |= asked;
    return;
  }
  // A peer has one place, under however many node ids it is announced: the nearest until it is asked, and then that.
  if (!asked && was_asked(node.peer, query)) return;
  const auto sibling =
      std::find_if(beam.begin(), beam.end(), [&](const Candidate& one) { return one.node.peer == node.peer; });
  if (sibling < at) {
    sibling->asked |= asked;
    return;
  }
  const auto place = at - beam.begin();
  if (sibling != beam.end()) beam.erase(sibling);
  beam.insert(beam.begin() + place, {distance, node, contact.referrer, hops, paths, asked, false});
  if (beam.size() > options_.result_size * (1 + kReserve) * (query.wide ? 2 : 1)) drop_farthest(query);
}

/// Makes room in the lane with most nodes still to ask. Nodes that have answered stay: nearer ones may be invented.
void Traversal::drop_farthest(Query& query) const {
  std::array<std::size_t, kLanes> waiting{};
  for (const Candidate& candidate : query.beam)
    for (std::size_t path = 0; path < kPaths; ++path)
      if (!candidate.asked && candidate.paths >> path & 1) ++waiting[lane_of(query, candidate, path)];
  const auto largest = static_cast<std::size_t>(std::ranges::max_element(waiting) - waiting.begin());
  const std::size_t path = largest / (kParts + 1);
  auto& beam = query.beam;
  auto farthest = std::find_if(beam.rbegin(), beam.rend(), [&](const Candidate& one) {
    return !one.asked && one.paths >> path & 1 && lane_of(query, one, path) == largest;
  });
  if (farthest == beam.rend()) farthest = std::ranges::find(beam.rbegin(), beam.rend(), false, &Candidate::answered);
  if (farthest != beam.rend()) beam.erase(std::next(farthest).base());
}

/// Of the region in which the wanted nodes would be without a crowd; kParts: outside it.
std::size_t Traversal::part_of(const Candidate& candidate) const {
  const double nodes = options_.swarm_size * share_of_space(candidate.distance);
  const double part = nodes / static_cast<double>(2 * options_.result_size) * static_cast<double>(kParts);
  return part >= static_cast<double>(kParts) ? kParts : static_cast<std::size_t>(part);
}

std::size_t Traversal::lane_of(const Query& query, const Candidate& candidate, std::size_t path) const {
  return path * (kParts + 1) + (query.wide ? part_of(candidate) : 0);
}

/// A node that is asked is on one path from then on: of the paths that named it, the one with the fewest calls.
void Traversal::set_path(Query& query, const PeerId& peer) {
  const auto at = std::ranges::find(query.beam, peer, [](const Candidate& one) { return one.node.peer; });
  if (at == query.beam.end()) return;
  std::size_t chosen = kPaths;
  const auto calls = [&](std::size_t path) { return query.lane_calls[lane_of(query, *at, path)]; };
  for (std::size_t path = 0; path < kPaths; ++path)
    if ((at->paths == 0 || at->paths >> path & 1) && (chosen == kPaths || calls(path) < calls(chosen))) chosen = path;
  at->paths = static_cast<Paths>(1u << chosen);
  ++query.lane_calls[lane_of(query, *at, chosen)];
}

bool Traversal::was_asked(const PeerId& peer, const Query& query) const {
  const auto found = asked_.find(peer);
  return found != asked_.end() && found->second[query.index];
}

/// The place of a node in the beam, counted without nodes that are crowded out.
std::size_t Traversal::nth(const Query& query, std::size_t number) {
  std::size_t at = 0;
  for (; at < query.beam.size(); ++at)
    if (!query.beam[at].crowded && number-- == 0) break;
  return at;
}

/// Nodes of a block that has its share of the nearest ones make room for farther ones, unless there are hardly any.
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
void Traversal::finish_query(Query& query) {
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
  if (widen(query)) return;
  if (size > 0 && guide_.agree(query.id, quorum)) return finish(query);
  query.settling = false;
  update_next(query);
}

/// Where a crowd is found, the search begins anew with all of the region. True when it does.
bool Traversal::widen(Query& query) {
  if (query.wide || options_.swarm_size <= 0) return false;
  std::size_t count = 0;
  for (const Candidate& candidate : query.beam) {
    if (!candidate.answered || candidate.crowded) continue;
    if (!is_crowd(++count, options_.swarm_size * share_of_space(candidate.distance))) continue;
    query.wide = true;
    query.settling = false;
    query.lane_calls = {};
    learn_seeds(query);
    update_next(query);
    return true;
  }
  return false;
}

/// The nearest node of the lane that has had the fewest calls.
void Traversal::update_next_of_paths(Query& query) const {
  std::size_t fewest = kNone;
  std::array<bool, kLanes> seen{};
  for (std::size_t i = 0; i < query.beam.size(); ++i) {
    const Candidate& candidate = query.beam[i];
    if (candidate.asked || candidate.crowded) continue;
    for (std::size_t path = 0; path < kPaths; ++path) {
      const std::size_t lane = lane_of(query, candidate, path), calls = query.lane_calls[lane];
      if (!(candidate.paths >> path & 1) || std::exchange(seen[lane], true)) continue;
      if (calls >= std::min(fewest, kCallsOfLane)) continue;
      fewest = calls;
      query.next = i;
    }
  }
}

/// To be called after every change of a query.
void Traversal::update_next(Query& query) {
  query.next = kNone;
  if (query.calls >= kMaxCallsPerQuery) return;
  if (query.wide) return update_next_of_paths(query);
  const std::size_t size = query.settling ? quorum_of(query) : options_.beam_size;
  for (std::size_t i = 0, near = 0; i < query.beam.size() && near < size && query.next == kNone; ++i) {
    if (query.beam[i].crowded) continue;
    ++near;
    if (!query.beam[i].asked) query.next = i;
  }
}

/// Nodes that fell out of the beam were far away: they count as one hop.
std::size_t Traversal::hops_to(const Query& query, const PeerId& peer) {
  const auto& beam = query.beam;
  const auto at = std::find_if(beam.begin(), beam.end(), [&](const Candidate& one) { return one.node.peer == peer; });
  return at == beam.end() ? 1 : at->hops;
}

std::vector<NodeEntry> Traversal::result_of(const Query& query) const {
  std::vector<NodeEntry> nearest;
  nearest.reserve(std::min(options_.result_size, query.beam.size()));
  for (const bool crowded : {false, true})  // in a swarm of one block all nodes are crowded
    for (const Candidate& candidate : query.beam)
      if (candidate.crowded == crowded && nearest.size() < options_.result_size) nearest.push_back(candidate.node);
  return nearest;
}

/// Of a crowded key, see Guide::found.
std::vector<NodeEntry> Traversal::spread_result_of(const Query& query) {
  std::array<std::vector<NodeEntry>, kParts> parts;
  for (const Candidate& candidate : query.beam)
    if (const std::size_t part = part_of(candidate); candidate.answered && !candidate.crowded && part < kParts)
      parts[part].push_back(candidate.node);
  std::vector<NodeEntry> spread;
  for (auto& part : parts) std::ranges::shuffle(part, runtime_.random());
  for (std::size_t turn = 0; turn < options_.result_size; ++turn)
    for (const auto& part : parts)
      if (turn < part.size()) spread.push_back(part[turn]);
  // A reader with another idea of the swarm's size may see no crowd, and ask the nearest.
  const auto nearest = result_of(query);
  std::vector<NodeEntry> result;
  const auto take = [&](const std::vector<NodeEntry>& from, std::size_t at) {
    if (at < from.size() && result.size() < options_.result_size && std::ranges::find(result, from[at]) == result.end())
      result.push_back(from[at]);
  };
  for (std::size_t i = 0; i < std::max(spread.size(), nearest.size()); ++i) {
    take(spread, i);
    take(nearest, i);
  }
  return result;
}

void Traversal::finish(Query& query) {
  if (std::exchange(query.finished, true)) return;
  std::erase(unfinished_, &query);
  const std::size_t hops = query.stopped_at || query.beam.empty() ? query.stopped_at : query.beam.front().hops;
  guide_.found(query.id, query.wide ? spread_result_of(query) : result_of(query),
               {query.calls, hops, cut_off_, query.wide});
  if (unfinished_.empty()) all_finished_.set();
}

/// Picks the query with the fewest workers on it and its nearest candidate; then the other queries that the same call
/// may carry: the ones nearest to the node that have not asked it yet.
bool Traversal::choose(Contact& contact, std::vector<Query*>& batch) {
  Query* best = nullptr;
  for (std::size_t i = 0; i < unfinished_.size();) {
    Query* query = unfinished_[i];
    if (query->next == kNone && query->active == 0) {
      finish_query(*query);
      if (query->next == kNone) widen(*query);
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
  contact = {chosen.node, chosen.referrer};
  const NodeEntry& node = contact.node;
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
    learn(*query, contact, best_hops, 0, true);
    set_path(*query, node.peer);
    update_next(*query);
  }
  return true;
}

/// Moves a node that has answered to where it says that it is, behind others that were named there.
void Traversal::correct_place(Query& query, std::vector<Candidate>::iterator at, const DhtId& id) const {
  Candidate moved = std::move(*at);
  query.beam.erase(at);
  if (id == self_) return;
  moved.node.id = id;
  moved.distance = id.distance(query.id);
  const auto place = std::ranges::upper_bound(query.beam, moved.distance, {}, &Candidate::distance);
  query.beam.insert(place, std::move(moved));
}

void Traversal::apply(Query& query, const PeerId& peer, TraversalStep* step) {
  --query.active;
  if (query.finished) return;
  const auto at = std::ranges::find(query.beam, peer, [](const Candidate& one) { return one.node.peer; });
  const Paths paths = at == query.beam.end() ? Paths{1} : at->paths;
  const PeerId referrer = at == query.beam.end() ? PeerId() : at->referrer;
  const bool misnamed = step && step->node && at != query.beam.end() && *step->node != at->node.id;
  if (misnamed) correct_place(query, at, *step->node);
  if (!referrer.empty()) {
    Named& named = named_[referrer];
    ++(step && !misnamed ? named.answered : named.failed);
    if (named.is_fabricating()) {
      std::erase_if(query.beam, [&](const Candidate& one) { return one.referrer == referrer && !one.asked; });
      learn_seeds(query);  // which it may have named under other ids
    }
  }
  if (!step) {
    std::erase_if(query.beam, [&](const Candidate& candidate) { return candidate.node.peer == peer; });
  } else {
    const std::size_t hops = hops_to(query, peer);
    for (Candidate& candidate : query.beam) {
      if (candidate.node.peer != peer) continue;
      candidate.answered = true;
      if (options_.block_of) candidate.block = options_.block_of(peer);
    }
    for (const auto& neighbour : step->nearest) learn(query, {neighbour, peer}, hops + 1, paths, false);
    find_crowds(query);
    if (step->stop) {
      query.stopped_at = hops;
      return finish(query);
    }
  }
  update_next(query);
  finish_query(query);
}

/// An id anywhere in the region around a crowded key.
DhtId Traversal::scout(const Query& query) {
  DhtId offset = DhtId::random(runtime_);
  // As many zero bits as the region leaves.
  double share = static_cast<double>(2 * options_.result_size) / options_.swarm_size;
  for (std::size_t bit = 0; bit < 8 * DhtId::kSize && share <= 0.5; ++bit, share *= 2)
    offset.bytes[bit / 8] &= static_cast<std::uint8_t>(~(0x80u >> bit % 8));
  return query.id.distance(offset);
}

/// Of a crowded key honest nodes name the crowd, the nearest that they know: so they are asked about another id, too.
Task<std::optional<std::vector<TraversalStep>>> Traversal::ask(Contact contact, const std::vector<Query*>& batch) {
  std::vector<DhtId> ids;
  std::vector<std::size_t> scouted;
  for (const Query* query : batch) ids.push_back(query->id);
  for (std::size_t i = 0; i < batch.size(); ++i) {
    if (!batch[i]->wide) continue;
    scouted.push_back(i);
    ids.push_back(scout(*batch[i]));
  }
  auto steps = co_await guide_.ask(std::move(contact), std::move(ids));
  if (!steps || steps->size() != batch.size() + scouted.size()) co_return std::nullopt;
  for (std::size_t i = 0; i < scouted.size(); ++i) {
    auto& nearest = (*steps)[scouted[i]].nearest;
    const auto& more = (*steps)[batch.size() + i].nearest;
    nearest.insert(nearest.end(), more.begin(), more.end());
  }
  co_return steps;
}

Task<void> Traversal::work(Traversal& self) {
  while (!self.unfinished_.empty()) {
    Contact contact;
    std::vector<Query*> batch;
    if (!self.choose(contact, batch)) {
      if (!self.unfinished_.empty()) co_await self.changed_.wait();  // other workers are on them
      continue;
    }
    auto steps = co_await self.ask(contact, batch);
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
  // Calls that are still under way when the last query is answered are dropped: a silent node delays no caller.
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
