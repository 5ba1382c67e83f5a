// Storing records: find the nearest nodes of each key, ourselves included, and send to the nearest of them until enough
// replicas answered. Source: docs/wire/hivemind.md, section 3.10.
#include <cmath>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/errors.hpp"
#include "dht_impl.hpp"

namespace cohive::dht {
namespace {

constexpr std::size_t kItemsPerTurn = 256;      // prepared in one turn of the loop
constexpr std::size_t kBytesOfAnItem = 4096;    // that cost as much as an item
constexpr std::size_t kLargeValue = 16 * 1024;  // whose values, when there are many, take long to read

Error too_large(std::string_view what, std::size_t bytes) {
  return Error(cohive::Errc::limit_exceeded, log::format("a DHT {} of {} bytes", what, bytes));
}

}  // namespace

/// All that is to be stored under one key, and how that went.
struct Dht::Impl::StorePlan {
  DhtId key;
  std::vector<WireRecord> records{};
  std::vector<std::size_t> items{};  ///< which of the caller's items each record is
  std::vector<bool> accepted{};      ///< per record, by the last replica that answered
  std::size_t replicas = 0;          ///< how many there shall be
  std::size_t answered = 0;          ///< replicas, ourselves included
  bool cut_off = false;              ///< a deadline ended the search or the storing
};

/// An error when no node would take the encoded value, or it could not be read back. On the pool where reading takes
/// milliseconds.
Task<Result<>> Dht::Impl::check_value(const std::string& value) const {
  if (value.size() > options.max_value_bytes) co_return too_large("value", value.size());
  const auto read_back = [](const std::string& bytes) -> Result<> {
    const auto read = msgpack::decode(as_bytes(bytes));
    if (read) return ok();
    return Error(cohive::Errc::limit_exceeded, "a DHT value that cannot be read back: " + read.error().detail());
  };
  if (value.size() <= kLargeValue) co_return read_back(value);
  co_return co_await runtime.offload([read_back, value] { return read_back(value); });
}

/// The tag of an item's record; an error when the item cannot be stored anywhere.
Result<std::string> Dht::Impl::tag_for(const StoreItem& item) const {
  if (!std::isfinite(item.expiration) || item.expiration < protocol.now())
    return Error(cohive::Errc::invalid_argument, "a DHT record that has expired already");
  if (!item.subkey) return std::string(kRegularTag);
  const auto subkey = Subkey::from_value(*item.subkey);
  if (!subkey)
    return Error(cohive::Errc::invalid_argument,
                 "a DHT subkey must be text, bytes, a number, a bool or a tuple of these");
  if (subkey->encoded.size() > Subkey::kMaxBytes) return too_large("subkey", subkey->encoded.size());
  return subkey->encoded;
}

Task<std::vector<Result<>>> Dht::Impl::store_many(std::vector<StoreItem> items, Deadline deadline) {
  std::vector<Result<>> results(items.size(), Error(Errc::closed));
  if (closed) co_return results;
  const TimePoint start = runtime.now();

  std::vector<Record> records;
  std::vector<std::size_t> valid;
  std::size_t work = 0;  // in this turn of the loop, in items of few bytes
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (work >= kItemsPerTurn) co_await runtime.yield();
    if (work >= kItemsPerTurn) work = 0;
    auto tag = tag_for(items[i]);
    if (!tag) {
      results[i] = tag.error();
      continue;
    }
    std::string value = msgpack::encode(items[i].value);
    work += 1 + value.size() / kBytesOfAnItem;
    const auto checked = co_await check_value(value);
    if (!checked) {
      results[i] = checked.error();
      continue;
    }
    records.push_back({DhtId::of(items[i].key).binary(), std::move(*tag), std::move(value), items[i].expiration});
    valid.push_back(i);
  }
  records = co_await protocol.sign(std::move(records));

  std::vector<StorePlan> plans;
  std::unordered_map<DhtId, std::size_t> plan_of;
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (i % kItemsPerTurn == kItemsPerTurn - 1) co_await runtime.yield();
    if (records[i].value.size() > options.max_value_bytes) {
      results[valid[i]] = too_large("value with its signature", records[i].value.size());
      continue;
    }
    const DhtId key = *DhtId::from_bytes(as_bytes(records[i].key));
    const auto [at, first] = plan_of.try_emplace(key, plans.size());
    if (first) plans.push_back({.key = key});
    StorePlan& plan = plans[at->second];
    plan.records.push_back(
        {key, std::move(records[i].subkey), std::move(records[i].value), records[i].expiration, false});
    plan.items.push_back(valid[i]);
    plan.accepted.push_back(false);
  }

  co_await search_and_store(plans, deadline);
  for (const StorePlan& plan : plans) {
    if (options.cache_on_store && plan.answered > 0) cache_stored(plan);
    for (std::size_t i = 0; i < plan.items.size(); ++i) results[plan.items[i]] = co_await result_of(plan, i);
  }
  for (const auto& stored : results) (stored ? metrics.stores_ok : metrics.stores_refused).increment();
  metrics.store_seconds.observe(to_seconds(runtime.now() - start));
  co_return results;
}

