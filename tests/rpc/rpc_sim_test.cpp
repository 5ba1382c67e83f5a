#include "rpc/fixture.hpp"

namespace cohive::rpc {
namespace {

using testing::call_sum;
using testing::receive_all;
using testing::refuse;
using testing::shout;
using testing::sum;

class Rpc : public testing::TwoHosts {};

TEST_F(Rpc, AUnaryCallBringsTheReply) {
  server.add_unary("Test.rpc_shout", shout);
  EXPECT_EQ(call("Test.rpc_shout", "hello").value(), "HELLO");
  EXPECT_EQ(call("Test.rpc_shout", "").value(), "");
  EXPECT_EQ(calls("rpc_shout", "client", "ok"), 2);
  EXPECT_EQ(calls("rpc_shout", "server", "ok"), 2);
}

TEST_F(Rpc, ACallTakesOneRoundTripOnceConnected) {
  server.add_unary("Test.rpc_shout", shout);
  swarm.pass(1s);  // identify tells alice what bob serves
  const auto start = swarm.runtime().now();
  EXPECT_TRUE(call("Test.rpc_shout", "x"));
  EXPECT_EQ(swarm.runtime().now() - start, 20ms);
}

TEST_F(Rpc, TheCallerIsKnownFromItsConnection) {
  server.add_unary("Test.rpc_who",
                   [](PeerId caller, std::string) -> Task<Result<std::string>> { co_return caller.text(); });
  EXPECT_EQ(call("Test.rpc_who", "").value(), alice.id().text());
}

TEST_F(Rpc, AFailingHandlerReportsItsTextAndItsPeer) {
  server.add_unary("Test.rpc_refuse", refuse);
  auto result = call("Test.rpc_refuse", "x");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::handler_failed);
  EXPECT_NE(result.error().message().find("kaboom"), std::string::npos);
  EXPECT_EQ(*result.error().peer(), bob.id());
  EXPECT_EQ(calls("rpc_refuse", "server", "failed"), 1);
}

TEST_F(Rpc, ABusyHandlerIsToldFromOneThatFails) {
  server.add_unary("Test.rpc_busy",
                   [](PeerId, std::string) -> Task<Result<std::string>> { co_return Error(Errc::busy, "too much"); });
  auto result = call("Test.rpc_busy", "x");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::busy);
  EXPECT_NE(result.error().message().find("too much"), std::string::npos) << "callers that know no such code read why";
  EXPECT_EQ(calls("rpc_busy", "server", "refused"), 1);
  EXPECT_EQ(calls("rpc_busy", "client", "refused"), 1);
}

TEST_F(Rpc, ADefectOfAHandlerIsAnErrorReplyThatTellsNothingOfItsInside) {
  server.add_unary("Test.rpc_throw", [](PeerId, std::string) -> Task<Result<std::string>> {
    throw std::logic_error("secret");
    co_return "";
  });
  server.add_streaming("Test.rpc_throw_too", [](ServerStream&) -> Task<Result<>> { throw std::logic_error("secret"); });
  auto result = call("Test.rpc_throw", "x");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::handler_failed);
  EXPECT_EQ(result.error().message().find("secret"), std::string::npos);
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_throw_too", swarm.after(5s))).value();
  ASSERT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
  EXPECT_EQ(swarm.run(stream->receive(swarm.after(5s))).error(), Errc::handler_failed);
}

TEST_F(Rpc, AnUnknownMethodIsAnErrorNotAHang) {
  auto result = call("Test.rpc_nothing", "x");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), transport::make_error_code(transport::Errc::protocol_not_supported));
  EXPECT_EQ(calls("rpc_nothing", "client", "broken"), 1);
}

TEST_F(Rpc, RequestsUpToTheLimitPassAndLargerOnesAreRefusedLocally) {
  server.add_unary("Test.rpc_shout", shout);
  EXPECT_EQ(call("Test.rpc_shout", std::string(4'000'000, 'a')).value().size(), 4'000'000u);
  swarm.pass(1s);
  const auto carried = swarm.fabric().bytes_carried();
  EXPECT_EQ(call("Test.rpc_shout", std::string(kMaxUnaryFrame, 'a')).error(), Errc::frame_too_large);
  EXPECT_EQ(swarm.fabric().bytes_carried(), carried);
}

