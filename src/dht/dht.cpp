#include "cohive/dht/dht.hpp"

#include <cmath>
#include <limits>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "protocol.hpp"
#include "traversal.hpp"

namespace cohive::dht {
namespace {

constexpr Duration kRefreshCheck = 60s;
constexpr double kForever = std::numeric_limits<double>::infinity();
/// How much later than the cached record a refreshed one must expire to count as fresh, in seconds.
constexpr double kRefreshMargin = 6.0;

/// Merges what several nodes know: the newer value, or for dictionaries the newer entry of each subkey.
void merge(std::optional<StoredRecord>& best, StoredRecord candidate) {
  if (best && best->is_dictionary() && candidate.is_dictionary()) {
    auto& into = std::get<Dictionary>(best->content);
    for (auto& [subkey, timed] : std::get<Dictionary>(candidate.content).entries) into.put(subkey, std::move(timed.value), timed.expiration);
    best->expiration = std::max(best->expiration, candidate.expiration);
  } else if (!best || candidate.expiration > best->expiration) {
    best = std::move(candidate);
  }
}

}  // namespace

const std::vector<std::pair<msgpack::Value, StoredValue>>& GetResult::entries() const {
  static const std::vector<std::pair<msgpack::Value, StoredValue>> none;
  const auto* dictionary = std::get_if<1>(&content);
  return dictionary ? *dictionary : none;
}

/// One key being looked up; concurrent gets of the same key share it.
struct Lookup {
  Lookup(Runtime& runtime, double enough) : sufficient(enough), done(runtime, "DHT lookup") {}
  double sufficient;
  std::optional<StoredRecord> best;
  std::optional<DhtId> source;
  std::vector<NodeAddress> nearest;
  Event done;
};

struct Dht::Impl {
  Impl(p2p::Host& h, DhtOptions opts)
      : options(opts), metrics(h.runtime().metrics()), protocol(h, options, DhtId::random(h.runtime()), metrics),
        runtime(h.runtime()), tasks(runtime, "dht") {}

  Task<std::map<DhtId, std::vector<NodeAddress>>> find_nearest(std::vector<DhtId> keys, std::size_t beam);
  Task<void> search(std::map<DhtId, std::shared_ptr<Lookup>> lookups);
  Task<std::optional<StoredRecord>> look_up(DhtId key, double sufficient, bool refresh);
  void remember(const DhtId& key, const Lookup& lookup);
  void schedule_refresh(const DhtId& key, double expiration);
  std::optional<GetResult> decode(const DhtId& key, const std::optional<StoredRecord>& record) const;
  Task<bool> store_on_replicas(DhtId key, std::vector<OutgoingRecord> records, std::vector<NodeAddress> nearest, std::vector<bool>& accepted);
  bool banned(const PeerId& peer) const;
  void note(const PeerId& peer, bool success);
  static Task<void> refresh_buckets(Impl& self);
  static Task<void> refresh_cached(Impl& self, DhtId key, double expiration);
  static Task<void> cache_on(Impl& self, PeerId peer, OutgoingRecord record);

