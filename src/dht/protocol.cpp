#include "protocol.hpp"

#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::dht {
namespace {

constexpr double kClockTolerance = 3.0;   // seconds; matchmaking margins assume the same
constexpr std::size_t kMaxTag = 4096;
constexpr std::size_t kHandOverBatch = 64;

Error malformed(const PeerId& peer, const char* what) { return Error(cohive::Errc::malformed, peer, what); }

template <class Message>
bool parse(Message& message, const std::string& bytes) {
  return message.ParseFromString(bytes);
}

}  // namespace

Protocol::Protocol(p2p::Host& h, const DhtOptions& opts, DhtId id, DhtMetrics& m)
    : host(h), runtime(h.runtime()), options(opts), node_id(id), metrics(m),
      table(id, opts.bucket_size, opts.depth_modulo), storage(opts.max_records, opts.max_subkeys),
      cache(opts.cache_size ? opts.cache_size : opts.max_records, opts.max_subkeys),
      in_flight_(runtime, opts.parallel_rpc, "outgoing DHT calls"), server_(h), tasks_(runtime, "dht protocol") {
  if (!options.client_mode) serve();
}

void Protocol::serve() {
  server_.add_unary("DHTProtocol.rpc_ping", [this](PeerId p, std::string r) { return on_ping(p, std::move(r)); });
  server_.add_unary("DHTProtocol.rpc_store", [this](PeerId p, std::string r) { return on_store(p, std::move(r)); });
  server_.add_unary("DHTProtocol.rpc_find", [this](PeerId p, std::string r) { return on_find(p, std::move(r)); });
}

void Protocol::fill(proto::NodeInfo* info) const {
  if (!options.client_mode) info->set_node_id(node_id.binary());
}

Task<Result<std::string>> Protocol::call(PeerId peer, const char* method, std::string request) {
  const Deadline deadline = runtime.after(options.wait_timeout);
  auto units = co_await in_flight_.acquire(1, deadline);
  if (!units) co_return Error(cohive::Errc::timeout, peer, "too many DHT calls at once");
  auto reply = co_await rpc::call_unary(host, peer, method, std::move(request), deadline);
  if (!reply) failed(peer);
  co_return reply;
}

// ---- Who is there

void Protocol::heard_from(const std::string& id_bytes, const PeerId& peer) {
  const auto id = DhtId::from_bytes(as_bytes(id_bytes));
  if (!id || *id == node_id) return;  // client-mode peers say nothing
  const bool known = table.contains(*id);
  const auto doubtful = table.add_or_update(*id, peer, runtime.now());
  if (!known && table.contains(*id) && !options.client_mode && storage.size(now()) > 0)
    tasks_.spawn(hand_over(*this, {*id, peer}), "hand records over");
  if (doubtful) tasks_.spawn(check_old_node(*this, *doubtful), "check old node");
  metrics.table_nodes.set(static_cast<double>(table.size()));
}

Task<void> Protocol::check_old_node(Protocol& self, NodeAddress node) {
  auto alive = co_await self.ping(node.peer, false, false);
  if (!alive || !*alive || **alive != node.id) self.table.remove(node.id);
  self.table.ping_done(node.id);
}

/// A newcomer that is near a key we hold gets the record, so that a growing swarm keeps finding it.
Task<void> Protocol::hand_over(Protocol& self, NodeAddress newcomer) {
  std::vector<OutgoingRecord> batch;
  std::size_t looked_at = 0;
  for (const DhtId& key : self.storage.keys()) {
    if (++looked_at % kHandOverBatch == 0) co_await self.runtime.yield();
    const auto* record = self.storage.get(key, self.now());
    if (!record) continue;
    const auto nearest = self.table.nearest(key, self.options.num_replicas, newcomer.id);
    const bool alone = nearest.empty();
    const bool closer = !alone && newcomer.id.distance(key) < nearest.back().id.distance(key) &&
                        self.node_id.distance(key) < nearest.front().id.distance(key);
    if (!alone && !closer) continue;
    OutgoingRecord out{key, record->is_dictionary() ? kDictionaryTag : kRegularTag, {}, record->expiration, false};
    out.value = record->is_dictionary() ? std::get<Dictionary>(record->content).encode() : std::get<std::string>(record->content);
    batch.push_back(std::move(out));
    if (batch.size() < kHandOverBatch) continue;
    auto stored = co_await self.store(newcomer.peer, std::exchange(batch, {}));
    if (!stored) co_return;
  }
  if (!batch.empty()) (void)co_await self.store(newcomer.peer, std::move(batch));
}

// ---- Ping

