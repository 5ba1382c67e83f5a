// How yamux connections end: by broken rules, by silence, by a flood, or in an orderly way.
#include <random>

#include "yamux_peer.hpp"

namespace cohive::transport {
namespace {

using namespace yamux_test;

class YamuxEnd : public YamuxPeer {};

// ---- The end of the connection

TEST_F(YamuxEnd, BrokenRulesCloseTheConnection) {
  const struct {
    const char* what;
    int type, flags;
    std::uint32_t id, length;
    std::uint8_t version;
  } cases[] = {
      {"version", kPing, kSyn, 0, 1, 1},
      {"type", 4, 0, 0, 0, 0},
      {"data on stream 0", kData, 0, 0, 5, 0},
      {"our parity", kWindow, kSyn, 2, 0, 0},
      {"opened twice", kWindow, kSyn, 1, 0, 0},
      {"window", kData, 0, 1, kWindowSize + 1, 0},
      {"first frame beyond the window", kData, kSyn, 3, kWindowSize + 1, 0},
      {"endless frame to nobody", kData, 0, 55, 0xffffffff, 0},
  };
  for (const auto& one : cases) {
    wire_ = test::Wire(runtime_);
    start();
    send(kWindow, kSyn, 1, 0);
    auto stream = accept();
    send(one.type, one.flags, one.id, one.length, {}, one.version);
    expect_violation(one.what);
    EXPECT_EQ(read(*stream).error(), cohive::Errc::closed) << one.what;
    EXPECT_FALSE(connection_->open_stream());
    connection_.reset();
  }
}

TEST_F(YamuxEnd, WindowIsCountedAcrossFrames) {
  start();
  send(kWindow, kSyn, 1, 0);
  for (int i = 0; i < 4; ++i) send_data(1, Bytes(64 * 1024, 1));
  EXPECT_FALSE(connection_->closed());
  send_data(1, Bytes(1, 1));
  expect_violation("one byte too many");
}

TEST_F(YamuxEnd, PingFloodWithoutReadingIsEnded) {
  start();
  wire_.stall(true);
  Bytes burst;
  for (int i = 0; i < 100'000; ++i) {
    const std::uint8_t frame[] = {0, kPing, 0, kSyn, 0, 0, 0, 0, 0, 0, 0, 1};
    burst.insert(burst.end(), std::begin(frame), std::end(frame));
  }
  wire_.send(burst);
  runtime_.run_ready();
  expect_violation("flood");
}

/// The longest queue that writers make.
TEST_F(YamuxEnd, APeerIsNotBlamedForWhatIsQueuedForIt) {
  start(Role::initiator);
  auto bulk = open();
  send(kWindow, 0, 1, 8 << 20);
  ASSERT_TRUE(write(*bulk, Bytes(2 << 20, 1))) << "a network that takes much gets a long queue";
  frames();
  wire_.stall(true);
  EXPECT_EQ(write(*bulk, Bytes(1 << 20, 1), 10ms).error(), cohive::Errc::timeout);
  std::vector<StreamPtr> questions;
  do {
    questions.push_back(open());
  } while (questions.size() < 200 && write(*questions.back(), Bytes(2048, 1), 1ms));
  EXPECT_GT(questions.size(), 8u) << "questions go ahead of a transfer";
  EXPECT_LT(questions.size(), 200u);
  send(kPing, kSyn, 0, 7);
  send(kWindow, kSyn, 2, 0);
  EXPECT_FALSE(connection_->closed()) << connection_->close_reason();
}

TEST_F(YamuxEnd, PeerThatIsGoingAwayGetsNoNewStreams) {
  start(Role::initiator);
  auto stream = open();
  send(kGoAway, 0, 0, 0);
  EXPECT_EQ(connection_->open_stream().error(), cohive::Errc::closed);
  EXPECT_TRUE(write(*stream, as_bytes("still")));
  send(kGoAway, 0, 0, 2);
  EXPECT_TRUE(connection_->closed());
}

TEST_F(YamuxEnd, SilentPeerIsGivenUp) {
  start();
  runtime_.run_for(9s);
  EXPECT_FALSE(connection_->closed());
  runtime_.run_for(2s);
  ASSERT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), Errc::keepalive_timeout);
}

