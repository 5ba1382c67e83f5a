#include "protocol.hpp"

#include <algorithm>
#include <cmath>
#include <functional>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/dht.pb.h"
#include "core/detail/bounded_parse.hpp"

namespace cohive::dht {
namespace {

constexpr double kBurstSeconds = 10;     // a trainer that stores or asks in bulk now and then is welcome
constexpr double kClockTolerance = 3.0;  // seconds; matchmaking margins assume the same
constexpr std::size_t kStoreBatch = 256;
constexpr std::size_t kLargeReply = 512 * 1024;  // a find reply in which the largest record may have found no room
constexpr std::size_t kKeysListedPerTurn = 2048;
constexpr std::size_t kHandOversAtOnce = 4;
constexpr Duration kTokenlessBackoff = 10s;  // that a peer without a valid token is refused unheard
constexpr std::size_t kCallBackShare = 4;    // of the outgoing calls, one in so many
// Before a busy node is asked again; the first is what a hundred keys take at the usual rate.
constexpr Duration kFirstPause = 20ms;
constexpr Duration kLongestPause = 500ms;
// Signatures of RSA-2048, of which a check takes about 30 microseconds. The loop checks so many itself at once, and so
// many in a second for all peers together. Others wait for a thread that does nothing else.
constexpr std::size_t kChecksInline = 48;
constexpr double kChecksInlinePerSecond = 1500;
constexpr std::size_t kSignaturesInline = 4;  // an RSA-2048 signature takes about 700 microseconds
// Subkey and value of an entry that is signed by a key of RSA-2048 have so many bytes at least. The entries of a reply
// may cost as many checks as entries of that size fit into it, a sixth of a second's work.
constexpr std::size_t kLeastSignedEntry = 720, kChecksOfAReply = rpc::kMaxUnaryFrame / kLeastSignedEntry;

// Of the memory for records: three quarters for those that this node has to keep, the rest for the cache.
constexpr std::size_t kStoredShare = 3, kCachedShare = 1;
// Of the host's memory budget that records may take beside it, where the options do not say: one part in so many.
constexpr std::size_t kShareOfBudget = 2;
constexpr std::size_t kMostMemory = 256 << 20;

StorageLimits limits_of(const p2p::Host& host, const DhtOptions& options, std::size_t records, std::size_t share) {
  const std::size_t usual = std::min(kMostMemory, host.memory().total() / kShareOfBudget);
  const std::size_t memory = options.max_storage_bytes > 0 ? options.max_storage_bytes : usual;
  StorageLimits limits;
  limits.max_records = records;
  limits.max_subkeys = options.max_subkeys;
  limits.max_value_bytes = options.max_value_bytes;
  limits.max_bytes = memory / (kStoredShare + kCachedShare) * share;
  return limits;
}

}  // namespace

WireRecord outgoing(const DhtId& key, const StoredRecord& record, bool in_cache) {
  if (const auto* dictionary = record.dictionary())
    return {key, std::string(kDictionaryTag), dictionary->encoded(), record.expiration, in_cache};
  return {key, std::string(kRegularTag), *record.value(), record.expiration, in_cache};
}

Protocol::Protocol(p2p::Host& h, const DhtOptions& opts, DhtId id, DhtMetrics& m)
    : host(h),
      runtime(h.runtime()),
      options(opts),
      node_id(id),
      metrics(m),
      table(id, opts.bucket_size, opts.depth_modulo,
            {.in_table = opts.max_nodes_per_block, .in_bucket = opts.max_nodes_per_block_in_bucket}),
      alone(runtime, "the loss of all DHT nodes"),
      storage(limits_of(h, opts, opts.max_records, kStoredShare)),
      cache(limits_of(h, opts, opts.cache_size ? opts.cache_size : opts.max_records, kCachedShare)),
      failing(opts.blacklist_time, opts.backoff_rate),
      hand_overs_(runtime, kHandOversAtOnce, "a turn to hand records over"),
      slots_(runtime, std::max<std::size_t>(opts.parallel_rpc, 1), "a slot for a DHT call"),
      call_backs_(runtime, std::max<std::size_t>(opts.parallel_rpc / kCallBackShare, 1), "a slot to call back"),
      called_back_one_(runtime, "a peer that is called back"),
      overloaded_(opts.blacklist_time, opts.backoff_rate),
      strangers_(kTokenlessBackoff, opts.backoff_rate),
      proven_(runtime, "the proof of a member"),
      rates_(opts.max_keys_per_second, opts.max_keys_per_second * kBurstSeconds),
      tasks_(runtime, "dht protocol"),
      store_limits_{.items = std::clamp<std::size_t>(opts.max_keys_per_request, 1, kStoreBatch)},
      stores_(
          runtime, store_limits_,
          [this](PeerId peer, std::vector<WireRecord> records) { return send_store(peer, std::move(records)); },
          &size_of),
      finds_(
          runtime, {.items = std::max<std::size_t>(opts.chunk_size, 1), .bytes = 1024 * 1024, .in_flight = 8},
          [this](PeerId peer, std::vector<DhtId> keys) { return send_joined_find(peer, std::move(keys)); },
          [](const DhtId&) { return DhtId::kSize; }),
      checks_(runtime) {
  if (options.authorizer) {
    signed_calls_.emplace(runtime, options.authorizer);
    members_only_ = host.serve_members_only(
        [this](PeerId peer, bool calls_us, Deadline deadline) { return prove(peer, calls_us, deadline); });
  }
  if (!options.client_mode) serve();
}

Protocol::~Protocol() = default;

void Protocol::close() {
  members_only_.reset();
  server_.reset();
  tasks_.cancel();
  stores_.close();
  finds_.close();
}

void Protocol::update_gauges() {
  metrics.nodes.set(static_cast<double>(table.size()));
  metrics.stored.set(static_cast<double>(storage.size()));
  metrics.cached.set(static_cast<double>(cache.size()));
}

const StoredRecord* Protocol::held(const DhtId& key) {
  const double time = now();
  const auto* stored = storage.get(key, time);
  const auto* cached = cache.get(key, time);
  // What anybody has put into the cache hides nothing that others have written here.
  if (!cached || (stored && stored->is_dictionary())) return stored;
  return stored && stored->expiration >= cached->expiration ? stored : cached;
}

// ---- Calls

void Protocol::fill(proto::NodeInfo& info) const {
  if (!options.client_mode) info.set_node_id(node_id.binary());
}

Task<Result<std::string>> Protocol::call(PeerId peer, const char* method, std::string request,
                                         const CallMetrics& counters) {
  Result<std::string> reply = Error(rpc::Errc::busy, peer, method);
  // Calls that wait already go first: else small calls would take all that a busy node grants.
  if (!busy_.contains(peer)) {
    auto slot = co_await slots_.acquire(1, runtime.after(options.wait_timeout));
    if (!slot) {  // which says nothing about the peer
      counters.failed.increment();
      const auto what = log::format("{}, which waits for {} others", method, options.parallel_rpc);
      co_return Error(rpc::Errc::busy, peer, what);
    }
    reply = co_await call_once(std::move(slot), peer, method, request, counters);
  }
  if (!reply && reply.error() == rpc::Errc::busy && !overloaded_.contains(peer, runtime.now()))
    reply = co_await call_in_turn(peer, method, std::move(request), counters);
  (reply ? counters.ok : counters.failed).increment();
  if (reply) {
    overloaded_.succeeded(peer);
  } else if (reply.error() == rpc::Errc::busy) {
    overloaded_.failed(peer, runtime.now());
  } else {
    lost(peer);
  }
  co_return reply;
}

Task<Result<std::string>> Protocol::call_once(Semaphore::Units /*slot*/, PeerId peer, const char* method,
                                              std::string request, const CallMetrics& counters) {
  const bool was_connected = host.connected(peer);
  if (!was_connected) {
    CO_TRY(co_await host.connect_via(peer, {}, runtime.after(options.wait_timeout)));
  }
  const Deadline deadline = runtime.after(options.wait_timeout);
  std::string nonce;
  const auto send = [&] {  // signed anew each time: the first request may have arrived
    std::string bytes = request;
    if (signed_calls_) {
      auto sealed = signed_calls_->sign_request(request);
      bytes = std::move(sealed.bytes);
      nonce = std::move(sealed.nonce);
    }
    return rpc::call_unary(host, peer, method, std::move(bytes), deadline);
  };
  auto reply = co_await send();
  // A connection that was dead already tells nothing about the peer: after a sleep of this machine all of them are.
  if (!reply && was_connected && !host.connected(peer) && reply.error() != cohive::Errc::timeout) {
    auto reached = co_await host.connect_via(peer, {}, deadline);
    if (reached) reply = co_await send();
  }
  if (!reply && reply.error() == rpc::Errc::busy) counters.busy.increment();
  if (reply && signed_calls_ && !signed_calls_->check_reply(peer, as_bytes(*reply), nonce))
    reply = Error(Errc::unauthorized, peer, method);
  co_return reply;
}

/// Asks a busy node until it serves or our patience ends, which counts from here: the line is short, because batches
/// hold back what comes meanwhile.
Task<Result<std::string>> Protocol::call_in_turn(PeerId peer, const char* method, std::string request,
                                                 const CallMetrics& counters) {
  Queue& line = busy_.try_emplace(peer, runtime).first->second;
  ++line.calls;
  const auto leave = on_exit([&] {
    if (--line.calls == 0) busy_.erase(peer);
  });
  const Deadline patience = runtime.after(options.wait_timeout);
  const auto turn = co_await line.turn.acquire(1, patience);
  Result<std::string> reply = Error(rpc::Errc::busy, peer, method);
  for (Duration pause = kFirstPause; turn && !patience.passed(runtime.now());
       pause = std::min(2 * pause, kLongestPause)) {
    auto slot = co_await slots_.acquire(1, patience);
    if (!slot) break;
    reply = co_await call_once(std::move(slot), peer, method, request, counters);
    if (reply || reply.error() != rpc::Errc::busy) break;
    co_await runtime.sleep_for(pause);
  }
  co_return reply;
}

/// One network has half of the turns at most: the others are left to newcomers from elsewhere.
Task<std::optional<Protocol::CallBack>> Protocol::turn_to_call_back(PeerId peer, Deadline deadline) {
  const std::string network = network_of_caller(peer);
  const std::size_t most = std::max<std::size_t>(options.parallel_rpc / kCallBackShare / 2, 1);
  for (;;) {
    const auto own = calling_back_.find(network);
    if (own == calling_back_.end() || own->second < most) break;
    if (!co_await called_back_one_.wait(deadline)) co_return std::nullopt;
  }
  CallBack turn{*this, network};
  turn.units = co_await call_backs_.acquire(1, deadline);
  if (!turn.units) co_return std::nullopt;
  co_return std::move(turn);
}

Protocol::CallBack::CallBack(Protocol& protocol, std::string of) : network(std::move(of)), self(&protocol) {
  ++protocol.calling_back_[network];
}

Protocol::CallBack::~CallBack() {
  if (!self) return;
  if (--self->calling_back_[network] == 0) self->calling_back_.erase(network);
  self->called_back_one_.notify_all();
}

/// A ping shows either side the token of the other. Members of ours ping before they call, so that a peer which has to
/// be pinged for calling us is a Python one or a stranger: few of these at once, and one at a time of each.
Task<Result<>> Protocol::prove(PeerId peer, bool calls_us, Deadline deadline) {
  const auto proven = [&] {
    const bool done = calls_us ? signed_calls_->is_member(peer) : signed_calls_->knows_us(peer);
    if (done) strangers_.succeeded(peer);
    return done;
  };
  const Deadline end = deadline.min(runtime.after(options.wait_timeout));
  while (!proven() && proving_.contains(peer))
    if (!co_await proven_.wait(end)) break;
  if (proven()) co_return ok();
  if (strangers_.contains(peer, runtime.now()) || !proving_.insert(peer).second)
    co_return Error(Errc::unauthorized, peer);
  const auto once = on_exit([&] {
    proving_.erase(peer);
    proven_.notify_all();
  });
  std::optional<CallBack> turn;
  if (calls_us) {
    auto given = co_await turn_to_call_back(peer, end);
    if (!given) co_return Error(Errc::unauthorized, peer);
    turn.emplace(std::move(*given));
  }
  const auto answer = co_await ping(peer, false);
  if (proven()) co_return ok();
  const bool refused = answer || answer.error() == Errc::unauthorized || answer.error() == rpc::Errc::handler_failed;
  if (refused || calls_us) strangers_.failed(peer, runtime.now(), refused);  // one that is silent may sleep
  co_return refused ? Error(Errc::unauthorized, peer) : answer.error();
}

Error Protocol::malformed(const PeerId& peer, const char* method) {
  host.reputation().report(peer, p2p::Offence::malformed);
  return Error(Errc::malformed_reply, peer, method);
}

Task<Result<std::optional<DhtId>>> Protocol::ping(PeerId peer, bool validate) {
  proto::PingRequest request;
  fill(*request.mutable_peer());
  request.set_validate(validate);
  const double sent = now();
  CO_TRY(auto bytes, co_await call(peer, "DHTProtocol.rpc_ping", request.SerializeAsString(), metrics.ping));
  const double received = now();
  proto::PingResponse reply;
  if (!parse_bounded(reply, as_bytes(bytes))) co_return malformed(peer, "rpc_ping");
  const auto id = DhtId::from_bytes(as_bytes(reply.peer().node_id()));
  if (validate && id) {
    const double theirs = reply.dht_time();
    if (theirs != 0 && !(theirs >= sent - kClockTolerance && theirs <= received + kClockTolerance))
      co_return Error(Errc::clock_differs, peer, log::format("by {:.1f} s", theirs - received));
    if (!options.client_mode && !reply.available()) co_return Error(Errc::not_reachable, peer);
  }
  heard_from(reply.peer().node_id(), peer);
  co_return id;
}

Task<Result<std::vector<bool>>> Protocol::store(PeerId peer, std::vector<WireRecord> records) {
  // What does not fit into one request goes in several, one after the other.
  std::vector<bool> accepted;
  for (std::size_t at = 0; at < records.size();) {
    std::vector<WireRecord> part;
    std::size_t bytes = 0;
    for (; at < records.size() && part.size() < store_limits_.items; ++at) {
      bytes += size_of(records[at]);
      if (!part.empty() && bytes > store_limits_.bytes) break;
      part.push_back(std::move(records[at]));
    }
    CO_TRY(auto result, co_await stores_.call(peer, std::move(part)));
    accepted.insert(accepted.end(), result.begin(), result.end());
  }
  co_return accepted;
}

Task<Result<std::vector<bool>>> Protocol::send_store(PeerId peer, std::vector<WireRecord> records) {
  proto::StoreRequest request;
  fill(*request.mutable_peer());
  for (auto& record : records) {
    request.add_keys(record.key.binary());
    request.add_subkeys(std::move(record.tag));
    request.add_values(std::move(record.value));
    request.add_expiration_time(record.expiration);
    request.add_in_cache(record.in_cache);
  }
  const auto records_sent = static_cast<std::size_t>(request.keys_size());
  CO_TRY(auto bytes, co_await call(peer, "DHTProtocol.rpc_store", request.SerializeAsString(), metrics.store));
  proto::StoreResponse reply;
  if (!parse_bounded(reply, as_bytes(bytes), records_sent + kMaxPlainFields) ||
      reply.store_ok_size() != request.keys_size()) {
    lost(peer);
    co_return malformed(peer, "rpc_store");
  }
  heard_from(reply.peer().node_id(), peer);
  co_return std::vector<bool>(reply.store_ok().begin(), reply.store_ok().end());
}

Task<Result<std::vector<Finding>>> Protocol::find(PeerId peer, std::vector<DhtId> keys, PeerId referrer, Draw draw) {
  if (!host.connected(peer)) {
    auto reached = co_await host.connect_via(peer, referrer, runtime.after(options.wait_timeout));
    if (!reached) {
      // The node that named it may have lied about its addresses: only nodes that we knew ourselves are given up.
      if (referrer.empty()) lost(peer);
      metrics.find.failed.increment();
      co_return reached.error();
    }
  }
  if (draw.most_entries > 0) co_return co_await send_find(peer, std::move(keys), draw);
  co_return co_await finds_.call(peer, std::move(keys));
}

/// \param until  of the replies after the first
Task<Result<std::vector<Finding>>> Protocol::send_find(PeerId peer, std::vector<DhtId> keys, Draw draw,
                                                       std::optional<Deadline> until) {
  const Deadline patience = until.value_or(runtime.after(2 * options.wait_timeout));
  proto::FindRequest request;
  fill(*request.mutable_peer());
  for (const DhtId& key : keys) request.add_keys(key.binary());
  request.set_most_entries(static_cast<std::uint32_t>(draw.most_entries));
  request.set_only_owned(draw.only_owned);
  CO_TRY(auto bytes, co_await call(peer, "DHTProtocol.rpc_find", request.SerializeAsString(), metrics.find));
  auto reply = read_find_reply(as_bytes(bytes), keys.size(), options.bucket_size);
  if (!reply || reply->results.size() != keys.size()) {
    lost(peer);
    co_return malformed(peer, "rpc_find");
  }
  heard_from(as_text(reply->node_id), peer);
  std::vector<Finding> findings;
  findings.reserve(keys.size());
  for (auto& result : reply->results) {
    findings.push_back(co_await read_finding(std::move(result), peer, draw));
    findings.back().node = DhtId::from_bytes(reply->node_id);
  }
  co_await leave_out_costly(keys, findings);
  if (keys.size() == 1 || bytes.size() < kLargeReply) co_return findings;
  // The node may have left out what did not fit.
  std::vector<std::size_t> missing;
  std::vector<DhtId> rest;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (findings[i].record) continue;
    missing.push_back(i);
    rest.push_back(keys[i]);
  }
  if (rest.empty() || rest.size() == keys.size()) co_return findings;
  auto more =
      co_await within(runtime, patience, send_find(peer, std::move(rest), draw, patience), "the rest of a find");
  for (std::size_t i = 0; more && i < more->size(); ++i) findings[missing[i]] = std::move((*more)[i]);
  co_return findings;
}

