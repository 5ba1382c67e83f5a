#include "p2p/dial_order.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "p2p/known_addresses.hpp"

namespace cohive::p2p {
namespace {

using Source = KnownAddress::Source;
using testing::ElementsAre;

std::vector<std::string> order_of(const std::vector<KnownAddress>& addresses) {
  std::vector<std::string> result;
  for (const auto& known : dial_order(addresses)) result.push_back(known.address.text());
  return result;
}

TEST(DialOrder, KindsOfNetworksTakeTurnsAndVersion6GoesFirst) {
  EXPECT_THAT(order_of({told("/ip4/8.8.8.8/tcp/1"), told("/ip4/8.8.4.4/tcp/1"), told("/ip4/172.17.0.1/tcp/1"),
                        told("/ip4/172.18.0.1/tcp/1"), told("/ip4/172.19.0.1/tcp/1"), told("/ip6/2600::1/tcp/1"),
                        told("/ip6/fd00::1/tcp/1")}),
              ElementsAre("/ip6/fd00::1/tcp/1", "/ip4/172.17.0.1/tcp/1", "/ip6/2600::1/tcp/1", "/ip4/8.8.8.8/tcp/1",
                          "/ip4/172.18.0.1/tcp/1", "/ip4/8.8.4.4/tcp/1", "/ip4/172.19.0.1/tcp/1"));
}

TEST(DialOrder, WhatWorkedBeforeComesFirst) {
  const KnownAddress proven{address("/ip4/8.8.8.8/tcp/1"), Source::verified, Multiaddr::Scope::loopback};
  EXPECT_THAT(order_of({told("/ip4/127.0.0.1/tcp/1"), told("/ip6/2600::1/tcp/1"), proven}),
              ElementsAre("/ip4/8.8.8.8/tcp/1", "/ip4/127.0.0.1/tcp/1", "/ip6/2600::1/tcp/1"));
}

TEST(DialOrder, EachAddressIsDialledOnceAndCircuitsComeLast) {
  const std::string id = "/p2p/12D3KooWEyoppNCUx8Yx66oV9fJnriXwCcXwDDUA2kj6vnc6iDEp";
  const std::string relayed = "/ip4/8.8.8.8/tcp/2" + id + "/p2p-circuit";
  EXPECT_THAT(order_of({told(relayed), told("/ip4/8.8.8.8/tcp/1"), told("/ip4/8.8.8.8/tcp/1"),
                        told("/ip4/8.8.8.8/tcp/1" + id)}),
              ElementsAre("/ip4/8.8.8.8/tcp/1", relayed));
}

}  // namespace
}  // namespace cohive::p2p