TEST_F(YamuxEnd, SilenceLaterIsNoticedWithinIntervalAndTimeout) {
  start();
  send(kPing, kAck, 0, 1);
  runtime_.run_for(39s);
  EXPECT_FALSE(connection_->closed());
  EXPECT_EQ(frames(), (std::vector<Frame>{{kPing, kSyn, 0, 2, {}}}));
  runtime_.run_for(2s);
  EXPECT_EQ(connection_->close_reason(), Errc::keepalive_timeout);
}

TEST_F(YamuxEnd, BusyPeerMayAnswerPingsLate) {
  start();
  send(kWindow, kSyn, 1, 0);
  auto stream = accept();
  for (int i = 0; i < 30; ++i) {
    runtime_.run_for(5s);
    send_data(1, as_bytes("x"));
  }
  EXPECT_FALSE(connection_->closed());
}

TEST_F(YamuxEnd, NetworkThatTakesNothingForTenSecondsIsGivenUp) {
  start();
  wire_.stall(true);
  send(kPing, kSyn, 0, 1);
  for (std::uint32_t i = 0; i < 5; ++i) {
    runtime_.run_for(3s);
    send(kPing, kSyn, 0, i);
  }
  ASSERT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), cohive::Errc::timeout);
}

Task<void> echo_until_end(StreamPtr stream) {
  for (;;) {
    auto bytes = co_await stream->read(stream->runtime().after(5s));
    if (!bytes || bytes->empty()) break;
    auto written = co_await stream->write(bytes->view(), stream->runtime().after(5s));
    if (!written) co_return;
  }
  stream->close_write();
}

Task<void> serve_echo(Connection& connection, TaskGroup& group) {
  for (;;) {
    auto stream = co_await connection.accept_stream();
    if (!stream) co_return;
    group.spawn(echo_until_end(std::move(*stream)));
  }
}