TEST_F(Rpc, AnOversizeReplyBecomesAnErrorReply) {
  server.add_unary("Test.rpc_big", [](PeerId, std::string) -> Task<Result<std::string>> {
    co_return std::string(kMaxUnaryFrame, 'x');
  });
  EXPECT_EQ(call("Test.rpc_big", "").error(), Errc::handler_failed);
}

TEST_F(Rpc, ACallEndsAtItsDeadlineAndTheHandlerIsDropped) {
  serve_late();
  const auto start = swarm.runtime().now();
  EXPECT_EQ(call("Test.rpc_late", "", 2s).error(), cohive::Errc::timeout);
  EXPECT_EQ(swarm.runtime().now() - start, 2s);
  EXPECT_EQ(running, 1);
  swarm.pass(10ms);
  EXPECT_EQ(running, 0);
  EXPECT_EQ(calls("rpc_late", "client", "timeout"), 1);
  EXPECT_EQ(calls("rpc_late", "server", "cancelled"), 1);
}

TEST_F(Rpc, DroppingACallDropsItsHandler) {
  serve_late();
  TaskGroup group(swarm.runtime());
  group.spawn([](p2p::Host& host, PeerId peer) -> Task<void> {
    (void)co_await call_unary(host, peer, "Test.rpc_late", "x", Deadline::never());
  }(alice, bob.id()));
  swarm.pass(1s);
  EXPECT_EQ(running, 1);
  group.cancel();
  swarm.pass(10ms);
  EXPECT_EQ(running, 0);
  EXPECT_EQ(calls("rpc_late", "client", "cancelled"), 1);
}

TEST_F(Rpc, TheServerDroppedMeansTheMethodIsGoneAndItsCallsEnd) {
  auto other = std::make_unique<Server>(bob);
  other->add_unary("Other.rpc_shout", shout);
  other->add_unary("Other.rpc_late",
                   [this](PeerId, std::string) { return testing::answer_late(swarm.runtime(), running); });
  EXPECT_TRUE(call("Other.rpc_shout", "x"));
  Result<std::string> result = std::string();
  TaskGroup group(swarm.runtime());
  group.spawn([](p2p::Host& host, PeerId peer, Result<std::string>& out) -> Task<void> {
    out = co_await call_unary(host, peer, "Other.rpc_late", "x", Deadline::never());
  }(alice, bob.id(), result));
  swarm.pass(1s);
  EXPECT_EQ(running, 1);
  other.reset();
  EXPECT_EQ(running, 0);
  swarm.pass(1s);
  EXPECT_TRUE(group.empty());
  EXPECT_EQ(result.error(), cohive::Errc::reset);
  EXPECT_FALSE(call("Other.rpc_shout", "x"));
  EXPECT_THROW(server.add_unary("/ipfs/ping/1.0.0", shout), std::invalid_argument);
}

TEST_F(Rpc, ARemovedMethodIsGoneAndCanBeAddedAgain) {
  server.add_unary("Test.rpc_shout", shout);
  server.remove("Test.rpc_shout");
  EXPECT_FALSE(call("Test.rpc_shout", "x"));
  server.add_unary("Test.rpc_shout", shout);
  EXPECT_TRUE(call("Test.rpc_shout", "x"));
}

// A handler may end the very server that runs it, as when a peer tells us to leave.
Task<Result<std::string>> end_server(std::unique_ptr<Server>& server, Runtime& runtime, int& running) {
  testing::Running counted(running);
  server.reset();
  co_await runtime.sleep_for(1s);
  co_return "never";
}

TEST_F(Rpc, AHandlerMayEndItsOwnServer) {
  auto other = std::make_unique<Server>(bob);
  other->add_unary("Other.rpc_end", [&](PeerId, std::string) { return end_server(other, swarm.runtime(), running); });
  EXPECT_EQ(call("Other.rpc_end", "x").error(), cohive::Errc::reset);
  EXPECT_EQ(running, 0);
}