Task<Result<>> Dht::Impl::result_of(const StorePlan& plan, std::size_t i) {
  if (plan.accepted[i]) co_return ok();
  if (plan.answered > 0) {
    const WireRecord& record = plan.records[i];
    std::vector<Record> refused{{record.key.binary(), record.tag, record.value, record.expiration}};
    const auto valid = co_await protocol.validate(std::move(refused));
    co_return Error(valid.front() ? Errc::record_refused : Errc::record_invalid);
  }
  if (closed) co_return Error(Errc::closed);
  if (plan.cut_off) co_return Error(cohive::Errc::timeout, "storing a DHT record");
  co_return Error(Errc::unreachable);
}

/// Each record goes out as soon as its nodes are found.
Task<void> Dht::Impl::search_and_store(std::vector<StorePlan>& plans, Deadline deadline) {
  struct Storing final : Traversal::Guide {
    explicit Storing(Impl& impl) : self(impl), sending(impl.runtime, "dht store") {}
    Task<std::optional<std::vector<TraversalStep>>> ask(Contact contact, std::vector<DhtId> queries) override {
      return self.ask_for_nodes(std::move(contact), std::move(queries));
    }
    void found(const DhtId& query, std::vector<NodeEntry> nearest, SearchCost cost) override {
      StorePlan& plan = *wanted.at(query);
      plan.cut_off = cost.cut_off;
      plan.replicas = replicas_of(self.options.num_replicas, cost.crowded);
      sending.spawn(self.store_on_replicas(plan, std::move(nearest)), "store on replicas");
    }
    Impl& self;
    std::unordered_map<DhtId, StorePlan*> wanted;
    Nursery sending;
  };
  for (std::size_t first = 0; first < plans.size(); first += kKeysPerSearch) {
    const std::size_t count = std::min(kKeysPerSearch, plans.size() - first);
    Storing guide(*this);
    // Only the nodes that are to hold the record are asked: when none of them names a nearer one, it is they.
    auto search = search_options(options.num_replicas, count);
    if (!deadline.is_never())
      search.deadline = search.deadline.min(runtime.after(deadline.remaining(runtime.now()) / 2));
    expect_crowds(search);
    const std::size_t seeds = seeds_for(search);
    Traversal traversal(runtime, protocol.node_id, search, guide);
    for (std::size_t i = first; i < first + count; ++i) {
      // Nodes that are asked for the key itself send the record that they have, which may be large.
      const DhtId sibling = plans[i].key.sibling();
      if ((i - first) % kQueriesPerTurn == kQueriesPerTurn - 1) co_await runtime.yield();
      guide.wanted[sibling] = &plans[i];
      traversal.add_query(sibling, protocol.table.nearest(sibling, seeds));
    }
    const bool complete = co_await traversal.run();
    if (!complete) metrics.searches_timed_out.increment();
    if (co_await within(runtime, deadline, guide.sending.join())) continue;
    for (std::size_t i = first; i < plans.size(); ++i) plans[i].cut_off = true;
    break;
  }
}

Task<void> Dht::Impl::store_on_replicas(StorePlan& plan, std::vector<NodeEntry> candidates) {
  if (!options.client_mode) {
    const DhtId own = protocol.node_id.distance(plan.key);
    const auto at = std::find_if(candidates.begin(), candidates.end(),
                                 [&](const NodeEntry& node) { return own < node.id.distance(plan.key); });
    candidates.insert(at, {protocol.node_id, protocol.host.id()});
  }
  Condition changed(runtime, "replicas");
  std::size_t under_way = 0, next = 0;
  Nursery calls(runtime, "dht replicas");
  for (;;) {
    while (plan.answered + under_way < plan.replicas && next < candidates.size()) {
      const NodeEntry& node = candidates[next++];
      if (node.id != protocol.node_id && protocol.failing.contains(node.peer, runtime.now())) continue;
      ++under_way;
      calls.spawn(store_on(plan, node, under_way, changed), "store on replica");
    }
    if (under_way == 0) break;
    co_await changed.wait();
  }
}

Task<void> Dht::Impl::store_on(StorePlan& plan, NodeEntry node, std::size_t& under_way, Condition& changed) {
  if (node.id == protocol.node_id) {
    plan.accepted = co_await protocol.store_locally(plan.records);
    ++plan.answered;
  } else {
    auto accepted = co_await protocol.store(node.peer, plan.records);
    if (accepted) {
      plan.accepted = std::move(*accepted);
      ++plan.answered;
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
    const WireRecord& record = plan.records[i];
    if (record.tag == kRegularTag) {
      if (plan.accepted[i]) {
        protocol.cache.forget(plan.key);
        protocol.cache.store(plan.key, record.value, record.expiration, time);
      } else {
        // A node has a newer record; if ours is as old as the rejected one, it is worth looking.
        const auto* cached = protocol.cache.get(plan.key, time);
        if (cached && cached->expiration <= record.expiration) schedule_refresh(plan.key, time);
      }
    } else {
      // With our entry the dictionary would look as new as that one, while its other entries are as old as before. The
      // next reader looks it up; a writer that never reads, such as a trainer that reports its progress, causes no
      // traffic.
      protocol.cache.forget(plan.key);
    }
  }
  protocol.update_gauges();
}

}  // namespace cohive::dht
