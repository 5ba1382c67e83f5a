// Who asks for much waits; nobody else notices.
#include "dht/detail/rate_limiter.hpp"

#include <gtest/gtest.h>

#include "dht/numbered_peers.hpp"

namespace cohive::dht {
namespace {

TEST(RateLimiter, ABurstIsServedAndThenWhatFlowsIn) {
  RateLimiter limiter(10, 100);
  TimePoint now{};
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 60, now));
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 40, now));
  EXPECT_FALSE(limiter.allow(peer_of(1), "", 1, now));
  EXPECT_TRUE(limiter.allow(peer_of(2), "", 100, now)) << "another peer has its own";
  now += 1s;
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 10, now)) << "a refusal costs nothing";
  EXPECT_FALSE(limiter.allow(peer_of(1), "", 1, now));
  now += 1h;
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 100, now));
  EXPECT_FALSE(limiter.allow(peer_of(1), "", 1, now)) << "no more than a burst is saved up";
}

TEST(RateLimiter, ARequestLargerThanABucketIsServedOnCredit) {
  RateLimiter limiter(10, 100);
  TimePoint now{};
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 150, now));
  EXPECT_FALSE(limiter.allow(peer_of(1), "", 1, now + 4s)) << "it owes still";
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 150, now + 6s));
}

TEST(RateLimiter, WithoutARateEverythingIsAllowed) {
  RateLimiter limiter(0, 0);
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 1e9, TimePoint{}));
}

TEST(RateLimiter, WhatAReplyHasCostIsOwedToo) {
  RateLimiter limiter(10, 100);
  TimePoint now{};
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 1, now));
  limiter.charge(peer_of(1), "", 119, now);
  EXPECT_FALSE(limiter.allow(peer_of(1), "", 1, now + 1s));
  EXPECT_TRUE(limiter.allow(peer_of(1), "", 1, now + 3s));
}

TEST(RateLimiter, ManyIdentitiesOfOneNetworkHaveWhatSomePeersHave) {
  RateLimiter limiter(10, 100);
  int served = 0;
  for (std::uint32_t i = 0; i < 1000; ++i) served += limiter.allow(peer_of(i), "their network", 50, TimePoint{});
  EXPECT_EQ(served, 2 * RateLimiter::kPeersOfANetwork);
  EXPECT_TRUE(limiter.allow(peer_of(5000), "another network", 50, TimePoint{}));
}

TEST(RateLimiter, ManyStrangersDoNotFillTheMemoryAndForgiveNobodysDebts) {
  RateLimiter limiter(10, 100);
  EXPECT_TRUE(limiter.allow(peer_of(-1), "", 1000, TimePoint{}));
  for (std::uint32_t i = 0; i < 50'000; ++i) EXPECT_TRUE(limiter.allow(peer_of(i), "", 1, TimePoint{}));
  EXPECT_LE(limiter.size(), 10'000u);
  EXPECT_FALSE(limiter.allow(peer_of(-1), "", 1, TimePoint{}));
}

}  // namespace
}  // namespace cohive::dht
