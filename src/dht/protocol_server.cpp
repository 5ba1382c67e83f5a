// The serving side of the DHT's calls. Everything in a request is a stranger's: lengths, sizes and times are checked
// before anything is kept. Source: docs/wire/hivemind.md, section 3.7.
#include <cmath>
#include <unordered_set>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/dht.pb.h"
#include "core/detail/bounded_parse.hpp"
#include "p2p/detail/peer_account.hpp"
#include "protocol.hpp"

namespace cohive::dht {
namespace {

// What a frame holds beside values and neighbours, rounded up.
constexpr std::size_t kReplyOverhead = 64 * 1024;
// A neighbour's node id and peer id in a find reply.
constexpr std::size_t kNeighbourBytes = 22 + 2 + PeerId::kMaxSize;
constexpr std::size_t kKeysPerTurn = 128;      // looked up in one turn of the loop: about a millisecond
constexpr std::size_t kEncodedPerTurn = 8192;  // entries that are encoded in one: the same
constexpr std::size_t kBytesPerTurn = 128 * 1024;
constexpr std::size_t kBytesOfAKey = 1024;     // of requests and replies, that cost as much as a key
constexpr std::size_t kEncodedOfAKey = 16;     // entries that are encoded at the cost of a key
constexpr std::size_t kKeysOfACheck = 4;       // that cost as much as checking one signature of RSA-2048
constexpr std::size_t kKeysOfASignature = 48;  // the same of making one, less than it takes: few calls are many keys
constexpr std::size_t kStoreLists = 5;         // of a store request, each with an item per record
// Keys that a request may name again: earlier versions join searches for one key into a request of sixteen keys.
constexpr std::size_t kMostRepeated = 16;
// Checks for callers that wait for the thread which does them, counted in signatures of RSA-2048: half a second's work,
// and what one network may have of it.
constexpr std::size_t kMostChecking = 16'384, kMostCheckingOfANetwork = kMostChecking / 4;

Error refuse(const CallMetrics& counters, Errc code, const char* why) {
  counters.refused.increment();
  return Error(code, why);
}

Error refuse_busy(const CallMetrics& counters) {
  counters.refused.increment();
  return Error(rpc::Errc::busy, "more DHT requests of this peer than the node serves");
}

/// What a record of a request costs beyond its bytes: the entries that it says it has.
std::size_t entries_in(const WireRecord& record, const StorageLimits& limits) {
  if (record.tag != kDictionaryTag) return 1;
  const auto reader = DictionaryReader::open(as_bytes(record.value), limits);
  return 1 + (reader ? reader->left() : 0);
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
    log::debug("dht", "a request of {} is not authorised: {}", caller, nonce.error());
    co_return nonce.error();
  }
  if (!allows(caller, kKeysOfASignature)) co_return Error(rpc::Errc::busy, "more signed calls than the node answers");
  CO_TRY(auto reply, co_await (this->*handler)(caller, std::move(bytes)));
  co_return signed_calls_->sign_reply(reply, *nonce);
}

std::string Protocol::network_of_caller(const PeerId& caller) const {
  return p2p::network_of_peer(host, caller);
}

bool Protocol::allows(const PeerId& caller, std::size_t cost) {
  return rates_.allow(caller, network_of_caller(caller), static_cast<double>(cost), runtime.now());
}

void Protocol::charge(const PeerId& caller, std::size_t cost) {
  if (cost > 0) rates_.charge(caller, network_of_caller(caller), static_cast<double>(cost), runtime.now());
}

bool Protocol::may_check(const PeerId& caller) const {
  const auto own = checking_.find(network_of_caller(caller));
  return checking_all_ < kMostChecking && (own == checking_.end() || own->second < kMostCheckingOfANetwork);
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
    const auto turn = co_await turn_to_call_back(caller, runtime.after(options.wait_timeout / 2));
    if (!turn) co_return refuse_busy(metrics.ping);
    auto back = co_await ping(caller, false);
    welcome = back ? *back == claimed : back.error() == rpc::Errc::busy;  // a busy peer can be reached
    reply.set_available(welcome);
  }
  if (welcome) {
    called_by(request.peer().node_id(), caller);
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
  std::vector<WireRecord> records;
  records.reserve(static_cast<std::size_t>(count));
  std::size_t cost = 1 + bytes.size() / kBytesOfAKey;
  for (int i = 0; i < count; ++i) {
    const auto key = DhtId::from_bytes(as_bytes(request.keys(i)));
    if (!key) co_return refuse(metrics.store, Errc::malformed_request, "rpc_store with a key that has not 20 bytes");
    records.push_back({*key, std::move(*request.mutable_subkeys(i)), std::move(*request.mutable_values(i)),
                       request.expiration_time(i), request.in_cache(i)});
    cost += entries_in(records.back(), storage.limits());
  }
  if (!allows(caller, cost) || !may_check(caller)) co_return refuse_busy(metrics.store);
  metrics.store.served.increment();
  called_by(request.peer().node_id(), caller);
  if (bytes.size() > kBytesPerTurn) co_await runtime.yield();  // the request was read in this one
  const auto stored = co_await store_locally(std::move(records), caller, true);
  proto::StoreResponse reply;
  fill(*reply.mutable_peer());
  for (const bool ok : stored) {
    reply.add_store_ok(ok);
    (ok ? metrics.records_accepted : metrics.records_refused).increment();
  }
  co_return reply.SerializeAsString();
}

Task<std::vector<bool>> Protocol::store_locally(std::vector<WireRecord> records, PeerId from, bool charged) {
  Storing storing{from, charged, std::vector<bool>(records.size(), true)};
  for (std::size_t i = 0; i < records.size(); ++i) {
    co_await take_apart(storing, std::move(records[i]), i);
    if (i + 1 < records.size() && (storing.chunk.size() >= kEntriesPerTurn || storing.bytes >= kBytesPerTurn))
      co_await store_chunk(storing);
  }
  co_await store_chunk(storing);
  update_gauges();
  co_return std::move(storing.ok);
}

/// Adds a record to the chunk. What is malformed or beyond the bounds is not `ok`.
Task<void> Protocol::take_apart(Storing& storing, WireRecord record, std::size_t item) {
  const StorageLimits& limits = storage.limits();
  const double latest = now() + to_seconds(options.max_record_lifetime);
  const auto add = [&](Incoming incoming) {
    storing.bytes += incoming.value.size();
    storing.chunk.push_back(std::move(incoming));
  };
  if (record.tag != kDictionaryTag) {
    Incoming incoming{item, record.key, {}, std::move(record.value), record.expiration, record.in_cache};
    if (record.tag != kRegularTag) incoming.subkey = Subkey::from_tag(record.tag);
    const bool good = (record.tag == kRegularTag || incoming.subkey) && std::isfinite(record.expiration) &&
                      record.expiration <= latest && incoming.value.size() <= limits.max_value_bytes;
    if (good) {
      add(std::move(incoming));
    } else {
      storing.ok[item] = false;
    }
    co_return;
  }
  auto reader = DictionaryReader::open(as_bytes(record.value), limits);
  if (!reader || reader->left() == 0) storing.ok[item] = false;
  // Every entry is tried; one bad entry does not keep the good ones out.
  while (reader && reader->left() > 0) {
    if (storing.chunk.size() >= kEntriesPerTurn || storing.bytes >= kBytesPerTurn) co_await store_chunk(storing);
    auto entry = reader->next();
    if (entry && *entry && (*entry)->expiration <= latest) {
      add({item, record.key, std::move((*entry)->subkey), to_string((*entry)->value), (*entry)->expiration,
           record.in_cache, !record.in_cache});
    } else {
      storing.ok[item] = false;
    }
  }
}

/// Stores what was taken apart, each chunk in a turn of the loop of its own.
Task<void> Protocol::store_chunk(Storing& storing) {
  if (std::exchange(storing.begun, true)) co_await runtime.yield();
  auto incoming = std::exchange(storing.chunk, {});
  storing.bytes = 0;
  // What would be refused as stale anyway needs no signature check.
  std::erase_if(incoming, [&](const Incoming& one) {
    const Storage& target = one.in_cache ? cache : storage;
    const bool stale = !target.would_accept(one.key, one.subkey ? &*one.subkey : nullptr, one.expiration, now());
    if (stale) storing.ok[one.item] = false;
    return stale;
  });
  std::vector<Record> to_check;
  to_check.reserve(incoming.size());
  for (const Incoming& one : incoming)
    to_check.push_back(
        {one.key.binary(), one.subkey ? one.subkey->encoded : std::string(kRegularTag), one.value, one.expiration});
  const auto valid = storing.charged ? co_await validate_for(storing.from, std::move(to_check))
                                     : co_await validate(std::move(to_check));
  const double time = now();
  for (std::size_t i = 0; i < incoming.size(); ++i) {
    Incoming& one = incoming[i];
    Storage& target = one.in_cache ? cache : storage;
    if (!valid[i]) metrics.records_invalid.increment();
    const bool stored =
        valid[i] && (one.subkey ? target.store_subkey(one.key, std::move(*one.subkey), std::move(one.value),
                                                      one.expiration, time, storing.from, one.whole)
                                : target.store(one.key, std::move(one.value), one.expiration, time, storing.from));
    if (!stored) storing.ok[one.item] = false;
  }
}

/// Validates at the cost of a caller.
Task<std::vector<bool>> Protocol::validate_for(PeerId caller, std::vector<Record> records) {
  const std::size_t cost = validators_->cost(records);
  charge(caller, kKeysOfACheck * cost);
  const std::string network = network_of_caller(caller);
  checking_[network] += cost;
  checking_all_ += cost;
  const auto checked = on_exit([&] {
    checking_all_ -= cost;
    if ((checking_[network] -= cost) == 0) checking_.erase(network);
  });
  co_return co_await validate(std::move(records));
}

/// What a find says about one key.
struct Protocol::FindAnswer {
  FindType type = FindType::not_found;
  std::string encoded;  // of a dictionary
  const std::string* plain = nullptr;
  double expiration = 0;
  std::size_t drawn_from = 0;  // entries; 0: it is whole
  std::size_t entries = 0;     // that were encoded
  std::string_view value() const { return plain ? std::string_view(*plain) : std::string_view(encoded); }
};

/// \param room  for the value: one that takes more is found at another replica, or when it is asked for alone
Protocol::FindAnswer Protocol::answer_about(const DhtId& key, Draw draw, std::size_t room) {
  FindAnswer answer;
  const auto* record = held(key);
  if (!record) return answer;
  answer.expiration = record->expiration;
  const auto* dictionary = record->dictionary();
  if (!dictionary) {
    if (record->bytes() > room) return {};
    answer.type = FindType::regular;
    answer.plain = record->value();
    return answer;
  }
  const std::size_t all = dictionary->drawable(draw.only_owned);
  const bool drawn = draw.most_entries > 0 && all > draw.most_entries;
  answer.entries = drawn ? draw.most_entries : all;
  if (dictionary->bytes() / std::max<std::size_t>(all, 1) * answer.entries > room) return {};
  answer.encoded = drawn || all < dictionary->entries().size()
                       ? dictionary->encoded_sample(answer.entries, draw.only_owned, runtime.random())
                       : dictionary->encoded();
  answer.type = FindType::dictionary;
  answer.drawn_from = drawn ? all : 0;
  return answer;
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
  std::unordered_set<DhtId> distinct;
  for (const auto& raw : request.keys()) {
    const auto key = DhtId::from_bytes(as_bytes(raw));
    if (!key) co_return refuse(metrics.find, Errc::malformed_request, "rpc_find with a key that has not 20 bytes");
    distinct.insert(*key);
    keys.push_back(*key);
  }
  if (keys.size() - distinct.size() > (request.most_entries() > 0 ? 0 : kMostRepeated))
    co_return refuse(metrics.find, Errc::malformed_request, "rpc_find that names keys again and again");
  metrics.find.served.increment();
  called_by(request.peer().node_id(), caller);
  const auto asker = DhtId::from_bytes(as_bytes(request.peer().node_id()));
  // The neighbours of all keys must fit; values only as far as there is room.
  const std::size_t reserved = kReplyOverhead + keys.size() * (options.bucket_size * kNeighbourBytes + 16);
  const std::size_t limit = rpc::kMaxUnaryFrame - std::min(rpc::kMaxUnaryFrame, reserved);
  std::size_t value_bytes = 0, entries = 0, in_turn = 0, wasted = 0;
  FindReplyWriter reply;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    if (i % kKeysPerTurn == kKeysPerTurn - 1 || in_turn >= kEncodedPerTurn) {
      in_turn = 0;
      co_await runtime.yield();
    }
    const auto nearest = table.nearest(keys[i], options.bucket_size, asker);
    const std::size_t used = reply.size() + wasted, room = limit - std::min(limit, used);
    auto answer =
        answer_about(keys[i], {request.most_entries(), request.most_entries() > 0 && request.only_owned()}, room);
    in_turn += answer.entries;
    entries += answer.entries;
    value_bytes += answer.value().size();
    if (answer.value().size() > room) {  // a sample of larger entries than the others
      wasted += answer.value().size();
      answer = {};
    }
    reply.add_result(answer.type, answer.value(), answer.expiration, nearest, answer.drawn_from);
  }
  charge(caller, value_bytes / kBytesOfAKey + entries / kEncodedOfAKey);
  co_return reply.finish(options.client_mode ? std::string() : node_id.binary());
}

}  // namespace cohive::dht