Task<Result<std::optional<DhtId>>> Protocol::ping(PeerId peer, bool validate, bool strict) {
  proto::PingRequest request;
  fill(request.mutable_peer());
  request.set_validate(validate);
  const double sent = now();
  auto bytes = co_await call(peer, "DHTProtocol.rpc_ping", request.SerializeAsString());
  if (!bytes) co_return bytes.error();
  const double received = now();
  proto::PingResponse reply;
  if (!parse(reply, *bytes)) co_return malformed(peer, "rpc_ping reply");
  if (validate && reply.peer().node_id().size() == DhtId::kSize) {
    std::string problem;
    if (!options.client_mode && !reply.available()) problem = "the peer cannot call us back";
    if (reply.dht_time() != 0 && (reply.dht_time() < sent - kClockTolerance || reply.dht_time() > received + kClockTolerance))
      problem = "its clock and ours differ by more than 3 s";
    if (!problem.empty() && strict) co_return Error(cohive::Errc::invalid_argument, peer, problem);
    if (!problem.empty()) log::warn("dht", "{}: {}", peer, problem);
  }
  heard_from(reply.peer().node_id(), peer);
  co_return DhtId::from_bytes(as_bytes(reply.peer().node_id()));
}

Task<Result<std::string>> Protocol::on_ping(PeerId caller, std::string bytes) {
  proto::PingRequest request;
  if (!parse(request, bytes)) co_return malformed(caller, "rpc_ping");
  proto::PingResponse reply;
  fill(reply.mutable_peer());
  reply.set_dht_time(now());
  const auto claimed = DhtId::from_bytes(as_bytes(request.peer().node_id()));
  if (claimed && request.validate()) {
    auto back = co_await ping(caller, false, false);
    reply.set_available(back && *back && **back == *claimed);
    if (!reply.available()) {
      table.remove(caller);
      co_return reply.SerializeAsString();
    }
  }
  heard_from(request.peer().node_id(), caller);
  co_return reply.SerializeAsString();
}

// ---- Store

bool Protocol::valid(const DhtId& key, const std::string& tag, const std::string& value, double expiration) const {
  return validators.validate({key.binary(), tag, value, expiration});
}

bool Protocol::accept(const DhtId& key, const std::string& tag, const std::string& value, double expiration, bool in_cache) {
  const double time = now();
  const bool within_limits = std::isfinite(expiration) && expiration <= time + to_seconds(options.max_record_lifetime) &&
                             value.size() <= options.max_value_bytes && tag.size() <= kMaxTag;
  const bool known_tag = tag == kRegularTag || msgpack::decode(as_bytes(tag)).has_value();
  if (!within_limits || !known_tag || !valid(key, tag, value, expiration)) {
    metrics.records_refused.increment();
    return false;
  }
  Storage& target = in_cache ? cache : storage;
  return tag == kRegularTag ? target.store(key, value, expiration, time) : target.store_subkey(key, tag, value, expiration, time);
}

bool Protocol::store_locally(const OutgoingRecord& record) {
  return accept(record.key, record.tag, record.value, record.expiration, record.in_cache);
}

Task<Result<std::string>> Protocol::on_store(PeerId caller, std::string bytes) {
  proto::StoreRequest request;
  if (!parse(request, bytes)) co_return malformed(caller, "rpc_store");
  const int count = request.keys_size();
  if (request.subkeys_size() != count || request.values_size() != count || request.expiration_time_size() != count ||
      request.in_cache_size() != count)
    co_return malformed(caller, "rpc_store: lists of different lengths");
  if (static_cast<std::size_t>(count) > options.max_keys_per_request)
    co_return Error(cohive::Errc::limit_exceeded, caller, "rpc_store: too many records");
  heard_from(request.peer().node_id(), caller);
  proto::StoreResponse reply;
  fill(reply.mutable_peer());
  for (int i = 0; i < count; ++i) {
    const auto key = DhtId::from_bytes(as_bytes(request.keys(i)));
    bool stored = key.has_value();
    if (stored && request.subkeys(i) == kDictionaryTag) {
      // Every entry is tried; one bad entry does not keep the good ones out.
      auto dictionary = Dictionary::decode(as_bytes(request.values(i)), options.max_subkeys);
      stored = dictionary.has_value();
      if (dictionary)
        for (const auto& [subkey, timed] : dictionary->entries)
          stored &= accept(*key, subkey, timed.value, timed.expiration, request.in_cache(i));
    } else if (stored) {
      stored = accept(*key, request.subkeys(i), request.values(i), request.expiration_time(i), request.in_cache(i));
    }
    reply.add_store_ok(stored);
  }
  metrics.records.set(static_cast<double>(storage.size(now())));
  co_return reply.SerializeAsString();
}

Task<Result<std::vector<bool>>> Protocol::store(PeerId peer, std::vector<OutgoingRecord> records) {
  proto::StoreRequest request;
  fill(request.mutable_peer());
  for (auto& record : records) {
    request.add_keys(record.key.binary());
    request.add_subkeys(std::move(record.tag));
    request.add_values(std::move(record.value));
    request.add_expiration_time(record.expiration);
    request.add_in_cache(record.in_cache);
  }
  auto bytes = co_await call(peer, "DHTProtocol.rpc_store", request.SerializeAsString());
  if (!bytes) co_return bytes.error();
  proto::StoreResponse reply;
  if (!parse(reply, *bytes) || reply.store_ok_size() != request.keys_size()) {
    failed(peer);
    co_return malformed(peer, "rpc_store reply");
  }
  heard_from(reply.peer().node_id(), peer);
  co_return std::vector<bool>(reply.store_ok().begin(), reply.store_ok().end());
}

