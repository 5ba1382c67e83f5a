#include "dht/storage.hpp"

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "dht/routing_table.hpp"

namespace cohive::dht {
namespace {

const DhtId kKey = DhtId::of("key");
std::string tag(const char* subkey) { return msgpack::encode(msgpack::Value(subkey)); }

TEST(DhtId, HashesAsHivemindDoes) {
  using namespace msgpack;
  EXPECT_EQ(DhtId::of("key").hex(), "88c6f489594d5d9a9d57d93567bfb6ee377abd24");
  EXPECT_EQ(DhtId::of("").hex(), "c7da1ff95a25c353f1319604703e8bfd287ee1a1");
  EXPECT_EQ(DhtId::of(Bin{"raw-bytes"}).hex(), "1e4f35295d35c216378ed71a38dbe04acc586443");
  EXPECT_EQ(DhtId::of(42).hex(), "df58248c414f342c81e056b40bee12d17a08bf61");
  EXPECT_EQ(DhtId::of(Tuple{{"a", 1}}).hex(), "edd01de4b5be93353047fae489cc36b2e8f20fb1");
  EXPECT_EQ(DhtId::of("run_progress").hex(), "238ce237adb7607e7230e2f38e3399674e67f1b7");
}

TEST(Dictionary, EncodesAsHivemindDoesAndBack) {
  Dictionary dictionary;
  dictionary.put(tag("sub1"), "\x01", 2000000000.5);
  dictionary.put(msgpack::encode(msgpack::Bin{"sub2"}), "\xa1v", 3000000000.25);
  const std::string encoded = dictionary.encode();
  EXPECT_EQ(to_hex(as_bytes(encoded)),
            "c73a5093cb7ff0000000000000cb41e65a0bc00800009293a473756231c40101cb41ddcd650020000093c40473756232c402a176cb41e65a0bc0080000");
  const auto back = Dictionary::decode(as_bytes(encoded), 10).value();
  EXPECT_EQ(back.entries.size(), 2u);
  EXPECT_EQ(back.latest_expiration, 3000000000.25);
  EXPECT_FALSE(Dictionary::decode(as_bytes(encoded), 1));
  EXPECT_FALSE(Dictionary::decode(as_bytes(encoded).first(20), 10));
}

TEST(Storage, ANewerExpirationReplacesAndAnOlderOneIsRefused) {
  Storage storage(10, 10);
  EXPECT_TRUE(storage.store(kKey, "a", 100, 0));
  EXPECT_FALSE(storage.store(kKey, "b", 100, 0));
  EXPECT_FALSE(storage.store(kKey, "b", 50, 0));
  EXPECT_TRUE(storage.store(kKey, "b", 101, 0));
  EXPECT_EQ(std::get<std::string>(storage.get(kKey, 1)->content), "b");
  EXPECT_EQ(storage.get(kKey, 102), nullptr);
  EXPECT_FALSE(storage.store(kKey, "late", 5, 10)) << "already expired";
}

TEST(Storage, DictionariesFollowTheRulesOfHivemind) {
  Storage storage(10, 2);
  EXPECT_TRUE(storage.store(kKey, "plain", 10, 0));
  EXPECT_FALSE(storage.store_subkey(kKey, tag("a"), "1", 10, 0)) << "a regular value not older blocks a dictionary";
  EXPECT_TRUE(storage.store_subkey(kKey, tag("a"), "1", 20, 0));
  EXPECT_FALSE(storage.store_subkey(kKey, tag("a"), "2", 20, 0));
  EXPECT_TRUE(storage.store_subkey(kKey, tag("a"), "2", 21, 0));
  EXPECT_TRUE(storage.store_subkey(kKey, tag("b"), "3", 15, 0));
  EXPECT_FALSE(storage.store_subkey(kKey, tag("c"), "4", 30, 0)) << "the bound on subkeys";
  EXPECT_EQ(storage.get(kKey, 1)->expiration, 21);
  EXPECT_EQ(std::get<Dictionary>(storage.get(kKey, 16)->content).entries.size(), 1u) << "b has expired";
  EXPECT_FALSE(storage.store(kKey, "plain", 21, 0));
  EXPECT_TRUE(storage.store(kKey, "plain", 22, 0));
}

TEST(Storage, TheRecordThatExpiresFirstMakesRoom) {
  Storage storage(2, 10);
  storage.store(DhtId::of("1"), "a", 100, 0);
  storage.store(DhtId::of("2"), "b", 50, 0);
  storage.store(DhtId::of("3"), "c", 70, 0);
  EXPECT_EQ(storage.size(0), 2u);
  EXPECT_EQ(storage.get(DhtId::of("2"), 0), nullptr);
}

PeerId peer_of(int number) {
  Bytes key(36, 0);
  std::memcpy(key.data(), &number, sizeof number);
  return PeerId::of_public_key(key);
}

TEST(RoutingTable, TenThousandNodesFillTheExpectedNumberOfBuckets) {
  SimRuntime runtime(5);
  RoutingTable table(DhtId::random(runtime), 20, 5);
  for (int i = 0; i < 10'000; ++i) table.add_or_update(DhtId::random(runtime), peer_of(i), runtime.now());
  EXPECT_GE(table.bucket_count(), 45u);
  EXPECT_LE(table.bucket_count(), 65u);
  EXPECT_GE(table.size(), 800u);
  EXPECT_LE(table.size(), 1100u);
}

TEST(RoutingTable, NearestIsExact) {
  SimRuntime runtime(6);
  RoutingTable table(DhtId::random(runtime), 20, 5);
  std::vector<DhtId> kept;
  for (int i = 0; i < 300; ++i) {
    const DhtId id = DhtId::random(runtime);
    table.add_or_update(id, peer_of(i), runtime.now());
    kept.push_back(id);
  }
  const auto all = table.nearest(DhtId{}, 1000);
  const DhtId query = DhtId::random(runtime);
  auto expected = all;
  std::sort(expected.begin(), expected.end(), [&](const auto& a, const auto& b) { return a.id.distance(query) < b.id.distance(query); });
  const auto nearest = table.nearest(query, 10, expected[0].id);
  ASSERT_EQ(nearest.size(), 10u);
  for (std::size_t i = 0; i < 10; ++i) EXPECT_EQ(nearest[i].id, expected[i + 1].id);
}

TEST(RoutingTable, AFullBucketAsksToPingItsOldestNodeAndReplacesIt) {
  SimRuntime runtime(7);
  DhtId self{};
  RoutingTable table(self, 2, 1);  // splits only around ourselves
  auto far = [](std::uint8_t last) {
    DhtId id{};
    id.bytes[0] = 0x80;
    id.bytes[19] = last;
    return id;
  };
  EXPECT_FALSE(table.add_or_update(far(1), peer_of(1), runtime.now()));
  EXPECT_FALSE(table.add_or_update(far(2), peer_of(2), runtime.now()));
  const auto doubtful = table.add_or_update(far(3), peer_of(3), runtime.now());
  ASSERT_TRUE(doubtful);
  EXPECT_EQ(doubtful->id, far(1));
  EXPECT_EQ(table.replacement_count(), 1u);
  table.remove(far(1));
  EXPECT_EQ(table.replacement_count(), 0u);
  EXPECT_EQ(table.nearest(far(3), 1)[0].id, far(3));
}

}  // namespace
}  // namespace cohive::dht