Task<Result<std::vector<Finding>>> Protocol::send_joined_find(PeerId peer, std::vector<DhtId> keys) {
  std::vector<DhtId> distinct;
  std::unordered_map<DhtId, std::size_t> place;
  for (const DhtId& key : keys)
    if (place.try_emplace(key, distinct.size()).second) distinct.push_back(key);
  const bool all = distinct.size() == keys.size();
  CO_TRY(auto findings, co_await send_find(peer, std::move(distinct)));
  if (all) co_return findings;
  std::vector<Finding> joined;
  joined.reserve(keys.size());
  for (const DhtId& key : keys) joined.push_back(findings[place.at(key)]);
  co_return joined;
}

Task<Finding> Protocol::read_finding(FindResultView result, PeerId from, Draw draw) const {
  Finding finding;
  finding.nearest = std::move(result.nearest);
  std::erase_if(finding.nearest,
                [this](const NodeEntry& node) { return node.id == node_id || node.peer == host.id(); });
  if (result.type == FindType::regular) {
    if (std::isfinite(result.expiration) && result.expiration >= now() &&
        result.value.size() <= options.max_value_bytes)
      finding.record = StoredRecord{to_string(result.value), result.expiration, from};
  } else if (result.type == FindType::dictionary) {
    auto reader = DictionaryReader::open(result.value, storage.limits());
    // A Python node sends all that it has; one that says that it drew sends no more than it was asked for.
    const bool drawn = draw.most_entries > 0 && result.entries > 0;
    const std::size_t most = drawn ? draw.most_entries : storage.limits().max_subkeys;
    Dictionary dictionary;
    while (reader && reader->left() > 0 && dictionary.entries().size() < most) {
      if (reader->left() % kEntriesPerTurn == 0) co_await runtime.yield();
      auto entry = reader->next();
      if (entry && *entry && (*entry)->expiration >= now()) {
        dictionary.put(std::move((*entry)->subkey), to_string((*entry)->value), (*entry)->expiration);
      } else if (!entry || !*entry) {
        metrics.records_invalid.increment();
      }
    }
    // The claimed expiration of the whole counts for nothing: that of the entries does.
    if (!dictionary.entries().empty()) {
      const double expiration = dictionary.latest_expiration();
      const auto told = static_cast<std::size_t>(std::min<std::uint64_t>(result.entries, storage.limits().max_subkeys));
      finding.entries = std::max(dictionary.entries().size(), told);
      finding.record = StoredRecord{std::move(dictionary), expiration, from};
    }
  }
  co_return finding;
}

