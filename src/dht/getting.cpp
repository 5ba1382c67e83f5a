// Getting records: our own storage, our cache, then a search; and what is cached of what was found.
// Source: docs/wire/hivemind.md, section 3.11.
#include <cmath>
#include <limits>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/dht/errors.hpp"
#include "dht_impl.hpp"

namespace cohive::dht {
namespace {

constexpr double kNoExpiration = std::numeric_limits<double>::infinity();
// How much later than the cached record a refreshed one must expire, beyond the refresh interval, in seconds.
constexpr double kRefreshMargin = 1.0;

/// Adds entries, of which the newer of two with one subkey wins. A reader holds no more than a replica may store, and
/// as there, whoever gave most makes room: one that invents entries pushes out its own.
void merge(StoredRecord& into, const Dictionary& more, const StorageLimits& limits) {
  auto& dictionary = std::get<Dictionary>(into.content);
  for (const auto& [identity, entry] : more.entries()) {
    if (dictionary.would_accept(identity, entry.expiration))
      dictionary.put({entry.subkey, identity}, entry.value, entry.expiration, entry.from);
    into.expiration = std::max(into.expiration, entry.expiration);
  }
  dictionary.shrink(limits);
}

/// Takes entries that were checked, of what a node has.
void take_entries(Lookup& lookup, Dictionary entries, const DhtId& source, const StorageLimits& limits) {
  if (entries.entries().empty()) return;
  const double previous = lookup.best ? lookup.best->expiration : -kNoExpiration, found = entries.latest_expiration();
  if (lookup.best && lookup.best->is_dictionary()) {
    merge(*lookup.best, entries, limits);
  } else if (found > previous) {
    entries.shrink(limits);
    lookup.best = StoredRecord{std::move(entries), found};
  }
  if (found > previous) lookup.source = source;
}

}  // namespace

void Lookup::take(const StoredRecord& record, const StorageLimits& limits) {
  if (best && best->is_dictionary() && record.is_dictionary())
    merge(*best, *record.dictionary(), limits);
  else if (!best || record.expiration > best->expiration)
    best = record;
}

const std::vector<std::pair<msgpack::Value, StoredValue>>& GetResult::entries() const {
  static const std::vector<std::pair<msgpack::Value, StoredValue>> none;
  const auto* dictionary = std::get_if<1>(&content);
  return dictionary ? *dictionary : none;
}

Task<std::vector<Result<GetResult>>> Dht::Impl::get_many(std::vector<Key> keys, bool latest, Deadline deadline) {
  std::vector<Result<GetResult>> results(keys.size(), Error(Errc::closed));
  if (closed) co_return results;
  const TimePoint start = runtime.now();
  const double sufficient = latest ? kNoExpiration : protocol.now();
  const bool sharing = options.reuse_get_requests && !latest;
  std::vector<LookupPtr> by_index, to_search, joined;
  std::unordered_map<DhtId, LookupPtr> distinct;
  for (const Key& key : keys) {
    auto& lookup = distinct[DhtId::of(key)];
    if (!lookup) {
      lookup = std::make_shared<Lookup>(runtime, DhtId::of(key), sufficient);
      const auto other = sharing ? pending.find(lookup->key) : pending.end();
      if (look_up_locally(*lookup, true)) {
        lookup->done.set();
      } else if (other != pending.end()) {
        joined.push_back(other->second);
      } else {
        to_search.push_back(lookup);
      }
    }
    by_index.push_back(lookup);
    if (by_index.size() % kQueriesPerTurn == 0) co_await runtime.yield();
  }
  if (closed) co_return results;
  const bool searched = !to_search.empty() || !joined.empty();
  if (sharing) {
    if (!to_search.empty()) co_await look_up_shared(std::move(to_search), deadline);
  } else {
    co_await look_up(std::move(to_search), deadline);
  }
  // What another search found serves us too, if it is not older than our own question.
  std::vector<LookupPtr> again;
  for (const auto& other : joined) {
    const bool in_time = co_await other->done.wait(deadline);
    LookupPtr& own = distinct.at(other->key);
    if (other->best && other->best->expiration >= sufficient) {
      own->best = other->best;
    } else if (in_time) {
      again.push_back(own);
    }
  }
  if (!again.empty()) co_await look_up(std::move(again), deadline);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    results[i] = co_await result_of(by_index[i]);
    (results[i] ? metrics.gets_found : metrics.gets_missed).increment();
    if (i + 1 < keys.size()) co_await runtime.yield();  // values may be large
  }
  if (searched) metrics.get_seconds.observe(to_seconds(runtime.now() - start));
  co_return results;
}

