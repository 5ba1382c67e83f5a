// Which addresses count as those of one owner.
#include "p2p/network_block.hpp"

#include <gtest/gtest.h>

namespace cohive::p2p {
namespace {

std::optional<std::uint64_t> block(const std::string& address) {
  return network_block(Multiaddr::from_text(address).value());
}

TEST(NetworkBlock, PublicAddressesBelongToTheirNetwork) {
  EXPECT_EQ(block("/ip4/8.8.8.1/tcp/1"), block("/ip4/8.8.8.254/tcp/2"));
  EXPECT_NE(block("/ip4/8.8.8.1/tcp/1"), block("/ip4/8.8.9.1/tcp/1"));
  EXPECT_EQ(block("/ip6/2a00:1:2:3::1/tcp/1"), block("/ip6/2a00:1:2:ffff::9/tcp/1"));
  EXPECT_NE(block("/ip6/2a00:1:2:3::1/tcp/1"), block("/ip6/2a00:1:3:3::1/tcp/1"));
  EXPECT_EQ(block("/ip6/::ffff:8.8.8.1/tcp/1"), block("/ip4/8.8.8.7/tcp/1"));
}

TEST(NetworkBlock, NeighboursOnAPrivateNetworkOrOnOneMachineAreNotCounted) {
  for (const char* address : {"/ip4/127.0.0.1/tcp/1", "/ip4/10.1.2.3/tcp/1", "/ip4/192.168.1.1/tcp/1", "/ip6/::1/tcp/1",
                              "/ip6/fd00::1/tcp/1", "/ip4/203.0.113.7/tcp/1", "/dns4/example.com/tcp/1"})
    EXPECT_FALSE(block(address)) << address;
}

}  // namespace
}  // namespace cohive::p2p
