// What goes over the wire, byte by byte, and what happens to callers and callees that break the rules.
// Source: docs/wire/hivemind.md, sections 2.2 and 2.3; docs/wire/libp2p.md, section 7.
#include "cohive/core/varint.hpp"
#include "cohive/proto/rpc.pb.h"
#include "rpc/fixture.hpp"

namespace cohive::rpc {
namespace {

using testing::receive_all;
using testing::shout;
using testing::sum;

/// Reads until the other side ends (then `reset` stays false) or resets, or two seconds passed.
struct Received {
  std::string bytes;
  std::optional<Error> error;
};
Task<Received> read_all(transport::Stream& stream, Deadline deadline) {
  Received received;
  for (;;) {
    auto slice = co_await stream.read(deadline);
    if (!slice) {
      received.error = slice.error();
      co_return received;
    }
    if (slice->empty()) co_return received;
    received.bytes += to_string(*slice);
  }
}

std::string framed(const std::string& body) {
  std::string frame;
  append_varint(frame, body.size());
  return frame + body;
}
std::string field(char key, const std::string& bytes) {
  return std::string(1, key) + framed(bytes);
}
std::string record(char marker, const std::string& payload) {
  std::string bytes(1, marker);
  for (int shift = 56; shift >= 0; shift -= 8) bytes += static_cast<char>(payload.size() >> shift & 255);
  return bytes + payload;
}
const std::string kEnd("\x01\0\0\0\0\0\0\0\0", 9);
const std::string kCallId(16, 'i');
std::string request_frame(const std::string& data) {
  return framed(field('\x0a', kCallId) +
                field('\x1a', field('\x0a', "") + field('\x12', "Test.rpc_shout") + field('\x1a', data)));
}

class Wire : public testing::TwoHosts {
 protected:
  /// A stream to bob on which a test plays the caller.
  transport::StreamPtr open(const std::string& protocol) {
    return swarm.run(alice.open_stream(bob.id(), protocol, swarm.after(5s))).value();
  }
  void write(transport::Stream& stream, const std::string& bytes) {
    ASSERT_TRUE(swarm.run(stream.write(as_bytes(bytes), swarm.after(5s))));
  }
  Received read(transport::Stream& stream, Duration limit = 2s) {
    return swarm.run(read_all(stream, swarm.after(limit)));
  }
  /// What bob answers to these bytes on a fresh stream that stays open.
  Received answer(const std::string& protocol, const std::string& bytes) {
    auto stream = open(protocol);
    write(*stream, bytes);
    return read(*stream);
  }
  /// A callee played by a test: keeps what the caller sends and answers with `reply`.
  void play_callee(const std::string& protocol, std::string reply, bool reset = false) {
    bob.set_handler(protocol, [this, reply, reset](transport::StreamPtr stream) {
      return play(swarm.runtime(), std::move(stream), reply, reset, seen);
    });
  }
  static Task<void> play(Runtime& runtime, transport::StreamPtr stream, std::string reply, bool reset, Received& seen) {
    seen = co_await read_all(*stream, runtime.after(1s));
    if (!reply.empty()) (void)co_await stream->write(as_bytes(reply), runtime.after(5s));
    if (reset) co_return;
    stream->close_write();
    seen.error = (co_await read_all(*stream, runtime.after(1s))).error;
  }
  Received seen;
};

TEST_F(Wire, AUnaryRequestIsOneFrameAndTheCallerKeepsItsSideOpen) {
  play_callee("DHTProtocol.rpc_ping", framed(field('\x0a', kCallId) + field('\x22', field('\x0a', "WORLD"))));
  EXPECT_EQ(call("DHTProtocol.rpc_ping", "").value(), "WORLD");
  const std::string& bytes = seen.bytes;
  ASSERT_GT(bytes.size(), 19u);
  EXPECT_EQ(static_cast<std::size_t>(bytes[0]), bytes.size() - 1);
  EXPECT_EQ(bytes.substr(1, 2), "\x0a\x10");
  const std::string id = bytes.substr(3, 16);
  EXPECT_EQ(id[6] & 0xf0, 0x40);  // a random UUID
  EXPECT_EQ(bytes.substr(19), field('\x1a', field('\x0a', bob.id().binary()) + field('\x12', "DHTProtocol.rpc_ping") +
                                                std::string("\x1a\0", 2)));
}

TEST_F(Wire, AUnaryReplyIsOneFrameWithTheSameIdAndThenTheEnd) {
  server.add_unary("Test.rpc_shout", shout);
  const auto received = answer("Test.rpc_shout", request_frame("hello"));
  EXPECT_EQ(received.bytes, framed(field('\x0a', kCallId) + field('\x22', field('\x0a', "HELLO"))));
  EXPECT_FALSE(received.error);
  EXPECT_EQ(answer("Test.rpc_shout", request_frame("")).bytes,
            framed(field('\x0a', kCallId) + std::string("\x22\x02\x0a\x00", 4)));
}

TEST_F(Wire, AnErrorReplyCarriesPrintableText) {
  server.add_unary("Test.rpc_shout", [](PeerId, std::string) -> Task<Result<std::string>> {
    co_return Error(cohive::Errc::not_found, "caf\xc3\xa9\n" + std::string(10'000, 'x'));
  });
  proto::PersistentConnectionRequest reply;
  const std::string bytes = answer("Test.rpc_shout", request_frame("")).bytes;
  ASSERT_TRUE(reply.ParseFromString(bytes.substr(2)));
  const std::string& text = reply.unary_response().error();
  EXPECT_NE(text.find("caf???"), std::string::npos);
  EXPECT_EQ(text.size(), kMaxErrorText);
}

TEST_F(Wire, ARequestInSinglePiecesIsUnderstood) {
  server.add_unary("Test.rpc_shout", shout);
  auto stream = open("Test.rpc_shout");
  for (char c : request_frame("slow")) write(*stream, std::string(1, c));
  EXPECT_NE(read(*stream).bytes.find("SLOW"), std::string::npos);
}

TEST_F(Wire, MalformedUnaryRequestsAreClosedWithoutAReply) {
  server.add_unary("Test.rpc_shout", shout);
  const std::string call = field('\x1a', field('\x0a', "") + field('\x12', "x") + field('\x1a', ""));
  const std::vector<std::string> frames = {
      framed(field('\x0a', "short") + call),                                                   // call id
      framed(field('\x0a', kCallId)),                                                          // no call
      framed(call),                                                                            // no id
      framed(field('\x0a', kCallId) + field('\x1a', field('\x12', "x") + field('\x1a', ""))),  // no peer
      framed(field('\x0a', kCallId) + field('\x1a', field('\x0a', "") + field('\x1a', ""))),   // no name
      framed(field('\x0a', kCallId) + field('\x22', field('\x0a', "a reply"))),                // not a request
      framed("\xff\xff\xff"),                                                                  // no protobuf
      framed(""),                                                                              // nothing
      std::string("\x81\x80\x80\x02", 4),                                                      // 4 MiB + 1
      std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 10),                             // 2^64 - 1
      std::string(11, '\xff'),                                                                 // no length
  };
  for (const auto& frame : frames) {
    const auto received = answer("Test.rpc_shout", frame);
    EXPECT_EQ(received.bytes, "") << to_hex(as_bytes(frame));
    EXPECT_FALSE(received.error && *received.error == cohive::Errc::timeout) << to_hex(as_bytes(frame));
  }
  EXPECT_EQ(calls("rpc_shout", "server", "malformed"), static_cast<double>(frames.size()));
}

TEST_F(Wire, ARequestThatNeverCompletesIsGivenUp) {
  server.add_unary("Test.rpc_shout", shout);
  auto stream = open("Test.rpc_shout");
  write(*stream, request_frame("hello").substr(0, 10));
  const auto start = swarm.runtime().now();
  EXPECT_EQ(read(*stream, 1h).bytes, "");
  EXPECT_NEAR(to_seconds(swarm.runtime().now() - start), to_seconds(kRequestReadTimeout), 1);
}

TEST_F(Wire, FinResetOrOneByteMoreCancelAUnaryCall) {
  serve_late();
  for (int way = 0; way < 3; ++way) {
    auto stream = open("Test.rpc_late");
    write(*stream, request_frame("x"));
    swarm.pass(1s);
    ASSERT_EQ(running, 1);
    if (way == 0) stream->close_write();
    if (way == 1) stream->reset();
    if (way == 2) write(*stream, "!");
    swarm.pass(1s);
    EXPECT_EQ(running, 0) << way;
    EXPECT_EQ(read(*stream).bytes, "");
  }
  EXPECT_EQ(calls("rpc_late", "server", "cancelled"), 3);
}

TEST_F(Wire, TwoCallersMayUseTheSameCallId) {
  server.add_unary("Test.rpc_shout", shout);
  auto first = open("Test.rpc_shout"), second = open("Test.rpc_shout");
  write(*first, request_frame("one"));
  write(*second, request_frame("two"));
  EXPECT_NE(read(*first).bytes.find("ONE"), std::string::npos);
  EXPECT_NE(read(*second).bytes.find("TWO"), std::string::npos);
}

TEST_F(Wire, BadRepliesAreErrorsThatNameThePeer) {
  const std::string id = field('\x0a', kCallId);
  struct Case {
    std::string reply;
    std::error_code error;
  };
  const std::vector<Case> cases = {
      {"", Errc::call_cancelled},
      {framed(id), Errc::malformed_frame},
      {framed(id + field('\x22', "")), Errc::malformed_frame},
      {framed("\xff\xff"), Errc::malformed_frame},
      {std::string("\x81\x80\x80\x02", 4), cohive::Errc::limit_exceeded},
      {framed(id + field('\x22', field('\x0a', "cut"))).substr(0, 12), cohive::Errc::end_of_stream},
      {framed(id + field('\x22', field('\x12', "ValueError('kaboom')"))), Errc::handler_failed},
      {framed(id + field('\x22', field('\x12', "later") + "\xc0\x3e\x01")), Errc::busy},
  };
  int number = 0;
  for (const auto& one : cases) {
    const std::string protocol = "Fake" + std::to_string(number++) + ".rpc_x";
    play_callee(protocol, one.reply);
    auto result = call(protocol, "");
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code(), one.error) << protocol;
    EXPECT_EQ(*result.error().peer(), bob.id());
  }
  play_callee("Fake.rpc_reset", "", true);
  EXPECT_EQ(call("Fake.rpc_reset", "").error(), cohive::Errc::reset);
}

TEST_F(Wire, AReplyWithAnotherCallIdIsAccepted) {  // p2pd looks only at the answer, too
  play_callee("Test.rpc_other", framed(field('\x0a', std::string(16, 'z')) + field('\x22', field('\x0a', "yes"))));
  EXPECT_EQ(call("Test.rpc_other", "").value(), "yes");
}

TEST_F(Wire, AStreamingCallerSendsRecordsAndTheEndMarkerAndDoesNotClose) {
  play_callee("Test.rpc_x", record(0, "a reply"));
  auto stream = swarm.run(open_call(alice, bob.id(), "Test.rpc_x", swarm.after(5s))).value();
  const ByteView parts[] = {as_bytes("two "), as_bytes("parts")};
  ASSERT_TRUE(swarm.run(stream->send(parts, swarm.after(5s))));
  ASSERT_TRUE(swarm.run(stream->send(ByteView(), swarm.after(5s))));
  ASSERT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
  EXPECT_EQ(swarm.run(receive_all(*stream, swarm.after(5s))).value(), std::vector<std::string>{"a reply"});
  swarm.pass(2s);
  EXPECT_EQ(seen.bytes, record(0, "two parts") + record(0, "") + kEnd);
  EXPECT_FALSE(seen.error);  // once the callee ended, the caller did, too
}

TEST_F(Wire, AStreamingCalleeSendsRecordsAndThenTheEnd) {
  server.add_streaming("Test.rpc_sum", sum);
  const auto received = answer("Test.rpc_sum", record(0, "4") + record(0, "5") + kEnd);
  EXPECT_EQ(received.bytes, record(0, "4") + record(0, "9"));
  EXPECT_FALSE(received.error);
}

TEST_F(Wire, AnyErrorRecordOfTheCallerMeansTheEnd) {
  server.add_streaming("Test.rpc_sum", sum);
  EXPECT_EQ(answer("Test.rpc_sum", record(0, "4") + record(1, "\x0a\x03why")).bytes, record(0, "4"));
}

TEST_F(Wire, AFailedStreamingHandlerSendsAnErrorRecordAndThenTheEnd) {
  server.add_streaming("Test.rpc_sum", sum);
  const auto received = answer("Test.rpc_sum", record(0, "13") + kEnd);
  const std::string before = record(0, "13");
  ASSERT_EQ(received.bytes.substr(0, before.size()), before);
  const std::string after = received.bytes.substr(before.size());
  ASSERT_GT(after.size(), 9u);
  EXPECT_EQ(after[0], 1);
  proto::RPCError error;
  ASSERT_TRUE(error.ParseFromString(after.substr(9)));
  EXPECT_NE(error.message().find("unlucky"), std::string::npos);
  EXPECT_FALSE(received.error);
}

Task<Result<>> refuse_unheard(ServerStream&) {
  co_return Error(cohive::Errc::limit_exceeded, "not today");
}

TEST_F(Wire, AStreamIsHeldOpenUntilTheCallerHasEndedItsRequests) {  // else Python cannot write them, and reads nothing
  server.add_streaming("Test.rpc_refuse", refuse_unheard);
  auto stream = open("Test.rpc_refuse");
  auto received = read(*stream);
  EXPECT_NE(received.bytes.find("not today"), std::string::npos);
  ASSERT_TRUE(received.error);
  EXPECT_EQ(*received.error, cohive::Errc::timeout);
  for (int i = 0; i < 8; ++i) write(*stream, record(0, std::string(1 << 20, 'x')));  // thrown away, or it would stop
  write(*stream, kEnd);
  received = read(*stream);
  EXPECT_EQ(received.bytes, "");
  EXPECT_FALSE(received.error);
  swarm.pass(1s);
  EXPECT_EQ(calls("rpc_refuse", "server", "failed"), 1);
}

TEST_F(Wire, ACallerThatNeverEndsItsRequestsIsNotWaitedForLong) {
  server.add_streaming("Test.rpc_refuse", refuse_unheard);
  auto stream = open("Test.rpc_refuse");
  const auto received = read(*stream, 15s);
  EXPECT_NE(received.bytes.find("not today"), std::string::npos);
  EXPECT_FALSE(received.error);
}

TEST_F(Wire, WhatIsAnsweredArrivesEvenIfTheServerEndsBeforeTheCallerHasEndedItsRequests) {
  server.add_streaming("Test.rpc_once", [](ServerStream& call) -> Task<Result<>> {
    co_return co_await call.send(as_bytes(std::string_view("all there is")), Deadline::never());
  });
  auto stream = open("Test.rpc_once");
  write(*stream, record(0, "5"));
  swarm.pass(100ms);
  owner.reset();
  const Received received = read(*stream);
  EXPECT_EQ(received.bytes, record(0, "all there is"));
  EXPECT_FALSE(received.error) << *received.error;
}

TEST_F(Wire, RepliesThatACallerDoesNotReadTakeLimitedRoom) {
  server.add_unary("Test.rpc_big",
                   [](PeerId, std::string) -> Task<Result<std::string>> { co_return std::string(4'000'000, 'x'); });
  std::vector<transport::StreamPtr> unread;
  for (int i = 0; i < 100; ++i) {
    unread.push_back(open("Test.rpc_big"));
    write(*unread.back(), request_frame("x"));
  }
  swarm.pass(1s);
  EXPECT_EQ(calls("rpc_big", "server", "refused"), 100 - 16);
  unread.clear();
  swarm.pass(1s);
  EXPECT_EQ(call("Test.rpc_big", "x").value().size(), 4'000'000u) << "the room is free again";
}

TEST_F(Wire, ClosingOrBreakingTheRulesCancelsAStreamingCall) {
  serve_hold();
  const std::vector<std::string> breaches = {
      record(2, "bad marker"),
      std::string("\0\0\0\0\0\x01\0\0\x01", 9),  // 16 MiB + 1
      std::string("\0\xff\xff\xff\xff\xff\xff\xff\xff", 9),
      kEnd + record(0, "behind the end"),
  };
  for (const auto& breach : breaches) {
    auto stream = open("Test.rpc_hold");
    write(*stream, record(0, "x"));
    swarm.pass(1s);
    ASSERT_EQ(running, 1);
    write(*stream, breach);
    const auto received = read(*stream);
    EXPECT_EQ(running, 0) << to_hex(as_bytes(breach));
    ASSERT_TRUE(received.error);
    EXPECT_EQ(*received.error, cohive::Errc::reset);
  }
  EXPECT_EQ(calls("rpc_hold", "server", "malformed"), static_cast<double>(breaches.size()));
  for (bool reset : {false, true}) {
    auto stream = open("Test.rpc_hold");
    write(*stream, record(0, "x") + kEnd);
    swarm.pass(1s);
    ASSERT_EQ(running, 1);
    reset ? stream->reset() : stream->close_write();
    swarm.pass(1s);
    EXPECT_EQ(running, 0);
  }
}

TEST_F(Wire, RecordsInSinglePiecesAreUnderstood) {
  server.add_streaming("Test.rpc_sum", sum);
  auto stream = open("Test.rpc_sum");
  for (char c : record(0, "12345") + kEnd) write(*stream, std::string(1, c));
  EXPECT_EQ(read(*stream).bytes, record(0, "12345"));
}

TEST_F(Wire, BadAnswersToAStreamingCallAreErrors) {
  struct Case {
    std::string reply;
    std::error_code error;
    bool reset = false;
  };
  const std::vector<Case> cases = {
      {record(7, "x"), Errc::malformed_frame},
      {std::string("\0\0\0\0\0\x01\0\0\x01", 9), Errc::frame_too_large},
      {record(0, "cut off").substr(0, 12), cohive::Errc::end_of_stream},
      {record(0, "").substr(0, 5), cohive::Errc::end_of_stream},
      {record(1, "\xff\xff"), Errc::malformed_frame},
      {record(1, "\x0a\x03why"), Errc::handler_failed},
      {record(1, ""), Errc::handler_failed},
      {"", cohive::Errc::reset, true},
  };
  int number = 0;
  for (const auto& one : cases) {
    const std::string protocol = "Fake" + std::to_string(number++) + ".rpc_x";
    play_callee(protocol, one.reply, one.reset);
    auto stream = swarm.run(open_call(alice, bob.id(), protocol, swarm.after(5s))).value();
    ASSERT_TRUE(swarm.run(stream->finish(swarm.after(5s))));
    auto result = swarm.run(receive_all(*stream, swarm.after(5s)));
    ASSERT_FALSE(result) << protocol;
    EXPECT_EQ(result.error().code(), one.error) << protocol;
    EXPECT_EQ(*result.error().peer(), bob.id());
  }
}

// A peer that opens many calls and feeds them slowly cannot make us hold more than its share.
TEST_F(Wire, HalfSentRequestsOfOnePeerShareALimitedRoom) {
  server.add_unary("Test.rpc_shout", shout);
  const std::string frame = request_frame(std::string(4'000'000, 'a'));
  std::vector<transport::StreamPtr> streams;
  for (int i = 0; i < 20; ++i) {
    streams.push_back(open("Test.rpc_shout"));
    write(*streams.back(), frame.substr(0, 10));
  }
  swarm.pass(1s);
  // 16 of them may fill their requests; the others wait for room until theirs is given up or they get it.
  TaskGroup group(swarm.runtime());
  std::vector<std::size_t> done(streams.size());
  for (std::size_t i = 0; i < streams.size(); ++i) {
    group.spawn([](transport::Stream& stream, std::string rest, std::size_t& out, Deadline deadline) -> Task<void> {
      if (!co_await stream.write(as_bytes(rest), deadline)) co_return;
      out = (co_await read_all(stream, deadline)).bytes.size();
    }(*streams[i], frame.substr(10), done[i], swarm.after(1min)));
  }
  swarm.pass(1min);
  EXPECT_TRUE(group.empty());
  for (std::size_t size : done) EXPECT_GT(size, 4'000'000u);
}

}  // namespace
}  // namespace cohive::rpc
