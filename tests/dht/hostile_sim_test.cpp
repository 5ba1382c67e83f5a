// Nodes that lie: what they may not achieve.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <set>

#include "cohive/dht/schema.hpp"
#include "cohive/rpc/rpc.hpp"
#include "dht/storage.hpp"
#include "hostile_swarm.hpp"
#include "support/memory_peak.hpp"

namespace cohive::dht {
namespace {

TEST_F(HostileSwarm, MalformedRequestsAreRefusedWithoutHarm) {
  add();
  Dht& attacker = add({.client_mode = true});
  for (const char* method : {"DHTProtocol.rpc_ping", "DHTProtocol.rpc_store", "DHTProtocol.rpc_find"})
    EXPECT_FALSE(call(attacker, 0, method, "\xff\xff"));
  proto::StoreRequest uneven;
  uneven.add_keys(std::string(20, 'a'));
  EXPECT_FALSE(call(attacker, 0, "DHTProtocol.rpc_store", uneven.SerializeAsString()));
  for (std::size_t size : {0u, 19u, 21u, 10'000u}) {
    proto::StoreRequest odd_key;
    put(odd_key, std::string(size, 'a'), "\xc0", "\x01", in(10));
    EXPECT_FALSE(call(attacker, 0, "DHTProtocol.rpc_store", odd_key.SerializeAsString()));
    proto::FindRequest find;
    find.add_keys(std::string(size, 'a'));
    EXPECT_FALSE(call(attacker, 0, "DHTProtocol.rpc_find", find.SerializeAsString()));
  }
  proto::FindRequest many;
  for (int i = 0; i < 1025; ++i) many.add_keys(DhtId::of(i).binary());
  EXPECT_FALSE(call(attacker, 0, "DHTProtocol.rpc_find", many.SerializeAsString()));
  EXPECT_EQ(nodes[0]->storage_size(), 0u);
  EXPECT_EQ(nodes[0]->table_size(), 0u);
}

TEST_F(HostileSwarm, RecordsBeyondTheBoundsAreNotKept) {
  add();
  Dht& attacker = add({.client_mode = true});
  proto::StoreRequest request;
  const std::string key(20, 'a');
  put(request, key, "\xc0", "\x01", INFINITY);
  put(request, key, "\xc0", "\x01", std::nan(""));
  put(request, key, "\xc0", "\x01", in(-10));
  put(request, key, "\xc0", "\x01", in(8 * 24 * 3600.0));
  put(request, key, "\xc0", std::string((1 << 20) + 1, 'x'), in(10));
  put(request, key, "\xc1", "\x01", in(10));                                   // no msgpack
  put(request, key, std::string("\x01\x02", 2), "\x01", in(10));               // trailing bytes
  put(request, key, "\x91\x01", "\x01", in(10));                               // a list as subkey
  put(request, key, "\xda\x13\x88" + std::string(5000, 's'), "\x01", in(10));  // a very long subkey
  put(request, key, "", "\x01", in(10));                                       // no dictionary
  put(request, key, "", "", in(10));
  for (const bool ok : stored(attacker, 0, request)) EXPECT_FALSE(ok);
  EXPECT_EQ(nodes[0]->storage_size(), 0u);
}

TEST_F(HostileSwarm, OfAPushedDictionaryTheGoodEntriesAreKept) {
  using namespace msgpack;
  add();
  Dht& attacker = add({.client_mode = true});
  const Array entries{{Array{{"good", Bin{"\x01"}, in(50)}}, Array{{"far", Bin{"\x01"}, 1e300}},
                       Array{{"nan", Bin{"\x01"}, std::nan("")}}}};
  std::string bytes;
  append_ext(bytes, 0x50, encode(Array{{INFINITY, 1e300, entries}}));
  proto::StoreRequest request;
  put(request, DhtId::of("dict").binary(), "", bytes, 1e300);
  EXPECT_FALSE(stored(attacker, 0, request)[0]) << "not all of it";
  const auto result = get(*nodes[0], "dict").value();
  ASSERT_EQ(result.entries().size(), 1u);
  EXPECT_EQ(result.entries()[0].first, Value("good"));
  EXPECT_EQ(result.expiration, result.entries()[0].second.expiration);
}

TEST_F(HostileSwarm, AHugeDictionaryIsRefusedInOnePiece) {
  using namespace msgpack;
  add({.max_subkeys = 100});
  Dht& attacker = add({.client_mode = true});
  Array entries;
  for (int i = 0; i < 200; ++i) entries.items.push_back(Array{{i, Bin{"\x01"}, in(50)}});
  std::string bytes;
  append_ext(bytes, 0x50, encode(Array{{INFINITY, in(50), entries}}));
  proto::StoreRequest request;
  put(request, DhtId::of("dict").binary(), "", bytes, in(50));
  EXPECT_FALSE(stored(attacker, 0, request)[0]);
  EXPECT_EQ(nodes[0]->storage_size(), 0u);
}

TEST_F(HostileSwarm, ARequestTakesNoMoreMemoryForHoldingManySmallThings) {
  using namespace std::string_view_literals;
  add();
  Dht& attacker = add({.client_mode = true});
  constexpr std::size_t kSize = 4'000'000;
  const auto peak_of = [&](const char* method, const std::string& request) {
    swarm.pass(1min);
    MemoryPeak peak;
    EXPECT_EQ(call(attacker, 0, method, request).has_value(), false);
    return peak.bytes();
  };
  const auto filled_with = [](std::string_view piece) {
    std::string result;
    while (result.size() < kSize) result += piece;
    return result;
  };
  const std::string find = "DHTProtocol.rpc_find", store = "DHTProtocol.rpc_store";
  const std::size_t usual = peak_of(find.c_str(), filled_with("\xff"sv)) + (1 << 20);
  EXPECT_LE(peak_of(find.c_str(), filled_with("\x12\x00"sv)), usual) << "two million empty keys";
  EXPECT_LE(peak_of(find.c_str(), filled_with("\x78\x01"sv)), usual) << "fields that nobody knows";
  EXPECT_LE(peak_of(store.c_str(), filled_with("\x12\x00\x1a\x00\x22\x00"sv)), usual) << "empty records";
}

TEST_F(HostileSwarm, ADictionaryThatIsAListOfNothingsTakesLittleMemory) {
  add();
  Dht& attacker = add({.client_mode = true});
  constexpr std::uint32_t kNothings = 4'000'000;
  std::string list("\xdd", 1);
  for (int shift = 24; shift >= 0; shift -= 8) list.push_back(static_cast<char>(kNothings >> shift));
  list.append(kNothings, '\xc0');
  for (const bool wrapped : {false, true}) {
    std::string bytes;
    wrapped ? msgpack::append_ext(bytes, 0x50, list) : void(bytes = list);
    proto::StoreRequest request;
    put(request, DhtId::of("dict").binary(), "", bytes, in(50));
    const std::string encoded = request.SerializeAsString();
    MemoryPeak peak;
    proto::StoreResponse reply;
    ASSERT_TRUE(reply.ParseFromString(call(attacker, 0, "DHTProtocol.rpc_store", encoded).value()));
    EXPECT_FALSE(reply.store_ok(0));
    EXPECT_LE(peak.bytes(), 12 * encoded.size()) << "both ends and what is on its way";
    swarm.pass(1min);
  }
}

TEST_F(HostileSwarm, NewcomersThatTakeNoRecordsAreGivenFewAtATime) {
  constexpr int kRecords = 500;
  constexpr std::size_t kBytes = 100'000;
  Dht& holder = add({.cache_on_store = false});
  for (int i = 0; i < kRecords; ++i)
    ASSERT_TRUE(swarm.run(holder.store("key " + std::to_string(i), std::string(kBytes, 'x'), in(600))));
  std::deque<rpc::Server> newcomers;
  int offered = 0;
  for (int i = 0; i < 5; ++i) {
    auto& server = newcomers.emplace_back(swarm.add_host());
    server.add_unary("DHTProtocol.rpc_store", [&](PeerId, std::string) {
      ++offered;
      return answer_after(swarm.runtime(), 1h, {});
    });
  }
  MemoryPeak peak;
  for (std::size_t i = 0; i < newcomers.size(); ++i) {
    proto::FindRequest hello;
    hello.mutable_peer()->set_node_id(std::string(20, static_cast<char>('a' + i)));
    auto& host = newcomers[i].host();
    ASSERT_TRUE(swarm.run(host.connect(holder.host().visible_addresses().front(), swarm.after(5s))));
    ASSERT_TRUE(swarm.run(
        rpc::call_unary(host, holder.host().id(), "DHTProtocol.rpc_find", hello.SerializeAsString(), swarm.after(5s))));
  }
  swarm.pass(10s);
  EXPECT_GE(offered, 5);
  EXPECT_LE(peak.bytes(), kRecords * kBytes) << "a copy of everything for each of them would be five times as much";
}

TEST_F(HostileSwarm, ManyNewcomersWaitForTheirRecordsWithoutCopiesOfThem) {
  constexpr std::size_t kNewcomers = 60, kBytes = 90'000, kRecordsOfABatch = 12;
  Dht& holder = add({.bucket_size = 100, .num_replicas = kNewcomers, .cache_on_store = false});
  for (std::size_t i = 0; i < 2 * kRecordsOfABatch; ++i)
    ASSERT_TRUE(swarm.run(holder.store("key " + std::to_string(i), std::string(kBytes, 'x'), in(600))));
  std::deque<rpc::Server> newcomers;
  int offered = 0;
  for (std::size_t i = 0; i < kNewcomers; ++i) {
    auto& host = swarm.add_host();
    newcomers.emplace_back(host).add_unary("DHTProtocol.rpc_store", [&](PeerId, std::string) {
      ++offered;
      return answer_after(swarm.runtime(), 1h, {});
    });
    ASSERT_TRUE(swarm.run(host.connect(holder.host().visible_addresses().front(), swarm.after(5s))));
  }
  const auto greet = [&](std::size_t i) -> Task<void> {
    proto::FindRequest hello;
    hello.mutable_peer()->set_node_id(DhtId::of(i).binary());
    (void)co_await rpc::call_unary(newcomers[i].host(), holder.host().id(), "DHTProtocol.rpc_find",
                                   hello.SerializeAsString(), swarm.after(5s));
  };
  const auto greet_all = [&]() -> Task<void> {
    Nursery greeting(swarm.runtime(), "newcomers");
    for (std::size_t i = 0; i < kNewcomers; ++i) greeting.spawn(greet(i), "newcomer");
    co_await greeting.join();
  };
  MemoryPeak peak;
  swarm.run(greet_all());
  EXPECT_EQ(holder.table_size(), kNewcomers);
  swarm.pass(10s);
  EXPECT_GE(offered, 5);
  EXPECT_LE(peak.bytes(), kNewcomers * kRecordsOfABatch * kBytes) << "a batch for each, beside those on their way";
}

/// Fifty entries that expire together. Those whose name is the key of the owner are signed.
std::string fifty_entries(const RsaSignatureValidator& owner, const std::string& name, std::size_t first,
                          double expiration) {
  Dictionary entries;
  for (std::size_t i = first; i < first + 50; ++i) {
    auto subkey = Subkey::from_value(msgpack::Bin{name + std::to_string(i)}).value();
    auto value = owner.sign_value({DhtId::of("progress").binary(), subkey.encoded, "\x01", expiration});
    entries.put(std::move(subkey), std::move(value), expiration);
  }
  return entries.encoded();
}

/// Readers of a record with two replicas. One has an honest entry and dies halfway, the other answers each time with
/// fifty entries that nobody has seen yet.
class FloodedReader : public HostileSwarm {
 protected:
  template <class Read>
  void read_on(const std::string& name, Read read) {
    constexpr std::size_t kReads = 20;
    add();
    ASSERT_TRUE(store(*nodes[0], "progress", "honest", 1, in(3600)));
    std::vector<std::string> floods;
    for (std::size_t i = 0; i < kReads; ++i)
      floods.push_back(fifty_entries(*owner, name, 50 * i, in(500'000 + static_cast<double>(i))));
    std::size_t asked = 0;
    LyingReplica liar(swarm.add_host(), DhtId::of("progress"),
                      [&](proto::FindResult& result) { result.set_value(floods[asked++ % kReads]); });
    Dht& reader = add({.cache_nearest = 0, .client_mode = true, .max_subkeys = 100});
    reader.add_validator(owner);
    ASSERT_TRUE(swarm.run(reader.start({liar.address()})));
    for (std::size_t i = 0; i < kReads; ++i) {
      if (i == kReads / 2) swarm.fabric().crash(ip_of(0));
      const Result<GetResult> found = read(reader);
      ASSERT_TRUE(found) << found.error();
      EXPECT_LE(found->entries().size(), 100u);
      const bool has_honest = std::ranges::any_of(
          found->entries(), [](const auto& entry) { return entry.first == msgpack::Value("honest"); });
      EXPECT_TRUE(has_honest) << "at look " << i;
    }
    EXPECT_GE(asked, kReads);
  }
  const std::shared_ptr<RsaSignatureValidator> owner = std::make_shared<RsaSignatureValidator>();
};

TEST_F(FloodedReader, RemembersNoMoreThanADictionaryMayHoldAndNoHonestEntryLess) {
  read_on(owner->ownership_marker(), [this](Dht& reader) { return swarm.run(reader.get_sampled("progress", 2)); });
}

TEST_F(FloodedReader, CachesNoMoreThanADictionaryMayHoldAndNoHonestEntryLess) {
  read_on("of anybody ", [this](Dht& reader) { return get(reader, "progress", true); });
}

TEST_F(HostileSwarm, OwnedSubkeysCannotBeOverwrittenByOthers) {
  auto owner = std::make_shared<RsaSignatureValidator>();
  auto stranger = std::make_shared<RsaSignatureValidator>();
  for (int i = 0; i < 4; ++i) {
    add();
    nodes.back()->add_validator(i == 1 ? owner : stranger);
  }
  const msgpack::Value subkey = msgpack::Bin{owner->ownership_marker()};
  ASSERT_TRUE(store(*nodes[1], "owned", subkey, 42, in(60)));
  EXPECT_FALSE(store(*nodes[2], "owned", subkey, 13, in(61)));
  for (auto& node : nodes) {
    auto result = get(*node, "owned", true);
    ASSERT_TRUE(result);
    EXPECT_EQ(result->entries().front().second.value, msgpack::Value(42));
  }
  ASSERT_TRUE(store(*nodes[1], "owned", subkey, 43, in(62))) << "the owner may";
  EXPECT_EQ(get(*nodes[3], "owned", true)->entries().front().second.value, msgpack::Value(43));
}

TEST_F(HostileSwarm, AMaliciousOnlyPeerCannotForgeAnOwnedSubkey) {
  add();  // no validators: keeps and serves anything
  auto owner = std::make_shared<RsaSignatureValidator>();
  Dht& trainer = add();
  trainer.add_validator(owner);
  const msgpack::Value subkey = msgpack::Bin{owner->ownership_marker()};
  ASSERT_TRUE(store(trainer, "owned", subkey, 42, in(60)));
  store(*nodes[0], "owned", subkey, 13, in(70));
  auto result = get(trainer, "owned", true);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->entries().front().second.value, msgpack::Value(42));
}

TEST_F(HostileSwarm, OneUnsignedEntryDoesNotHideTheOthers) {
  add();
  auto owner = std::make_shared<RsaSignatureValidator>();
  Dht& trainer = add();
  trainer.add_validator(owner);
  store(*nodes[0], "progress", msgpack::Bin{owner->ownership_marker()}, 13, in(70));
  store(*nodes[0], "progress", "free", 1, in(60));
  auto result = get(trainer, "progress", true);
  ASSERT_TRUE(result);
  ASSERT_EQ(result->entries().size(), 1u);
  EXPECT_EQ(result->entries()[0].first, msgpack::Value("free"));
  EXPECT_EQ(result->expiration, result->entries()[0].second.expiration) << "the bad entry counts for nothing";
}

TEST_F(HostileSwarm, ARecordThatDoesNotDecodeDoesNotHideAnOlderGoodOne) {
  add_many(2, {.num_replicas = 1, .cache_locally = false, .cache_nearest = 0, .cache_on_store = false});
  Dht& reader = add({.cache_locally = false, .client_mode = true});
  ASSERT_TRUE(store(*nodes[0], "key", "good", in(50)));
  const std::size_t holder = nodes[0]->storage_size() ? 0 : 1;
  proto::StoreRequest request;
  put(request, DhtId::of("key").binary(), "\xc0", "\xc1 no msgpack", in(60));
  EXPECT_TRUE(stored(reader, 1 - holder, request)[0]) << "a node without validators cannot know";
  EXPECT_EQ(*get(reader, "key", true)->value(), msgpack::Value("good"));
}

TEST_F(HostileSwarm, WhatAnybodyPutsIntoCachesHidesNoEntries) {
  add_many(8, {.cache_nearest = 0});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(store(*nodes[static_cast<std::size_t>(i)], "dict", i, "honest", in(60)));
  Dht& liar = add({.client_mode = true});
  const double later = in(6 * 86400);
  for (const char* tag : {"\xa4liar", "\xc0"}) {  // an entry of its own, then a plain value
    for (std::size_t i = 0; i < 8; ++i) {
      proto::StoreRequest request;
      put(request, DhtId::of("dict").binary(), tag, "\x01", later, true);
      (void)stored(liar, i, request);
    }
    Dht& reader = add({.cache_locally = false, .client_mode = true});
    for (const auto& node : nodes) {
      if (node.get() == &liar) continue;
      const auto found = get(*node, "dict", true);
      ASSERT_TRUE(found) << found.error();
      EXPECT_GE(found->entries().size(), 3u);
    }
    EXPECT_GE(swarm.run(reader.get_sampled("dict", 2, {.most_entries = 10})).value().entries().size(), 3u);
  }
}

TEST_F(HostileSwarm, APlainValueTakesNoPlaceOfADictionaryThatWasRestoredOrHandedOver) {
  Dht& node = add();
  Dht& neighbour = add({.client_mode = true});
  Dht& liar = add({.client_mode = true});
  Dictionary dictionary;
  for (const char* owner : {"a", "b"}) dictionary.put(*Subkey::from_value(owner), "\x01", in(60));
  std::vector<WireRecord> records{{DhtId::of("restored"), std::string(kDictionaryTag), dictionary.encoded(), in(60)}};
  ASSERT_EQ(swarm.run(node.restore(std::move(records))), 1u);
  proto::StoreRequest whole;
  put(whole, DhtId::of("handed over").binary(), "", dictionary.encoded(), in(60));
  ASSERT_TRUE(stored(neighbour, 0, whole)[0]);
  for (const char* key : {"restored", "handed over"}) {
    proto::StoreRequest request;
    put(request, DhtId::of(key).binary(), "\xc0", "\x01", in(6000));
    EXPECT_FALSE(stored(liar, 0, request)[0]) << key;
    EXPECT_EQ(get(node, key)->entries().size(), 2u) << key;
  }
}

TEST_F(HostileSwarm, ASchemaKeepsMalformedProgressOut) {
  auto owner = std::make_shared<RsaSignatureValidator>();
  add();
  Dht& strict = add();
  for (auto& node : nodes) {
    node->add_validator(std::make_shared<SchemaValidator>(training_progress_schema(), "run"));
    node->add_validator(owner);
  }
  const msgpack::Value subkey = msgpack::Bin{owner->ownership_marker()};
  msgpack::Map report{{{"peer_id", msgpack::Bin{"id"}},
                       {"epoch", 3},
                       {"samples_accumulated", 10},
                       {"samples_per_second", 1.5},
                       {"time", in(0)},
                       {"client_mode", false}}};
  EXPECT_TRUE(store(strict, "run_progress", subkey, report, in(60)));
  report.entries[1].second = 3.0;
  EXPECT_FALSE(store(strict, "run_progress", subkey, report, in(61))) << "a float is no epoch";
  EXPECT_FALSE(store(strict, "run_progress", "not owned", report, in(61)));
  EXPECT_FALSE(store(strict, "run_progress", 1, in(61)));
  EXPECT_TRUE(store(strict, "run_progress", subkey, nullptr, in(62))) << "the goodbye";
  EXPECT_TRUE(store(strict, "anything else", 1, in(60)));
}

TEST_F(HostileSwarm, AValidatorThatComesLateCleansUp) {
  add();
  auto owner = std::make_shared<RsaSignatureValidator>();
  store(*nodes[0], "progress", msgpack::Bin{owner->ownership_marker()}, 13, in(70));
  store(*nodes[0], "progress", "free", 1, in(60));
  nodes[0]->add_validator(owner);
  swarm.pass(1s);
  const auto result = get(*nodes[0], "progress").value();
  ASSERT_EQ(result.entries().size(), 1u);
}

TEST_F(HostileSwarm, RepliesThatDoNotMatchTheirRequestCountAsFailures) {
  auto& host = swarm.add_host();
  rpc::Server server(host);
  auto lie = [](std::string reply) -> Task<Result<std::string>> { co_return reply; };
  server.add_unary("DHTProtocol.rpc_ping", [&lie](PeerId, std::string) {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(std::string(20, 'x'));
    reply.set_available(true);
    return lie(reply.SerializeAsString());
  });
  server.add_unary("DHTProtocol.rpc_find",
                   [&lie](PeerId, std::string) { return lie(proto::FindResponse().SerializeAsString()); });
  server.add_unary("DHTProtocol.rpc_store", [&lie](PeerId, std::string) {
    proto::StoreResponse reply;
    for (int i = 0; i < 100; ++i) reply.add_store_ok(true);
    return lie(reply.SerializeAsString());
  });
  Dht node(swarm.add_host());
  ASSERT_TRUE(swarm.run(node.start({host.visible_addresses().front()})));
  EXPECT_EQ(node.table_size(), 0u) << "its find reply was empty";
  EXPECT_FALSE(swarm.run(node.get("key", true)));
  EXPECT_TRUE(swarm.run(node.store("key", 1, node.now() + 10))) << "at home";
}

TEST_F(HostileSwarm, AnInitialPeerWithAnotherClockIsNamed) {
  auto& host = swarm.add_host();
  rpc::Server server(host);
  auto answer = [](double time) -> Task<Result<std::string>> {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(std::string(20, 'x'));
    reply.set_available(true);
    reply.set_dht_time(time);
    co_return reply.SerializeAsString();
  };
  server.add_unary("DHTProtocol.rpc_ping",
                   [&](PeerId, std::string) { return answer(swarm.runtime().wall_time() + 5); });
  Dht node(swarm.add_host());
  auto started = swarm.run(node.start({host.visible_addresses().front()}));
  ASSERT_FALSE(started);
  EXPECT_NE(started.error().message().find(
                "the clocks of this machine and of the initial peer differ by more than 3 seconds"),
            std::string::npos)
      << started.error();
  EXPECT_NE(started.error().message().find(host.id().text()), std::string::npos);
  Dht lenient(swarm.add_host(), {.validate_bootstrap = false});
  EXPECT_TRUE(swarm.run(lenient.start({host.visible_addresses().front()})));
}

TEST_F(HostileSwarm, APeerThatFloodsIsRefusedWhileOthersAreServed) {
  add({.max_keys_per_second = 10});
  Dht& attacker = add({.client_mode = true});
  Dht& other = add({.client_mode = true});
  proto::FindRequest find;
  for (int i = 0; i < 49; ++i) find.add_keys(DhtId::of(i).binary());
  swarm.pass(1min);
  for (const char* served : {"at once", "at once", "on credit"})
    EXPECT_TRUE(call(attacker, 0, "DHTProtocol.rpc_find", find.SerializeAsString())) << served;
  EXPECT_FALSE(call(attacker, 0, "DHTProtocol.rpc_find", find.SerializeAsString()));
  proto::StoreRequest request;
  for (int i = 0; i < 20; ++i) put(request, DhtId::of(i).binary(), "\xc0", "\x01", in(100));
  EXPECT_FALSE(call(attacker, 0, "DHTProtocol.rpc_store", request.SerializeAsString()));
  EXPECT_EQ(nodes[0]->storage_size(), 0u);
  EXPECT_TRUE(call(other, 0, "DHTProtocol.rpc_find", find.SerializeAsString()));
  swarm.pass(1min);
  EXPECT_TRUE(call(attacker, 0, "DHTProtocol.rpc_store", request.SerializeAsString()));
}

TEST_F(HostileSwarm, AnAttackerWithOneNetworkBlockGetsAFewPlacesInATable) {
  Dht& victim = add({.max_nodes_per_block = 4});
  const auto join_from = [&](const std::string& ip) {
    nodes.push_back(std::make_unique<Dht>(swarm.add_host_at(ip)));
    EXPECT_TRUE(swarm.run(nodes.back()->start({swarm.host(0).visible_addresses().front()})));
    return swarm.host(swarm.size() - 1).id();
  };
  std::set<PeerId> attackers, others;
  for (int i = 1; i <= 12; ++i) attackers.insert(join_from("8.8.8." + std::to_string(i)));
  for (int i = 1; i <= 6; ++i) others.insert(join_from("8.8." + std::to_string(10 + i) + ".1"));
  for (int i = 0; i < 6; ++i) others.insert(add().host().id());
  std::size_t from_block = 0;
  for (const auto& [id, peer] : victim.known_nodes()) {
    from_block += attackers.contains(peer);
    others.erase(peer);
  }
  EXPECT_EQ(from_block, 4u);
  EXPECT_TRUE(others.empty()) << "all nodes of other networks and of the private one are known";
}

}  // namespace
}  // namespace cohive::dht
