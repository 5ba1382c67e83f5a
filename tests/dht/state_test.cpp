// The file in which a node keeps what it knows: whole or refused, never half.
#include "cohive/dht/state.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <fstream>
#include <iterator>

#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"

namespace cohive::dht {
namespace {

PeerId keyed_peer(std::uint8_t number) {
  return KeyPair::ed25519_from_seed(Bytes(32, number)).peer_id();
}

SavedState example() {
  SavedState state{keyed_peer(1), DhtId::of("node"), {}, {}};
  state.records.push_back({DhtId::of("plain"), "\xc0", "value", 1234.5, false});
  state.records.push_back({DhtId::of("dictionary"), "", std::string(1000, '\0'), 1e9, true});
  state.peers.push_back({DhtId::of("other"), keyed_peer(2), {Multiaddr::from_text("/ip4/192.0.2.1/tcp/4001").value()}});
  state.peers.push_back({DhtId::of("lost"), keyed_peer(3), {}});
  return state;
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

  std::filesystem::path folder_, path_;
};

TEST_F(StateFile, WhatWasWrittenIsRead) {
  const SavedState before = example();
  ASSERT_TRUE(write_state(path_, before));
  const auto after = read_state(path_);
  ASSERT_TRUE(after) << after.error();
  EXPECT_EQ(after->peer, before.peer);
  EXPECT_EQ(after->node_id, before.node_id);
  ASSERT_EQ(after->records.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(after->records[i].key, before.records[i].key);
    EXPECT_EQ(after->records[i].tag, before.records[i].tag);
    EXPECT_EQ(after->records[i].value, before.records[i].value);
    EXPECT_EQ(after->records[i].expiration, before.records[i].expiration);
    EXPECT_EQ(after->records[i].cached, before.records[i].cached);
  }
  ASSERT_EQ(after->peers.size(), 2u);
  EXPECT_EQ(after->peers[0].id, before.peers[0].id);
  EXPECT_EQ(after->peers[0].peer, before.peers[0].peer);
  EXPECT_EQ(after->peers[0].addresses, before.peers[0].addresses);
}

TEST_F(StateFile, IsReplacedAsAWholeAndOnlyForItsOwner) {
  ASSERT_TRUE(write_state(path_, example()));
  put("garbage that an earlier crash left");
  std::ofstream(path_.string() + ".new") << "half a file that an earlier crash left";
  SavedState second = example();
  second.records.clear();
  ASSERT_TRUE(write_state(path_, second));
  EXPECT_TRUE(read_state(path_)->records.empty());
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".new"));
  const auto permissions = std::filesystem::status(path_).permissions();
  EXPECT_EQ(permissions & std::filesystem::perms::others_all, std::filesystem::perms::none);
  EXPECT_EQ(permissions & std::filesystem::perms::group_all, std::filesystem::perms::none);
}

TEST_F(StateFile, IsNotWrittenThroughALink) {
  const std::string victim = path_.string() + ".victim";
  std::ofstream(victim) << "precious";
  std::filesystem::create_symlink(victim, path_.string() + ".new");
  ASSERT_TRUE(write_state(path_, example()));
  std::ifstream file(victim);
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), "precious");
  EXPECT_FALSE(std::filesystem::is_symlink(path_));
  std::filesystem::remove(victim);
}

TEST_F(StateFile, AnyDamageIsNoticed) {
  ASSERT_TRUE(write_state(path_, example()));
  const std::string good = content();
  for (std::size_t at = 0; at < good.size(); at += 7) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    put(bad);
    const auto state = read_state(path_);
    ASSERT_FALSE(state) << "byte " << at;
    EXPECT_EQ(state.error(), cohive::Errc::malformed);
    EXPECT_NE(state.error().message().find(path_.string()), std::string::npos);
  }
  for (std::size_t size : {std::size_t{0}, std::size_t{5}, std::size_t{30}, good.size() / 2, good.size() - 1}) {
    put(good.substr(0, size));
    EXPECT_FALSE(read_state(path_)) << size << " bytes";
  }
  put(good + "x");
  EXPECT_FALSE(read_state(path_));
}

TEST_F(StateFile, AMissingFileIsNoDamage) {
  EXPECT_EQ(read_state(path_).error(), cohive::Errc::not_found);
}

TEST_F(StateFile, HugeFilesAndLongPeerListsAreBounded) {
  SavedState state = example();
  state.records.push_back({DhtId::of("large"), "\xc0", std::string(30 << 20, 'x'), 1, false});
  for (std::uint8_t i = 0; i < 20; ++i) state.peers.push_back({DhtId::of(i), keyed_peer(i), {}});
  ASSERT_TRUE(write_state(path_, state));
  EXPECT_EQ(read_state(path_, {.max_bytes = 1 << 20}).error(), cohive::Errc::malformed);
  const auto bounded = read_state(path_, {.max_peers = 5});
  ASSERT_TRUE(bounded);
  EXPECT_EQ(bounded->peers.size(), 5u);
}

TEST_F(StateFile, AFolderThatIsNotThereIsNamed) {
  const auto written = write_state(folder_ / "missing" / "node.state", example());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error(), cohive::Errc::io);
  EXPECT_NE(written.error().message().find("missing"), std::string::npos);
}

}  // namespace
}  // namespace cohive::dht
