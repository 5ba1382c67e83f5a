// The serving side of the DHT's calls. Everything in a request is a stranger's: lengths, sizes and times are checked
// before anything is kept. Source: docs/wire/hivemind.md, section 3.7.
#include <cmath>
#include <unordered_set>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/dht.pb.h"
#include "core/bounded_parse.hpp"
#include "protocol.hpp"

namespace cohive::dht {
namespace {

// What a frame holds beside values and neighbours, rounded up.
constexpr std::size_t kReplyOverhead = 64 * 1024;
// A neighbour's node id and peer id in a find reply.
constexpr std::size_t kNeighbourBytes = 22 + 2 + PeerId::kMaxSize;
// Work of one turn of the loop: about a millisecond.
constexpr std::size_t kEntriesPerTurn = 1024;
constexpr std::size_t kKeysPerTurn = 128;
constexpr std::size_t kBytesOfAKey = 1024;   // of requests and replies, that cost as much as a key
constexpr std::size_t kStoreLists = 5;  // of a store request, each with an item per record

Error refuse(const CallMetrics& counters, Errc code, const char* why) {
  counters.refused.increment();
  return Error(code, why);
}

Error refuse_busy(const CallMetrics& counters) {
  counters.refused.increment();
  return Error(rpc::Errc::busy, "more DHT requests of this peer than the node serves");
}

/// Takes a record of a request apart. `ok` becomes false when it is malformed or beyond the bounds.
void take_apart(OutgoingRecord record, std::size_t item, const StorageLimits& limits, double latest,
                std::vector<Protocol::Incoming>& out, std::vector<bool>& ok) {
  if (record.tag != kDictionaryTag) {
    Protocol::Incoming incoming{item, record.key, {}, std::move(record.value), record.expiration, record.in_cache};
    if (record.tag != kRegularTag) incoming.subkey = Subkey::from_tag(record.tag);
    ok[item] = (record.tag == kRegularTag || incoming.subkey) && std::isfinite(record.expiration) &&
               record.expiration <= latest && incoming.value.size() <= limits.max_value_bytes;
    if (ok[item]) out.push_back(std::move(incoming));
    return;
  }
  std::size_t dropped = 0;
  const auto dictionary = Dictionary::decode(as_bytes(record.value), limits, &dropped);
  ok[item] = dictionary && dropped == 0 && !dictionary->entries().empty();
  if (!dictionary) return;
  // Every entry is tried; one bad entry does not keep the good ones out.
  for (const auto& [identity, entry] : dictionary->entries()) {
    if (entry.expiration <= latest) {
      out.push_back({item, record.key, Subkey{entry.subkey, identity}, entry.value, entry.expiration, record.in_cache});
    } else {
      ok[item] = false;
    }
  }
}

}  // namespace

void Protocol::serve() {
  server_.emplace(host);
  const auto add = [this](const char* method, Handler handler) {
    server_->add_unary(method, [this, handler](PeerId caller, std::string request) {
      return authorized(handler, caller, std::move(request));
    });
  };
  add("DHTProtocol.rpc_ping", &Protocol::on_ping);
  add("DHTProtocol.rpc_store", &Protocol::on_store);
  add("DHTProtocol.rpc_find", &Protocol::on_find);
}

Task<Result<std::string>> Protocol::authorized(Handler handler, PeerId caller, std::string bytes) {
  if (!signed_calls_) co_return co_await (this->*handler)(caller, std::move(bytes));
  const auto nonce = signed_calls_->check_request(caller, as_bytes(bytes));
  if (!nonce) {
    log::debug("dht", "a request of {} is not authorised", caller);
    co_return Error(Errc::unauthorized);
  }
  CO_TRY(auto reply, co_await (this->*handler)(caller, std::move(bytes)));
  co_return signed_calls_->sign_reply(reply, *nonce);
}

std::string Protocol::network_of_caller(const PeerId& caller) const {
  const auto address = host.remote_address(caller);
  return address ? network_of(*address) : caller.binary();
}

bool Protocol::allows(const PeerId& caller, std::size_t cost) {
  return rates_.allow(caller, network_of_caller(caller), static_cast<double>(cost), runtime.now());
}

Task<Result<std::string>> Protocol::on_ping(PeerId caller, std::string bytes) {
  proto::PingRequest request;
  if (!parse_bounded(request, as_bytes(bytes))) co_return refuse(metrics.ping, Errc::malformed_request, "rpc_ping");
  if (!allows(caller, 1)) co_return refuse_busy(metrics.ping);
  proto::PingResponse reply;
  const auto claimed = DhtId::from_bytes(as_bytes(request.peer().node_id()));
  bool welcome = true;
  if (claimed && request.validate()) {
    // A peer that asks to be called back and does not answer must not hold up our own calls. Many at once take turns,
    // and one peer is called back once at a time.
    if (!called_back_.insert(caller).second) co_return refuse_busy(metrics.ping);
    const auto once = on_exit([&] { called_back_.erase(caller); });
    const auto slot = co_await call_backs_.acquire(1, runtime.after(options.wait_timeout / 2));
    if (!slot) co_return refuse_busy(metrics.ping);
    auto back = co_await ping(caller, false);
    welcome = back ? *back == claimed : back.error() == rpc::Errc::busy;  // a busy peer can be reached
    reply.set_available(welcome);
  }
  if (welcome) {
    heard_from(request.peer().node_id(), caller);
  } else {
    lost(caller);
  }
  metrics.ping.served.increment();
  fill(*reply.mutable_peer());
  reply.set_dht_time(now());
  co_return reply.SerializeAsString();
}

Task<Result<std::string>> Protocol::on_store(PeerId caller, std::string bytes) {
  proto::StoreRequest request;
  if (!parse_bounded(request, as_bytes(bytes), kStoreLists * options.max_keys_per_request + kMaxPlainFields))
    co_return refuse(metrics.store, Errc::malformed_request, "rpc_store");
  const int count = request.keys_size();
  if (request.subkeys_size() != count || request.values_size() != count || request.expiration_time_size() != count ||
      request.in_cache_size() != count)
    co_return refuse(metrics.store, Errc::malformed_request, "rpc_store with lists of different lengths");
  if (static_cast<std::size_t>(count) > options.max_keys_per_request)
    co_return refuse(metrics.store, Errc::too_many_keys, "rpc_store");
  if (!allows(caller, 1 + static_cast<std::size_t>(count) + bytes.size() / kBytesOfAKey))
    co_return refuse_busy(metrics.store);
  std::vector<OutgoingRecord> records;
  records.reserve(static_cast<std::size_t>(count));
  for (int i = 0; i < count; ++i) {
    const auto key = DhtId::from_bytes(as_bytes(request.keys(i)));
    if (!key) co_return refuse(metrics.store, Errc::malformed_request, "rpc_store with a key that has not 20 bytes");
    records.push_back({*key, std::move(*request.mutable_subkeys(i)), std::move(*request.mutable_values(i)),
                       request.expiration_time(i), request.in_cache(i)});
  }
  metrics.store.served.increment();
  heard_from(request.peer().node_id(), caller);
  const auto stored = co_await store_locally(std::move(records), caller);
  proto::StoreResponse reply;
  fill(*reply.mutable_peer());
  for (const bool ok : stored) {
    reply.add_store_ok(ok);
    (ok ? metrics.records_accepted : metrics.records_refused).increment();
  }
  co_return reply.SerializeAsString();
}

Task<std::vector<bool>> Protocol::store_locally(std::vector<OutgoingRecord> records, PeerId from) {
  std::vector<bool> ok(records.size(), true);
  const double latest = now() + to_seconds(options.max_record_lifetime);
  std::vector<Incoming> chunk;
  for (std::size_t i = 0; i < records.size(); ++i) {
    take_apart(std::move(records[i]), i, storage.limits(), latest, chunk, ok);
    const bool last = i + 1 == records.size();
    if (chunk.size() < kEntriesPerTurn && !last) continue;
    co_await store_chunk(std::exchange(chunk, {}), from, ok);
    if (!last) co_await runtime.yield();
  }
  update_gauges();
  co_return ok;
}

Task<void> Protocol::store_chunk(std::vector<Incoming> incoming, PeerId from, std::vector<bool>& ok) {
  // What would be refused as stale anyway needs no signature check.
  std::erase_if(incoming, [&](const Incoming& one) {
    const Storage& target = one.in_cache ? cache : storage;
    const bool stale = !target.would_accept(one.key, one.subkey ? &*one.subkey : nullptr, one.expiration, now());
    if (stale) ok[one.item] = false;
    return stale;
  });
  std::vector<Record> to_check;
  to_check.reserve(incoming.size());
  for (const Incoming& one : incoming)
    to_check.push_back(
        {one.key.binary(), one.subkey ? one.subkey->encoded : std::string(kRegularTag), one.value, one.expiration});
  const auto valid = co_await validate(std::move(to_check));
  const double time = now();
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    Incoming& one = incoming[i];
    Storage& target = one.in_cache ? cache : storage;
    if (!valid[i]) metrics.records_invalid.increment();
    const bool stored =
        valid[i] && (one.subkey ? target.store_subkey(one.key, std::move(*one.subkey), std::move(one.value),
                                                      one.expiration, time, from)
                                : target.store(one.key, std::move(one.value), one.expiration, time, from));
    if (!stored) ok[one.item] = false;
  }
}