/// Leaves out entries of a reply whose checks would take too long together, those that take longest for their bytes
/// first: whoever answers is not charged for the work. Entries that keys of RSA-2048 have signed always stay, since a
/// reply has no room for too many of them.
Task<void> Protocol::leave_out_costly(const std::vector<DhtId>& keys, std::vector<Finding>& findings) const {
  struct Costly {
    double for_a_byte = 0;
    std::size_t cost = 0;
    Dictionary* dictionary = nullptr;
    const std::string* identity = nullptr;
  };
  const auto validators = validators_;  // others may be added between two turns of the loop
  std::vector<Costly> all;
  std::size_t sum = 0, looked_at = 0;
  for (std::size_t i = 0; i < findings.size() && !validators->empty(); ++i) {
    auto* dictionary = findings[i].record ? std::get_if<Dictionary>(&findings[i].record->content) : nullptr;
    if (!dictionary) continue;
    const std::string key = keys[i].binary();
    for (const auto& [identity, entry] : dictionary->entries()) {
      if (++looked_at % kEntriesPerTurn == 0) co_await runtime.yield();
      const std::size_t cost = validators->cost(Record{key, entry.subkey, entry.value, entry.expiration});
      if (cost == 0) continue;
      const auto bytes = static_cast<double>(entry.subkey.size() + entry.value.size());
      all.push_back({static_cast<double>(cost) / bytes, cost, dictionary, &identity});
      sum += cost;
    }
  }
  if (sum <= kChecksOfAReply) co_return;
  std::ranges::sort(all, std::ranges::greater(), &Costly::for_a_byte);
  std::size_t left_out = 0;
  for (; sum > kChecksOfAReply; ++left_out) {
    sum -= all[left_out].cost;
    all[left_out].dictionary->erase(*all[left_out].identity);
  }
  log::debug("dht", "{} entries of a reply are left out: checking them would take too long", left_out);
}

