#include "cohive/core/memory_budget.hpp"

#include <gtest/gtest.h>

namespace cohive {
namespace {

PeerId peer_of(std::uint8_t number) {
  return PeerId::of_public_key(Bytes(36, number));
}
Multiaddr at(const std::string& ip) {
  return Multiaddr::from_ip_tcp(ip, 4001).value();
}

TEST(MemoryBudget, IsNeverExceededWhoeverAsks) {
  MemoryBudget budget(1000);
  std::vector<MemoryBudget::Charge> charges;
  for (std::uint8_t i = 0; i < 200; ++i) {
    charges.emplace_back(budget.account(peer_of(i), at("10.0.0." + std::to_string(i % 50 + 1))));
    (void)charges.back().add(37);
    EXPECT_LE(budget.held(), 1000u);
  }
  EXPECT_GT(budget.refused(), 0u);
  charges.clear();
  EXPECT_EQ(budget.held(), 0u);
}

TEST(MemoryBudget, TheGreediestPeerOfTheLargestNetworkIsCutOffAndOthersFindRoom) {
  MemoryBudget budget(1000);
  std::vector<PeerId> cut;
  budget.set_cut([&](const PeerId& peer) { cut.push_back(peer); });
  std::vector<MemoryBudget::Charge> flood;
  for (std::uint8_t i = 0; i < 100; ++i) {  // many identities, one address
    flood.emplace_back(budget.account(peer_of(i), at("8.8.8.8")));
    (void)flood.back().add(i == 7 ? 30 : 20);
  }
  EXPECT_LE(budget.held(), 875u) << "the rest is for others";
  EXPECT_TRUE(cut.empty()) << "nobody else needed it";
  MemoryBudget::Charge honest(budget.account(peer_of(200), at("9.9.9.9")));
  EXPECT_TRUE(honest.add(100));
  EXPECT_EQ(cut, std::vector{peer_of(7)});
  EXPECT_FALSE(flood[0].add(1)) << "its network has most";
}

TEST(MemoryBudget, WhatMayWaitTakesNeitherHalfOfItNorAnybodysConnection) {
  MemoryBudget budget(1000);
  bool cut = false;
  budget.set_cut([&](const PeerId&) { cut = true; });
  MemoryBudget::Charge slow(budget.account(peer_of(1), at("8.8.8.8")));
  EXPECT_TRUE(slow.add_spare(500));
  EXPECT_FALSE(slow.add_spare(1));
  MemoryBudget::Charge other(budget.account(peer_of(2), at("9.9.9.9")));
  EXPECT_TRUE(other.add_spare(31)) << "its fair share";
  EXPECT_FALSE(other.add_spare(1));
  EXPECT_TRUE(other.add(100)) << "what cannot wait";
  EXPECT_FALSE(cut);
  slow.release();
  EXPECT_TRUE(other.add_spare(1));
}

TEST(MemoryBudget, ManySubnetsOfOneOwnerHaveTheShareOfOne) {
  MemoryBudget budget(1000);
  std::vector<PeerId> cut;
  budget.set_cut([&](const PeerId& peer) { cut.push_back(peer); });
  std::vector<MemoryBudget::Charge> flood;
  for (std::uint8_t i = 0; i < 100; ++i) {
    flood.emplace_back(budget.account(peer_of(i), at("2a00:1:2:" + std::to_string(i) + "::1")));
    (void)flood.back().add(20);
  }
  MemoryBudget::Charge honest(budget.account(peer_of(200), at("9.9.9.9")));
  EXPECT_TRUE(honest.add(100)) << "more than any subnet has";
  EXPECT_EQ(cut.size(), 1u);
}

TEST(MemoryBudget, PeersOfThisMachineCountOneByOne) {
  MemoryBudget budget(1000);
  MemoryBudget::Charge greedy(budget.account(peer_of(1), at("127.0.0.1")));
  MemoryBudget::Charge modest(budget.account(peer_of(2), at("127.0.0.1")));
  EXPECT_TRUE(greedy.add(800));
  EXPECT_FALSE(greedy.add(100));
  EXPECT_TRUE(modest.add(100));
}

TEST(MemoryBudget, ChargesMoveAndOutliveTheBudget) {
  MemoryBudget::Charge kept;
  {
    MemoryBudget budget(1000);
    MemoryBudget::Charge one(budget.account(peer_of(1), at("8.8.8.8")));
    EXPECT_TRUE(one.add(10));
    kept = std::move(one);
    kept.subtract(100);
    EXPECT_EQ(budget.held(), 0u) << "no more than was charged";
    EXPECT_TRUE(kept.add(10));
  }
  MemoryBudget::Charge nobodys;
  EXPECT_TRUE(nobodys.add(1 << 30));
}

TEST(MemoryBudget, WhatHoldsNothingLeavesNothingBehind) {
  MemoryBudget budget(1000);
  for (std::uint8_t i = 0; i < 100; ++i) {
    MemoryBudget::Charge charge(budget.account(peer_of(i), at("8.8." + std::to_string(i) + ".8")));
    EXPECT_TRUE(charge.add(0));
    EXPECT_EQ(budget.networks(), 0u);
    EXPECT_TRUE(charge.add(3));
    EXPECT_TRUE(charge.add(0));
    EXPECT_EQ(budget.networks(), 1u);
  }
  EXPECT_EQ(budget.networks(), 0u);
}

TEST(MemoryBudget, ComesFromTheMachine) {
  EXPECT_GE(default_memory_budget(), std::size_t{128} << 20);
}

}  // namespace
}  // namespace cohive
