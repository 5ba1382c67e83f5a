#include <gtest/gtest.h>

#include "cohive/core/combine.hpp"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/rpc.hpp"
#include "cohive/transport/errors.hpp"
#include "support/swarm.hpp"

namespace cohive::rpc {
namespace {

Task<Result<std::string>> shout(PeerId, std::string request) {
  for (auto& c : request) c = static_cast<char>(std::toupper(c));
  co_return request;
}
Task<Result<std::string>> refuse(PeerId, std::string) { co_return Error(cohive::Errc::not_found, "kaboom"); }

class Rpc : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(swarm.run(alice.connect(bob.visible_addresses().front(), swarm.after(5s)))); }
  Result<std::string> call(const std::string& protocol, std::string request, Duration limit = 10s) {
    return swarm.run(call_unary(alice, bob.id(), protocol, std::move(request), swarm.after(limit)));
  }
  sim::Swarm swarm;
  p2p::Host& alice = swarm.add_host();
  p2p::Host& bob = swarm.add_host();
  Server server{bob};
};

TEST_F(Rpc, AUnaryCallBringsTheReply) {
  server.add_unary("Test.rpc_shout", shout);
  EXPECT_EQ(call("Test.rpc_shout", "hello").value(), "HELLO");
  EXPECT_EQ(call("Test.rpc_shout", "").value(), "");
}

TEST_F(Rpc, AFailingHandlerReportsItsTextAndItsPeer) {
  server.add_unary("Test.rpc_refuse", refuse);
  auto result = call("Test.rpc_refuse", "x");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), make_error_code(Errc::handler_failed));
  EXPECT_NE(result.error().message().find("kaboom"), std::string::npos);
  EXPECT_EQ(*result.error().peer(), bob.id());
}

TEST_F(Rpc, AnUnknownMethodIsAnErrorNotAHang) {
  auto result = call("Test.rpc_nothing", "x");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), transport::make_error_code(transport::Errc::protocol_not_supported));
}

TEST_F(Rpc, RequestsUpToTheLimitPassAndLargerOnesAreRefusedLocally) {
  server.add_unary("Test.rpc_shout", shout);
  EXPECT_EQ(call("Test.rpc_shout", std::string(4'000'000, 'a')).value().size(), 4'000'000u);
  EXPECT_EQ(call("Test.rpc_shout", std::string(kMaxUnaryFrame, 'a')).error().code(), make_error_code(Errc::frame_too_large));
}

TEST_F(Rpc, AnOversizeReplyBecomesAnErrorReply) {
  server.add_unary("Test.rpc_big", [](PeerId, std::string) -> Task<Result<std::string>> { co_return std::string(kMaxUnaryFrame, 'x'); });
  EXPECT_EQ(call("Test.rpc_big", "").error().code(), make_error_code(Errc::handler_failed));
}

TEST_F(Rpc, ACallEndsAtItsDeadlineAndTheHandlerIsDropped) {
  int running = 0;
  server.add_unary("Test.rpc_slow", [&](PeerId, std::string) -> Task<Result<std::string>> {
    struct Count {
      int& n;
      explicit Count(int& x) : n(x) { ++n; }
      ~Count() { --n; }
    } count(running);
    co_await swarm.runtime().sleep_for(1h);
    co_return "late";
  });
  EXPECT_EQ(call("Test.rpc_slow", "", 2s).error(), cohive::Errc::timeout);
  swarm.pass(1s);
  EXPECT_EQ(running, 0);
}

TEST_F(Rpc, TheServerDroppedMeansTheMethodIsGone) {
  {
    Server other(bob);
    other.add_unary("Other.rpc_shout", shout);
    swarm.pass(1s);
    EXPECT_TRUE(call("Other.rpc_shout", "x"));
  }
  EXPECT_FALSE(call("Other.rpc_shout", "x"));
}

Task<Result<>> sum(ServerStream& stream) {
  int total = 0;
  for (;;) {
    auto request = co_await stream.receive(Deadline::never());
    if (!request) co_return request.error();
    if (!*request) break;
    total += std::stoi(to_string(**request));
    auto sent = co_await stream.send(as_bytes(std::to_string(total)), Deadline::never());
    if (!sent) co_return sent;
  }
  if (total == 13) co_return Error(cohive::Errc::malformed, "unlucky");
  co_return ok();
}

Task<Result<std::vector<std::string>>> call_sum(p2p::Host& host, PeerId peer, std::vector<int> numbers, Deadline deadline) {
  auto call = co_await open_call(host, peer, "Test.rpc_sum", deadline);
  if (!call) co_return call.error();
  for (int number : numbers) {
    auto sent = co_await (*call)->send(as_bytes(std::to_string(number)), deadline);
    if (!sent) co_return sent.error();
  }
  auto finished = co_await (*call)->finish(deadline);
  if (!finished) co_return finished.error();
  std::vector<std::string> replies;
  for (;;) {
    auto reply = co_await (*call)->receive(deadline);
    if (!reply) co_return reply.error();
    if (!*reply) co_return replies;
    replies.push_back(to_string(**reply));
  }
}

TEST_F(Rpc, AStreamingCallSendsAndReceivesManyMessages) {
  server.add_streaming("Test.rpc_sum", sum);
  EXPECT_EQ(swarm.run(call_sum(alice, bob.id(), {1, 2, 3}, swarm.after(10s))).value(), (std::vector<std::string>{"1", "3", "6"}));
  EXPECT_TRUE(swarm.run(call_sum(alice, bob.id(), {}, swarm.after(10s))).value().empty());
}

TEST_F(Rpc, AnErrorOfAStreamingHandlerReachesTheCaller) {
  server.add_streaming("Test.rpc_sum", sum);
  auto result = swarm.run(call_sum(alice, bob.id(), {13}, swarm.after(10s)));
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message().find("unlucky"), std::string::npos);
}

TEST_F(Rpc, DroppingAStreamingCallDropsItsHandler) {
  bool dropped = false;
  server.add_streaming("Test.rpc_hold", [&](ServerStream& stream) -> Task<Result<>> {
    struct Note {
      bool& flag;
      ~Note() { flag = true; }
    } note{dropped};
    (void)co_await stream.receive(Deadline::never());
    co_await swarm.runtime().sleep_for(1h);
    co_return ok();
  });
  {
    auto call = swarm.run(open_call(alice, bob.id(), "Test.rpc_hold", swarm.after(5s))).value();
    ASSERT_TRUE(swarm.run(call->send(as_bytes("x"), swarm.after(5s))));
    ASSERT_TRUE(swarm.run(call->finish(swarm.after(5s))));
    swarm.pass(1s);
    EXPECT_FALSE(dropped);
  }
  swarm.pass(1s);
  EXPECT_TRUE(dropped);
}

TEST_F(Rpc, AVanishedCalleeFailsTheCall) {
  server.add_unary("Test.rpc_slow", [&](PeerId, std::string) -> Task<Result<std::string>> {
    co_await swarm.runtime().sleep_for(1h);
    co_return "late";
  });
  Result<std::string> result = std::string();
  TaskGroup group(swarm.runtime());
  auto task = [](p2p::Host& host, PeerId peer, Deadline deadline, Result<std::string>& out) -> Task<void> {
    out = co_await call_unary(host, peer, "Test.rpc_slow", "x", deadline);
  };
  group.spawn(task(alice, bob.id(), swarm.after(1h), result));
  swarm.pass(1s);
  swarm.fabric().kill(sim::Swarm::ip(2));
  swarm.pass(1s);
  EXPECT_TRUE(group.empty());
  EXPECT_FALSE(result);
}

}  // namespace
}  // namespace cohive::rpc
