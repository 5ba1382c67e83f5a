// How often others can make a host dial a machine.
#include "p2p/hearsay_dials.hpp"

#include <gtest/gtest.h>

#include "cohive/core/keys.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/p2p/errors.hpp"
#include "p2p/known_addresses.hpp"

namespace cohive::p2p {
namespace {

struct HearsayDialsTest : testing::Test {
  static PeerId peer(std::uint8_t n) { return KeyPair::ed25519_from_seed(Bytes(32, n)).peer_id(); }
  static KnownAddress by(const PeerId& teller, const std::string& ip, int port) {
    KnownAddress known = told("/ip4/" + ip + "/tcp/" + std::to_string(port));
    known.teller = teller;
    return known;
  }
  static KnownAddress by(std::uint8_t teller, const std::string& ip, int port) { return by(peer(teller), ip, port); }

  /// One dial after the other, none of which reaches a peer; returns how many were admitted.
  int fail(const std::vector<KnownAddress>& addresses) {
    int admitted = 0;
    for (const auto& known : addresses)
      admitted += runtime.run(dials.begin(peer(1), known, runtime.after(1s))).has_value();
    return admitted;
  }
  void answer(const KnownAddress& known) {
    runtime.run(dials.begin(peer(1), known, runtime.after(1s))).value().answered();
  }
  static std::vector<KnownAddress> ports(const std::string& ip, int count, int first = 1) {
    std::vector<KnownAddress> result;
    for (int i = 0; i < count; ++i) result.push_back(by(static_cast<std::uint8_t>(i), ip, first + i));
    return result;
  }

  SimRuntime runtime;
  HearsayDials dials{runtime};
};

TEST_F(HearsayDialsTest, AThirdMachineGetsAFewDialsWhateverPortsAndWhoeverTells) {
  EXPECT_LE(fail(ports("8.8.8.8", 200)), 5);
  EXPECT_EQ(fail(ports("8.8.4.4", 1)), 1) << "another one";
  runtime.run_for(10min);
  EXPECT_LE(fail(ports("8.8.8.8", 200)), 5);
}

TEST_F(HearsayDialsTest, AnIPv6SubnetIsOneMachineAndABlockHasAFewTimesAsMany) {
  std::vector<KnownAddress> subnet, block;
  for (int i = 0; i < 200; ++i) {
    subnet.push_back(told("/ip6/2a00:1:2:3::" + std::to_string(i + 1) + "/tcp/1"));
    block.push_back(told("/ip6/2a00:1:9:" + std::to_string(i + 1) + "::1/tcp/1"));
  }
  EXPECT_LE(fail(subnet), 5);
  EXPECT_LE(fail(block), 20);
  std::vector<KnownAddress> neighbours;
  for (int i = 1; i < 200; ++i) neighbours.push_back(told("/ip4/9.9.9." + std::to_string(i) + "/tcp/1"));
  EXPECT_LE(fail(neighbours), 20);
}

TEST_F(HearsayDialsTest, OneTellerCausesABoundedNumberOfDialsHoweverManyMachinesItNames) {
  const auto named = [](std::uint8_t teller) {
    std::vector<KnownAddress> machines;
    for (int i = 1; i < 250; ++i) machines.push_back(by(teller, std::to_string(i + 1) + ".8.8.8", 1));
    return machines;
  };
  EXPECT_LE(fail(named(7)), 136);
  EXPECT_GE(fail(named(8)), 30) << "another one is believed";
}

TEST_F(HearsayDialsTest, WhoNamesPeersThatAnswerIsFollowedOnAndOn) {
  for (int i = 1; i < 250; ++i) answer(by(7, std::to_string(i + 1) + ".8.8.8", 1));
}

TEST_F(HearsayDialsTest, ManyPeersMayBeBehindAnAddressThatAnswers) {
  EXPECT_EQ(fail(ports("8.8.8.8", 3)), 3);
  answer(by(1, "8.8.8.8", 100));
  EXPECT_GE(fail(ports("8.8.8.8", 30)), 30) << "some of them have just gone";
  EXPECT_LE(fail(ports("8.8.8.8", 100)), 10);
}

TEST_F(HearsayDialsTest, WhileTheFirstDialsOfAMachineAreUnderWayTheNextOnesWait) {
  std::vector<HearsayDials::Dial> running;
  for (int i = 0; i < 2; ++i)
    running.push_back(runtime.run(dials.begin(peer(1), by(1, "8.8.8.8", i), runtime.after(1s))).value());
  const TimePoint start = runtime.now();
  const auto in_vain = runtime.run(dials.begin(peer(1), by(1, "8.8.8.8", 9), runtime.after(1s)));
  EXPECT_EQ(in_vain.error(), Errc::dial_backoff);
  EXPECT_EQ(runtime.now() - start, 1s);
  running.front().answered();
  running.pop_back();
  EXPECT_TRUE(runtime.run(dials.begin(peer(1), by(1, "8.8.8.8", 9), runtime.after(1s))));
  EXPECT_EQ(runtime.now() - start, 1s) << "at once";
}

TEST_F(HearsayDialsTest, WhatWeKnowOurselvesIsAlwaysDialledAndThisMachineIsNoNetwork) {
  ASSERT_LE(fail(ports("8.8.8.8", 200)), 5);
  KnownAddress ours = told("/ip4/8.8.8.8/tcp/1");
  ours.source = KnownAddress::Source::configured;
  EXPECT_EQ(fail(std::vector(50, ours)), 50);
  EXPECT_EQ(fail(ports("127.0.0.1", 50)), 50);
  EXPECT_LE(fail(std::vector(50, told("/ip4/127.0.0.1/tcp/1"))), 5);
}

TEST_F(HearsayDialsTest, MemoryIsBoundedAndDialsThatRunAreRemembered) {
  auto running = runtime.run(dials.begin(peer(1), told("/ip4/8.8.8.8/tcp/1"), runtime.after(1s))).value();
  for (int i = 0; i < 20'000; ++i)
    fail({told("/ip4/" + std::to_string(20 + i / 62500) + "." + std::to_string(i / 250 % 250) + "." +
               std::to_string(i % 250) + ".1/tcp/1")});
  running.answered();
}

}  // namespace
}  // namespace cohive::p2p
