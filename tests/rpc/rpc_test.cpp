// Calls over real sockets, with Noise and yamux.
#include "cohive/rpc/rpc.hpp"

#include <gtest/gtest.h>

#include "rpc/fixture.hpp"

namespace cohive::rpc {
namespace {

using testing::call_sum;
using testing::shout;
using testing::sum;

p2p::HostOptions on_loopback() {
  p2p::HostOptions options;
  options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
  return options;
}

class RpcOverTcp : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(bob.start());
    ASSERT_TRUE(alice.start());
    ASSERT_TRUE(runtime->run(alice.connect(bob.visible_addresses().front(), runtime->after(10s))));
  }
  Result<std::string> call(const std::string& protocol, std::string request) {
    return runtime->run(call_unary(alice, bob.id(), protocol, std::move(request), runtime->after(30s)));
  }
  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 1});
  std::unique_ptr<transport::Network> network = transport::make_tcp_network(*runtime);
  p2p::Host alice{*network, KeyPair::generate_ed25519(), on_loopback()};
  p2p::Host bob{*network, KeyPair::generate_ed25519(), on_loopback()};
  Server server{bob};
};

TEST_F(RpcOverTcp, UnaryAndStreamingCallsWork) {
  server.add_unary("Test.rpc_shout", shout);
  server.add_streaming("Test.rpc_sum", sum);
  EXPECT_EQ(call("Test.rpc_shout", "hello").value(), "HELLO");
  EXPECT_EQ(call("Test.rpc_shout", std::string(4'000'000, 'a')).value(), std::string(4'000'000, 'A'));
  EXPECT_EQ(runtime->run(call_sum(alice, bob.id(), {1, 2, 3}, runtime->after(30s))).value(),
            (std::vector<std::string>{"1", "3", "6"}));
  EXPECT_FALSE(call("Test.rpc_nothing", "x"));
}

TEST_F(RpcOverTcp, ACancelledCallDropsItsHandler) {
  Event started(*runtime), dropped(*runtime);
  struct Note {
    Event& event;
    ~Note() { event.set(); }
  };
  auto hold = [](Runtime& r, Event& begin, Event& end) -> Task<Result<std::string>> {
    Note note{end};
    begin.set();
    co_await r.sleep_for(1h);
    co_return "late";
  };
  server.add_unary("Test.rpc_late", [&](PeerId, std::string) { return hold(*runtime, started, dropped); });
  auto wait = [](Event& event, Deadline deadline) -> Task<bool> { co_return co_await event.wait(deadline); };
  {
    TaskGroup group(*runtime);
    group.spawn([](p2p::Host& host, PeerId peer) -> Task<void> {
      (void)co_await call_unary(host, peer, "Test.rpc_late", "x", Deadline::never());
    }(alice, bob.id()));
    ASSERT_TRUE(runtime->run(wait(started, runtime->after(30s))));
  }
  EXPECT_TRUE(runtime->run(wait(dropped, runtime->after(30s))));
}

}  // namespace
}  // namespace cohive::rpc
