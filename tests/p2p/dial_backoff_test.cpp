#include "p2p/dial_backoff.hpp"

#include <gtest/gtest.h>

#include "cohive/core/keys.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "p2p/known_addresses.hpp"

namespace cohive::p2p {
namespace {

struct DialBackoffTest : testing::Test {
  PeerId peer(std::uint8_t n) { return KeyPair::ed25519_from_seed(Bytes(32, n)).peer_id(); }
  SimRuntime runtime;
  DialBackoff backoff{runtime, 5s};
  const KnownAddress here = told("/ip4/8.8.8.8/tcp/1"), there = told("/ip4/8.8.4.4/tcp/1");
};

TEST_F(DialBackoffTest, AFailureHoldsBackThisAddressOfThisPeerOnly) {
  backoff.failed(peer(1), here.address);
  EXPECT_TRUE(backoff.blocks(peer(1), here));
  EXPECT_FALSE(backoff.blocks(peer(1), there));
  EXPECT_FALSE(backoff.blocks(peer(2), here));
  runtime.run_for(6s);
  EXPECT_FALSE(backoff.blocks(peer(1), here));
}

TEST_F(DialBackoffTest, RepeatedFailuresHoldItBackLongerUpToFiveMinutesAndASuccessForgetsThem) {
  for (int i = 0; i < 100; ++i) backoff.failed(peer(1), here.address);
  runtime.run_for(299s);
  EXPECT_TRUE(backoff.blocks(peer(1), here));
  runtime.run_for(2s);
  EXPECT_FALSE(backoff.blocks(peer(1), here));
  backoff.failed(peer(1), here.address);
  backoff.succeeded(peer(1), here.address);
  EXPECT_FALSE(backoff.blocks(peer(1), here));
}

TEST_F(DialBackoffTest, WhatThisMachineLacksHoldsAnAddressBackForHalfAMinuteAtMost) {
  const auto lacks = [this](int times) {
    for (int i = 0; i < times; ++i) backoff.failed(peer(1), here.address, DialBackoff::Cause::local);
  };
  lacks(1);
  runtime.run_for(6s);
  EXPECT_FALSE(backoff.blocks(peer(1), here));
  lacks(100);
  runtime.run_for(29s);
  EXPECT_TRUE(backoff.blocks(peer(1), here)) << "such as an IPv6 address where there is IPv4 alone";
  runtime.run_for(2s);
  EXPECT_FALSE(backoff.blocks(peer(1), here));
}

TEST_F(DialBackoffTest, ItRemembersTheLatestThousandsOfFailures) {
  for (int i = 0; i < 10'000; ++i)
    backoff.failed(peer(1), address("/ip4/8.8." + std::to_string(i / 250) + "." + std::to_string(i % 250) + "/tcp/1"));
  EXPECT_TRUE(backoff.blocks(peer(1), told("/ip4/8.8.39.249/tcp/1")));
  EXPECT_FALSE(backoff.blocks(peer(1), told("/ip4/8.8.0.0/tcp/1")));
}

}  // namespace
}  // namespace cohive::p2p
