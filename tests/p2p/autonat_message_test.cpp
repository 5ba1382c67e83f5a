#include "p2p/autonat_message.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "p2p/known_addresses.hpp"

namespace cohive::p2p {
namespace {

using proto::AutoNat;
using testing::ElementsAre;

const PeerId kPeer = KeyPair::ed25519_from_seed(Bytes(32, 1)).peer_id();

TEST(AutoNatMessage, RequestsAndResponsesComeBackAsTheyWere) {
  const DialBackRequest request{kPeer, {address("/ip4/8.8.8.8/tcp/4001"), address("/ip6/2600::1/tcp/4001")}};
  const std::string bytes = encode(request);
  EXPECT_EQ(to_hex(as_bytes(bytes)).substr(0, 4), "0800") << "go-libp2p wants the type, also when it is 0";
  const auto parsed = parse_dial_back_request(as_bytes(bytes));
  ASSERT_TRUE(parsed) << parsed.error();
  EXPECT_EQ(parsed->peer, kPeer);
  EXPECT_EQ(parsed->addresses, request.addresses);

  const DialBackResponse response{AutoNat::OK, "", address("/ip4/8.8.8.8/tcp/4001")};
  const auto answer = parse_dial_back_response(as_bytes(encode(response)));
  ASSERT_TRUE(answer) << answer.error();
  EXPECT_EQ(answer->status, AutoNat::OK);
  EXPECT_EQ(answer->address, response.address);
}

TEST(AutoNatMessage, ARequestNeedsAPeerAndTakesFewAddresses) {
  AutoNat message;
  message.set_type(AutoNat::DIAL);
  EXPECT_EQ(parse_dial_back_request(as_bytes(message.SerializeAsString())).error(), cohive::Errc::malformed);
  auto* peer = message.mutable_dial()->mutable_peer();
  for (int i = 0; i < 100; ++i) {
    peer->add_addrs("no address");
    peer->add_addrs(address("/ip4/8.8.8.8/tcp/" + std::to_string(i)).binary());
  }
  const auto parsed = parse_dial_back_request(as_bytes(message.SerializeAsString()));
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->peer.empty());
  EXPECT_EQ(parsed->addresses.size(), kMaxDialBackAddresses);
  peer->set_id("no id");
  EXPECT_FALSE(parse_dial_back_request(as_bytes(message.SerializeAsString())));
  EXPECT_FALSE(parse_dial_back_request(as_bytes("\xff")));
}

TEST(AutoNatMessage, AResponseNeedsAStatus) {
  AutoNat message;
  message.set_type(AutoNat::DIAL_RESPONSE);
  EXPECT_EQ(parse_dial_back_response(as_bytes(message.SerializeAsString())).error(), cohive::Errc::malformed);
  EXPECT_FALSE(parse_dial_back_response(as_bytes(encode(DialBackRequest{kPeer, {}}))));
}

TEST(AutoNatMessage, OnlyTheObservedHostIsDialledAtThePortsThatThePeerNames) {
  EXPECT_THAT(
      dial_back_candidates(address("/ip4/8.8.8.8/tcp/50000"),
                           {address("/ip4/10.0.0.5/tcp/4001"), address("/ip4/1.1.1.1/tcp/4001"),
                            address("/ip6/::1/tcp/4002"), address("/dns4/victim.example/tcp/4003"),
                            address("/ip4/8.8.8.8/tcp/4004").with_peer(kPeer).encapsulate(address("/p2p-circuit"))}),
      ElementsAre(address("/ip4/8.8.8.8/tcp/50000"), address("/ip4/8.8.8.8/tcp/4001"),
                  address("/ip4/8.8.8.8/tcp/4002")));
}

TEST(AutoNatMessage, AtMostSixteenAddressesAreDialled) {
  std::vector<Multiaddr> wanted;
  for (int port = 1; port < 100; ++port) wanted.push_back(address("/ip4/8.8.8.8/tcp/" + std::to_string(port)));
  EXPECT_EQ(dial_back_candidates(address("/ip4/8.8.8.8/tcp/50000"), wanted).size(), kMaxDialBackAddresses);
}

}  // namespace
}  // namespace cohive::p2p