/// True when that was enough.
bool Dht::Impl::look_up_locally(Lookup& lookup, bool use_cache) {
  const double time = protocol.now();
  if (const auto* stored = protocol.storage.get(lookup.key, time)) lookup.best = *stored;
  const bool may_merge = !lookup.best || !lookup.best->is_dictionary();
  const auto* cached = use_cache ? protocol.cache.get(lookup.key, time) : nullptr;
  if (cached && (may_merge || cached->is_dictionary())) lookup.take(*cached, protocol.storage.limits());
  if (lookup.best) lookup.source = protocol.node_id;
  if (!lookup.satisfied()) {
    if (lookup.best) lookup.copies[protocol.node_id] = lookup.best->fingerprint();
    return false;
  }
  const double lead = to_seconds(options.cache_refresh_before_expiry), refresh = lookup.best->expiration - lead;
  // Later it has been looked up already: reading a key that is not renewed must not cause search after search.
  if (lead > 0 && refresh > time && protocol.cache.contains(lookup.key)) schedule_refresh(lookup.key, refresh);
  return true;
}

/// Whether all of them have the best record found: what is stored goes to the nearest nodes, so there is no newer one.
bool Dht::Impl::agree(const Lookup& lookup, const std::vector<DhtId>& nodes) const {
  if (!lookup.best) return false;
  const std::size_t best = lookup.best->fingerprint();
  return std::all_of(nodes.begin(), nodes.end(), [&](const DhtId& node) {
    const auto copy = lookup.copies.find(node);
    return copy != lookup.copies.end() && copy->second == best;
  });
}

/// The search belongs to the node, not to the caller: other callers may have joined it when this one is dropped.
Task<void> Dht::Impl::look_up_shared(std::vector<LookupPtr> lookups, Deadline deadline) {
  for (const auto& lookup : lookups) pending[lookup->key] = lookup;
  tasks.spawn(look_up(lookups, Deadline::never()), "dht search");
  for (const auto& lookup : lookups) co_await lookup->done.wait(deadline);
}