TEST_F(Rpc, OnePeerRunsOnlySoManyCallsAtOnce) {
  serve_late();
  server.add_unary("Test.rpc_shout", shout);
  TaskGroup group(swarm.runtime());
  for (std::size_t i = 0; i < kMaxCallsPerPeer; ++i) {
    group.spawn([](p2p::Host& host, PeerId peer) -> Task<void> {
      (void)co_await call_unary(host, peer, "Test.rpc_late", "x", Deadline::never());
    }(alice, bob.id()));
  }
  swarm.pass(2s);
  EXPECT_EQ(running, static_cast<int>(kMaxCallsPerPeer));
  EXPECT_FALSE(call("Test.rpc_shout", "x"));
  EXPECT_EQ(calls("rpc_shout", "server", "refused"), 1);
  auto& carol = swarm.add_host();  // another peer is not affected
  ASSERT_TRUE(swarm.run(carol.connect(bob.visible_addresses().front(), swarm.after(5s))));
  EXPECT_TRUE(swarm.run(call_unary(carol, bob.id(), "Test.rpc_shout", "x", swarm.after(5s))));
  group.cancel();
  swarm.pass(1s);
  EXPECT_TRUE(call("Test.rpc_shout", "x"));
}

TEST_F(Rpc, AStreamingCallSendsAndReceivesManyMessages) {
  server.add_streaming("Test.rpc_sum", sum);
  EXPECT_EQ(swarm.run(call_sum(alice, bob.id(), {1, 2, 3}, swarm.after(10s))).value(),
            (std::vector<std::string>{"1", "3", "6"}));
  EXPECT_TRUE(swarm.run(call_sum(alice, bob.id(), {}, swarm.after(10s))).value().empty());
  EXPECT_EQ(calls("rpc_sum", "client", "ok"), 2);
  EXPECT_EQ(calls("rpc_sum", "server", "ok"), 2);
}

TEST_F(Rpc, AnErrorOfAStreamingHandlerReachesTheCallerAfterWhatWasSent) {
  server.add_streaming("Test.rpc_sum", sum);
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_sum", swarm.after(5s))).value();
  ASSERT_TRUE(swarm.run(stream->send(as_bytes("13"), swarm.after(5s))));
  ASSERT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
  EXPECT_EQ(to_string(**swarm.run(stream->receive(swarm.after(5s)))), "13");
  auto result = swarm.run(stream->receive(swarm.after(5s)));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error(), Errc::handler_failed);
  EXPECT_NE(result.error().message().find("unlucky"), std::string::npos);
  EXPECT_FALSE(swarm.run(stream->receive(swarm.after(5s))).value());  // and then the end
  stream.reset();
  EXPECT_EQ(calls("rpc_sum", "client", "failed"), 1);
}

TEST_F(Rpc, AfterFinishNothingMoreCanBeSent) {
  server.add_streaming("Test.rpc_sum", sum);
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_sum", swarm.after(5s))).value();
  ASSERT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
  EXPECT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
  EXPECT_EQ(swarm.run(stream->send(as_bytes("1"), swarm.after(5s))).error(), Errc::message_after_end);
}

/// Repeats each request once.
Task<Result<>> echo(ServerStream& stream) {
  for (;;) {
    auto request = co_await stream.receive(Deadline::never());
    if (!request) co_return request.error();
    if (!*request) co_return ok();
    const ByteView parts[] = {(*request)->view().first((*request)->size() / 2),
                              (*request)->view().subspan((*request)->size() / 2)};
    auto sent = co_await stream.send(parts, Deadline::never());
    if (!sent) co_return sent;
  }
}
Task<void> send_sizes(ClientStream& call, const std::vector<std::size_t>& sizes, Deadline deadline) {
  for (std::size_t size : sizes) {
    const Bytes bytes(size, static_cast<std::uint8_t>(size));
    auto sent = co_await call.send(bytes, deadline);
    EXPECT_TRUE(sent);
  }
  EXPECT_TRUE(co_await call.finish(deadline));
}

