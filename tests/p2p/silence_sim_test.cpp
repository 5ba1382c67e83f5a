// Peers that go silent at a step of a protocol, or after half a message: they are cut off, and no other peer notices.
#include "p2p/autonat_message.hpp"
#include "p2p/hole_punching.hpp"
#include "relay_fixture.hpp"

namespace cohive::p2p {
namespace {

/// Where a peer goes silent: after these bytes on a stream of this protocol.
struct Silence {
  const char* name;
  std::string protocol;
  Bytes said;
  bool heard = true;  ///< the other end listens at all
};
std::ostream& operator<<(std::ostream& out, const Silence& silence) {
  return out << silence.name;
}

constexpr Duration kPatience = 61s;  // with a stream on which nothing is said; Kademlia's are kept for more questions

/// Opens a stream, says so much, and tells when the other end gives up.
Task<Duration> say_no_more(Host& from, PeerId to, Silence silence) {
  Runtime& runtime = from.runtime();
  auto stream = co_await from.open_stream(to, silence.protocol, runtime.after(5s));
  if (!stream) co_return 0s;
  const TimePoint start = runtime.now();
  if (!silence.said.empty()) (void)co_await (*stream)->write(silence.said, runtime.after(5s));
  for (;;) {
    auto bytes = co_await (*stream)->read(runtime.after(10min));
    if (!bytes || bytes->empty()) break;
  }
  co_return runtime.now() - start;
}

class Silences : public Relay, public testing::WithParamInterface<Silence> {
 protected:
  void expect_cut_off(Host& silent, Host& victim, Host& other) {
    swarm.pass(5s);
    const std::size_t before = victim.memory().held();
    std::vector<Task<Duration>> waiting;
    for (int i = 0; i < 20; ++i) waiting.push_back(say_no_more(silent, victim.id(), GetParam()));
    TaskGroup group(swarm.runtime(), "silent peer");
    std::vector<Duration> ended;
    group.spawn(
        [](Runtime& runtime, std::vector<Task<Duration>> all, std::vector<Duration>& out) -> Task<void> {
          out = co_await when_all(runtime, std::move(all));
        }(swarm.runtime(), std::move(waiting), ended),
        "silent peer");
    swarm.pass(1s);
    const auto answered = swarm.run(ping(other, victim.id(), swarm.after(5s)));
    EXPECT_TRUE(answered) << answered.error();
    swarm.pass(kPatience);
    ASSERT_EQ(ended.size(), 20U) << "streams are still open";
    const Duration longest = *std::ranges::max_element(ended);
    EXPECT_LE(longest, kPatience);
    EXPECT_EQ(longest > 1s, GetParam().heard);
    EXPECT_LE(victim.memory().held(), before + 4096);
  }
};

TEST_P(Silences, AreCutOffAndOtherPeersDoNotNotice) {
  Host& victim = add_relay("3.0.0.1");
  Host& silent = swarm.add_host_at("4.0.0.6");
  Host& other = swarm.add_host_at("4.0.0.7");
  for (Host* host : {&silent, &other}) ASSERT_TRUE(swarm.run(host->connect(address_of(victim), swarm.after(5s))));
  expect_cut_off(silent, victim, other);
}

const Bytes kHalf{0x10, 0x08};  // the length of sixteen bytes, and the first of them

INSTANTIATE_TEST_SUITE_P(Steps, Silences,
                         testing::Values(Silence{"hop", kHopProtocol, {}}, Silence{"hop, half", kHopProtocol, kHalf},
                                         Silence{"stop", kStopProtocol, {}},
                                         Silence{"stop, half", kStopProtocol, kHalf},
                                         Silence{"dial-back", kAutoNatProtocol, {}},
                                         Silence{"dial-back, half", kAutoNatProtocol, kHalf},
                                         Silence{"push", kPush, {}}, Silence{"push, half", kPush, kHalf},
                                         Silence{"routing", kKad, {}}, Silence{"routing, half", kKad, kHalf},
                                         Silence{"punching, no circuit", kHolePunchProtocol, kHalf, false}));

class PunchingSilences : public Silences {};

TEST_P(PunchingSilences, AreCutOffAndOtherPeersDoNotNotice) {
  Host& relay = add_relay("3.0.0.1");
  Host& silent = add_hidden({&relay}, {.hole_punching = false});
  Host& victim = swarm.add_host_at("4.0.0.6");
  Host& other = swarm.add_host_at("4.0.0.7");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(victim.connect(through(relay, silent), swarm.after(10s))));
  ASSERT_TRUE(swarm.run(other.connect(address_of(victim), swarm.after(5s))));
  expect_cut_off(silent, victim, other);
}

INSTANTIATE_TEST_SUITE_P(Steps, PunchingSilences,
                         testing::Values(Silence{"at once", kHolePunchProtocol, {}},
                                         Silence{"half a message", kHolePunchProtocol, kHalf}));

/// The relay has done its part: the handshake inside the circuit is what does not come.
TEST_F(Relay, ACircuitOnWhichNoHandshakeBeginsEnds) {
  Host& relay = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&relay});
  Host& dialler = swarm.add_host_at("4.0.0.1");
  swarm.pass(5s);
  ASSERT_TRUE(swarm.run(dialler.connect(address_of(relay), swarm.after(5s))));
  Bytes request = connect_to(hidden.id());
  request.insert(request.begin(), static_cast<std::uint8_t>(request.size()));
  const Duration took = swarm.run(say_no_more(dialler, relay.id(), {"circuit", kHopProtocol, request}));
  EXPECT_GT(took, 1s) << "there was no circuit";
  EXPECT_LE(took, 20s);
  EXPECT_EQ(counted(swarm, "cohive_p2p_relay_circuits"), 0U);
}