Task<void> Dht::Impl::look_up(std::vector<LookupPtr> lookups, Deadline deadline) {
  // Also when the search is dropped half-way: other callers may wait for it.
  const auto over = on_exit([this, lookups] {
    for (const auto& lookup : lookups) {
      const auto at = pending.find(lookup->key);
      if (at != pending.end() && at->second == lookup) pending.erase(at);
      lookup->done.set();
    }
  });

  struct Getting final : Traversal::Guide {
    explicit Getting(Impl& impl) : self(impl) {}
    Task<std::optional<std::vector<TraversalStep>>> ask(Contact contact, std::vector<DhtId> queries) override {
      auto findings = co_await self.ask(contact, queries);
      if (!findings) co_return std::nullopt;
      std::vector<TraversalStep> steps;
      for (std::size_t i = 0; i < queries.size(); ++i) {
        Finding& finding = (*findings)[i];
        const DhtId node = finding.node.value_or(contact.node.id);
        const auto at = wanted.find(queries[i]);
        if (at == wanted.end()) {
          steps.push_back({std::move(finding.nearest), false, finding.node});
          continue;
        }
        const LookupPtr lookup = at->second;
        ++lookup->answers;
        if (finding.record) lookup->copies[node] = finding.record->fingerprint();
        if (finding.record && !lookup->done.is_set()) co_await self.consider(lookup, std::move(*finding.record), node);
        steps.push_back({std::move(finding.nearest), lookup->satisfied(), finding.node});
      }
      co_return steps;
    }
    void found(const DhtId& query, std::vector<NodeEntry> nearest, SearchCost cost) override {
      self.metrics.searches.increment();
      self.metrics.search_calls.increment(static_cast<double>(cost.calls));
      self.metrics.search_hops.increment(static_cast<double>(cost.hops));
      if (cost.crowded) self.metrics.searches_crowded.increment();
      const LookupPtr& lookup = wanted.at(query);
      self.remember(lookup, nearest);
      if (const auto at = self.pending.find(query); at != self.pending.end() && at->second == lookup)
        self.pending.erase(at);
      lookup->cut_off = cost.cut_off;
      lookup->done.set();
    }
    bool agree(const DhtId& query, const std::vector<DhtId>& quorum) override {
      return self.agree(*wanted.at(query), quorum);
    }
    Impl& self;
    std::unordered_map<DhtId, LookupPtr> wanted;
  };
  // A get that takes any record stops at the first.
  const bool newest = std::all_of(lookups.begin(), lookups.end(),
                                  [&](const LookupPtr& lookup) { return lookup->sufficient > protocol.now(); });

  for (std::size_t first = 0; first < lookups.size(); first += kKeysPerSearch) {
    const std::size_t count = std::min(kKeysPerSearch, lookups.size() - first);
    Getting guide(*this);
    auto search = search_options(options.beam_size, count);
    search.deadline = search.deadline.min(deadline);
    search.queries_per_call = std::min(search.queries_per_call, options.chunk_size);
    search.quorum = newest ? options.num_replicas : 0;
    search.in_quorum = !options.client_mode;
    expect_crowds(search);
    const std::size_t seeds = seeds_for(search);
    Traversal traversal(runtime, protocol.node_id, search, guide);
    for (std::size_t i = first; i < first + count; ++i) {
      if ((i - first) % kQueriesPerTurn == kQueriesPerTurn - 1) co_await runtime.yield();
      guide.wanted[lookups[i]->key] = lookups[i];
      traversal.add_query(lookups[i]->key, protocol.table.nearest(lookups[i]->key, seeds));
    }
    const bool complete = co_await traversal.run();
    if (!complete) metrics.searches_timed_out.increment();
  }
}

/// Takes a node's record, or the entries of its dictionary, if it is valid and newer than what we have.
Task<void> Dht::Impl::consider(LookupPtr lookup, StoredRecord candidate, DhtId source) {
  const auto* best = lookup->best ? &*lookup->best : nullptr;
  const bool both = best && best->is_dictionary() && candidate.is_dictionary();
  if (best && !both && candidate.expiration <= best->expiration) co_return;
  if (candidate.is_dictionary()) {
    co_await consider_entries(std::move(lookup), std::move(candidate), source);
  } else {
    co_await consider_value(std::move(lookup), std::move(candidate), source);
  }
}

/// Which records are valid. What does not decode must not take the place of something that does.
Task<std::vector<bool>> Dht::Impl::check(std::vector<Record> records) {
  auto valid = co_await protocol.validate(records);
  for (std::size_t i = 0; i < records.size(); ++i) {
    valid[i] = valid[i] && msgpack::decode(as_bytes(protocol.validators().strip(records[i])));
    if (!valid[i]) metrics.records_invalid.increment();
  }
  co_return valid;
}

Task<void> Dht::Impl::consider_value(LookupPtr lookup, StoredRecord candidate, DhtId source) {
  std::vector<Record> records{
      {lookup->key.binary(), std::string(kRegularTag), *candidate.value(), candidate.expiration}};
  const auto valid = co_await check(std::move(records));
  // Other nodes may have answered meanwhile.
  if (!valid.front() || (lookup->best && candidate.expiration <= lookup->best->expiration)) co_return;
  lookup->best = std::move(candidate);
  lookup->source = source;
}

