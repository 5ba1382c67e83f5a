#include "traversal.hpp"

#include <algorithm>

namespace cohive::dht {

Traversal::Traversal(Runtime& runtime, DhtId self, TraversalOptions options, Ask ask, Found found)
    : runtime_(runtime), self_(self), options_(options), ask_(std::move(ask)), found_(std::move(found)), changed_(runtime, "DHT search") {}

bool Traversal::viable(const Query& query, const DhtId& distance) const {
  return query.nearest.size() < options_.beam_size || distance <= query.nearest.rbegin()->first;
}

void Traversal::learn(const DhtId& id, Query& query, const NodeAddress& node) {
  if (node.id == self_ || query.known.contains(node.id)) return;
  const DhtId distance = node.id.distance(id);
  if (!viable(query, distance)) return;
  query.known.insert(node.id);
  query.candidates.emplace(distance, node);
  query.nearest.emplace(distance, node);
  if (query.nearest.size() > options_.beam_size) query.nearest.erase(std::prev(query.nearest.end()));
}

void Traversal::add_query(const DhtId& id, const std::vector<NodeAddress>& initial) {
  const auto [at, inserted] = queries_.try_emplace(id);
  if (inserted) ++unfinished_;
  for (const auto& node : initial) learn(id, at->second, node);
}

void Traversal::finish(const DhtId& id) {
  Query& query = queries_.at(id);
  if (std::exchange(query.finished, true)) return;
  --unfinished_;
  std::vector<NodeAddress> nearest;
  for (const auto& [distance, node] : query.nearest) nearest.push_back(node);
  found_(id, nearest);
  query.candidates.clear();
}

void Traversal::finish_all() {
  for (auto& [id, query] : queries_) finish(id);
}

/// The unfinished query with the fewest workers on it and, among those, the nearest candidate; and that candidate.
std::optional<Traversal::Choice> Traversal::choose() {
  const DhtId* best_id = nullptr;
  Query* best = nullptr;
  for (auto& [id, query] : queries_) {
    if (query.finished) continue;
    while (!query.candidates.empty() && query.visited.contains(query.candidates.begin()->second.id))
      query.candidates.erase(query.candidates.begin());
    if (query.candidates.empty() || !viable(query, query.candidates.begin()->first)) {
      if (query.active == 0) finish(id);
      continue;
    }
    if (!best || std::pair(query.active, query.candidates.begin()->first) < std::pair(best->active, best->candidates.begin()->first)) {
      best_id = &id;
      best = &query;
    }
  }
  if (!best) return std::nullopt;
  Choice choice{*best_id, best->candidates.begin()->second};
  best->candidates.erase(best->candidates.begin());
  best->visited.insert(choice.node.id);
  return choice;
}

/// One call may carry more queries: those nearest to the node that have not asked it yet.
std::vector<DhtId> Traversal::also_ask(const Choice& choice) {
  std::vector<DhtId> batch{choice.query};
  if (options_.queries_per_call <= 1) return batch;
  std::vector<std::pair<DhtId, DhtId>> others;
  for (auto& [id, query] : queries_)
    if (!query.finished && id != choice.query && !query.visited.contains(choice.node.id))
      others.emplace_back(id.distance(choice.node.id), id);
  const std::size_t count = std::min(options_.queries_per_call - 1, others.size());
  std::partial_sort(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(count), others.end());
  for (std::size_t i = 0; i < count; ++i) {
    queries_.at(others[i].second).visited.insert(choice.node.id);
    batch.push_back(others[i].second);
  }
  return batch;
}

Task<void> Traversal::work(Traversal& self) {
  while (self.unfinished_ > 0) {
    const auto choice = self.choose();
    if (!choice) {
      if (self.busy_ == 0) {
        self.finish_all();
        break;
      }
      co_await self.changed_.wait();
      continue;
    }
    const auto batch = self.also_ask(*choice);
    for (const DhtId& id : batch) ++self.queries_.at(id).active;
    ++self.busy_;
    auto steps = co_await self.ask_(choice->node, batch);
    --self.busy_;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      Query& query = self.queries_.at(batch[i]);
      --query.active;
      if (query.finished) continue;
      if (!steps) {
        // A node that does not answer is not one to store to.
        query.nearest.erase(choice->node.id.distance(batch[i]));
        continue;
      }
      for (const auto& node : (*steps)[i].nearest) self.learn(batch[i], query, node);
      if ((*steps)[i].stop) self.finish(batch[i]);
    }
    self.changed_.notify_all();
  }
  self.changed_.notify_all();
}

Task<void> Traversal::run() {
  TaskGroup workers(runtime_, "dht search");
  for (std::size_t i = 0; i < std::max<std::size_t>(options_.num_workers, 1); ++i) workers.spawn(work(*this), "dht search worker");
  co_await workers.join();
}

}  // namespace cohive::dht
