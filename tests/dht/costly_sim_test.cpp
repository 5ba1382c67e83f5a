// Requests that are small to send and large to serve: whoever sends them pays for the work, and others go on meanwhile.
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/rsa.h>

#include <algorithm>

#include "cohive/core/crypto.hpp"
#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "dht/protocol.hpp"
#include "dht_swarm.hpp"
#include "hostile_swarm.hpp"

namespace cohive::dht {
namespace {

class CostlySwarm : public DhtSwarm {
 protected:
  Result<std::string> call(Dht& from, const char* method, const std::string& request) {
    return swarm.run(rpc::call_unary(from.host(), swarm.host(0).id(), method, request, swarm.after(3s)));
  }
  bool is_served(Dht& from, const proto::StoreRequest& request) {
    return call(from, "DHTProtocol.rpc_store", request.SerializeAsString()).has_value();
  }
  std::optional<proto::FindResponse> found(Dht& from, const proto::FindRequest& request) {
    const auto bytes = call(from, "DHTProtocol.rpc_find", request.SerializeAsString());
    proto::FindResponse reply;
    if (!bytes || !reply.ParseFromString(*bytes)) return std::nullopt;
    return reply;
  }
  std::string dictionary_of(int entries, double expiration) {
    Dictionary dictionary;
    for (int i = 0; i < entries; ++i) dictionary.put(*Subkey::from_value(i), "\x01", expiration);
    return dictionary.encoded();
  }
  static void put(proto::StoreRequest& request, const DhtId& key, std::string tag, std::string value,
                  double expiration) {
    request.add_keys(key.binary());
    request.add_subkeys(std::move(tag));
    request.add_values(std::move(value));
    request.add_expiration_time(expiration);
    request.add_in_cache(false);
  }
  /// How often another task got its turn while this one ran, which needs no time to pass.
  template <class T>
  std::size_t turns_of_others(Task<T> task) {
    Event done(swarm.runtime(), "the work");
    std::size_t turns = 0;
    const auto work = [](Task<T> one, Event& over) -> Task<void> {
      (void)co_await std::move(one);
      over.set();
    };
    const auto both = [&]() -> Task<void> {
      Nursery running(swarm.runtime(), "work");
      running.spawn(work(std::move(task), done), "work");
      for (; !done.is_set(); ++turns) co_await swarm.runtime().yield();
      co_await running.join();
    };
    swarm.run(both());
    return turns;
  }
};

TEST_F(CostlySwarm, TheEntriesOfADictionaryAreChargedLikeRecords) {
  add({.max_keys_per_second = 1000});
  Dht& attacker = add({.client_mode = true});
  swarm.pass(1min);
  int served = 0;
  for (int i = 0; i < 20; ++i) {
    proto::StoreRequest request;
    put(request, DhtId::of("key"), "", dictionary_of(10'000, in(100 + i)), in(100 + i));
    served += is_served(attacker, request);
  }
  EXPECT_LE(served, 2) << "of 190 kilobytes each, as if they were 190 keys";
  swarm.pass(30s);
  proto::StoreRequest small;
  put(small, DhtId::of("small"), std::string(1, '\xc0'), "\x01", in(100));
  EXPECT_TRUE(is_served(attacker, small));
}

TEST_F(CostlySwarm, ALargeDictionaryIsStoredAndReadInManyTurnsOfTheLoop) {
  add({.cache_on_store = false});
  constexpr int kEntries = 10'000;
  const auto records = [&](double expiration) {
    std::vector<WireRecord> all;
    all.push_back({DhtId::of("key"), "", dictionary_of(kEntries, expiration), expiration, false});
    return all;
  };
  EXPECT_GE(turns_of_others(nodes[0]->restore(records(in(100)))), kEntries / kEntriesPerTurn);
  EXPECT_GE(turns_of_others(nodes[0]->restore(records(in(200)))), kEntries / kEntriesPerTurn) << "renewed";
  EXPECT_EQ(get(*nodes[0], "key")->entries().size(), static_cast<std::size_t>(kEntries));
  EXPECT_GE(turns_of_others(nodes[0]->get("key")), kEntries / kEntriesPerTurn);
}

TEST_F(CostlySwarm, AReaderOfALargeDictionaryGetsAllOfIt) {
  add_many(3, kNoCaching);
  std::vector<StoreItem> items;
  for (int i = 0; i < 3000; ++i) items.push_back({"key", i, i, in(600)});
  for (const auto& stored : swarm.run(nodes[1]->store_many(std::move(items)))) ASSERT_TRUE(stored);
  Dht& reader = add({.client_mode = true});
  for (const bool cached : {false, true}) {
    const auto found = get(reader, "key", !cached).value();
    ASSERT_EQ(found.entries().size(), 3000u);
    for (const auto& [subkey, stored] : found.entries()) EXPECT_EQ(subkey, stored.value);
    swarm.pass(1s);
    EXPECT_EQ(reader.cache_size(), 1u);
  }
}

TEST_F(CostlySwarm, AFindThatNamesOneKeyAgainAndAgainIsRefused) {
  add();
  Dht& attacker = add({.client_mode = true});
  const auto asking = [](int repeated, std::uint32_t most_entries) {
    proto::FindRequest request;
    for (int i = 0; i < repeated; ++i) request.add_keys(DhtId::of("key").binary());
    request.set_most_entries(most_entries);
    return request;
  };
  std::vector<WireRecord> record;
  record.push_back({DhtId::of("key"), "", dictionary_of(1000, in(100)), in(100), false});
  ASSERT_EQ(swarm.run(nodes[0]->restore(record)), 1u);
  EXPECT_FALSE(found(attacker, asking(1024, 1)));
  EXPECT_FALSE(found(attacker, asking(1024, 0)));
  EXPECT_FALSE(found(attacker, asking(2, 1)));
  ASSERT_TRUE(found(attacker, asking(1, 1)));
  // Earlier versions send the keys of searches that go on at the same time together.
  const auto joined = found(attacker, asking(16, 0));
  ASSERT_TRUE(joined);
  EXPECT_EQ(joined->results(0).value(), joined->results(15).value());
}

TEST_F(CostlySwarm, SearchesForOneKeyAtATimeNameItOnceAndAllFindIt) {
  add_many(4, kNoCaching);
  ASSERT_TRUE(store(*nodes[1], "key", 42, in(600)));
  Dht& reader = add({.cache_locally = false, .client_mode = true});
  std::vector<int> values(30);
  const auto read = [&](int& value) -> Task<void> {
    const auto found = co_await reader.get("key", true);
    if (found) value = static_cast<int>(found->value()->as_int().value_or(0));
  };
  const auto all = [&]() -> Task<void> {
    Nursery reading(swarm.runtime(), "readers");
    for (int& value : values) reading.spawn(read(value), "reader");
    co_await reading.join();
  };
  swarm.run(all());
  EXPECT_EQ(values, std::vector<int>(30, 42));
}

TEST_F(CostlySwarm, WhatManySamplesWereDrawnFromIsChargedAndFitsTheReply) {
  add({.max_keys_per_second = 1000});
  std::vector<WireRecord> records;
  proto::FindRequest request;
  for (int i = 0; i < 20; ++i) {
    records.push_back({DhtId::of(i), "", dictionary_of(10'000, in(100)), in(100), false});
    request.add_keys(DhtId::of(i).binary());
  }
  ASSERT_EQ(swarm.run(nodes[0]->restore(records)), 20u);
  request.set_most_entries(9'999);
  Dht& attacker = add({.client_mode = true});
  swarm.pass(1min);
  int served = 0;
  for (int i = 0; i < 10; ++i) served += found(attacker, request).has_value();
  EXPECT_LE(served, 1) << "200,000 entries were encoded for it";
}

/// "[owner:ssh-rsa ...]" of a key that nobody has: only its size matters.
std::string invented_owner(std::size_t bits, unsigned number,
                           std::string_view exponent = std::string_view("\x01\x00\x01", 3)) {
  const auto part = [](std::string_view bytes) {
    std::string out;
    for (int shift = 24; shift >= 0; shift -= 8) out.push_back(static_cast<char>(bytes.size() >> shift));
    return out.append(bytes);
  };
  std::string modulus = std::string(1, '\0') + std::string(bits / 8, '\xab');
  modulus[10] = static_cast<char>(number);
  modulus[11] = static_cast<char>(number >> 8);
  modulus.back() = '\x01';
  const std::string blob = part("ssh-rsa") + part(exponent) + part(modulus);
  return "[owner:ssh-rsa " + crypto::base64_encode(as_bytes(blob)) + "]";
}

/// What looks like the signature of such a key.
std::string garbage_signature(std::size_t bits) {
  return "[signature:" + crypto::base64_encode(as_bytes(std::string(bits / 8, 's'))) + "]";
}

proto::StoreRequest garbage_of(std::size_t bits, std::size_t records, double expiration) {
  proto::StoreRequest request;
  const std::string signature = garbage_signature(bits);
  for (unsigned i = 0; i < records; ++i) {
    request.add_keys(DhtId::of("run_progress").binary());
    request.add_subkeys(msgpack::encode(msgpack::Bin{invented_owner(bits, i)}));
    request.add_values("\x01" + signature);
    request.add_expiration_time(expiration);
    request.add_in_cache(false);
  }
  return request;
}

TEST_F(CostlySwarm, SignaturesOfLargeKeysAreChargedAndThoseOfLargerOnesNotLookedAt) {
  const auto validator = std::make_shared<RsaSignatureValidator>();
  add({.max_keys_per_second = 1000});
  nodes[0]->add_validator(validator);
  Dht& attacker = add({.client_mode = true});
  const auto served_of = [&](std::size_t bits) {
    swarm.pass(10min);
    int served = 0;
    for (int i = 0; i < 20; ++i) served += is_served(attacker, garbage_of(bits, 900, in(100.0 + i)));
    return served;
  };
  EXPECT_LE(served_of(4096), 1);
  const std::size_t checks = validator->checks();
  EXPECT_LE(checks, 900u);
  (void)served_of(8192);
  (void)served_of(4104);
  EXPECT_EQ(validator->checks(), checks) << "keys above 4,096 bits are refused unseen";
  EXPECT_LE(served_of(2048), 3) << "four times what an unsigned record costs";
  EXPECT_GE(served_of(2048), 2);
}

TEST_F(CostlySwarm, SignaturesInAReplyAreCheckedToABoundAndThoseOfUsualKeysFirst) {
  const auto owner = std::make_shared<RsaSignatureValidator>(), validator = std::make_shared<RsaSignatureValidator>();
  add().add_validator(owner);
  ASSERT_TRUE(store(*nodes[0], "run_progress", msgpack::Bin{owner->ownership_marker()}, 1, in(600)));
  constexpr unsigned kGarbage = 1000;
  Dictionary reply;
  for (unsigned i = 0; i < kGarbage; ++i)
    reply.put(*Subkey::from_value(msgpack::Bin{invented_owner(4096, i, "\x7f\xff\xff\xff")}),
              "\x01" + garbage_signature(4096), in(600));
  // Of the same node: that one must not hide the other.
  const Subkey usual = *Subkey::from_value(msgpack::Bin{owner->ownership_marker() + "again"});
  reply.put(usual, owner->sign_value({DhtId::of("run_progress").binary(), usual.encoded, "\x02", in(600)}), in(600));
  LyingReplica liar(swarm.add_host(), DhtId::of("run_progress"),
                    [&](proto::FindResult& result) { result.set_value(reply.encoded()); });
  Dht& reader = add({.cache_nearest = 0, .client_mode = true});
  reader.add_validator(validator);
  ASSERT_TRUE(swarm.run(reader.start({liar.address()})));
  const auto found = get(reader, "run_progress", true);
  ASSERT_TRUE(found) << found.error();
  EXPECT_EQ(found->entries().size(), 2u);
  EXPECT_LE(validator->checks(), 400u) << "each takes sixteen times as long as one of a usual key";
  EXPECT_GE(validator->checks(), 300u);
}

TEST_F(CostlySwarm, AReplicaThatSendsMoreThanItWasToDrawIsHeardToThatNumber) {
  add();
  ASSERT_TRUE(store(*nodes[0], "dict", "honest", 1, in(600)));
  const std::string reply = dictionary_of(3000, in(600));
  LyingReplica liar(swarm.add_host(), DhtId::of("dict"), [&](proto::FindResult& result) {
    result.set_value(reply);
    result.set_entries(3000);
  });
  Dht& reader = add({.cache_nearest = 0, .client_mode = true});
  ASSERT_TRUE(swarm.run(reader.start({liar.address()})));
  const auto drawn = swarm.run(reader.get_sampled("dict", 2, {.most_entries = 10}));
  ASSERT_TRUE(drawn) << drawn.error();
  EXPECT_EQ(drawn->entries().size(), 11u);
  const bool has_honest =
      std::ranges::any_of(drawn->entries(), [](const auto& entry) { return entry.first == msgpack::Value("honest"); });
  EXPECT_TRUE(has_honest);
}

TEST_F(CostlySwarm, ASignatureIsCheckedOnce) {
  add();
  const auto owner = std::make_shared<RsaSignatureValidator>();
  nodes[0]->add_validator(std::make_shared<RsaSignatureValidator>());
  const auto validator = std::make_shared<RsaSignatureValidator>();
  Dht& node = add();
  node.add_validator(validator);
  const std::string tag = msgpack::encode(msgpack::Bin{owner->ownership_marker()});
  Record record{DhtId::of("progress").binary(), tag, "\x01", in(100)};
  record.value = owner->sign_value(record);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(validator->validate(record));
  EXPECT_EQ(validator->checks(), 1u);
  Record forged = record;
  forged.value[0] = '\x02';
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(validator->validate(forged));
  EXPECT_EQ(validator->checks(), 2u);
  EXPECT_TRUE(validator->validate(record)) << "the forged one does not stand for it";
  for (int i = 0; i < 20'000; ++i) {
    forged.value[0] = static_cast<char>(i);
    forged.expiration = i;
    (void)validator->validate(forged);
  }
  EXPECT_TRUE(validator->validate(record)) << "when it was forgotten it is checked again";
}

TEST_F(CostlySwarm, AValueThatNobodyCouldReadIsNotWritten) {
  add();
  msgpack::Value list = msgpack::Array{std::vector<msgpack::Value>(200'000, msgpack::Value(1))};
  const auto stored = store(*nodes[0], "key", list, in(100));
  ASSERT_FALSE(stored);
  EXPECT_EQ(stored.error(), cohive::Errc::limit_exceeded);
  list = msgpack::Array{std::vector<msgpack::Value>(60'000, msgpack::Value(1))};
  ASSERT_TRUE(store(*nodes[0], "key", list, in(100)));
  EXPECT_EQ(*get(*nodes[0], "key")->value(), list);
}

}  // namespace
}  // namespace cohive::dht