/// A large dictionary is looked at in several turns of the loop, and other nodes may answer between them.
Task<void> Dht::Impl::consider_entries(LookupPtr lookup, StoredRecord candidate, DhtId source) {
  const std::string key = lookup->key.binary();
  const auto& all = candidate.dictionary()->entries();
  Dictionary accepted;  // that there was no dictionary to merge with so far
  for (auto at = all.begin(); at != all.end();) {
    // Only entries that would change anything are checked: replicas mostly repeat each other.
    const auto* known = lookup->best ? lookup->best->dictionary() : nullptr;
    std::vector<Record> records;
    std::vector<std::string> identities;
    for (std::size_t turn = 0; at != all.end() && turn < kEntriesPerTurn; ++at, ++turn) {
      const auto& [identity, entry] = *at;
      if (known && !known->would_accept(identity, entry.expiration)) continue;
      records.push_back({key, entry.subkey, entry.value, entry.expiration});
      identities.push_back(identity);
    }
    const auto valid = co_await check(records);
    for (std::size_t i = 0; i < records.size(); ++i)
      if (valid[i])
        accepted.put({std::move(records[i].subkey), std::move(identities[i])}, std::move(records[i].value),
                     records[i].expiration, candidate.from);
    const bool merging = lookup->best && lookup->best->is_dictionary();
    if (merging || at == all.end())
      take_entries(*lookup, std::exchange(accepted, {}), source, protocol.storage.limits());
    if (at != all.end()) co_await runtime.yield();
  }
}

/// Keeps what was found: in our cache, and on the nearest nodes if they did not have it.
void Dht::Impl::remember(const LookupPtr& lookup, const std::vector<NodeEntry>& nearest) {
  if (!lookup->best || !lookup->source || *lookup->source == protocol.node_id) return;
  const double time = protocol.now();
  const DhtId& key = lookup->key;
  const StoredRecord& best = *lookup->best;
  const auto* held = protocol.held(key);
  if (best.expiration < time || (held && held->expiration >= best.expiration)) return;
  if (best.expiration > time + to_seconds(options.max_record_lifetime)) return;
  if (options.cache_locally) {
    const auto* dictionary = best.dictionary();
    if (dictionary && dictionary->entries().size() > kEntriesPerTurn) {
      tasks.spawn(cache_entries(lookup), "cache a large record");
    } else if (dictionary) {
      protocol.cache.store_dictionary(key, *dictionary, time);
    } else {
      protocol.cache.forget(key);  // a dictionary that several nodes sent entries of would refuse a plain value
      protocol.cache.store(key, *best.value(), best.expiration, time);
    }
    protocol.update_gauges();
  }
  std::size_t copies = 0;
  for (const auto& node : nearest) {
    if (copies >= options.cache_nearest) break;
    if (node.id == *lookup->source || protocol.failing.contains(node.peer, runtime.now())) continue;
    ++copies;
    if (!agree(*lookup, {node.id})) tasks.spawn(cache_on(node.peer, outgoing(key, best, true)), "cache on nearest");
  }
}

/// Keeps a dictionary in our cache, in several turns of the loop. A node that answers late may change it between them.
Task<void> Dht::Impl::cache_entries(LookupPtr lookup) {
  std::string last;
  for (std::size_t done = 0;; ++done) {
    if (done % kEntriesPerTurn == kEntriesPerTurn - 1) co_await runtime.yield();
    const auto* dictionary = lookup->best->dictionary();
    if (!dictionary) break;
    const auto at = done == 0 ? dictionary->entries().begin() : dictionary->entries().upper_bound(last);
    if (at == dictionary->entries().end()) break;
    const auto& [identity, entry] = *at;
    last = identity;
    protocol.cache.store_subkey(lookup->key, {entry.subkey, identity}, entry.value, entry.expiration, protocol.now(),
                                entry.from);
  }
  protocol.update_gauges();
}

Task<void> Dht::Impl::cache_on(PeerId peer, WireRecord record) {
  std::vector<WireRecord> records;
  records.push_back(std::move(record));
  auto stored = co_await protocol.store(peer, std::move(records));
  if (!stored) log::debug("dht", "not cached: {}", stored.error());
}

void Dht::Impl::schedule_refresh(const DhtId& key, double at) {
  refreshes.schedule(key, at);
  refreshes_changed.notify_all();
}

