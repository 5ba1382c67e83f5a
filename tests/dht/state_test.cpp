// The file in which a node keeps what it knows: whatever was written is read.
#include "cohive/dht/state.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <iterator>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/msgpack.hpp"

namespace cohive::dht {
namespace {

PeerId keyed_peer(std::uint8_t number) {
  return KeyPair::ed25519_from_seed(Bytes(32, number)).peer_id();
}

const Multiaddr kAddress = Multiaddr::from_text("/ip4/192.0.2.1/tcp/4001").value();

struct Example {
  SavedState state;
  std::vector<WireRecord> records;
};
Example example() {
  Example all{{keyed_peer(1), DhtId::of("node"), {}}, {}};
  all.records.push_back({DhtId::of("plain"), "\xc0", "value", 1234.5, false});
  all.records.push_back({DhtId::of("dictionary"), "", std::string(1000, '\0'), 1e9, true});
  all.state.peers.push_back({DhtId::of("other"), keyed_peer(2), {kAddress}});
  all.state.peers.push_back({DhtId::of("third"), keyed_peer(3), {kAddress, kAddress}});
  return all;
}

Result<> write(const std::filesystem::path& path, const Example& all, std::size_t in_piece = 1000) {
  auto writer = StateWriter::create(path, all.state);
  if (!writer) return writer.error();
  for (std::size_t at = 0; at < all.records.size(); at += in_piece) {
    const auto begin = all.records.begin() + static_cast<std::ptrdiff_t>(at);
    const auto count = static_cast<std::ptrdiff_t>(std::min(in_piece, all.records.size() - at));
    if (auto added = writer->add({begin, begin + count}); !added) return added;
  }
  return writer->finish();
}

struct WhatWasRead : Example {
  bool damaged = false;
};
Result<WhatWasRead> read(const std::filesystem::path& path, StateLimits limits = {}) {
  auto reader = StateReader::open(path, limits);
  if (!reader) return reader.error();
  WhatWasRead all{{reader->state(), {}}};
  for (auto records = reader->next(); !records.empty(); records = reader->next())
    all.records.insert(all.records.end(), records.begin(), records.end());
  all.damaged = reader->damaged();
  return all;
}

class StateFile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        std::filesystem::path(::testing::TempDir()) / ("cohive_state_" + std::to_string(::getpid()) + "_" +
                                                       ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "node.state";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string content() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void put(const std::string& bytes) const { std::ofstream(path_, std::ios::binary) << bytes; }
  /// Writes what the first version wrote: all in one map.
  void put_version_1(msgpack::Array records, msgpack::Array peers) const {
    const std::string body = msgpack::encode(msgpack::Map{{{"peer", msgpack::Value::bin(keyed_peer(1).bytes())},
                                                           {"node_id", msgpack::Value::bin(DhtId::of("node").bytes)},
                                                           {"records", std::move(records)},
                                                           {"peers", std::move(peers)}}});
    const auto digest = crypto::sha256(as_bytes(body));
    put("cohive dht state 1\n" + std::string(as_text(digest)) + body);
  }

  std::filesystem::path folder_, path_;
};

TEST_F(StateFile, WhatWasWrittenIsRead) {
  const Example before = example();
  ASSERT_TRUE(write(path_, before));
  const auto after = read(path_);
  ASSERT_TRUE(after) << after.error();
  EXPECT_FALSE(after->damaged);
  EXPECT_EQ(after->state.peer, before.state.peer);
  EXPECT_EQ(after->state.node_id, before.state.node_id);
  ASSERT_EQ(after->records.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(after->records[i].key, before.records[i].key);
    EXPECT_EQ(after->records[i].tag, before.records[i].tag);
    EXPECT_EQ(after->records[i].value, before.records[i].value);
    EXPECT_EQ(after->records[i].expiration, before.records[i].expiration);
    EXPECT_EQ(after->records[i].in_cache, before.records[i].in_cache);
  }
  ASSERT_EQ(after->state.peers.size(), 2u);
  EXPECT_EQ(after->state.peers[0].id, before.state.peers[0].id);
  EXPECT_EQ(after->state.peers[0].peer, before.state.peers[0].peer);
  EXPECT_EQ(after->state.peers[0].addresses, before.state.peers[0].addresses);
}

TEST_F(StateFile, IsReadWhateverTheNumberAndSizeOfItsRecords) {
  Example all = example();
  all.records.clear();
  for (int i = 0; i < 100'000; ++i) all.records.push_back({DhtId::of(i), "\xc0", "\x01", 1e9 + i, false});
  for (std::size_t size : {0u, 31u, 32u, 255u, 256u, 65'535u, 65'536u, 3u << 20})
    all.records.push_back({DhtId::of(static_cast<int>(size)), "", std::string(size, '\x01'), 1e9, false});
  for (const std::size_t in_piece : {std::size_t{128}, all.records.size()}) {
    ASSERT_TRUE(write(path_, all, in_piece));
    const auto after = read(path_);
    ASSERT_TRUE(after) << after.error();
    EXPECT_FALSE(after->damaged);
    ASSERT_EQ(after->records.size(), all.records.size()) << in_piece << " in a piece";
    EXPECT_EQ(after->records.back().value, all.records.back().value);
  }
}

TEST_F(StateFile, IsReplacedAsAWholeAndOnlyForItsOwner) {
  ASSERT_TRUE(write(path_, example()));
  put("garbage that an earlier crash left");
  std::ofstream(path_.string() + ".new") << "half a file that an earlier crash left";
  ASSERT_TRUE(write_state(path_, example().state));
  EXPECT_TRUE(read(path_)->records.empty());
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".new"));
  const auto permissions = std::filesystem::status(path_).permissions();
  EXPECT_EQ(permissions & std::filesystem::perms::others_all, std::filesystem::perms::none);
  EXPECT_EQ(permissions & std::filesystem::perms::group_all, std::filesystem::perms::none);
}

TEST_F(StateFile, StaysAsItWasWhereWritingIsGivenUp) {
  ASSERT_TRUE(write(path_, example()));
  {
    auto writer = StateWriter::create(path_, {keyed_peer(7), DhtId::of("another"), {}});
    ASSERT_TRUE(writer);
    ASSERT_TRUE(writer->add(example().records));
  }
  EXPECT_EQ(read(path_)->state.peer, keyed_peer(1));
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".new"));
}

