// Which addresses are told to others.
#include "cohive/p2p/announce.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/core/keys.hpp"

namespace cohive::p2p {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Multiaddr of(const std::string& text) {
  return Multiaddr::from_text(text).value();
}

struct Announced : testing::Test {
  const PeerId self = KeyPair::ed25519_from_seed(Bytes(32, 1)).peer_id();
  const PeerId other = KeyPair::ed25519_from_seed(Bytes(32, 2)).peer_id();

  std::vector<std::string> filled(const std::vector<std::string>& given, const std::vector<std::string>& bound) {
    std::vector<Multiaddr> addresses, listeners;
    for (const auto& text : given) addresses.push_back(of(text));
    for (const auto& text : bound) listeners.push_back(of(text));
    const auto result = fill_ports(addresses, self, listeners);
    if (!result) return {result.error().detail()};
    std::vector<std::string> texts;
    for (const auto& address : *result) texts.push_back(address.text());
    return texts;
  }
  std::string why_not(const std::string& text) {
    const auto result = check_announced(of(text), self);
    return result ? std::string() : result.error().detail();
  }
};

TEST_F(Announced, WhatPeersCanDialIs) {
  for (const std::string text : {"/ip4/8.8.8.8/tcp/31337", "/ip4/192.168.1.5/tcp/1", "/ip4/127.0.0.1/tcp/1",
                                 "/ip6/2600::1/tcp/1", "/ip6/::1/tcp/1", "/dns4/boot.example.org/tcp/31337",
                                 "/dns6/boot.example.org/tcp/1", "/dns/boot.example.org/tcp/1", "/ip4/8.8.8.8/tcp/0"})
    EXPECT_EQ(why_not(text), "") << text;
  EXPECT_EQ(why_not("/ip4/8.8.8.8/tcp/1/p2p/" + self.text()), "");
  EXPECT_EQ(why_not("/ip4/8.8.8.8/tcp/1/p2p/" + other.text() + "/p2p-circuit"), "");
  EXPECT_EQ(why_not("/dns4/relay.example/tcp/1/p2p/" + other.text() + "/p2p-circuit/p2p/" + self.text()), "");
}

TEST_F(Announced, WhatNobodyCanDialIsRefusedWithASentence) {
  for (const std::string text :
       {"/ip4/0.0.0.0/tcp/1", "/ip6/::/tcp/1", "/ip6/::ffff:0.0.0.0/tcp/1", "/ip4/0.0.0.0/tcp/0"})
    EXPECT_THAT(why_not(text), HasSubstr("where to listen")) << text;
  for (const std::string text : {"/ip4/255.255.255.255/tcp/1", "/ip4/224.0.0.1/tcp/1", "/ip4/239.1.2.3/tcp/1",
                                 "/ip6/ff02::1/tcp/1", "/ip4/240.0.0.1/tcp/1", "/ip6/::ffff:224.0.0.1/tcp/1"})
    EXPECT_THAT(why_not(text), HasSubstr("no machine has this address")) << text;
  for (const std::string text :
       {"/ip4/8.8.8.8/udp/1/quic", "/ip4/8.8.8.8/udp/1/quic-v1", "/ip4/8.8.8.8/tcp/443/ws",
        "/dns4/boot.example/tcp/443/wss", "/ip4/8.8.8.8", "/ip4/8.8.8.8/udp/1", "/unix/tmp/socket",
        "/ip4/8.8.8.8/tcp/443/tls/ws", "/ip4/8.8.8.8/udp/1/quic-v1/webtransport", "/dns4/boot.example"})
    EXPECT_THAT(why_not(text), HasSubstr("peers dial by TCP")) << text;
  EXPECT_THAT(why_not("/ip6/fe80::1/tcp/1"), HasSubstr("link-local"));
  EXPECT_THAT(why_not("/dnsaddr/boot.example.org"), HasSubstr("dnsaddr"));
  EXPECT_THAT(why_not("/ip4/8.8.8.8/tcp/1/p2p/" + other.text()), HasSubstr("the id of another peer"));
  for (const std::string& text : {std::string("/p2p-circuit"), std::string("/ip4/8.8.8.8/tcp/1/p2p-circuit"),
                                  "/ip4/8.8.8.8/tcp/1/p2p/" + self.text() + "/p2p-circuit",
                                  "/ip4/8.8.8.8/tcp/0/p2p/" + other.text() + "/p2p-circuit",
                                  "/ip4/8.8.8.8/udp/1/quic-v1/p2p/" + other.text() + "/p2p-circuit"})
    EXPECT_THAT(why_not(text), HasSubstr("a way through a relay is")) << text;
  EXPECT_THAT(why_not("/ip4/0.0.0.0/tcp/1/p2p/" + other.text() + "/p2p-circuit"), HasSubstr("where to listen"));
}

TEST_F(Announced, PortZeroIsThatOfAListener) {
  EXPECT_THAT(filled({"/ip4/8.8.8.8/tcp/0"}, {"/ip4/0.0.0.0/tcp/4001"}), ElementsAre("/ip4/8.8.8.8/tcp/4001"));
  EXPECT_THAT(filled({"/dns4/boot.example/tcp/0"}, {"/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4002"}),
              ElementsAre("/dns4/boot.example/tcp/4001"));
  EXPECT_THAT(filled({"/ip6/2600::1/tcp/0"}, {"/ip4/0.0.0.0/tcp/4001", "/ip6/::/tcp/4002"}),
              ElementsAre("/ip6/2600::1/tcp/4002"));
  EXPECT_THAT(filled({"/ip6/2600::1/tcp/0"}, {"/ip4/0.0.0.0/tcp/4001"}), ElementsAre("/ip6/2600::1/tcp/4001"));
  EXPECT_THAT(filled({"/ip4/8.8.8.8/tcp/0"}, {"/ip4/127.0.0.1/tcp/1", "/ip4/10.0.0.1/tcp/2", "/ip4/10.0.0.2/tcp/3"}),
              ElementsAre("/ip4/8.8.8.8/tcp/2", "/ip4/8.8.8.8/tcp/3"));
  EXPECT_THAT(filled({"/ip4/127.0.0.1/tcp/0"}, {"/ip4/127.0.0.1/tcp/1"}), ElementsAre("/ip4/127.0.0.1/tcp/1"));
  EXPECT_THAT(filled({"/ip4/8.8.8.8/tcp/0"}, {}), ElementsAre(HasSubstr("does not listen")));
}

TEST_F(Announced, WhatIsGivenTwiceOrWithTheOwnIdIsToldOnceAndWithoutIt) {
  EXPECT_THAT(filled({"/ip4/8.8.8.8/tcp/4001", "/ip4/8.8.8.8/tcp/4001/p2p/" + self.text(), "/ip4/8.8.8.8/tcp/0"},
                     {"/ip4/0.0.0.0/tcp/4001"}),
              ElementsAre("/ip4/8.8.8.8/tcp/4001"));
}

}  // namespace
}  // namespace cohive::p2p