// ---- Find

Task<Result<std::string>> Protocol::on_find(PeerId caller, std::string bytes) {
  proto::FindRequest request;
  if (!parse(request, bytes)) co_return malformed(caller, "rpc_find");
  if (static_cast<std::size_t>(request.keys_size()) > options.max_keys_per_request)
    co_return Error(cohive::Errc::limit_exceeded, caller, "rpc_find: too many keys");
  heard_from(request.peer().node_id(), caller);
  const auto asker = DhtId::from_bytes(as_bytes(request.peer().node_id()));
  proto::FindResponse reply;
  fill(reply.mutable_peer());
  for (const auto& key_bytes : request.keys()) {
    const auto key = DhtId::from_bytes(as_bytes(key_bytes));
    if (!key) co_return malformed(caller, "rpc_find: a key must have 20 bytes");
    auto* result = reply.add_results();
    const auto* stored = storage.get(*key, now());
    const auto* cached = cache.get(*key, now());
    const auto* best = !stored || (cached && cached->expiration > stored->expiration) ? cached : stored;
    if (best) {
      result->set_type(best->is_dictionary() ? proto::FOUND_DICTIONARY : proto::FOUND_REGULAR);
      result->set_value(best->is_dictionary() ? std::get<Dictionary>(best->content).encode() : std::get<std::string>(best->content));
      result->set_expiration_time(best->expiration);
    }
    for (const auto& node : table.nearest(*key, options.bucket_size, asker)) {
      result->add_nearest_node_ids(node.id.binary());
      result->add_nearest_peer_ids(node.peer.binary());
    }
  }
  co_return reply.SerializeAsString();
}

/// The record of a reply, or nothing when it is invalid. Of a dictionary only the bad entries are left out.
std::optional<StoredRecord> Protocol::read_record(const DhtId& key, const proto::FindResult& result) {
  const double expiration = result.expiration_time();
  if (!std::isfinite(expiration) || expiration < now()) return std::nullopt;
  if (result.type() == proto::FOUND_REGULAR) {
    if (result.value().size() > options.max_value_bytes || !valid(key, kRegularTag, result.value(), expiration)) {
      metrics.records_refused.increment();
      return std::nullopt;
    }
    return StoredRecord{result.value(), expiration};
  }
  if (result.type() != proto::FOUND_DICTIONARY) return std::nullopt;
  auto dictionary = Dictionary::decode(as_bytes(result.value()), options.max_subkeys);
  if (!dictionary) {
    metrics.records_refused.increment();
    return std::nullopt;
  }
  dictionary->drop_expired(now());
  const auto refused = std::erase_if(dictionary->entries, [&](const auto& item) {
    return !std::isfinite(item.second.expiration) || item.second.value.size() > options.max_value_bytes ||
           !valid(key, item.first, item.second.value, item.second.expiration);
  });
  metrics.records_refused.increment(static_cast<double>(refused));
  if (dictionary->entries.empty()) return std::nullopt;
  return StoredRecord{std::move(*dictionary), expiration};
}

Task<Result<std::vector<Finding>>> Protocol::find(PeerId peer, std::vector<DhtId> keys) {
  proto::FindRequest request;
  fill(request.mutable_peer());
  for (const DhtId& key : keys) request.add_keys(key.binary());
  auto bytes = co_await call(peer, "DHTProtocol.rpc_find", request.SerializeAsString());
  if (!bytes) co_return bytes.error();
  proto::FindResponse reply;
  if (!parse(reply, *bytes) || static_cast<std::size_t>(reply.results_size()) != keys.size()) {
    failed(peer);
    co_return malformed(peer, "rpc_find reply");
  }
  heard_from(reply.peer().node_id(), peer);
  std::vector<Finding> findings;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const auto& result = reply.results(static_cast<int>(i));
    Finding finding{read_record(keys[i], result), {}};
    const int count = std::min(result.nearest_node_ids_size(), result.nearest_peer_ids_size());
    for (int n = 0; n < count && n < static_cast<int>(options.bucket_size * 2); ++n) {
      const auto id = DhtId::from_bytes(as_bytes(result.nearest_node_ids(n)));
      const auto who = PeerId::from_bytes(as_bytes(result.nearest_peer_ids(n)));
      if (id && who && *id != node_id && *who != host.id()) finding.nearest.push_back({*id, *who});
    }
    findings.push_back(std::move(finding));
  }
  co_return findings;
}

}  // namespace cohive::dht