TEST_F(YamuxEnd, RandomFramesLeaveNothingBehind) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const auto pick = [&](unsigned below) { return random() % below; };
    wire_ = test::Wire(runtime_);
    start(pick(2) ? Role::responder : Role::initiator, {.max_pending_streams = 4, .max_buffered = 400'000});
    TaskGroup group(runtime_);
    group.spawn(serve_echo(*connection_, group));
    std::vector<StreamPtr> ours;
    for (int i = 0; i < 150 && !connection_->closed(); ++i) {
      if (pick(8) == 0) {
        if (auto stream = connection_->open_stream()) group.spawn(echo_until_end(std::move(*stream)));
      }
      const auto type = static_cast<int>(pick(100) == 0 ? pick(256) : pick(3));
      const auto flags = static_cast<int>(pick(4) == 0 ? pick(16) : pick(2) * kSyn);
      Bytes payload(type == kData ? pick(pick(4) == 0 ? 60'000 : 50) : 0, 7);
      const auto length = static_cast<std::uint32_t>(type == kData ? payload.size() : pick(100'000));
      send(type, flags, type == kPing ? 0 : 1 + pick(20), length, payload);
      if (pick(10) == 0) runtime_.run_for(std::chrono::milliseconds(pick(3000)));
    }
    if (pick(2)) wire_.finish();
    runtime_.run_for(30s);
    if (pick(2)) group.cancel();
    connection_.reset();
    runtime_.run_ready();
    EXPECT_TRUE(group.empty()) << "seed " << seed;
    EXPECT_EQ(runtime_.task_count(), 0u) << "seed " << seed;
  }
}

TEST_F(YamuxEnd, WaitersLearnOfTheEnd) {
  start();
  Result<StreamPtr> accepted = Error(cohive::Errc::internal);
  bool ended = false;
  TaskGroup group(runtime_);
  group.spawn([](Connection& c, Result<StreamPtr>& out) -> Task<void> { out = co_await c.accept_stream(); }(
                                                            *connection_, accepted));
  group.spawn([](Connection& c, bool& out) -> Task<void> {
    co_await c.wait_closed();
    out = true;
  }(*connection_, ended));
  runtime_.run_ready();
  wire_.finish();
  runtime_.run_ready();
  EXPECT_TRUE(ended);
  EXPECT_EQ(accepted.error(), cohive::Errc::closed);
  EXPECT_EQ(runtime_.task_count(), 0u);
}

// ---- An orderly end

Task<void> finish(Connection& connection, Deadline deadline) {
  co_await connection.finish(Error(cohive::Errc::closed, "enough"), deadline);
}

TEST_F(YamuxEnd, AnOrderlyEndSendsWhatIsQueuedThenAFarewellAndWaitsForThePeersEnd) {
  start(Role::initiator);
  auto stream = open();
  TaskGroup group(runtime_);
  wire_.stall(true);
  ASSERT_TRUE(write(*stream, as_bytes("last words")));
  group.spawn(finish(*connection_, runtime_.after(2s)));
  runtime_.run_ready();
  EXPECT_TRUE(connection_->closed());
  EXPECT_FALSE(connection_->open_stream());
  EXPECT_EQ(read(*stream).error(), cohive::Errc::closed);
  EXPECT_TRUE(frames().empty());
  wire_.stall(false);
  const auto sent = frames();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(to_string(sent[0].payload), "last words");
  EXPECT_EQ(sent[1].type, kGoAway);
  EXPECT_EQ(sent[1].length, 0u);
  EXPECT_TRUE(wire_.closed_by_us());  // our side
  send_data(1, as_bytes("still talking"));
  send(kPing, kSyn, 0, 9);
  EXPECT_TRUE(frames().empty());
  EXPECT_FALSE(group.empty());
  wire_.finish();
  runtime_.run_ready();
  EXPECT_TRUE(group.empty());
  EXPECT_EQ(connection_->close_reason().detail(), "enough");
  EXPECT_EQ(runtime_.task_count(), 0u);
}

TEST_F(YamuxEnd, APeerThatDoesNotEndIsLeftAtTheDeadline) {
  for (const bool stalled : {false, true}) {
    wire_ = test::Wire(runtime_);
    start();
    wire_.stall(stalled);
    const TimePoint begun = runtime_.now();
    runtime_.run(finish(*connection_, runtime_.after(2s)));
    EXPECT_EQ(runtime_.now() - begun, 2s);
    EXPECT_TRUE(wire_.closed_by_us());
    EXPECT_EQ(runtime_.task_count(), 0u);
  }
}

TEST_F(YamuxEnd, APeerThatGoesOnSendingAfterOurEndIsCutOff) {
  start(Role::responder, {.max_buffered = 1024 * 1024});
  TaskGroup group(runtime_);
  group.spawn(finish(*connection_, runtime_.after(1h)));
  runtime_.run_ready();
  for (int i = 0; i < 16; ++i) {
    wire_.send(Bytes(64 * 1024, 1));
    runtime_.run_ready();
  }
  EXPECT_FALSE(group.empty());
  wire_.send(Bytes(1, 1));
  runtime_.run_ready();
  EXPECT_TRUE(group.empty());
}

TEST_F(YamuxEnd, ConnectionMayGoBeforeItsStreamsAndTheirTasks) {
  start(Role::initiator);
  auto stream = open();
  Result<> written = ok();
  Result<Slice> got = Slice();
  TaskGroup group(runtime_);
  group.spawn([](Stream& s, Result<>& out) -> Task<void> {
    const Bytes data(2 * kWindowSize, 1);
    out = co_await s.write(data, Deadline::never());
  }(*stream, written));
  group.spawn(
      [](Stream& s, Result<Slice>& out) -> Task<void> { out = co_await s.read(Deadline::never()); }(*stream, got));
  runtime_.run_ready();
  connection_.reset();
  runtime_.run_ready();
  EXPECT_EQ(written.error(), cohive::Errc::closed);
  EXPECT_EQ(got.error(), cohive::Errc::closed);
  stream->close_write();
  stream->reset();
  EXPECT_EQ(runtime_.task_count(), 0u);
}

}  // namespace
}  // namespace cohive::transport