Task<Result<std::string>> Protocol::on_find(PeerId caller, std::string bytes) {
  proto::FindRequest request;
  if (!parse_bounded(request, as_bytes(bytes), options.max_keys_per_request + kMaxPlainFields))
    co_return refuse(metrics.find, Errc::malformed_request, "rpc_find");
  if (static_cast<std::size_t>(request.keys_size()) > options.max_keys_per_request)
    co_return refuse(metrics.find, Errc::too_many_keys, "rpc_find");
  if (!allows(caller, 1 + static_cast<std::size_t>(request.keys_size()))) co_return refuse_busy(metrics.find);
  std::vector<DhtId> keys;
  keys.reserve(static_cast<std::size_t>(request.keys_size()));
  for (const auto& raw : request.keys()) {
    const auto key = DhtId::from_bytes(as_bytes(raw));
    if (!key) co_return refuse(metrics.find, Errc::malformed_request, "rpc_find with a key that has not 20 bytes");
    keys.push_back(*key);
  }
  metrics.find.served.increment();
  heard_from(request.peer().node_id(), caller);
  const auto asker = DhtId::from_bytes(as_bytes(request.peer().node_id()));
  // The neighbours of all keys must fit; values only as far as there is room.
  const std::size_t reserved = kReplyOverhead + keys.size() * (options.bucket_size * kNeighbourBytes + 16);
  const std::size_t limit = rpc::kMaxUnaryFrame - std::min(rpc::kMaxUnaryFrame, reserved);
  std::size_t value_bytes = 0;
  FindReplyWriter reply;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kKeysPerTurn == kKeysPerTurn - 1) co_await runtime.yield();
    const auto nearest = table.nearest(keys[i], options.bucket_size, asker);
    const auto* record = held(keys[i]);
    const auto* dictionary = record ? record->dictionary() : nullptr;
    const bool drawn = dictionary && request.most_entries() > 0 && dictionary->entries().size() > request.most_entries();
    const std::string sample = drawn ? dictionary->encoded_sample(request.most_entries(), runtime.random()) : std::string();
    const std::string* value = drawn        ? &sample
                               : dictionary ? &dictionary->encoded()
                               : record     ? record->value()
                                            : nullptr;
    if (value && reply.size() + value->size() > limit) value = nullptr;  // found at another replica, or alone
    value_bytes += value ? value->size() : 0;
    const auto type = !value ? FindType::not_found : dictionary ? FindType::dictionary : FindType::regular;
    reply.add_result(type, value ? *value : std::string_view(), value ? record->expiration : 0, nearest,
                     drawn && value ? dictionary->entries().size() : 0);
  }
  rates_.charge(caller, network_of_caller(caller), static_cast<double>(value_bytes / kBytesOfAKey), runtime.now());
  co_return reply.finish(options.client_mode ? std::string() : node_id.binary());
}

}  // namespace cohive::dht