TEST_F(StateFile, IsNotWrittenThroughALink) {
  const std::string victim = path_.string() + ".victim";
  std::ofstream(victim) << "precious";
  std::filesystem::create_symlink(victim, path_.string() + ".new");
  ASSERT_TRUE(write(path_, example()));
  std::ifstream file(victim);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(path_));
  std::filesystem::remove(victim);
}

TEST_F(StateFile, AnyDamageIsNoticedAndCostsOnlyWhatItHits) {
  const Example all = example();
  ASSERT_TRUE(write(path_, all, 1));
  const std::string good = content();
  std::size_t kept_its_place = 0;
  for (std::size_t at = 0; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    put(bad);
    const auto after = read(path_);
    if (!after) {
      EXPECT_EQ(after.error(), cohive::Errc::malformed);
      EXPECT_NE(after.error().message().find(path_.string()), std::string::npos);
      continue;
    }
    ++kept_its_place;
    EXPECT_TRUE(after->damaged) << "byte " << at;
    EXPECT_EQ(after->state.node_id, all.state.node_id);
    EXPECT_EQ(after->state.peers.size(), 2u);
  }
  EXPECT_GT(kept_its_place, good.size() / 7 / 2) << "damage among the records leaves node id and peers";
  for (std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{30}}) {
    put(good.substr(0, size));
    EXPECT_FALSE(read(path_)) << size << " bytes";
  }
  for (const auto& bad : {good.substr(0, good.size() / 2), good.substr(0, good.size() - 1), good + "x"}) {
    put(bad);
    const auto after = read(path_);
    ASSERT_TRUE(after);
    EXPECT_TRUE(after->damaged) << bad.size() << " bytes";
    EXPECT_EQ(after->state.node_id, all.state.node_id);
  }
  std::string second_is_bad = good;
  second_is_bad[good.find(std::string(100, '\0'))] = 'x';
  put(second_is_bad);
  EXPECT_EQ(read(path_)->records.size(), 1u) << "the other one is good";
}

TEST_F(StateFile, FilesOfTheFirstVersionAreRead) {
  using namespace msgpack;
  Array records, peers;
  for (int i = 0; i < 20'000; ++i)
    records.items.push_back(Array{{Value::bin(DhtId::of(i).bytes), Bin{"\xc0"}, Bin{"\x01"}, 1e9 + i, false}});
  const Value address = Value::bin(kAddress.bytes());
  peers.items.push_back(
      Array{{Value::bin(DhtId::of("other").bytes), Value::bin(keyed_peer(2).bytes()), Array{{address}}}});
  put_version_1(std::move(records), std::move(peers));
  const auto after = read(path_);
  ASSERT_TRUE(after) << after.error();
  EXPECT_EQ(after->state.node_id, DhtId::of("node"));
  EXPECT_EQ(after->state.peers.size(), 1u);
  EXPECT_EQ(after->records.size(), 20'000u) << "that version wrote more than it could read";
  put(content() + "x");
  EXPECT_EQ(read(path_).error(), cohive::Errc::malformed);
}

TEST_F(StateFile, APeerWithoutAnAddressThatCanBeReadIsLeftOut) {
  using namespace msgpack;
  const Value known = Value::bin(kAddress.bytes()), unknown = Bin{"\xff\x7f of a later version"};
  Array peers;
  std::uint8_t number = 2;
  for (const Array& addresses : {Array{}, Array{{unknown}}, Array{{unknown, known}}, Array{{7}}})
    peers.items.push_back(
        Array{{Value::bin(DhtId::of("other").bytes), Value::bin(keyed_peer(number++).bytes()), addresses}});
  put_version_1({}, std::move(peers));
  const auto after = read(path_);
  ASSERT_TRUE(after) << after.error();
  ASSERT_EQ(after->state.peers.size(), 1u);
  EXPECT_EQ(after->state.peers[0].peer, keyed_peer(4));
  EXPECT_EQ(after->state.peers[0].addresses, std::vector<Multiaddr>{kAddress});
}

TEST_F(StateFile, AMissingFileIsNoDamage) {
  EXPECT_EQ(read(path_).error(), cohive::Errc::not_found);
}

TEST_F(StateFile, LongPeerListsAreBounded) {
  Example all = example();
  for (std::uint8_t i = 0; i < 20; ++i) all.state.peers.push_back({DhtId::of(i), keyed_peer(i), {kAddress}});
  ASSERT_TRUE(write(path_, all));
  const auto bounded = read(path_, {.max_peers = 5});
  ASSERT_TRUE(bounded);
  EXPECT_EQ(bounded->state.peers.size(), 5u);
}

TEST_F(StateFile, AFolderThatIsNotThereIsNamed) {
  const auto written = write(folder_ / "missing" / "node.state", example());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error(), cohive::Errc::io);
  EXPECT_NE(written.error().message().find("missing"), std::string::npos);
}

}  // namespace
}  // namespace cohive::dht
