// The DHT node: joining, keeping the routing table fresh, and the public face.
// Source: docs/wire/hivemind.md, section 3.8.
#include "cohive/dht/dht.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/try.hpp"
#include "cohive/dht/errors.hpp"
#include "core/detail/said_once.hpp"
#include "crowding.hpp"
#include "dht_impl.hpp"
#include "p2p/detail/network_block.hpp"

namespace cohive::dht {
namespace {

// After the first initial peer answered, the rest get this long: a dead one must not delay the start by its time-out.
constexpr Duration kGraceForOthers = 3s;
// For a node that failed when it was asked last: it mostly still sleeps, or has gone.
constexpr Duration kPatienceInDoubt = 1s;
// Buckets looked at this often, per refresh_timeout.
constexpr int kRefreshChecks = 4;
// Work of one turn of the loop when records are saved or restored: well below a millisecond.
constexpr std::size_t kLocalRecordsPerTurn = 128;
constexpr std::size_t kLocalBytesPerTurn = 1024 * 1024;
constexpr std::size_t kManyKeys = 1000;  // see DhtOptions::operation_timeout

}  // namespace

Dht::Impl::Impl(p2p::Host& host, DhtOptions opts)
    : options(opts),
      metrics(host.runtime().metrics()),
      protocol(host, options, opts.node_id.value_or(DhtId::random(host.runtime())), metrics),
      runtime(host.runtime()),
      refreshes_changed(runtime, "cached keys to refresh"),
      tasks(runtime, "dht") {
  if (options.cache_refresh_before_expiry > 0s) tasks.spawn(refresh_cache(), "cache refresh");
  if (options.refresh_timeout > 0s) tasks.spawn(refresh_buckets(), "bucket refresh");
}

// ---- Joining

/// Connects to one initial peer and greets it.
Task<Result<>> Dht::Impl::join_through(Multiaddr address, Deadline deadline, bool validate) {
  CO_TRY(co_await protocol.host.bootstrap({address}, deadline));
  auto peer = address.peer();
  if (!peer) {  // a DNS name that stands for several peers
    CO_TRY(peer, co_await protocol.host.connect(address, deadline));
  }
  co_return co_await greet(*peer, validate);
}

/// Makes sure that a peer answers as a DHT node; the table has it then.
Task<Result<>> Dht::Impl::greet(PeerId peer, bool validate) {
  CO_TRY(auto node, co_await protocol.ping(peer, validate));
  if (!node) co_return Error(Errc::no_node_id, peer);
  protocol.failing.succeeded(peer);
  co_return ok();
}

/// Makes this node known to the nodes near its id, and them to it; other nodes enter the table when they call.
Task<void> Dht::Impl::be_known(Deadline deadline) {
  co_await explore(std::vector<DhtId>(1, protocol.node_id), options.beam_size, deadline);
}

Task<Result<>> Dht::Impl::start(std::vector<Multiaddr> initial_peers) {
  auto joined = co_await join(initial_peers);
  initial.insert(initial.end(), initial_peers.begin(), initial_peers.end());
  if (!std::exchange(staying, true)) tasks.spawn(stay_joined(), "way back into the swarm");
  protocol.alone.notify_all();
  co_return joined;
}

Task<Result<>> Dht::Impl::join(std::vector<Multiaddr> initial_peers) {
  if (initial_peers.empty()) co_return ok();
  const Deadline deadline = runtime.after(options.bootstrap_timeout);
  Condition changed(runtime, "initial peers");
  std::size_t waiting = initial_peers.size();
  bool joined = false;
  std::optional<Error> failed;  // all that have
  Nursery attempts(runtime, "dht bootstrap");
  auto attempt = [](Impl& self, Multiaddr address, Deadline limit, std::size_t& left, bool& success,
                    std::optional<Error>& failures, Condition& done) -> Task<void> {
    auto result = co_await self.join_through(address, limit, self.options.validate_bootstrap);
    success = success || result;
    if (!result) {
      const std::string before = failures ? failures->detail() + "; " : std::string();
      Error all(Errc::bootstrap_failed, before + address.text() + ": " + result.error().message());
      if (failures) all = all.with_cause(*failures);
      failures = all.with_cause(result.error());
    }
    --left;
    done.notify_all();
  };
  for (const auto& address : initial_peers)
    attempts.spawn(attempt(*this, address, deadline, waiting, joined, failed, changed), "join through initial peer");
  Deadline patience = deadline.min(Deadline(deadline.at() + options.wait_timeout));
  while (waiting > 0) {
    const bool before = joined;
    if (!co_await changed.wait(patience)) break;
    if (joined && !before) patience = patience.min(runtime.after(kGraceForOthers));
  }
  attempts.cancel();
  if (!joined) co_return failed ? *failed : Error(Errc::bootstrap_failed, "they did not answer in time");
  if (failed)
    Failures::of(runtime).warn("dht", "join", "no_answer",
                               "some initial peers did not answer: " + said_once(failed->detail()));
  co_await be_known(deadline.passed(runtime.now()) ? runtime.after(options.wait_timeout) : deadline);
  log::debug("dht", "joined the swarm: {} nodes known", protocol.table.size());
  co_return ok();
}

// ---- Searching

Deadline Dht::Impl::deadline_for(std::size_t keys, std::optional<Deadline> given) const {
  return given ? *given : runtime.after(options.operation_timeout * (1 + static_cast<int>(keys / kManyKeys)));
}

bool Dht::Impl::should_know_nodes() const {
  return options.client_mode || !initial.empty() || !protocol.former.empty() || protocol.table.size() > 0;
}

TraversalOptions Dht::Impl::search_options(std::size_t beam, std::size_t keys) const {
  TraversalOptions search;
  search.beam_size = beam;
  search.result_size = std::max(beam, options.beam_size);
  search.num_workers = options.num_workers;
  search.queries_per_call = static_cast<std::size_t>(std::sqrt(static_cast<double>(keys)));
  search.deadline = runtime.after(options.search_timeout);
  search.block_of = [this](const PeerId& peer) { return block_of(peer); };
  return search;
}

/// Of searches that decide what is read and where it is stored.
void Dht::Impl::expect_crowds(TraversalOptions& search) const {
  search.swarm_size = estimate_swarm_size(protocol.node_id, protocol.table.nearest(protocol.node_id, kNodesToJudgeBy));
}

std::size_t Dht::Impl::seeds_for(const TraversalOptions& search) const {
  return std::max(options.bucket_size, search.swarm_size > 0 ? Traversal::seeds_for(search.result_size) : 0);
}

std::optional<std::uint64_t> Dht::Impl::block_of(const PeerId& peer) const {
  const auto address = protocol.host.remote_address(peer);
  return address ? p2p::network_block(*address) : std::nullopt;
}

Task<std::optional<std::vector<Finding>>> Dht::Impl::ask(Contact contact, std::vector<DhtId> keys, Draw draw) {
  const PeerId peer = contact.node.peer;
  Blacklist& failing = protocol.failing;
  if (failing.contains(peer, runtime.now())) co_return std::nullopt;
  const bool in_doubt = failing.doubts(peer, runtime.now());
  auto finding_all = protocol.find(peer, std::move(keys), contact.referrer, draw);
  auto findings = in_doubt ? co_await within(runtime, runtime.after(kPatienceInDoubt), std::move(finding_all),
                                             "a DHT node that had failed before")
                           : co_await std::move(finding_all);
  if (!findings) {
    if (findings.error() != rpc::Errc::busy) failing.failed(peer, runtime.now());
    if (in_doubt && findings.error() == cohive::Errc::timeout) protocol.check_again(peer);  // it may be slow
    log::debug("dht", "find failed: {}", findings.error());
    co_return std::nullopt;
  }
  failing.succeeded(peer);
  for (auto& finding : *findings)
    std::erase_if(finding.nearest, [&](const NodeEntry& other) { return failing.contains(other.peer, runtime.now()); });
  co_return std::move(*findings);
}

Task<std::optional<std::vector<TraversalStep>>> Dht::Impl::ask_for_nodes(Contact contact, std::vector<DhtId> keys) {
  auto findings = co_await ask(std::move(contact), std::move(keys));
  if (!findings) co_return std::nullopt;
  std::vector<TraversalStep> steps;
  for (auto& finding : *findings) steps.push_back({std::move(finding.nearest), false, finding.node});
  co_return steps;
}

Task<std::unordered_map<DhtId, Explored>> Dht::Impl::explore(std::vector<DhtId> keys, std::size_t beam,
                                                             Deadline deadline, bool watchful) {
  struct Exploring final : Traversal::Guide {
    explicit Exploring(Impl& impl) : self(impl) {}
    Task<std::optional<std::vector<TraversalStep>>> ask(Contact contact, std::vector<DhtId> queries) override {
      return self.ask_for_nodes(std::move(contact), std::move(queries));
    }
    void found(const DhtId& query, std::vector<NodeEntry> nodes, SearchCost cost) override {
      results[query] = {std::move(nodes), cost.crowded};
    }
    Impl& self;
    std::unordered_map<DhtId, Explored> results;
  };
  Exploring guide(*this);
  auto search = search_options(beam, keys.size());
  search.deadline = search.deadline.min(deadline);
  if (watchful) expect_crowds(search);
  Traversal traversal(runtime, protocol.node_id, search, guide);
  const std::size_t seeds = seeds_for(search);
  for (const DhtId& key : keys) traversal.add_query(key, protocol.table.nearest(key, seeds));
  if (!co_await traversal.run()) metrics.searches_timed_out.increment();
  co_return std::move(guide.results);
}

/// Buckets that no search touched for long are filled again, or found to be empty.
Task<void> Dht::Impl::refresh_buckets() {
  for (;;) {
    co_await runtime.sleep_for(options.refresh_timeout / kRefreshChecks);
    auto stale = protocol.table.stale_buckets(runtime.now() - options.refresh_timeout, runtime);
    if (!stale.empty() && protocol.table.size() > 0)
      co_await explore(std::move(stale), options.bucket_size, Deadline::never());
  }
}

// ---- The public face

Dht::Dht(p2p::Host& host, DhtOptions options) : impl_(std::make_unique<Impl>(host, options)) {}
Dht::~Dht() = default;

Task<Result<>> Dht::start(std::vector<Multiaddr> initial_peers) {
  return impl_->start(std::move(initial_peers));
}

Task<void> Dht::close() {
  impl_->closed = true;
  impl_->tasks.cancel();
  impl_->protocol.close();
  for (const auto& [key, lookup] : std::exchange(impl_->pending, {})) lookup->done.set();
  co_return;
}

Task<Result<>> Dht::store(Key key, msgpack::Value value, double expiration, std::optional<Deadline> deadline) {
  std::vector<StoreItem> items;
  items.push_back({std::move(key), std::nullopt, std::move(value), expiration});
  auto stored = co_await store_many(std::move(items), deadline);
  co_return std::move(stored.front());
}

Task<Result<>> Dht::store(Key key, msgpack::Value subkey, msgpack::Value value, double expiration,
                          std::optional<Deadline> deadline) {
  std::vector<StoreItem> items;
  items.push_back({std::move(key), std::move(subkey), std::move(value), expiration});
  auto stored = co_await store_many(std::move(items), deadline);
  co_return std::move(stored.front());
}

Task<std::vector<Result<>>> Dht::store_many(std::vector<StoreItem> items, std::optional<Deadline> deadline) {
  const std::size_t count = items.size();
  co_return co_await impl_->store_many(std::move(items), impl_->deadline_for(count, deadline));
}

Task<Result<GetResult>> Dht::get(Key key, bool latest, std::optional<Deadline> deadline) {
  std::vector<Key> keys;
  keys.push_back(std::move(key));
  auto results = co_await get_many(std::move(keys), latest, deadline);
  co_return std::move(results.front());
}

Task<Result<GetResult>> Dht::get_sampled(Key key, std::size_t replicas, Draw draw, std::optional<Deadline> deadline) {
  co_return co_await impl_->get_sampled(std::move(key), replicas, draw, impl_->deadline_for(1, deadline));
}

Task<std::vector<Result<GetResult>>> Dht::get_many(std::vector<Key> keys, bool latest,
                                                   std::optional<Deadline> deadline) {
  const std::size_t count = keys.size();
  co_return co_await impl_->get_many(std::move(keys), latest, impl_->deadline_for(count, deadline));
}

void Dht::add_validator(std::shared_ptr<RecordValidator> validator) {
  impl_->protocol.add_validator(std::move(validator));
}

Task<Result<std::optional<DhtId>>> Dht::ping(PeerId peer, std::optional<Deadline> deadline) {
  co_return co_await within(runtime(), deadline.value_or(Deadline::never()), impl_->protocol.ping(peer, false),
                            "DHT ping");
}

Task<Result<std::vector<NodeReport>>> Dht::ask(PeerId peer, std::vector<DhtId> keys, std::optional<Deadline> deadline) {
  CO_TRY(auto findings, co_await within(runtime(), deadline.value_or(Deadline::never()),
                                        impl_->protocol.find(peer, std::move(keys)), "DHT find"));
  std::vector<NodeReport> reports;
  for (const Finding& finding : findings) {
    NodeReport& report = reports.emplace_back();
    report.has_record = finding.record.has_value();
    for (const NodeEntry& node : finding.nearest) report.nearest.emplace_back(node.id, node.peer);
  }
  co_return reports;
}

Task<std::vector<std::pair<DhtId, PeerId>>> Dht::nearest_nodes(DhtId key, std::optional<Deadline> deadline,
                                                               std::size_t beam) {
  if (beam == 0) beam = impl_->options.bucket_size;
  auto found = co_await impl_->explore({key}, beam, deadline.value_or(Deadline::never()));
  std::vector<std::pair<DhtId, PeerId>> nodes;
  for (const NodeEntry& node : found[key].nearest) nodes.emplace_back(node.id, node.peer);
  co_return nodes;
}

Task<Result<>> Dht::save(std::filesystem::path path, std::vector<SavedPeer>& peers, StateLimits limits) {
  std::vector<SavedPeer> known;
  for (const auto& node : impl_->protocol.table.nearest(node_id(), limits.max_peers)) {
    const auto info = host().peer(node.peer);
    if (info && !info->addresses.empty()) known.push_back({node.id, node.peer, info->addresses});
  }
  if (!known.empty()) peers = std::move(known);
  SavedState state{host().id(), node_id(), peers};
  CO_TRY(auto created, co_await runtime().offload_io([path = std::move(path), state = std::move(state)] {
    return StateWriter::create(path, state);
  }));
  const auto writer = std::make_shared<StateWriter>(std::move(created));
  std::size_t left = limits.max_bytes;
  CO_TRY(co_await impl_->save_records(impl_->protocol.storage, writer, left));
  CO_TRY(co_await impl_->save_records(impl_->protocol.cache, writer, left));
  co_return co_await runtime().offload_io([writer] { return writer->finish(); });
}

Task<Result<>> Dht::Impl::save_records(Storage& store, std::shared_ptr<StateWriter> writer, std::size_t& left) {
  const std::vector<DhtId> all = co_await protocol.all_keys(store);
  for (std::size_t next = 0; next < all.size() && left > 0;) {
    std::vector<WireRecord> part;
    std::size_t bytes = 0;
    for (; next < all.size() && part.size() < kLocalRecordsPerTurn && bytes < kLocalBytesPerTurn; ++next) {
      const auto* record = store.get(all[next], protocol.now());
      if (!record) continue;
      auto out = outgoing(all[next], *record, &store == &protocol.cache);
      const std::size_t size = DhtId::kSize + out.tag.size() + out.value.size();
      if (bytes + size > left) {
        left = bytes;  // what is left out expires before all that is kept
        break;
      }
      bytes += size;
      part.push_back(std::move(out));
    }
    left -= bytes;
    CO_TRY(co_await runtime.offload_io([writer, part = std::move(part)] { return writer->add(part); }));
  }
  co_return ok();
}

Task<std::size_t> Dht::restore(std::vector<WireRecord> records) {
  std::size_t kept = 0;
  for (std::size_t at = 0; at < records.size();) {
    std::vector<WireRecord> part;
    std::size_t bytes = 0;
    for (; at < records.size() && part.size() < kLocalRecordsPerTurn && bytes < kLocalBytesPerTurn; ++at) {
      WireRecord& record = records[at];
      bytes += record.value.size();
      part.push_back(std::move(record));
    }
    // Their senders are forgotten. Under one sender they would be the largest share, and the first to go.
    const PeerId from = PeerId::of_public_key(as_bytes("restored part " + std::to_string(impl_->restored_parts++)));
    const auto stored = co_await impl_->protocol.store_locally(std::move(part), from);
    kept += static_cast<std::size_t>(std::count(stored.begin(), stored.end(), true));
    co_await runtime().yield();
  }
  if (records.size() > kLocalRecordsPerTurn)  // what is left of so many takes long to give back
    co_await runtime().offload([rest = std::move(records)]() mutable { std::vector<WireRecord>().swap(rest); });
  co_return kept;
}

bool Dht::doubts(const PeerId& peer) const {
  return impl_->protocol.failing.doubts(peer, impl_->runtime.now());
}

void Dht::doubt(const PeerId& peer) {
  if (peer == host().id()) return;
  impl_->protocol.failing.doubt(peer, impl_->runtime.now());
  impl_->protocol.check_again(peer);
}

double Dht::now() const {
  return impl_->protocol.now();
}
const DhtId& Dht::node_id() const noexcept {
  return impl_->protocol.node_id;
}
p2p::Host& Dht::host() const noexcept {
  return impl_->protocol.host;
}
const DhtOptions& Dht::options() const noexcept {
  return impl_->options;
}
Runtime& Dht::runtime() const noexcept {
  return impl_->runtime;
}
std::size_t Dht::table_size() const {
  return impl_->protocol.table.size();
}
std::size_t Dht::storage_size() const {
  return impl_->protocol.storage.size(now());
}
std::size_t Dht::cache_size() const {
  return impl_->protocol.cache.size(now());
}

std::vector<std::pair<DhtId, PeerId>> Dht::known_nodes() const {
  std::vector<std::pair<DhtId, PeerId>> result;
  for (const auto& node : impl_->protocol.table.nearest(node_id(), table_size()))
    result.emplace_back(node.id, node.peer);
  return result;
}

}  // namespace cohive::dht