TEST_F(Relay, APeerThatDialsThroughItInALoopIsRefusedAndOthersAreNot) {
  Host& relay = add_relay("3.0.0.1");
  Host& greedy = swarm.add_host_at("4.0.0.1");
  Host& other = swarm.add_host_at("4.0.1.1");
  Host& hidden = add_hidden({&relay});
  swarm.pass(5s);
  for (Host* host : {&greedy, &other}) ASSERT_TRUE(swarm.run(host->connect(address_of(relay), swarm.after(5s))));
  int asked = 0;
  while (asked < 500 && ask(greedy, relay, connect_to(nobody(1).peer_id()))->status() == proto::NO_RESERVATION) ++asked;
  EXPECT_EQ(asked, 120);
  EXPECT_EQ(ask(greedy, relay, connect_to(hidden.id()))->status(), proto::RESOURCE_LIMIT_EXCEEDED);
  const auto answer = swarm.run(call(other, hidden.id(), 1000));
  EXPECT_TRUE(answer) << answer.error();
}

/// What a peer outside says of its relays leads to no machine inside.
TEST_F(Relay, ACircuitThroughAPrivateAddressIsNotDialledOnAStrangersWord) {
  Host& liar = add_relay("3.0.0.1");
  Host& inside = swarm.add_host_at("192.168.0.9");
  Host& host = swarm.add_host_at("192.168.0.10");
  swarm.fabric().set_nat("192.168.0.10", "5.6.7.8");
  ASSERT_TRUE(swarm.run(host.connect(address_of(liar), swarm.after(5s))));
  swarm.pass(1s);
  proto::Identify lie;
  lie.set_agent_version("liar");
  lie.add_listen_addrs(circuit_through(inside.addresses().front(), inside.id()).binary());
  for (const auto& protocol : {kHopProtocol, std::string(kKad)}) lie.add_protocols(protocol);
  swarm.run(push_identify(liar, host.id(), lie.SerializeAsString()));
  swarm.fabric().kill("3.0.0.1");
  host.disconnect(liar.id());
  swarm.pass(1s);
  (void)swarm.run(host.connect(liar.id(), swarm.after(1min)));
  EXPECT_FALSE(inside.connected(host.id()));
}

}  // namespace
}  // namespace cohive::p2p