  DhtOptions options;
  DhtMetrics metrics;
  Protocol protocol;
  Runtime& runtime;
  struct Ban {
    TimePoint until;
    int count = 0;
  };
  std::unordered_map<PeerId, Ban> bans;
  std::unordered_map<DhtId, std::shared_ptr<Lookup>> pending;
  std::set<DhtId> refreshing;
  TaskGroup tasks;
};

// ---- Searching

bool Dht::Impl::banned(const PeerId& peer) const {
  const auto found = bans.find(peer);
  return found != bans.end() && runtime.now() < found->second.until;
}

void Dht::Impl::note(const PeerId& peer, bool success) {
  if (success) {
    bans.erase(peer);
    return;
  }
  if (bans.size() > options.max_records) bans.clear();
  Ban& ban = bans[peer];
  const double seconds = to_seconds(options.blacklist_time) * std::pow(options.backoff_rate, std::min(ban.count, 16));
  ban.until = runtime.now() + from_seconds(seconds);
  ++ban.count;
}

/// Looks keys up in the swarm; each lookup is done when it has enough or the beam is explored.
Task<void> Dht::Impl::search(std::map<DhtId, std::shared_ptr<Lookup>> lookups) {
  const std::size_t per_call = std::max<std::size_t>(1, std::min(static_cast<std::size_t>(std::sqrt(lookups.size())), options.chunk_size));
  auto ask = [&](NodeAddress node, std::vector<DhtId> queries) -> Task<std::optional<std::vector<TraversalStep>>> {
    if (banned(node.peer)) co_return std::nullopt;
    auto findings = co_await protocol.find(node.peer, queries);
    note(node.peer, findings.has_value());
    if (!findings) co_return std::nullopt;
    std::vector<TraversalStep> steps;
    for (std::size_t i = 0; i < queries.size(); ++i) {
      Lookup& lookup = *lookups.at(queries[i]);
      Finding& finding = (*findings)[i];
      if (finding.record) {
        if (!lookup.best || finding.record->expiration > lookup.best->expiration) lookup.source = node.id;
        merge(lookup.best, std::move(*finding.record));
      }
      std::erase_if(finding.nearest, [this](const NodeAddress& n) { return banned(n.peer); });
      steps.push_back({std::move(finding.nearest), lookup.best && lookup.best->expiration >= lookup.sufficient});
    }
    co_return steps;
  };
  auto found = [&](const DhtId& key, const std::vector<NodeAddress>& nearest) {
    lookups.at(key)->nearest = nearest;
    lookups.at(key)->done.set();
  };
  Traversal traversal(runtime, protocol.node_id, {options.bucket_size, options.num_workers, per_call}, ask, found);
  for (const auto& [key, lookup] : lookups) traversal.add_query(key, protocol.table.nearest(key, options.bucket_size));
  co_await traversal.run();
}

Task<std::map<DhtId, std::vector<NodeAddress>>> Dht::Impl::find_nearest(std::vector<DhtId> keys, std::size_t beam) {
  std::map<DhtId, std::vector<NodeAddress>> result;
  auto ask = [&](NodeAddress node, std::vector<DhtId> queries) -> Task<std::optional<std::vector<TraversalStep>>> {
    if (banned(node.peer)) co_return std::nullopt;
    auto findings = co_await protocol.find(node.peer, std::move(queries));
    note(node.peer, findings.has_value());
    if (!findings) co_return std::nullopt;
    std::vector<TraversalStep> steps;
    for (auto& finding : *findings) {
      std::erase_if(finding.nearest, [this](const NodeAddress& n) { return banned(n.peer); });
      steps.push_back({std::move(finding.nearest), false});
    }
    co_return steps;
  };
  auto found = [&](const DhtId& key, const std::vector<NodeAddress>& nearest) { result[key] = nearest; };
  const auto per_call = std::max<std::size_t>(1, static_cast<std::size_t>(std::sqrt(keys.size())));
  Traversal traversal(runtime, protocol.node_id, {beam, options.num_workers, per_call}, ask, found);
  for (const DhtId& key : keys) traversal.add_query(key, protocol.table.nearest(key, options.bucket_size));
  co_await traversal.run();
  co_return result;
}

// ---- Getting

Task<std::optional<StoredRecord>> Dht::Impl::look_up(DhtId key, double sufficient, bool refresh) {
  auto lookup = std::make_shared<Lookup>(runtime, sufficient);
  const double time = protocol.now();
  if (const auto* local = protocol.storage.get(key, time)) merge(lookup->best, *local);
  bool from_cache = false;
  if (const auto* cached = refresh ? nullptr : protocol.cache.get(key, time)) {
    from_cache = !lookup->best || cached->expiration > lookup->best->expiration;
    merge(lookup->best, *cached);
  }
  if (lookup->best && lookup->best->expiration >= sufficient) {
    if (from_cache) schedule_refresh(key, lookup->best->expiration);
    co_return lookup->best;
  }
  if (const auto other = pending.find(key); options.reuse_get_requests && other != pending.end() && other->second->sufficient >= sufficient) {
    const auto shared = other->second;
    co_await shared->done.wait();
    co_return shared->best;
  }
  pending[key] = lookup;
  struct Leave {
    Impl& self;
    DhtId key;
    std::shared_ptr<Lookup> lookup;
    ~Leave() {
      if (const auto at = self.pending.find(key); at != self.pending.end() && at->second == lookup) self.pending.erase(at);
      lookup->done.set();  // whoever shares this lookup must not wait for ever when it is dropped
    }
  } leave{*this, key, lookup};
  std::map<DhtId, std::shared_ptr<Lookup>> one;
  one.emplace(key, lookup);
  co_await search(std::move(one));
  remember(key, *lookup);
  co_return lookup->best;
}

/// Keeps what was found: in our cache, and on the nearest node that did not have it.
void Dht::Impl::remember(const DhtId& key, const Lookup& lookup) {
  if (!lookup.best || !lookup.source) return;
  const double time = protocol.now();
  const auto* stored = protocol.storage.get(key, time);
  const auto* cached = protocol.cache.get(key, time);
  const StoredRecord& best = *lookup.best;
  if ((stored && stored->expiration >= best.expiration) || (cached && cached->expiration >= best.expiration)) return;
  if (options.cache_locally) {
    if (best.is_dictionary()) {
      for (const auto& [subkey, timed] : std::get<Dictionary>(best.content).entries)
        protocol.cache.store_subkey(key, subkey, timed.value, timed.expiration, time);
    } else {
      protocol.cache.store(key, std::get<std::string>(best.content), best.expiration, time);
    }
  }
  std::size_t copies = 0;
  for (const auto& node : lookup.nearest) {
    if (copies == options.cache_nearest) break;
    if (node.id == *lookup.source) continue;
    OutgoingRecord record{key, best.is_dictionary() ? kDictionaryTag : kRegularTag, {}, best.expiration, true};
    record.value = best.is_dictionary() ? std::get<Dictionary>(best.content).encode() : std::get<std::string>(best.content);
    tasks.spawn(cache_on(*this, node.peer, std::move(record)), "cache on nearest");
    ++copies;
  }
}

Task<void> Dht::Impl::cache_on(Impl& self, PeerId peer, OutgoingRecord record) {
  std::vector<OutgoingRecord> records;
  records.push_back(std::move(record));
  (void)co_await self.protocol.store(peer, std::move(records));
}

void Dht::Impl::schedule_refresh(const DhtId& key, double expiration) {
  if (options.cache_refresh_before_expiry <= 0s || !std::isfinite(expiration) || !refreshing.insert(key).second) return;
  tasks.spawn(refresh_cached(*this, key, expiration), "refresh cached record");
}

Task<void> Dht::Impl::refresh_cached(Impl& self, DhtId key, double expiration) {
  const double wait = expiration - to_seconds(self.options.cache_refresh_before_expiry) - self.protocol.now();
  if (wait > 0) co_await self.runtime.sleep_for(from_seconds(wait));
  self.refreshing.erase(key);
  (void)co_await self.look_up(key, expiration + kRefreshMargin, true);
}

std::optional<GetResult> Dht::Impl::decode(const DhtId& key, const std::optional<StoredRecord>& record) const {
  if (!record) return std::nullopt;
  const auto value_of = [&](const std::string& tag, const std::string& bytes, double expiration) {
    return msgpack::decode(as_bytes(protocol.validators.strip({key.binary(), tag, bytes, expiration})));
  };
  GetResult result;
  result.expiration = record->expiration;
  if (!record->is_dictionary()) {
    auto value = value_of(kRegularTag, std::get<std::string>(record->content), record->expiration);
    if (!value) return std::nullopt;
    result.content = std::move(*value);
    return result;
  }
  std::vector<std::pair<msgpack::Value, StoredValue>> entries;
  for (const auto& [subkey, timed] : std::get<Dictionary>(record->content).entries) {
    auto name = msgpack::decode(as_bytes(subkey));
    auto value = value_of(subkey, timed.value, timed.expiration);
    if (name && value && timed.expiration >= protocol.now()) entries.emplace_back(std::move(*name), StoredValue{std::move(*value), timed.expiration});
  }
  if (entries.empty()) return std::nullopt;
  result.content = std::move(entries);
  return result;
}

// ---- Storing

/// Sends to the nearest candidates, ourselves included, until enough replicas answered. True when nobody was missing.
Task<bool> Dht::Impl::store_on_replicas(DhtId key, std::vector<OutgoingRecord> records, std::vector<NodeAddress> nearest,
                                        std::vector<bool>& accepted) {
  if (!options.client_mode) {
    const DhtId own = protocol.node_id.distance(key);
    const auto at = std::find_if(nearest.begin(), nearest.end(), [&](const NodeAddress& n) { return own < n.id.distance(key); });
    nearest.insert(at, {protocol.node_id, protocol.host.id()});
  }
  std::size_t answered = 0, next = 0;
  while (answered < options.num_replicas && next < nearest.size()) {
    std::vector<Task<Result<std::vector<bool>>>> calls;
    for (std::size_t missing = options.num_replicas - answered; missing > 0 && next < nearest.size(); --missing, ++next) {
      if (nearest[next].id == protocol.node_id) {
        for (std::size_t i = 0; i < records.size(); ++i) accepted[i] = protocol.store_locally(records[i]);
        ++answered;
      } else {
        calls.push_back(protocol.store(nearest[next].peer, records));
      }
    }
    for (auto& result : co_await when_all(runtime, std::move(calls))) {
      if (!result) continue;
      ++answered;
      accepted = *result;
    }
  }
  co_return answered >= options.num_replicas;
}

Task<void> Dht::Impl::refresh_buckets(Impl& self) {
  for (;;) {
    co_await self.runtime.sleep_for(std::min<Duration>(kRefreshCheck, self.options.refresh_timeout));
    auto stale = self.protocol.table.stale_buckets(self.runtime.now() - self.options.refresh_timeout, self.runtime);
    if (!stale.empty()) (void)co_await self.find_nearest(std::move(stale), self.options.bucket_size);
  }
}

// ---- The facade

Dht::Dht(p2p::Host& host, DhtOptions options) : impl_(std::make_unique<Impl>(host, options)) {}
Dht::~Dht() = default;

Task<Result<>> Dht::start(std::vector<Multiaddr> initial_peers) {
  Impl& self = *impl_;
  if (self.options.refresh_timeout > 0s) self.tasks.spawn(Impl::refresh_buckets(self), "bucket refresh");
  if (initial_peers.empty()) co_return ok();
  const Deadline deadline = self.runtime.after(self.options.bootstrap_timeout);
  auto joined = co_await host().bootstrap(initial_peers, deadline);
  if (!joined) co_return joined.error();
  std::set<PeerId> peers;
  for (const auto& info : host().peers()) peers.insert(info.id);
  std::vector<Task<Result<std::optional<DhtId>>>> pings;
  for (const auto& peer : peers) pings.push_back(self.protocol.ping(peer, self.options.validate_bootstrap, self.options.validate_bootstrap));
  auto answers = co_await when_all(self.runtime, std::move(pings));
  bool any = false;
  std::string failures;
  for (const auto& answer : answers) {
    any |= answer.has_value();
    if (!answer) failures += (failures.empty() ? "" : "; ") + answer.error().message();
  }
  if (!any) co_return Error(cohive::Errc::not_found, "none of the initial peers answers as a DHT node: " + failures);
  auto own = [](Impl& impl) -> Task<Result<>> {
    (void)co_await impl.find_nearest({impl.protocol.node_id}, impl.options.bucket_size);
    co_return ok();
  };
  (void)co_await within(self.runtime, deadline, own(self), "looking for neighbours");
  co_return ok();
}

Task<void> Dht::close() {
  impl_->tasks.cancel();
  co_return;
}

Task<bool> Dht::store(Key key, msgpack::Value value, double expiration) {
  std::vector<StoreItem> items;
  items.push_back({std::move(key), std::nullopt, std::move(value), expiration});
  co_return (co_await store_many(std::move(items)))[0];
}

Task<bool> Dht::store(Key key, msgpack::Value subkey, msgpack::Value value, double expiration) {
  std::vector<StoreItem> items;
  items.push_back({std::move(key), std::move(subkey), std::move(value), expiration});
  co_return (co_await store_many(std::move(items)))[0];
}

Task<std::vector<bool>> Dht::store_many(std::vector<StoreItem> items) {
  Impl& self = *impl_;
  const TimePoint start = self.runtime.now();
  std::vector<bool> results(items.size(), false);
  std::map<DhtId, std::vector<std::size_t>> by_key;
  std::vector<OutgoingRecord> records(items.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    const DhtId key = DhtId::of(items[i].key);
    std::string tag = items[i].subkey ? msgpack::encode(*items[i].subkey) : kRegularTag;
    std::string value = self.protocol.validators.sign({key.binary(), tag, msgpack::encode(items[i].value), items[i].expiration});
    records[i] = {key, std::move(tag), std::move(value), items[i].expiration, false};
    by_key[key].push_back(i);
  }
  std::vector<DhtId> keys;
  for (const auto& [key, indices] : by_key) keys.push_back(key);
  auto nearest = co_await self.find_nearest(keys, std::max(self.options.bucket_size, self.options.num_replicas));
  struct Batch {
    std::vector<std::size_t> indices;
    std::vector<bool> accepted;
  };
  std::vector<Batch> batches;
  batches.reserve(by_key.size());
  std::vector<Task<bool>> sending;
  for (const auto& [key, indices] : by_key) {
    std::vector<OutgoingRecord> some;
    for (std::size_t i : indices) some.push_back(records[i]);
    batches.push_back({indices, std::vector<bool>(indices.size(), false)});
    sending.push_back(self.store_on_replicas(key, std::move(some), nearest[key], batches.back().accepted));
  }
  co_await when_all(self.runtime, std::move(sending));
  for (const Batch& batch : batches)
    for (std::size_t i = 0; i < batch.indices.size(); ++i) {
      const std::size_t index = batch.indices[i];
      results[index] = batch.accepted[i];
      (batch.accepted[i] ? self.metrics.stores_ok : self.metrics.stores_refused).increment();
      if (self.options.cache_on_store && batch.accepted[i] && records[index].tag == kRegularTag)
        self.protocol.cache.store(records[index].key, records[index].value, records[index].expiration, now());
    }
  self.metrics.store_seconds.observe(to_seconds(self.runtime.now() - start));
  co_return results;
}

Task<std::optional<GetResult>> Dht::get(Key key, bool latest) {
  std::vector<Key> keys;
  keys.push_back(std::move(key));
  co_return std::move((co_await get_many(std::move(keys), latest))[0]);
}

Task<std::vector<std::optional<GetResult>>> Dht::get_many(std::vector<Key> keys, bool latest) {
  Impl& self = *impl_;
  const TimePoint start = self.runtime.now();
  const double sufficient = latest ? kForever : now();
  std::vector<DhtId> ids;
  std::vector<Task<std::optional<StoredRecord>>> lookups;
  for (const Key& key : keys) {
    ids.push_back(DhtId::of(key));
    lookups.push_back(self.look_up(ids.back(), sufficient, false));
  }
  auto records = co_await when_all(self.runtime, std::move(lookups));
  std::vector<std::optional<GetResult>> results;
  for (std::size_t i = 0; i < records.size(); ++i) {
    results.push_back(self.decode(ids[i], records[i]));
    (results.back() ? self.metrics.gets_found : self.metrics.gets_missing).increment();
  }
  self.metrics.get_seconds.observe(to_seconds(self.runtime.now() - start));
  co_return results;
}

void Dht::add_validator(std::shared_ptr<RecordValidator> validator) { impl_->protocol.validators.add(std::move(validator)); }

Task<Result<std::optional<DhtId>>> Dht::ping(PeerId peer) { return impl_->protocol.ping(peer, false, false); }

double Dht::now() const { return impl_->protocol.now(); }
const DhtId& Dht::node_id() const noexcept { return impl_->protocol.node_id; }
p2p::Host& Dht::host() const noexcept { return impl_->protocol.host; }
const DhtOptions& Dht::options() const noexcept { return impl_->options; }
Runtime& Dht::runtime() const noexcept { return impl_->runtime; }
std::size_t Dht::table_size() const { return impl_->protocol.table.size(); }
std::size_t Dht::storage_size() const { return impl_->protocol.storage.size(now()); }
std::size_t Dht::cache_size() const { return impl_->protocol.cache.size(now()); }

std::vector<std::pair<DhtId, PeerId>> Dht::known_nodes() const {
  std::vector<std::pair<DhtId, PeerId>> result;
  for (const auto& node : impl_->protocol.table.nearest(node_id(), table_size())) result.emplace_back(node.id, node.peer);
  return result;
}

}  // namespace cohive::dht