// ---- Validation

void Protocol::add_validator(std::shared_ptr<RecordValidator> validator) {
  // Checks that run right now keep the list they started with.
  auto extended = std::make_shared<CompositeValidator>(*validators_);
  extended->add(std::move(validator));
  validators_ = std::move(extended);
  if (storage.size() + cache.size() > 0) tasks_.spawn(revalidate(), "revalidate records");
}

Task<std::vector<bool>> Protocol::validate(std::vector<Record> records) {
  if (validators_->empty()) co_return std::vector<bool>(records.size(), true);
  const std::size_t count = records.size(), cost = validators_->cost(records);
  auto check = [validators = validators_, records = std::move(records)] {
    std::vector<bool> valid;
    valid.reserve(records.size());
    for (const Record& record : records) valid.push_back(validators->validate(record));
    return valid;
  };
  checks_inline_.fill(runtime.now(), kChecksInlinePerSecond, kChecksInlinePerSecond);
  if (count <= kEntriesPerTurn && (cost == 0 || (cost <= kChecksInline && checks_inline_.level > 0))) {
    checks_inline_.level -= static_cast<double>(cost);
    co_return check();
  }
  co_return co_await checks_.run(std::move(check));
}

Task<std::vector<Record>> Protocol::sign(std::vector<Record> records) {
  if (validators_->empty()) co_return std::move(records);
  const bool few = records.size() <= kSignaturesInline;
  auto work = [validators = validators_, records = std::move(records)]() mutable {
    for (Record& record : records) record.value = validators->sign(record);
    return std::move(records);
  };
  if (few) co_return work();
  co_return co_await runtime.offload(std::move(work));
}