TEST_F(Rpc, MessagesOfEverySizeSurviveAndTheOrderIsKept) {
  server.add_streaming("Test.rpc_echo", echo);
  const std::vector<std::size_t> sizes = {
      0, 1, 8, 9, 10, 65'535, 65'536, 65'537, 600'000, 0, 1 << 20, (1 << 20) + 1, 5'000'000, kMaxStreamRecord, 3};
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_echo", swarm.after(5s))).value();
  TaskGroup group(swarm.runtime());
  group.spawn(send_sizes(*stream, sizes, swarm.after(1min)));
  const auto replies = swarm.run(receive_all(*stream, swarm.after(1min))).value();
  ASSERT_EQ(replies.size(), sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    EXPECT_TRUE(replies[i] == std::string(sizes[i], static_cast<char>(sizes[i]))) << sizes[i];
  const Bytes larger(kMaxStreamRecord + 1);
  EXPECT_FALSE(swarm.run(stream->send(larger, swarm.after(1min))));
}

TEST_F(Rpc, AReceiveThatTimedOutCanBeRepeatedWithoutLoss) {
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 100'000});
  server.add_streaming("Test.rpc_echo", echo);
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_echo", swarm.after(5s))).value();
  ASSERT_TRUE(swarm.run(stream->send(Bytes(200'000, 7), swarm.after(1min))));
  int timeouts = 0;
  for (;;) {
    auto reply = swarm.run(stream->receive(swarm.after(100ms)));
    if (!reply) {
      ASSERT_EQ(reply.error(), cohive::Errc::timeout);
      ++timeouts;
      continue;
    }
    EXPECT_TRUE(to_string(**reply) == std::string(200'000, 7));
    break;
  }
  EXPECT_GT(timeouts, 10);
}

TEST_F(Rpc, ASendCutOffByItsDeadlineEndsTheCallForBothSides) {
  serve_hold();  // reads one request and no more
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_hold", swarm.after(5s))).value();
  const Bytes megabyte(1 << 20);
  Result<> sent;
  for (int i = 0; i < 100 && sent; ++i) sent = swarm.run(stream->send(megabyte, swarm.after(1s)));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error(), cohive::Errc::timeout);
  EXPECT_FALSE(swarm.run(stream->send(as_bytes("more"), swarm.after(1s))));
  EXPECT_FALSE(swarm.run(stream->finish(swarm.after(1s))));
  EXPECT_EQ(running, 1);
  stream.reset();
  swarm.pass(2h);
  EXPECT_EQ(running, 0);
}

TEST_F(Rpc, DroppingAStreamingCallDropsItsHandler) {
  serve_hold();
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_hold", swarm.after(5s))).value();
  ASSERT_TRUE(swarm.run(stream->send(as_bytes("x"), swarm.after(5s))));
  ASSERT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
  swarm.pass(1s);
  EXPECT_EQ(running, 1);
  stream.reset();
  swarm.pass(1s);
  EXPECT_EQ(running, 0);
  EXPECT_EQ(calls("rpc_hold", "server", "cancelled"), 1);
}

Task<Result<>> answer_first(ServerStream& stream) {
  auto request = co_await stream.receive(Deadline::never());
  if (!request) co_return request.error();
  co_return co_await stream.send(**request, Deadline::never());
}

TEST_F(Rpc, AHandlerWithOneRequestStartsWithoutTheEndOfTheStream) {
  server.add_streaming("Test.rpc_first", answer_first);
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_first", swarm.after(5s))).value();
  ASSERT_TRUE(swarm.run(stream->send(as_bytes("early"), swarm.after(5s))));
  EXPECT_EQ(swarm.run(receive_all(*stream, swarm.after(5s))).value(), std::vector<std::string>{"early"});
}

TEST_F(Rpc, ASlowHandlerHoldsItsCallerBackInsteadOfFillingMemory) {
  serve_hold();
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_hold", swarm.after(5s))).value();
  TaskGroup group(swarm.runtime());
  std::size_t sent = 0;
  group.spawn([](ClientStream& call, std::size_t& count) -> Task<void> {
    const Bytes message(100'000);
    while (co_await call.send(message, Deadline::never())) ++count;
  }(*stream, sent));
  swarm.pass(10min);
  const std::size_t after_a_while = sent;
  EXPECT_GT(after_a_while * 100'000, kMaxPrefetch);
  swarm.pass(10min);
  EXPECT_EQ(sent, after_a_while);
  EXPECT_EQ(running, 1);
  group.cancel();
  stream.reset();
  swarm.pass(2h);
}

}  // namespace
}  // namespace cohive::rpc
