// Which addresses count as those of one owner.
#include "cohive/core/network_of.hpp"

#include <gtest/gtest.h>

namespace cohive {
namespace {

Multiaddr written(const std::string& address) {
  return Multiaddr::from_text(address).value();
}
std::optional<std::uint64_t> block(const std::string& address) {
  return network_block(written(address));
}
Networks networks(const std::string& ip) {
  return networks_of(Multiaddr::from_ip_tcp(ip, 4001).value());
}

TEST(NetworkOf, PublicAddressesBelongToTheirBlock) {
  EXPECT_EQ(block("/ip4/8.8.8.1/tcp/1"), block("/ip4/8.8.8.254/tcp/2"));
  EXPECT_NE(block("/ip4/8.8.8.1/tcp/1"), block("/ip4/8.8.9.1/tcp/1"));
  EXPECT_EQ(block("/ip6/2a00:1:2:3::1/tcp/1"), block("/ip6/2a00:1:2:ffff::9/tcp/1"));
  EXPECT_NE(block("/ip6/2a00:1:2:3::1/tcp/1"), block("/ip6/2a00:1:3:3::1/tcp/1"));
  EXPECT_EQ(block("/ip6/::ffff:8.8.8.1/tcp/1"), block("/ip4/8.8.8.7/tcp/1"));
}

TEST(NetworkOf, NeighboursOnAPrivateNetworkOrOnOneMachineHaveNoBlock) {
  for (const char* address : {"/ip4/127.0.0.1/tcp/1", "/ip4/10.1.2.3/tcp/1", "/ip4/192.168.1.1/tcp/1", "/ip6/::1/tcp/1",
                              "/ip6/fd00::1/tcp/1", "/ip4/203.0.113.7/tcp/1", "/dns4/example.com/tcp/1"})
    EXPECT_FALSE(block(address)) << address;
}

TEST(NetworkOf, TheKeysOfTablesGoFromTheBlockDownToTheAddress) {
  const auto one = networks("2a00:1:2:3::1"), same_lan = networks("2a00:1:2:3::2"),
             same_owner = networks("2a00:1:2:4::1");
  EXPECT_EQ(one.block, same_owner.block);
  EXPECT_NE(one.subnet, same_owner.subnet);
  EXPECT_EQ(one.subnet, same_lan.subnet);
  EXPECT_NE(one.host, same_lan.host);
  EXPECT_EQ(networks("8.8.8.1").block, networks("8.8.8.2").block);
  EXPECT_NE(networks("8.8.8.1").subnet, networks("8.8.8.2").subnet);
  EXPECT_EQ(networks("::ffff:8.8.8.1"), networks("8.8.8.1")) << "the same machine, by a listener of both kinds";
  EXPECT_NE(networks("::1:203:405").block, networks("1.2.3.4").block);
}

TEST(NetworkOf, MachinesOfAPrivateNetworkCountOneByOneAndThisMachineNotAtAll) {
  EXPECT_NE(networks("192.168.1.1").block, networks("192.168.1.2").block);
  EXPECT_EQ(networks("fd00::1").block, networks("fd00::2").block) << "one machine may have a whole /64";
  EXPECT_NE(networks("fd00:0:0:1::1").block, networks("fd00::2").block);
  for (const char* address : {"/ip4/127.0.0.1/tcp/1", "/ip6/::1/tcp/1", "/ip6/::ffff:127.0.0.1/tcp/1"})
    EXPECT_TRUE(networks_of(written(address)).empty()) << address;
  EXPECT_EQ(network_of(written("/ip4/127.0.0.1/tcp/1")), "");
}

}  // namespace
}  // namespace cohive