Task<std::vector<DhtId>> Protocol::all_keys(const Storage& store) {
  std::vector<DhtId> all;
  Storage::Cursor at;
  for (auto keys = store.keys(at, kKeysListedPerTurn); !keys.empty(); keys = store.keys(at, kKeysListedPerTurn)) {
    all.insert(all.end(), keys.begin(), keys.end());
    co_await runtime.yield();
  }
  co_return all;
}

/// What was stored before a validator came may not please it.
Task<void> Protocol::revalidate() {
  for (Storage* store : {&storage, &cache}) {
    std::size_t in_turn = 0;
    for (const DhtId& key : co_await all_keys(*store)) {
      if (++in_turn % kRecordsPerTurn == 0) co_await runtime.yield();
      const auto* record = store->get(key, now());
      if (!record) continue;
      std::vector<Record> records;
      if (const auto* dictionary = record->dictionary()) {
        for (const auto& [identity, entry] : dictionary->entries())
          records.push_back({key.binary(), entry.subkey, entry.value, entry.expiration});
      } else {
        records.push_back({key.binary(), std::string(kRegularTag), *record->value(), record->expiration});
      }
      const auto valid = co_await validate(records);
      for (std::size_t i = 0; i < valid.size(); ++i) {
        if (valid[i]) continue;
        metrics.records_invalid.increment();
        store->erase(key, records[i].subkey, records[i].expiration);
      }
      if (valid.size() >= kEntriesPerTurn) co_await runtime.yield();
    }
  }
  update_gauges();
}

}  // namespace cohive::dht
