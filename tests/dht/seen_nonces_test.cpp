// Calls that count once: what is remembered of them, for how long, and what that costs.
#include "dht/seen_nonces.hpp"

#include <gtest/gtest.h>

#include "dht/numbered_peers.hpp"

namespace cohive::dht {
namespace {

using Outcome = SeenNonces::Outcome;

class Nonces : public ::testing::Test {
 protected:
  /// A call of now, as all of an honest member are.
  Outcome call(const PeerId& sender, std::uint64_t nonce) {
    return nonces.add(sender, std::to_string(nonce), wall + 60, wall, now);
  }
  void pass(Duration time) {
    now += time;
    wall += to_seconds(time);
  }
  SeenNonces nonces;
  TimePoint now{std::chrono::hours(1)};
  double wall = 1.7e9;
  const PeerId member = peer_of(1), other = peer_of(2);
};

TEST_F(Nonces, CountOnceForAsLongAsACallIsValid) {
  for (int second = 0; second < 1000; ++second) {
    for (int i = 0; i < 100; ++i) ASSERT_EQ(call(member, static_cast<std::uint64_t>(second * 100 + i)), Outcome::fresh);
    for (int age : {0, 1, 30, 60, 119})  // by clocks that differ a call may be valid for two minutes
      if (second >= age)
        for (int i = 0; i < 100; i += 9)
          ASSERT_EQ(call(other, static_cast<std::uint64_t>((second - age) * 100 + i)), Outcome::seen)
              << age << " s old";
    pass(1s);
  }
  EXPECT_LE(nonces.size(), 100u * 2 * 121) << "older ones are forgotten";
}

TEST_F(Nonces, NoneIsForgottenWhileItIsValidWhateverTheClockDoes) {
  EXPECT_EQ(nonces.add(member, "from ahead", wall + 120, wall, now), Outcome::fresh);
  now += 10min;
  wall -= 3600;  // somebody set the clock back, and the call is valid once more in an hour
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(call(member, static_cast<std::uint64_t>(i)), Outcome::fresh);
    EXPECT_EQ(nonces.add(member, "from ahead", wall + 120, wall, now), Outcome::seen);
    pass(36s);
  }
}

TEST_F(Nonces, AMemberThatCallsWithoutEndIsRefusedAndOthersAreNot) {
  std::size_t served = 0;
  for (std::uint64_t i = 0; i < 2 * SeenNonces::kMost; ++i) served += call(member, i) == Outcome::fresh;
  EXPECT_EQ(served, SeenNonces::kMost / 2);
  for (std::uint64_t peer = 0; peer < 100; ++peer)
    for (std::uint64_t i = 0; i < 100; ++i)
      ASSERT_EQ(call(peer_of(static_cast<std::int64_t>(100 + peer)), 1'000'000'000 + peer * 1000 + i), Outcome::fresh);
  EXPECT_EQ(call(other, 5), Outcome::seen) << "a full table forgets nothing";
  EXPECT_LE(nonces.memory(), 8u << 20);
  pass(121s);
  EXPECT_EQ(call(member, 7'000'000'000), Outcome::fresh) << "after a while it may call again";
}

TEST_F(Nonces, ManyMembersTogetherFillNoMoreThanTheBound) {
  std::uint64_t nonce = 0;
  for (std::int64_t peer = 0; peer < 2000; ++peer)
    for (int i = 0; i < 300; ++i) (void)call(peer_of(peer), nonce++);
  EXPECT_LE(nonces.size(), SeenNonces::kMost);
  EXPECT_LE(nonces.memory(), 8u << 20);
}

}  // namespace
}  // namespace cohive::dht
