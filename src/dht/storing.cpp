// Storing records: find the nearest nodes of each key, ourselves included, and send to the nearest of them until enough
// replicas answered. Source: hivemind wire spec, section 3.10.
#include <cmath>

#include "cohive/core/log.hpp"
#include "dht_impl.hpp"

namespace cohive::dht {
namespace {

// Keys of one search: choosing what to ask next looks at each of them.
constexpr std::size_t kKeysPerSearch = 1024;

}  // namespace

/// All that is to be stored under one key, and how that went.
struct Dht::Impl::StorePlan {
  DhtId key;
  std::vector<OutgoingRecord> records{};
  std::vector<std::size_t> items{};  ///< which of the caller's items each record is
  std::vector<bool> accepted{};      ///< per record, by the last replica that answered
};

Task<std::vector<bool>> Dht::Impl::store_many(std::vector<StoreItem> items) {
  std::vector<bool> results(items.size(), false);
  if (closed) co_return results;
  const TimePoint start = runtime.now();

  std::vector<Record> records;
  std::vector<std::size_t> valid;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const auto subkey = items[i].subkey ? Subkey::from_value(*items[i].subkey) : std::nullopt;
    if (items[i].subkey && !subkey) {
      log::warn("dht", "not stored: a subkey must be text, bytes, a number, a bool or a tuple of these");
      continue;
    }
    if (!std::isfinite(items[i].expiration) || items[i].expiration < protocol.now()) continue;
    std::string value = msgpack::encode(items[i].value);
    if (value.size() > options.max_value_bytes) {
      log::warn("dht", "not stored: a value of {} bytes, more than the limit of {}", value.size(),
                options.max_value_bytes);
      continue;
    }
    const DhtId key = DhtId::of(items[i].key);
    records.push_back(
        {key.binary(), subkey ? subkey->encoded : std::string(kRegularTag), std::move(value), items[i].expiration});
    valid.push_back(i);
  }
  auto values = co_await protocol.sign(records);

  std::vector<StorePlan> plans;
  std::unordered_map<DhtId, std::size_t> plan_of;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const DhtId key = *DhtId::from_bytes(as_bytes(records[i].key));
    const auto [at, first] = plan_of.try_emplace(key, plans.size());
    if (first) plans.push_back({.key = key});
    StorePlan& plan = plans[at->second];
    plan.records.push_back({key, std::move(records[i].subkey), std::move(values[i]), records[i].expiration, false});
    plan.items.push_back(valid[i]);
    plan.accepted.push_back(false);
  }

  co_await search_and_store(plans);
  for (const StorePlan& plan : plans) {
    if (options.cache_on_store) cache_stored(plan);
    for (std::size_t i = 0; i < plan.items.size(); ++i) results[plan.items[i]] = plan.accepted[i];
  }
  for (const bool stored : results) (stored ? metrics.stores_ok : metrics.stores_refused).increment();
  metrics.store_seconds.observe(to_seconds(runtime.now() - start));
  co_return results;
}

/// Each record goes out as soon as its nodes are found.
Task<void> Dht::Impl::search_and_store(std::vector<StorePlan>& plans) {
  struct Storing final : Traversal::Guide {
    explicit Storing(Impl& impl) : self(impl), sending(impl.runtime, "dht store") {}
    Task<std::optional<std::vector<TraversalStep>>> ask(Contact contact, std::vector<DhtId> queries) override {
      auto findings = co_await self.ask(contact, std::move(queries));
      if (!findings) co_return std::nullopt;
      std::vector<TraversalStep> steps;
      for (auto& finding : *findings) steps.push_back({std::move(finding.nearest), false});
      co_return steps;
    }
    void found(const DhtId& query, std::vector<NodeAddress> nearest, SearchCost) override {
      sending.spawn(self.store_on_replicas(*wanted.at(query), std::move(nearest)), "store on replicas");
    }
    Impl& self;
    std::unordered_map<DhtId, StorePlan*> wanted;
    Nursery sending;
  };
  for (std::size_t first = 0; first < plans.size(); first += kKeysPerSearch) {
    const std::size_t count = std::min(kKeysPerSearch, plans.size() - first);
    Storing guide(*this);
    // Only those that are to hold the record are asked: when they all name nobody nearer, it is they.
    Traversal traversal(runtime, protocol.node_id, search_options(options.num_replicas, count), guide);
    for (std::size_t i = first; i < first + count; ++i) {
      guide.wanted[plans[i].key] = &plans[i];
      traversal.add_query(plans[i].key, protocol.table.nearest(plans[i].key, options.bucket_size));
    }
    const bool complete = co_await traversal.run();
    if (!complete) metrics.searches_timed_out.increment();
    co_await guide.sending.join();
  }
}

Task<void> Dht::Impl::store_on_replicas(StorePlan& plan, std::vector<NodeAddress> candidates) {
  if (!options.client_mode) {
    const DhtId own = protocol.node_id.distance(plan.key);
    const auto at = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const NodeAddress& node) { return own < node.id.distance(plan.key); });
    candidates.insert(at, {protocol.node_id, protocol.host.id()});
  }
  Condition changed(runtime, "replicas");
  std::size_t answered = 0, under_way = 0, next = 0;
  Nursery calls(runtime, "dht replicas");
  for (;;) {
    while (answered + under_way < options.num_replicas && next < candidates.size()) {
      const NodeAddress& node = candidates[next++];
      if (node.id != protocol.node_id && blacklist.contains(node.peer, runtime.now())) continue;
      ++under_way;
      calls.spawn(store_on(plan, node, answered, under_way, changed), "store on replica");
    }
    if (under_way == 0) break;
    co_await changed.wait();
  }
}

Task<void> Dht::Impl::store_on(StorePlan& plan, NodeAddress node, std::size_t& answered, std::size_t& under_way,
                               Condition& changed) {
  if (node.id == protocol.node_id) {
    plan.accepted = co_await protocol.store_locally(plan.records);
    ++answered;
  } else {
    auto accepted = co_await protocol.store(node.peer, plan.records);
    if (accepted) {
      plan.accepted = std::move(*accepted);
      ++answered;
    } else {
      log::debug("dht", "replica failed: {}", accepted.error());
    }
  }
  --under_way;
  changed.notify_all();
}

/// Our cache must not contradict what we just stored.
void Dht::Impl::cache_stored(const StorePlan& plan) {
  const double time = protocol.now();
  for (std::size_t i = 0; i < plan.records.size(); ++i) {
    const OutgoingRecord& record = plan.records[i];
    if (record.tag == kRegularTag) {
      if (plan.accepted[i]) {
        protocol.cache.store(plan.key, record.value, record.expiration, time);
      } else {
        // Someone has a newer one; if ours is as old as the rejected one, it is worth looking.
        const auto* cached = protocol.cache.get(plan.key, time);
        if (cached && cached->expiration <= record.expiration) schedule_refresh(plan.key, time);
      }
    } else if (protocol.cache.contains(plan.key)) {
      if (auto subkey = plan.accepted[i] ? Subkey::from_tag(record.tag) : std::nullopt)
        protocol.cache.store_subkey(plan.key, std::move(*subkey), record.value, record.expiration, time);
      schedule_refresh(plan.key, time);
    }
  }
  protocol.update_gauges();
}

}  // namespace cohive::dht
