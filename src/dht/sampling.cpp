// Getting a record from some of its replicas.
#include <algorithm>
#include <limits>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "dht_impl.hpp"

namespace cohive::dht {
namespace {

constexpr std::size_t kRememberedKeys = 16;  // keys

/// Asks nodes, one after the other, until one answers.
struct Sampling {
  Dht::Impl& self;
  LookupPtr lookup;
  std::vector<NodeEntry> candidates;
  Draw draw{};
  std::size_t next = 0;

  /// Returns of how many entries a node has drawn those that it has sent; 0 where it sent all that it was asked for.
  std::size_t count(const Finding& found) const {
    if (draw.most_entries == 0 || !found.record) return 0;
    const Dictionary* sent = found.record->dictionary();
    const bool is_whole = sent && found.entries == sent->entries().size();
    return is_whole ? sent->drawable(draw.only_owned) : found.entries;
  }

  static Task<void> ask_one(Sampling& of) {
    while (of.next < of.candidates.size()) {
      const NodeEntry node = of.candidates[of.next++];
      std::vector<DhtId> keys{of.lookup->key};
      auto findings = co_await of.self.ask({node, {}}, std::move(keys), of.draw);
      if (!findings || findings->empty()) continue;
      ++of.lookup->answers;
      if (const std::size_t count = of.count(findings->front()); count > 0) of.lookup->counts.push_back(count);
      if (findings->front().record) co_await of.self.consider(of.lookup, std::move(*findings->front().record), node.id);
      co_return;
    }
  }
};

}  // namespace

void SampledRecords::keep(const DhtId& key, StoredRecord record, double latest) {
  auto* dictionary = std::get_if<Dictionary>(&record.content);
  if (!dictionary) return;
  std::vector<std::string> beyond;
  for (const auto& [identity, entry] : dictionary->entries())
    if (entry.expiration > latest) beyond.push_back(identity);
  for (const std::string& identity : beyond) dictionary->erase(identity);
  record.expiration = std::min(record.expiration, latest);
  if (!records_.contains(key)) {
    if (order_.size() >= kRememberedKeys) {
      records_.erase(order_.front());
      order_.pop_front();
    }
    order_.push_back(key);
  }
  records_.insert_or_assign(key, std::move(record));
}

void SampledRecords::forget_expired(double now) {
  std::erase_if(order_, [&](const DhtId& key) {
    const auto found = records_.find(key);
    const bool expired = found->second.expiration < now;
    if (expired) records_.erase(found);
    return expired;
  });
}

const StoredRecord* SampledRecords::find(const DhtId& key) const {
  const auto found = records_.find(key);
  return found == records_.end() ? nullptr : &found->second;
}

/// What this node has stored itself. As other nodes do, it draws of a large dictionary: what strangers have put under a
/// key must not be copied and decoded whole at each look.
void Dht::Impl::draw_locally(Lookup& lookup, Draw draw) {
  const auto* stored = protocol.storage.get(lookup.key, protocol.now());
  if (!stored) return;
  lookup.source = protocol.node_id;
  const Dictionary* dictionary = stored->dictionary();
  const std::size_t all = dictionary ? dictionary->drawable(draw.only_owned) : 0;
  if (dictionary && draw.most_entries > 0) lookup.counts.push_back(all);
  if (!dictionary || draw.most_entries == 0 || std::min(draw.most_entries, all) == dictionary->entries().size()) {
    lookup.take(*stored, protocol.storage.limits());
    return;
  }
  const std::string drawn = dictionary->encoded_sample(draw.most_entries, draw.only_owned, runtime.random());
  if (auto decoded = Dictionary::decode(as_bytes(drawn), protocol.storage.limits()))
    lookup.take({std::move(*decoded), stored->expiration}, protocol.storage.limits());
}

Task<Result<GetResult>> Dht::Impl::get_sampled(Key key, std::size_t replicas, Draw draw, Deadline deadline) {
  auto lookup = std::make_shared<Lookup>(runtime, DhtId::of(key), std::numeric_limits<double>::infinity());
  if (closed) co_return co_await result_of(lookup);
  const TimePoint start = runtime.now();
  const bool whole = draw.most_entries == 0;
  const DhtId sibling = lookup->key.sibling();
  auto found = co_await explore({sibling}, options.num_replicas, deadline, true);
  const bool crowded = found[sibling].crowded;
  // A node that was a replica before nearer ones came still has what it was sent then: too much of a draw would be old.
  if (whole || found[sibling].nearest.size() < options.num_replicas) draw_locally(*lookup, draw);
  sampled.forget_expired(protocol.now());
  if (const auto* known = whole ? sampled.find(lookup->key) : nullptr) lookup->take(*known, protocol.storage.limits());
  Sampling sampling{*this, lookup, std::move(found[sibling].nearest), draw};
  auto& candidates = sampling.candidates;
  const std::size_t count = std::min(candidates.size(), replicas_of(options.num_replicas, crowded));
  const auto holders = candidates.begin() + static_cast<std::ptrdiff_t>(count);
  std::shuffle(candidates.begin(), holders, runtime.random());
  Nursery asking(runtime, "replicas of a record");
  for (std::size_t i = 0; i < replicas_of(replicas, crowded); ++i)
    asking.spawn(Sampling::ask_one(sampling), "replica of a record");
  if (!co_await within(runtime, deadline, asking.join())) {
    lookup->cut_off = true;
    asking.cancel();
  }
  lookup->done.set();
  if (lookup->best) {
    if (auto* dictionary = std::get_if<Dictionary>(&lookup->best->content)) dictionary->drop_expired(protocol.now());
    // Not for longer than a record may live: one replica may say anything once.
    const double latest = protocol.now() + to_seconds(options.max_record_lifetime);
    if (whole) sampled.keep(lookup->key, *lookup->best, latest);
  }
  auto result = co_await result_of(lookup);
  (result ? metrics.gets_found : metrics.gets_missed).increment();
  metrics.get_seconds.observe(to_seconds(runtime.now() - start));
  co_return result;
}

}  // namespace cohive::dht
