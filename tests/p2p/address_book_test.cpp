#include "p2p/address_book.hpp"

#include <gtest/gtest.h>

#include "cohive/core/keys.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "p2p/known_addresses.hpp"

namespace cohive::p2p {
namespace {

using Scope = Multiaddr::Scope;
using Source = KnownAddress::Source;

Multiaddr number(int n) {
  return address("/ip4/10.0." + std::to_string(n / 256) + "." + std::to_string(n % 256) + "/tcp/1");
}
PeerId peer(std::uint8_t n, std::uint8_t m = 0) {
  Bytes seed(32, n);
  seed[0] = m;
  return KeyPair::ed25519_from_seed(seed).peer_id();
}

struct AddressBookTest : testing::Test {
  SimRuntime runtime;
  AddressBook book{runtime, 4, 10};
  const PeerId bob = peer(1);
};

TEST_F(AddressBookTest, HearsayIsForgottenAfterTwoMinutesUnlessItIsHeardAgain) {
  book.add_hearsay(bob, {number(1), number(2)}, Scope::private_);
  runtime.run_for(90s);
  book.add_hearsay(bob, {number(2)}, Scope::private_);
  runtime.run_for(60s);
  EXPECT_EQ(book.addresses(bob), std::vector{number(2)});
  runtime.run_for(90s);
  EXPECT_FALSE(book.knows(bob));
  book.add_hearsay(peer(2), {number(3)}, Scope::private_);
  EXPECT_EQ(book.size(), 1u);
}

TEST_F(AddressBookTest, AConnectedPeerSpeaksForItself) {
  book.add_hearsay(bob, {number(1)}, Scope::private_);
  book.on_connected(bob);
  book.set_announced(bob, {number(2), number(3)}, Scope::private_);
  book.add_hearsay(bob, {number(4)}, Scope::private_);
  EXPECT_EQ(book.addresses(bob), (std::vector{number(2), number(3)}));
  runtime.run_for(24h);
  EXPECT_EQ(book.addresses(bob).size(), 2u);
}

TEST_F(AddressBookTest, AddressesOfAPeerThatLeftAreKeptForHalfAnHour) {
  book.on_connected(bob);
  book.set_announced(bob, {number(1)}, Scope::private_);
  book.on_disconnected(bob);
  runtime.run_for(29min);
  EXPECT_TRUE(book.knows(bob));
  runtime.run_for(2min);
  EXPECT_FALSE(book.knows(bob));
}

TEST_F(AddressBookTest, WhatAPeerSaysDoesNotReplaceWhatWasProvenOrGiven) {
  book.on_connected(bob);
  book.add_verified(bob, number(1));
  book.add_configured(bob, number(2));
  book.set_announced(bob, {number(3)}, Scope::private_);
  book.set_announced(bob, {number(4)}, Scope::private_);
  EXPECT_EQ(book.addresses(bob), (std::vector{number(1), number(2), number(4)}));
  EXPECT_EQ(book.known(bob).front().source, Source::verified);
}

TEST_F(AddressBookTest, WhatOurUserGaveIsNeverForgotten) {
  book.add_configured(bob, number(1));
  book.on_connected(bob);
  book.on_disconnected(bob);
  for (std::uint8_t i = 0; i < 50; ++i) book.add_hearsay(peer(2, i), {number(i)}, Scope::private_);
  runtime.run_for(24h);
  EXPECT_EQ(book.addresses(bob), std::vector{number(1)});
  EXPECT_EQ(book.configured(), std::vector{bob});
}

TEST_F(AddressBookTest, OnePeerHasAFewAddressesAndProvenOnesTakeTheirPlace) {
  std::vector<Multiaddr> many;
  for (int i = 0; i < 100; ++i) many.push_back(number(i));
  book.add_hearsay(bob, many, Scope::private_);
  EXPECT_EQ(book.addresses(bob).size(), 4u);
  book.on_connected(bob);
  book.add_verified(bob, number(200));
  const auto addresses = book.addresses(bob);
  EXPECT_EQ(addresses.size(), 4u);
  EXPECT_EQ(addresses.front(), number(200));
}

TEST_F(AddressBookTest, APeerThatMovesOftenIsLookedForFirstWhereItWasLast) {
  for (int i = 0; i < 10; ++i) {
    book.on_connected(bob);
    book.add_verified(bob, number(i));
    book.set_announced(bob, {number(i)}, Scope::private_);
    book.on_disconnected(bob);
    runtime.run_for(1min);
  }
  EXPECT_EQ(book.addresses(bob), (std::vector{number(9), number(8), number(7), number(6)}));
  book.on_connected(bob);
  book.add_verified(bob, number(7));
  EXPECT_EQ(book.addresses(bob), (std::vector{number(7), number(9), number(8), number(6)}));
}

TEST_F(AddressBookTest, StrangersCannotGrowTheBookAndPushOutOnlyWhoWasHeardOfLongestAgo) {
  book.on_connected(bob);
  book.set_announced(bob, {number(1)}, Scope::private_);
  for (std::uint8_t i = 0; i < 200; ++i) book.add_hearsay(peer(2, i), {number(i)}, Scope::private_);
  EXPECT_LE(book.size(), 12u);
  EXPECT_TRUE(book.knows(bob));
  EXPECT_TRUE(book.knows(peer(2, 199)));
  EXPECT_FALSE(book.knows(peer(2, 0)));
}

TEST_F(AddressBookTest, PeersThatComeAndGoDoNotGrowItEither) {
  for (std::uint8_t i = 0; i < 200; ++i) {
    book.on_connected(peer(2, i));
    book.set_announced(peer(2, i), {number(i)}, Scope::private_);
    book.on_disconnected(peer(2, i));
  }
  EXPECT_LE(book.size(), 11u);
}

TEST(AcceptableAddress, NobodyIsSentWhereTheTellerCouldNotSeeItself) {
  const auto loopback = address("/ip4/127.0.0.1/tcp/1"), home = address("/ip4/192.168.1.2/tcp/1"),
             outside = address("/ip4/8.8.8.8/tcp/1"), name = address("/dns4/example.com/tcp/1");
  for (const auto& any : {loopback, home, outside, name}) EXPECT_TRUE(acceptable_address(any, Scope::loopback));
  EXPECT_FALSE(acceptable_address(loopback, Scope::private_));
  EXPECT_TRUE(acceptable_address(home, Scope::private_));
  EXPECT_FALSE(acceptable_address(loopback, Scope::public_));
  EXPECT_FALSE(acceptable_address(home, Scope::public_));
  EXPECT_TRUE(acceptable_address(outside, Scope::public_));
  EXPECT_TRUE(acceptable_address(name, Scope::public_));
}

TEST(AcceptableAddress, ANetworkOnReservedAddressesIsAPrivateOne) {
  const Multiaddr lab = address("/ip4/198.18.0.7/tcp/1");
  EXPECT_TRUE(acceptable_address(lab, lab.scope()));
  EXPECT_TRUE(acceptable_address(address("/ip4/10.0.0.7/tcp/1"), lab.scope()));
  EXPECT_FALSE(acceptable_address(address("/ip4/127.0.0.1/tcp/1"), lab.scope()));
  EXPECT_FALSE(acceptable_address(lab, Scope::public_));
}

TEST(HiddenFromOutside, IsWhoAnnouncesOnlyItsOwnNetworkToPeersThatSeeItElsewhere) {
  const Multiaddr loopback = address("/ip4/127.0.0.1/tcp/1"), home = address("/ip4/192.168.1.7/tcp/1"),
                  outside = address("/ip4/8.8.8.8/tcp/9"), router = address("/ip4/9.9.9.9/tcp/40001");
  EXPECT_TRUE(hidden_from_outside({loopback, home}, router, outside));
  EXPECT_FALSE(hidden_from_outside({home, address("/ip4/9.9.9.9/tcp/1")}, router, outside)) << "the port is forwarded";
  EXPECT_FALSE(hidden_from_outside({home, address("/dns4/example.com/tcp/1")}, router, outside));
  EXPECT_TRUE(hidden_from_outside({home, address("/ip6/2d00:1::1/tcp/1")}, router, outside)) << "its IPv4 is";
  EXPECT_FALSE(hidden_from_outside({address("/ip6/fd00::1/tcp/1")}, router, outside)) << "it does not listen there";
  EXPECT_FALSE(hidden_from_outside({home}, home, outside)) << "not translated";
  EXPECT_FALSE(hidden_from_outside({home}, router, address("/ip4/192.168.1.9/tcp/1"))) << "a neighbour says so";
  EXPECT_FALSE(hidden_from_outside({}, router, outside)) << "a client announces nothing";
}

TEST(AcceptableAddress, WhatLeadsNowhereIsNoAddress) {
  EXPECT_FALSE(acceptable_address(address("/ip4/0.0.0.0/tcp/1"), Scope::loopback));
  EXPECT_FALSE(acceptable_address(address("/ip6/::/tcp/1"), Scope::loopback));
  EXPECT_FALSE(acceptable_address(address("/ip6/fe80::1/tcp/1"), Scope::loopback));
  EXPECT_FALSE(acceptable_address(address("/dns4/" + std::string(250, 'a') + ".com/tcp/1"), Scope::loopback));
}

}  // namespace
}  // namespace cohive::p2p
