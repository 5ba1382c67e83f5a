// Hosts that close their connections, on real sockets.
#include "closing.hpp"

#include <gtest/gtest.h>

namespace cohive::p2p {
namespace {

struct Closing : testing::Test {
  std::unique_ptr<Runtime> runtime = make_runtime({.pool_threads = 1});
  std::unique_ptr<transport::Network> network = transport::make_tcp_network(*runtime);

  std::unique_ptr<Host> host(std::uint8_t number) {
    HostOptions options{.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()}};
    auto result = std::make_unique<Host>(*network, KeyPair::ed25519_from_seed(Bytes(32, number)), std::move(options));
    result->start().value();
    return result;
  }
};

TEST_F(Closing, WhoIsStillReceivingTheAnswerOfAPeerThatLeavesGetsAllOfIt) {
  for (int round = 0; round < 5; ++round) {
    auto alice = host(1), bob = host(2);
    Event answered(*runtime);
    closing::serve(*bob, answered);
    ASSERT_TRUE(runtime->run(alice->connect(bob->visible_addresses().front(), runtime->after(10s))));
    TaskGroup group(*runtime);
    group.spawn(closing::chatter(*alice, bob->id()));
    group.spawn(closing::leave_after(*bob, answered));
    const auto heard = runtime->run(closing::ask(*alice, bob->id()));
    EXPECT_EQ(heard.bytes, closing::kAnswer);
    EXPECT_FALSE(heard.failure) << *heard.failure;
    runtime->run(group.join());
    runtime->run(alice->close());
  }
}

}  // namespace
}  // namespace cohive::p2p