/// Looks cached keys that are in use up again shortly before they expire, so that readers find them here.
Task<void> Dht::Impl::refresh_cache() {
  const double lead = to_seconds(options.cache_refresh_before_expiry);
  for (;;) {
    if (refreshes.empty()) {
      co_await refreshes_changed.wait();
      continue;
    }
    const double wait = refreshes.next_time() - protocol.now();
    if (wait > 0) {
      co_await refreshes_changed.wait(runtime.after(from_seconds(wait)));
      continue;
    }
    std::vector<LookupPtr> lookups;
    const std::size_t batch = std::max<std::size_t>(options.chunk_size, 1);
    while (!refreshes.empty() && refreshes.next_time() <= protocol.now() && lookups.size() < batch) {
      const DhtId key = refreshes.pop();
      const auto* cached = protocol.cache.get(key, protocol.now());
      const double expiration = cached ? cached->expiration : protocol.now();
      auto lookup = std::make_shared<Lookup>(runtime, key, expiration + lead + kRefreshMargin);
      if (!look_up_locally(*lookup, false)) lookups.push_back(std::move(lookup));
    }
    metrics.cache_refreshes.increment(static_cast<double>(lookups.size()));
    co_await look_up(std::move(lookups), Deadline::never());
  }
}

Task<Result<GetResult>> Dht::Impl::result_of(LookupPtr lookup) const {
  if (auto found = co_await decode(lookup)) co_return std::move(*found);
  if (closed) co_return Error(Errc::closed);
  if (lookup->cut_off || !lookup->done.is_set()) co_return Error(cohive::Errc::timeout, "looking up a DHT key");
  if (!lookup->best && lookup->answers == 0 && should_know_nodes()) co_return Error(Errc::unreachable);
  co_return Error(Errc::not_found);
}

std::optional<msgpack::Value> Dht::Impl::value_of(const DhtId& key, const std::string& tag, const std::string& bytes,
                                                  double expiration) const {
  auto value = msgpack::decode(as_bytes(protocol.validators().strip({key.binary(), tag, bytes, expiration})));
  if (!value) return std::nullopt;
  return std::move(*value);
}

Task<std::optional<GetResult>> Dht::Impl::decode(LookupPtr lookup) const {
  if (!lookup->best) co_return std::nullopt;
  const double time = protocol.now();
  GetResult result;
  result.expiration = lookup->best->expiration;
  if (const std::string* bytes = lookup->best->value()) {
    auto value = value_of(lookup->key, std::string(kRegularTag), *bytes, result.expiration);
    if (!value || result.expiration < time) co_return std::nullopt;
    result.content = std::move(*value);
    co_return result;
  }
  std::vector<std::pair<msgpack::Value, StoredValue>> entries;
  std::string last;  // a node that answers late may change the dictionary between two turns
  for (std::size_t done = 0; lookup->best->is_dictionary(); ++done) {
    const auto& all = lookup->best->dictionary()->entries();
    const auto at = done == 0 ? all.begin() : all.upper_bound(last);
    if (at == all.end()) break;
    const auto& [identity, entry] = *at;
    last = identity;
    auto subkey = entry.expiration < time ? std::nullopt : std::optional(msgpack::decode(as_bytes(entry.subkey)));
    auto value = subkey ? value_of(lookup->key, entry.subkey, entry.value, entry.expiration) : std::nullopt;
    if (value && *subkey) entries.emplace_back(std::move(**subkey), StoredValue{std::move(*value), entry.expiration});
    if (done % kEntriesPerTurn == kEntriesPerTurn - 1) co_await runtime.yield();
  }
  if (entries.empty()) co_return std::nullopt;
  result.held = entries.size();
  if (auto counts = lookup->counts; !counts.empty()) {  // a single replica may say anything
    const auto middle = counts.begin() + static_cast<std::ptrdiff_t>((counts.size() - 1) / 2);
    std::ranges::nth_element(counts, middle);
    result.held = std::max(result.held, *middle);
  }
  result.content = std::move(entries);
  co_return result;
}

}  // namespace cohive::dht
