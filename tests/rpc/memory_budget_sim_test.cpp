// What many peers together may fill of a node's memory.
#include <gtest/gtest.h>

#include <algorithm>

#include "cohive/core/log_output.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/swarm.hpp"

namespace cohive::rpc {
namespace {

constexpr std::size_t kBudget = 64 << 20;

struct SharedMemory : ::testing::Test {
  SharedMemory() {
    server.add_unary("Test.rpc_big",
                     [](PeerId, std::string) -> Task<Result<std::string>> { co_return std::string(4'000'000, 'x'); });
    server.add_streaming("Test.rpc_wait", [this](ServerStream&) -> Task<Result<>> {
      co_await swarm.runtime().sleep_for(1min);
      co_return ok();
    });
  }
  p2p::Host& add_peer() {
    auto& host = swarm.add_host();
    EXPECT_TRUE(swarm.run(host.connect(node.visible_addresses().front(), swarm.after(5s))));
    return host;
  }
  /// Asks for a large reply and does not read it.
  static Task<void> ask_and_wait(p2p::Host& host, PeerId node) {
    auto stream = co_await host.open_stream(node, "Test.rpc_big", host.runtime().after(10s));
    if (!stream) co_return;
    std::string body =
        std::string("\x0a\x10") + std::string(16, 'i') + "\x1a\x07" + std::string("\x0a\x00\x12\x00\x1a\x01x", 7);
    std::string frame;
    append_varint(frame, body.size());
    (void)co_await (*stream)->write(as_bytes(frame + body), host.runtime().after(10s));
    co_await host.runtime().sleep_for(1h);
  }
  /// Sends what nobody reads.
  static Task<void> send_much(p2p::Host& host, PeerId node) {
    auto call = co_await open_call(host, node, "Test.rpc_wait", host.runtime().after(10s));
    const std::string record(1'000'000, 'x');
    while (call)
      if (!co_await (*call)->send(as_bytes(record), Deadline::never())) break;
  }
  /// Sends a request to peer routing without its last byte.
  static Task<void> ask_in_part(p2p::Host& host, PeerId node, std::size_t size, std::size_t& ended) {
    auto stream = co_await host.open_stream(node, "/ipfs/kad/1.0.0", host.runtime().after(10s));
    if (!stream) co_return;
    std::string request;
    append_varint(request, size);
    request.append(size - 1, 'x');
    (void)co_await (*stream)->write(as_bytes(request), host.runtime().after(10s));
    const auto answer = co_await (*stream)->read(Deadline::never());
    ended += !answer || answer->empty();
  }
  /// Eight peers send thirty each.
  void ask_much_in_part(std::size_t size) {
    for (int i = 0; i < 8; ++i) {
      auto& greedy = add_peer();
      swarm.pass(1s);  // its own questions are answered
      for (int k = 0; k < 30; ++k) hostilities.spawn(ask_in_part(greedy, node.id(), size, ended));
    }
    swarm.pass(10s);
  }
  bool served(p2p::Host& host) {
    return swarm.run(call_unary(host, node.id(), "Test.rpc_big", "x", swarm.after(30s))).has_value();
  }

  sim::Swarm swarm{{.seed = 5}};
  p2p::Host& node = swarm.add_host({.memory_budget = kBudget});
  Server server{node};
  std::size_t ended = 0;  // streams of ask_in_part()
  TaskGroup hostilities{swarm.runtime()};
};

TEST_F(SharedMemory, RepliesThatManyPeersDoNotReadKeepWithinOneBudget) {
  for (int i = 0; i < 8; ++i) {
    auto& greedy = add_peer();
    for (int k = 0; k < 21; ++k) hostilities.spawn(ask_and_wait(greedy, node.id()));
  }
  swarm.pass(5s);
  EXPECT_GT(node.memory().highest(), kBudget / 2);
  EXPECT_LE(node.memory().highest(), kBudget);
  auto& honest = add_peer();
  EXPECT_TRUE(served(honest)) << "who holds least finds room";
  const std::string sentence = "it fills most of the memory that peers may fill";
  EXPECT_NE(Status::of(swarm.runtime()).json().find(sentence), std::string::npos) << "in the status";
  EXPECT_TRUE(std::ranges::any_of(log::recent(), [&](const auto& line) { return line.find(sentence) != line.npos; }));
  hostilities.cancel();
  swarm.pass(2min);
  EXPECT_LE(node.memory().held(), 16u << 10) << "what peers say of themselves";
}

TEST_F(SharedMemory, RequestsThatNobodyReadsKeepWithinOneBudget) {
  for (int i = 0; i < 8; ++i) {
    auto& greedy = add_peer();
    for (int k = 0; k < 30; ++k) hostilities.spawn(send_much(greedy, node.id()));
  }
  swarm.pass(20s);
  EXPECT_GT(node.memory().highest(), kBudget / 2);
  EXPECT_LE(node.memory().highest(), kBudget);
  auto& honest = add_peer();
  EXPECT_TRUE(served(honest));
  hostilities.cancel();
  swarm.pass(2min);
  EXPECT_LE(node.memory().held(), 16u << 10) << "what peers say of themselves";
}

TEST_F(SharedMemory, RequestsToPeerRoutingAreChargedBeforeAllOfThemHasCome) {
  ask_much_in_part(4'000);
  EXPECT_EQ(ended, 0u);
  EXPECT_GE(node.memory().held(), 240u * 8'000) << "the streams, and as much for what has come on them";
  hostilities.cancel();
  swarm.pass(2min);
  EXPECT_LE(node.memory().held(), 16u << 10) << "what peers say of themselves";
}

TEST_F(SharedMemory, RequestsToPeerRoutingThatNoPeerNeedsAreNotRead) {
  ask_much_in_part((64u << 10) - 1);
  EXPECT_EQ(ended, 240u);
  EXPECT_LE(node.memory().held(), 16u << 10) << "what peers say of themselves";
}

}  // namespace
}  // namespace cohive::rpc
