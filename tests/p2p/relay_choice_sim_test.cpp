// Which relays a hidden peer asks, and what it does where they do not answer.
#include "relay_fixture.hpp"

namespace cohive::p2p {
namespace {

/// Takes requests for a reservation and never answers them.
Task<void> keep_silent(StreamPtr stream) {
  co_await stream->runtime().sleep_for(1h);
}

struct SilentRelays : Relay {
  Host& add_silent(const std::string& ip) {
    Host& host = swarm.add_host_at(ip, {.force_reachability = Reachability::public_});
    host.set_handler(kHopProtocol, keep_silent);
    return host;
  }
  void connect(Host& hidden, Host& to) { ASSERT_TRUE(swarm.run(hidden.connect(address_of(to), swarm.after(5s)))); }
  static void expect_only(const Host& hidden, const Host& relay) {
    ASSERT_EQ(hidden.relays().size(), 1U);
    EXPECT_EQ(hidden.relays().front().relay, relay.id());
  }
};

TEST_F(SilentRelays, DoNotKeepALostRelayFromBeingReplacedWithinTenSeconds) {
  Host& first = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&first}, {.wanted_relays = 1});
  swarm.pass(5s);
  ASSERT_EQ(hidden.relays().size(), 1U);
  for (const char* ip : {"3.0.1.1", "3.0.1.2", "3.0.1.3"}) connect(hidden, add_silent(ip));
  Host& far = add_relay("3.0.0.2");
  swarm.fabric().set_link("3.0.0.2", "192.168.7.1", {.latency = 40ms});
  connect(hidden, far);
  swarm.pass(5s);
  swarm.fabric().kill("3.0.0.1");
  swarm.pass(10s);
  expect_only(hidden, far);
  Host& dialler = swarm.add_host_at("4.0.0.1");
  EXPECT_TRUE(swarm.run(dialler.connect(through(far, hidden), swarm.after(10s))));
}

/// The first one is asked before there is another one.
TEST_F(SilentRelays, HoldUpNoRelayThatComesLater) {
  Host& hidden = add_hidden({}, {.wanted_relays = 1});
  connect(hidden, add_silent("3.0.1.1"));
  swarm.pass(2s);
  Host& relay = add_relay("3.0.0.1");
  connect(hidden, relay);
  swarm.pass(1s);
  expect_only(hidden, relay);
}

/// A machine that is gone without a word answers no dial.
TEST_F(SilentRelays, ThatOurUserNamedHoldUpNoOtherRelay) {
  Host& named = add_relay("3.0.0.1");
  Host& other = add_relay("3.0.0.2");
  Host& hidden = add_hidden({&named}, {.wanted_relays = 1});
  swarm.fabric().crash("3.0.0.1");
  connect(hidden, other);
  swarm.pass(8s);
  expect_only(hidden, other);
}

/// It answers after two round trips of four seconds.
TEST_F(SilentRelays, ThatAnswerAfterAllGrantNoMoreThanIsWanted) {
  Host& first = add_relay("3.0.0.1");
  Host& hidden = add_hidden({&first}, {.wanted_relays = 1});
  swarm.pass(5s);
  Host& near = add_relay("3.0.0.2");
  Host& far = add_relay("3.0.0.3");
  swarm.fabric().set_link("3.0.0.3", "192.168.7.1", {.latency = 40ms});
  for (Host* relay : {&near, &far}) connect(hidden, *relay);
  swarm.pass(5s);
  swarm.fabric().set_link("3.0.0.2", "192.168.7.1", {.latency = 2s});
  swarm.fabric().kill("3.0.0.1");
  swarm.pass(20s);
  expect_only(hidden, far);
  EXPECT_GE(counted(swarm, "cohive_p2p_relay_reservations"), 2U) << "both have granted one";
}

}  // namespace
}  // namespace cohive::p2p
