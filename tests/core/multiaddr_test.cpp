// Multiaddresses: vectors, malformed input, and the questions that dialling asks. Source: docs/wire/libp2p.md,
// section 1.2.
#include "cohive/core/multiaddr.hpp"

#include "cohive/core/errors.hpp"
#include "core/vectors.hpp"

namespace cohive {
namespace {

using testing::hex_of;
using testing::kPeerText;
using testing::libp2p_vectors;
using testing::text_of;

constexpr const char* kRelay = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N";

Multiaddr parse(const std::string& text) {
  return Multiaddr::from_text(text).value();
}

TEST(MultiaddrTest, TextAndBytesAgreeWithTheVectors) {
  for (const auto& [text, binary] : libp2p_vectors()["multiaddr"].items()) {
    const auto from_text = Multiaddr::from_text(text);
    ASSERT_TRUE(from_text) << from_text.error();
    EXPECT_EQ(to_hex(from_text->bytes()), text_of(binary)) << text;
    const auto from_bytes = Multiaddr::from_bytes(hex_of(binary));
    ASSERT_TRUE(from_bytes) << from_bytes.error();
    EXPECT_EQ(from_bytes->text(), text);
    EXPECT_EQ(*from_bytes, *from_text);
  }
}

TEST(MultiaddrTest, EveryProtocolSurvivesARoundTrip) {
  for (const std::string& text :
       {std::string("/ip6zone/eth0/ip6/fe80::1/tcp/1"), std::string("/ip4/10.0.0.0/ipcidr/8"),
        std::string("/dns/a.b/tcp/1/ws"), std::string("/dns6/a.b/tcp/443/tls/sni/a.b/ws"),
        std::string("/dns4/a.b/tcp/443/wss"), std::string("/dns4/a.b/tcp/80/http"),
        std::string("/dns4/a.b/tcp/443/https"), std::string("/ip4/1.2.3.4/udp/1/quic"),
        std::string("/ip4/1.2.3.4/tcp/1/noise"), std::string("/ip4/1.2.3.4/udp/1/webrtc-direct/certhash/bmzxw6ytboi"),
        std::string("/webrtc"), std::string("/ip4/1.2.3.4/udp/1/quic-v1/webtransport")}) {
    const auto address = Multiaddr::from_text(text);
    ASSERT_TRUE(address) << address.error();
    EXPECT_EQ(address->text(), text);
    EXPECT_EQ(Multiaddr::from_bytes(address->bytes()).value(), *address);
  }
}

TEST(MultiaddrTest, ReadsTheOldNameOfP2pAndATrailingSlash) {
  EXPECT_EQ(parse(std::string("/ipfs/") + kPeerText).text(), std::string("/p2p/") + kPeerText);
  EXPECT_EQ(parse("/ip4/127.0.0.1/tcp/4001/"), parse("/ip4/127.0.0.1/tcp/4001"));
  EXPECT_EQ(parse("/ip6/0:0:0:0:0:0:0:1/tcp/1").text(), "/ip6/::1/tcp/1");
}

TEST(MultiaddrTest, RefusesMalformedText) {
  for (const std::string& bad : {std::string(),
                                 std::string("/"),
                                 std::string("//"),
                                 std::string("ip4/127.0.0.1"),
                                 std::string("/ip4"),
                                 std::string("/ip4/"),
                                 std::string("/ip4/127.0.0"),
                                 std::string("/ip4/256.0.0.1"),
                                 std::string("/ip4/127.0.0.1/tcp"),
                                 std::string("/ip4/127.0.0.1/tcp/65536"),
                                 std::string("/ip4/127.0.0.1/tcp/-1"),
                                 std::string("/ip4/127.0.0.1/tcp/ 1"),
                                 std::string("/ip4/127.0.0.1/tcp/1x"),
                                 std::string("/ip4/127.0.0.1//tcp/1"),
                                 std::string("/ip6/127.0.0.1/tcp/1"),
                                 std::string("/ip6/:::1"),
                                 std::string("/ip6/::1%eth0"),
                                 std::string("/dns4//tcp/1"),
                                 std::string("/dns4/a b/tcp/1"),
                                 std::string("/dns4/a\n/tcp/1"),
                                 "/dns4/" + std::string(256, 'a'),
                                 std::string("/p2p/QmNope"),
                                 std::string("/p2p"),
                                 std::string("/unix"),
                                 std::string("/unix/a\nb"),
                                 std::string("/unix/\x1b[31m"),
                                 std::string("/carrier-pigeon/1"),
                                 std::string("/ip4/127.0.0.1\0.evil/tcp/1", 26),
                                 std::string("/certhash/b"),
                                 "/unix/" + std::string(5000, 'a')}) {
    const auto address = Multiaddr::from_text(bad);
    ASSERT_FALSE(address) << bad.substr(0, 80);
    EXPECT_EQ(address.error(), Errc::malformed);
  }
}

TEST(MultiaddrTest, AnErrorCannotForgeLinesOrFloodTheLog) {
  const auto hostile = Multiaddr::from_text("/dns4/a\nERROR forged\x1b[31m/tcp/1" + std::string(1500, 'x'));
  ASSERT_FALSE(hostile);
  const std::string message = hostile.error().message();
  for (char c : message) EXPECT_GE(c, ' ') << message;
  EXPECT_LT(message.size(), 600u);
}

TEST(MultiaddrTest, RefusesMalformedBytes) {
  for (const char* bad : {"",
                          "04",
                          "047f0000",
                          "047f00000106",
                          "047f000001060f",
                          "ff7f",
                          "8400",
                          "8104",
                          "3600",                    // an empty name
                          "36ff",                    // a length without end
                          "36ffffffffffffffff7f61",  // a length of 2^63
                          "3604612e62",              // a name shorter than its length
                          "3603612f62",              // a slash in a name
                          "360361006a",              // a zero in a name
                          "a50300",                  // no peer
                          "a503021111",              // not a multihash
                          "9003022f0a",              // a line end in a path
                          "900303612f62",            // a path without its slash
                          "9003032f1b5b",            // a terminal escape
                          "d20300",
                          "ffffffffffffffffffff01"}) {
    EXPECT_FALSE(Multiaddr::from_bytes(from_hex(bad))) << bad;
  }
  Bytes endless;
  while (endless.size() < 70'000) endless.insert(endless.end(), {0xdd, 0x03});
  EXPECT_FALSE(Multiaddr::from_bytes(endless));
}

TEST(MultiaddrTest, EveryCutAndEveryFlippedBitParsesOrIsRefusedCleanly) {
  const Bytes good =
      to_bytes(parse(std::string("/dns4/a.example/tcp/1/p2p/") + kRelay + "/p2p-circuit/p2p/" + kPeerText).bytes());
  const auto survives = [](ByteView bytes) {
    if (const auto address = Multiaddr::from_bytes(bytes)) {
      const auto again = Multiaddr::from_text(address->text());
      ASSERT_TRUE(again) << again.error();
      address->tcp_endpoint();
      address->peer();
    }
  };
  for (std::size_t cut = 0; cut < good.size(); ++cut) survives(ByteView(good).first(cut));
  for (std::size_t bit = 0; bit < good.size() * 8; ++bit) {
    Bytes flipped = good;
    flipped[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    survives(flipped);
  }
}

TEST(MultiaddrTest, NamesTheTargetOnlyAtItsEnd) {
  const auto peer = *PeerId::from_text(kPeerText);
  const auto relay = *PeerId::from_text(kRelay);
  const Multiaddr plain = parse("/ip4/1.2.3.4/tcp/4001");
  EXPECT_FALSE(plain.peer());
  EXPECT_EQ(plain.without_peer(), plain);
  const Multiaddr with_relay = plain.with_peer(relay);
  EXPECT_EQ(with_relay.peer(), relay);
  EXPECT_EQ(with_relay.with_peer(peer).peer(), peer);
  EXPECT_EQ(with_relay.without_peer(), plain);

  const Multiaddr circuit = with_relay.encapsulate(parse("/p2p-circuit"));
  EXPECT_TRUE(circuit.is_circuit());
  EXPECT_FALSE(circuit.peer()) << "the relay is not the target";
  EXPECT_EQ(circuit.without_peer(), circuit);
  EXPECT_EQ(circuit.with_peer(peer).peer(), peer);
  EXPECT_EQ(circuit.with_peer(peer).without_peer(), circuit);
  EXPECT_EQ(circuit.value(Multiaddr::p2p), kRelay);
}

TEST(MultiaddrTest, AnotherHostTakesThePlaceOfTheFirstComponentOnly) {
  EXPECT_EQ(parse("/ip4/10.0.0.1/tcp/4001").with_host_of(parse("/ip6/2600::1/tcp/9")).text(), "/ip6/2600::1/tcp/4001");
  EXPECT_EQ(parse("/dns4/a.example/tcp/1/ws").with_host_of(parse("/ip4/1.2.3.4/udp/9")).text(),
            "/ip4/1.2.3.4/tcp/1/ws");
  EXPECT_EQ(parse("/ip4/10.0.0.1").with_host_of(parse("/ip4/1.2.3.4")).text(), "/ip4/1.2.3.4");
  EXPECT_EQ(parse("/dns6/a.example/tcp/1").first_code(), Multiaddr::dns6);
  EXPECT_EQ(Multiaddr().first_code(), 0u);
}

TEST(MultiaddrTest, KnowsWhatTcpCanDial) {
  const auto endpoint = parse(std::string("/ip4/127.0.0.1/tcp/4001/p2p/") + kPeerText).tcp_endpoint();
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(endpoint->host, "127.0.0.1");
  EXPECT_EQ(endpoint->port, 4001);
  EXPECT_EQ(endpoint->host_code, Multiaddr::ip4);
  EXPECT_EQ(parse("/dns6/a.example/tcp/65535").tcp_endpoint()->port, 65535);
  for (const std::string& other :
       {std::string("/ip4/1.2.3.4/udp/1/quic-v1"), std::string("/ip4/1.2.3.4/tcp/1/ws"), std::string("/ip4/1.2.3.4"),
        std::string("/dnsaddr/a.example/tcp/1"), std::string("/tcp/1"), std::string("/unix/tmp/x"),
        std::string("/ip4/1.2.3.4/tcp/1/p2p/") + kRelay + "/p2p-circuit"}) {
    EXPECT_FALSE(parse(other).tcp_endpoint()) << other;
  }
}

TEST(MultiaddrTest, TellsOthersOfTheSameProtocols) {
  const Multiaddr address = parse("/ip4/1.2.3.4/tcp/1");
  EXPECT_TRUE(address.same_protocols(parse("/ip4/5.6.7.8/tcp/2")));
  for (const char* other : {"/ip6/::1/tcp/1", "/ip4/1.2.3.4/udp/1", "/ip4/1.2.3.4", "/ip4/1.2.3.4/tcp/1/ws", "/tcp/1"})
    EXPECT_FALSE(address.same_protocols(parse(other))) << other;
}

TEST(MultiaddrTest, IsMadeFromANumericHostOnly) {
  EXPECT_EQ(Multiaddr::from_ip_tcp("1.2.3.4", 80)->text(), "/ip4/1.2.3.4/tcp/80");
  EXPECT_EQ(Multiaddr::from_ip_tcp("::1", 0)->text(), "/ip6/::1/tcp/0");
  for (const char* bad : {"", "localhost", "1.2.3.4/udp/5", "::1/tcp/5", "1.2.3.4:5"})
    EXPECT_FALSE(Multiaddr::from_ip_tcp(bad, 1)) << bad;
}

TEST(MultiaddrTest, ClassesAddressesAsTheDaemonDoes) {
  using Scope = Multiaddr::Scope;
  const std::pair<const char*, Scope> cases[] = {{"/ip4/127.0.0.1", Scope::loopback},
                                                 {"/ip4/127.255.0.1", Scope::loopback},
                                                 {"/ip6/::1", Scope::loopback},
                                                 {"/dns4/localhost", Scope::loopback},
                                                 {"/ip4/10.1.2.3", Scope::private_},
                                                 {"/ip4/100.64.0.1", Scope::private_},
                                                 {"/ip4/172.31.255.255", Scope::private_},
                                                 {"/ip4/192.168.0.1", Scope::private_},
                                                 {"/ip4/169.254.1.1", Scope::private_},
                                                 {"/ip6/fd00::1", Scope::private_},
                                                 {"/ip6/fe80::1", Scope::private_},
                                                 {"/ip6/::ffff:10.0.0.1", Scope::private_},
                                                 {"/ip6/::ffff:127.0.0.1", Scope::loopback},
                                                 {"/ip4/0.1.2.3", Scope::unroutable},
                                                 {"/ip4/192.0.2.1", Scope::unroutable},
                                                 {"/ip4/198.51.100.1", Scope::unroutable},
                                                 {"/ip4/203.0.113.1", Scope::unroutable},
                                                 {"/ip4/198.19.0.1", Scope::unroutable},
                                                 {"/ip4/224.0.0.1", Scope::unroutable},
                                                 {"/ip4/255.255.255.255", Scope::unroutable},
                                                 {"/ip6/ff02::1", Scope::unroutable},
                                                 {"/ip4/100.128.0.1", Scope::public_},
                                                 {"/ip4/172.32.0.1", Scope::public_},
                                                 {"/ip4/8.8.8.8", Scope::public_},
                                                 {"/ip6/2001:4860::1", Scope::public_},
                                                 {"/dns4/a.example", Scope::public_},
                                                 {"/unix/tmp/x", Scope::other}};
  for (const auto& [text, scope] : cases) EXPECT_EQ(parse(text).scope(), scope) << text;
  EXPECT_TRUE(parse("/ip4/0.0.0.0/tcp/1").is_unspecified());
  EXPECT_TRUE(parse("/ip6/::/tcp/1").is_unspecified());
  EXPECT_FALSE(parse("/ip4/0.0.0.1/tcp/1").is_unspecified());
  EXPECT_FALSE(Multiaddr().is_unspecified());
}

}  // namespace
}  // namespace cohive
