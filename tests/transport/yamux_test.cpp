// The yamux rules, seen by a peer that speaks single frames: what we send, what we accept, what ends the connection.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/transport/errors.hpp"
#include "memory_connection.hpp"
#include "transport/yamux.hpp"

namespace cohive::transport {
namespace {

enum Type : std::uint8_t { kData, kWindow, kPing, kGoAway };
enum Flag : std::uint16_t { kSyn = 1, kAck = 2, kFin = 4, kRst = 8 };
constexpr std::size_t kWindowSize = 256 * 1024;

struct Frame {
  int type = 0;
  int flags = 0;
  std::uint32_t id = 0, length = 0;
  Bytes payload;
  friend bool operator==(const Frame&, const Frame&) = default;
};
std::ostream& operator<<(std::ostream& out, const Frame& frame) {
  return out << "{type " << frame.type << ", flags " << frame.flags << ", stream " << frame.id << ", length "
             << frame.length << '}';
}

std::uint32_t number(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

KeyPair peer_key() {
  return KeyPair::ed25519_from_seed(Bytes(32, 9));
}

class Yamux : public ::testing::Test {
 protected:
  void start(Role role = Role::responder, TransportOptions options = {}) {
    connection_ = std::make_unique<YamuxConnection>(
        runtime_, std::make_unique<SecureChannel>(runtime_, wire_.our_end(), std::nullopt, Bytes()), role,
        peer_key().public_key(), options);
    runtime_.run_ready();
    EXPECT_EQ(frames(), (std::vector<Frame>{{kPing, kSyn, 0, 1, {}}})) << "a ping measures the round trip at once";
  }

  void send(int type, int flags, std::uint32_t id, std::uint32_t length, ByteView payload = {},
            std::uint8_t version = 0) {
    Bytes frame{version, static_cast<std::uint8_t>(type), static_cast<std::uint8_t>(flags >> 8),
                static_cast<std::uint8_t>(flags)};
    for (std::uint32_t value : {id, length})
      for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<std::uint8_t>(value >> shift));
    frame.insert(frame.end(), payload.begin(), payload.end());
    wire_.send(frame);
    runtime_.run_ready();
  }
  void send_data(std::uint32_t id, ByteView payload, int flags = 0) {
    send(kData, flags, id, static_cast<std::uint32_t>(payload.size()), payload);
  }

  /// All frames that came from the connection since the last call.
  std::vector<Frame> frames() {
    runtime_.run_ready();
    const Bytes bytes = wire_.received();
    std::vector<Frame> result;
    for (std::size_t at = 0; at + 12 <= bytes.size();) {
      EXPECT_EQ(bytes[at], 0) << "version";
      Frame frame{
          bytes[at + 1], bytes[at + 2] << 8 | bytes[at + 3], number(&bytes[at + 4]), number(&bytes[at + 8]), {}};
      at += 12;
      if (frame.type == kData) {
        frame.payload.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                             bytes.begin() + static_cast<std::ptrdiff_t>(at + frame.length));
        at += frame.length;
      }
      result.push_back(std::move(frame));
    }
    return result;
  }
  std::size_t payload_bytes() {
    std::size_t total = 0;
    for (const auto& frame : frames()) total += frame.payload.size();
    return total;
  }

  StreamPtr accept() { return runtime_.run(connection_->accept_stream()).value(); }
  StreamPtr open() { return connection_->open_stream().value(); }
  Result<Slice> read(Stream& stream) { return runtime_.run(stream.read(runtime_.after(1s))); }
  Bytes read_all(Stream& stream) {
    Bytes all;
    while (stream.readable()) {
      auto slice = read(stream);
      if (!slice || slice->empty()) break;
      all.insert(all.end(), slice->data(), slice->data() + slice->size());
    }
    return all;
  }
  Result<> write(Stream& stream, ByteView bytes, Duration patience = 1s) {
    return runtime_.run(stream.write(bytes, runtime_.after(patience)));
  }
  void expect_violation(std::string_view what) {
    ASSERT_TRUE(connection_->closed()) << what;
    EXPECT_EQ(connection_->close_reason(), Errc::muxer_violation) << what;
    EXPECT_NE(connection_->close_reason().message().find(peer_key().peer_id().text()), std::string::npos);
    EXPECT_TRUE(wire_.closed_by_us());
    EXPECT_EQ(connection_->stats().streams_in + connection_->stats().streams_out, 0u);
  }

  SimRuntime runtime_;
  test::Wire wire_{runtime_};
  std::unique_ptr<YamuxConnection> connection_;
};

// ---- What we send

TEST_F(Yamux, OpenedStreamAnnouncesItselfWithItsFirstFrame) {
  start(Role::initiator);
  auto first = open(), second = open();
  EXPECT_TRUE(frames().empty());
  ASSERT_TRUE(write(*second, as_bytes("hi")));
  ASSERT_TRUE(write(*second, as_bytes("ho")));
  EXPECT_EQ(frames(), (std::vector<Frame>{{kData, kSyn, 3, 2, to_bytes("hi")}, {kData, 0, 3, 2, to_bytes("ho")}}));
  EXPECT_EQ(read(*first).error(), cohive::Errc::timeout);
  EXPECT_EQ(frames(), (std::vector<Frame>{{kWindow, kSyn, 1, 0, {}}})) << "who only listens announces the stream too";
  first->close_write();
  EXPECT_EQ(frames(), (std::vector<Frame>{{kWindow, kFin, 1, 0, {}}}));
  second->reset();
  EXPECT_EQ(frames(), (std::vector<Frame>{{kWindow, kRst, 3, 0, {}}}));
  EXPECT_EQ(connection_->stats().streams_out, 1u);
}

TEST_F(Yamux, UnusedStreamLeavesNoTrace) {
  start(Role::initiator);
  open().reset();
  EXPECT_TRUE(frames().empty());
  EXPECT_EQ(connection_->stats().streams_out, 0u);
}

TEST_F(Yamux, PeersStreamIsAcknowledgedAtOnce) {
  start();
  send(kWindow, kSyn, 1, 0);
  EXPECT_EQ(frames(), (std::vector<Frame>{{kWindow, kAck, 1, 0, {}}}));
  auto stream = accept();
  send_data(1, as_bytes("abc"), kFin);
  EXPECT_EQ(as_text(read(*stream)->view()), "abc");
  EXPECT_TRUE(read(*stream)->empty());
  ASSERT_TRUE(write(*stream, as_bytes("x")));
  stream->close_write();
  EXPECT_EQ(frames(), (std::vector<Frame>{{kData, 0, 1, 1, to_bytes("x")}, {kWindow, kFin, 1, 0, {}}}));
  EXPECT_EQ(connection_->stats().streams_in, 0u);
}

TEST_F(Yamux, PingIsAnsweredWithItsValueWhateverItsStream) {
  start();
  send(kPing, kSyn, 0, 7);
  send(kPing, kSyn, 5, 8);
  EXPECT_EQ(frames(), (std::vector<Frame>{{kPing, kAck, 0, 7, {}}, {kPing, kAck, 0, 8, {}}}));
}

TEST_F(Yamux, LargeWriteIsCutIntoFramesThatFillARecordAndStopsAtTheWindow) {
  start(Role::initiator);
  auto stream = open();
  EXPECT_EQ(write(*stream, Bytes(1'000'000, 3)).error(), cohive::Errc::timeout);
  const auto sent = frames();
  std::size_t total = 0;
  for (const auto& frame : sent) {
    EXPECT_LE(frame.payload.size() + 12, kNoiseMaxPlaintext);
    total += frame.payload.size();
  }
  EXPECT_EQ(sent.front().payload.size() + 12, kNoiseMaxPlaintext);
  EXPECT_EQ(total, kWindowSize);
}

TEST_F(Yamux, WriterGoesOnWhenThePeerGrantsCredit) {
  start(Role::initiator);
  auto stream = open();
  TaskGroup group(runtime_);
  bool done = false;
  group.spawn([](Stream& s, bool& finished) -> Task<void> {
    const Bytes data(kWindowSize + 1000, 1);
    auto written = co_await s.write(data, Deadline::never());
    finished = written.has_value();
  }(*stream, done));
  EXPECT_EQ(payload_bytes(), kWindowSize);
  send(kWindow, kAck, 1, 400);
  EXPECT_EQ(payload_bytes(), 400u);
  EXPECT_FALSE(done);
  send(kWindow, 0, 1, 10'000);
  EXPECT_EQ(payload_bytes(), 600u);
  EXPECT_TRUE(done);
}

TEST_F(Yamux, ManyWritersShareTheConnection) {
  start(Role::initiator);
  std::vector<StreamPtr> streams;
  TaskGroup group(runtime_);
  wire_.stall(true);  // the queue fills up
  for (int i = 0; i < 4; ++i) {
    streams.push_back(open());
    group.spawn([](Stream& s) -> Task<void> {
      const Bytes data(kWindowSize, 1);
      (void)co_await s.write(data, Deadline::never());
    }(*streams.back()));
  }
  runtime_.run_ready();
  wire_.stall(false);
  const auto sent = frames();
  // The first had the connection to itself when it began; then the others take turns.
  for (std::size_t first = 6; first + 3 < sent.size() - 6; ++first) {
    const std::set<std::uint32_t> turns{sent[first].id, sent[first + 1].id, sent[first + 2].id};
    EXPECT_EQ(turns.size(), 3u) << "frames " << first << " to " << first + 2;
  }
  EXPECT_TRUE(group.empty());
}

TEST_F(Yamux, MoreStreamsThanThePeersBacklogWaitForItsAnswers) {
  start(Role::initiator);
  std::vector<StreamPtr> streams;
  TaskGroup group(runtime_);
  for (int i = 0; i < 300; ++i) {
    streams.push_back(open());
    group.spawn(
        [](Stream& s) -> Task<void> { (void)co_await s.write(as_bytes("q"), Deadline::never()); }(*streams.back()));
  }
  EXPECT_EQ(frames().size(), 256u);
  for (std::uint32_t id = 1; id <= 99; id += 2) send(kWindow, kAck, id, 0);
  EXPECT_EQ(frames().size(), 44u);
  EXPECT_TRUE(group.empty());
}

TEST_F(Yamux, DroppedWriteLeavesStreamAndConnectionUsable) {
  start(Role::initiator);
  auto stream = open();
  {
    TaskGroup group(runtime_);
    group.spawn([](Stream& s) -> Task<void> {
      const Bytes data(2 * kWindowSize, 1);
      (void)co_await s.write(data, Deadline::never());
    }(*stream));
    EXPECT_EQ(payload_bytes(), kWindowSize);
  }
  auto other = open();
  ASSERT_TRUE(write(*other, as_bytes("fine")));
  EXPECT_EQ(payload_bytes(), 4u);
  stream.reset();
  other.reset();
  EXPECT_EQ(connection_->stats().streams_out, 0u);
}

// ---- Flow control towards us

TEST_F(Yamux, CreditComesBackOnceHalfTheWindowIsRead) {
  start();
  send_data(1, Bytes(100'000, 1), kSyn);
  auto stream = accept();
  frames();
  read_all(*stream);
  EXPECT_TRUE(frames().empty()) << "not for every read";
  send_data(1, Bytes(60'000, 2));
  read_all(*stream);
  const auto update = frames();
  ASSERT_EQ(update.size(), 1u);
  EXPECT_EQ(update[0].type, kWindow);
  EXPECT_GE(update[0].length, kWindowSize / 2);
  EXPECT_LE(update[0].length, 160'000u);
}

TEST_F(Yamux, WindowGrowsWhileThePeerUsesItUpQuicklyButNotBeyondItsLimit) {
  start(Role::responder, {.max_window = 1'000'000});
  runtime_.run_for(5ms);
  send(kPing, kAck, 0, 1);  // the round trip is 5 ms
  send(kWindow, kSyn, 1, 0);
  auto stream = accept();
  std::size_t window = kWindowSize;
  for (int i = 0; i < 20; ++i) {
    for (std::size_t left = window / 2 + 1; left > 0;) {
      const std::size_t part = std::min<std::size_t>(left, 60'000);
      send_data(1, Bytes(part, 1));
      left -= part;
      while (stream->readable()) read(*stream).value();
    }
    window -= window / 2 + 1;
    for (const auto& frame : frames())
      if (frame.type == kWindow) window += frame.length;
  }
  EXPECT_EQ(window, 1'000'000u);
}

TEST_F(Yamux, WindowDoesNotGrowForAnApplicationThatFallsBehind) {
  start(Role::responder);
  runtime_.run_for(5ms);
  send(kPing, kAck, 0, 1);
  send(kWindow, kSyn, 1, 0);
  auto stream = accept();
  std::size_t window = kWindowSize;
  const auto use_up = [&] {
    for (; window > 0; window -= std::min<std::size_t>(window, 60'000))
      send_data(1, Bytes(std::min<std::size_t>(window, 60'000), 1));
  };
  const auto granted = [&] {
    for (const auto& frame : frames())
      if (frame.type == kWindow) window += frame.length;
    return window;
  };
  for (int i = 0; i < 3; ++i) {
    use_up();
    read_all(*stream);
    granted();
  }
  ASSERT_GT(window, kWindowSize) << "it read all there was";
  const std::size_t before = window;
  use_up();
  for (std::size_t taken = 0; taken <= before / 2;) taken += read(*stream).value().size();
  EXPECT_LE(granted(), before) << "half of it is still unread";
}

TEST_F(Yamux, ReaderThatLeavesTooMuchUnreadLosesTheStreamNotTheConnection) {
  start(Role::responder, {.max_buffered = 300'000});
  send_data(1, Bytes(200'000, 1), kSyn);
  send_data(3, Bytes(150'000, 1), kSyn);
  auto first = accept(), second = accept();
  EXPECT_EQ(read_all(*first).size(), 200'000u);
  read_all(*second);
  EXPECT_EQ(read(*second).error(), cohive::Errc::reset);
  EXPECT_FALSE(connection_->closed());
}

TEST_F(Yamux, TinyFramesAreCollected) {
  start();
  send(kWindow, kSyn, 1, 0);
  auto stream = accept();
  Bytes expected, burst;
  for (int i = 0; i < 20'000; ++i) {
    const auto byte = static_cast<std::uint8_t>(i * 7);
    expected.push_back(byte);
    const std::uint8_t frame[] = {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, byte};
    burst.insert(burst.end(), std::begin(frame), std::end(frame));
  }
  wire_.send(burst);
  runtime_.run_ready();
  Bytes all;
  int reads = 0;
  while (stream->readable()) {
    const auto slice = read(*stream).value();
    all.insert(all.end(), slice.data(), slice.data() + slice.size());
    ++reads;
  }
  EXPECT_EQ(all, expected);
  EXPECT_LT(reads, 10);
}

TEST_F(Yamux, BytesPutBackAreReadAgainAndCreditedOnce) {
  start();
  send_data(1, Bytes(200'000, 1), kSyn);
  auto stream = accept();
  frames();
  for (int i = 0; i < 100; ++i) stream->unread(read(*stream).value());
  EXPECT_EQ(read_all(*stream).size(), 200'000u);
  std::size_t credit = 0;
  for (const auto& frame : frames()) credit += frame.length;
  EXPECT_LE(credit, 200'000u);
}

// ---- The ends of streams

TEST_F(Yamux, PeersFinBeforeOurRequestIsCompleteFailsTheBlockedWrite) {
  start(Role::initiator);
  auto stream = open();
  Result<> outcome = ok();
  TaskGroup group(runtime_);
  group.spawn([](Stream& s, Result<>& out) -> Task<void> {
    const Bytes data(2 * kWindowSize, 1);
    out = co_await s.write(data, Deadline::never());
  }(*stream, outcome));
  runtime_.run_ready();
  send(kWindow, kFin | kAck, 1, 0);
  ASSERT_TRUE(group.empty());
  EXPECT_EQ(outcome.error(), cohive::Errc::closed);
}

TEST_F(Yamux, AnswerMayExceedTheWindowAfterTheOpenerFinished) {
  start();
  send_data(1, as_bytes("request"), kSyn | kFin);
  auto stream = accept();
  Result<> outcome = Error(cohive::Errc::internal);
  TaskGroup group(runtime_);
  group.spawn([](Stream& s, Result<>& out) -> Task<void> {
    const Bytes data(2 * kWindowSize, 1);
    out = co_await s.write(data, Deadline::never());
  }(*stream, outcome));
  runtime_.run_ready();
  send(kWindow, 0, 1, kWindowSize);
  EXPECT_TRUE(outcome.has_value());
  EXPECT_EQ(payload_bytes(), 2 * kWindowSize);
}

TEST_F(Yamux, FinThenResetStillDeliversWhatCame) {
  start(Role::initiator);
  auto stream = open();
  ASSERT_TRUE(write(*stream, as_bytes("request")));
  stream->close_write();
  send_data(1, as_bytes("answer"), kAck);
  send(kWindow, kRst, 1, 0);
  EXPECT_EQ(as_text(read(*stream)->view()), "answer");
  EXPECT_EQ(read(*stream).error(), cohive::Errc::reset);

  auto second = open();
  ASSERT_TRUE(write(*second, as_bytes("request")));
  send_data(3, as_bytes("answer"), kAck | kFin);
  send(kWindow, kRst, 3, 0);
  EXPECT_EQ(as_text(read(*second)->view()), "answer");
  EXPECT_TRUE(read(*second)->empty()) << "a reset behind the end takes nothing back";
  EXPECT_EQ(write(*second, as_bytes("more")).error(), cohive::Errc::reset);
  EXPECT_EQ(connection_->stats().streams_out, 0u);
}

TEST_F(Yamux, StreamLetGoAfterItsEndWaitsForThePeersEnd) {
  start();
  send_data(1, as_bytes("q"), kSyn);
  auto stream = accept();
  stream->close_write();
  stream.reset();
  EXPECT_EQ(connection_->stats().streams_in, 1u);
  frames();
  send(kWindow, kFin, 1, 0);
  EXPECT_EQ(connection_->stats().streams_in, 0u);
  EXPECT_TRUE(frames().empty()) << "nobody is told of a reset";
}

TEST_F(Yamux, PeerThatGoesOnSendingToAStreamLetGoIsReset) {
  start();
  send_data(1, as_bytes("q"), kSyn);
  auto stream = accept();
  stream->close_write();
  stream.reset();
  frames();
  send_data(1, Bytes(100, 1));
  EXPECT_EQ(frames(), (std::vector<Frame>{{kWindow, kRst, 1, 0, {}}}));
  EXPECT_EQ(connection_->stats().streams_in, 0u);
}

TEST_F(Yamux, PeerThatNeverEndsAStreamLetGoIsResetAfterAWhile) {
  start(Role::responder, {.keepalive_interval = 30s, .keepalive_timeout = 10s});
  send_data(1, as_bytes("q"), kSyn);
  auto stream = accept();
  stream->close_write();
  stream.reset();
  for (std::uint32_t i = 1; i <= 24; ++i) {
    send(kPing, kSyn, 0, i);
    runtime_.run_for(5s);
  }
  EXPECT_EQ(connection_->stats().streams_in, 0u);
  EXPECT_FALSE(connection_->closed());
}

TEST_F(Yamux, FramesOfForgottenStreamsAreSkipped) {
  start(Role::initiator);
  auto stream = open();
  ASSERT_TRUE(write(*stream, as_bytes("x")));
  stream.reset();
  send_data(1, Bytes(1000, 1), kAck);
  send(kWindow, kFin, 1, 77);
  send(kPing, kSyn, 0, 5);
  EXPECT_FALSE(connection_->closed());
  EXPECT_EQ(frames().back(), (Frame{kPing, kAck, 0, 5, {}}));
}

TEST_F(Yamux, StreamsOpenedAndResetInQuickSuccessionLeaveNothing) {
  start(Role::responder, {.max_pending_streams = 8});
  for (std::uint32_t id = 1; id < 2000; id += 2) {
    send(kWindow, kSyn, id, 0);
    send(kWindow, kRst, id, 0);
  }
  EXPECT_FALSE(connection_->closed());
  EXPECT_EQ(connection_->stats().streams_in, 0u);
  send_data(2001, as_bytes("real"), kSyn);
  auto stream = accept();
  EXPECT_EQ(as_text(read(*stream)->view()), "real");
}

TEST_F(Yamux, SurplusStreamsAreResetOneByOne) {
  start(Role::responder, {.max_inbound_streams = 3, .max_pending_streams = 2});
  for (std::uint32_t id : {1u, 3u, 5u}) send(kWindow, kSyn, id, 0);
  EXPECT_EQ(frames().back(), (Frame{kWindow, kRst, 5, 0, {}})) << "too many wait to be accepted";
  auto first = accept(), second = accept();
  for (std::uint32_t id : {7u, 9u}) send(kWindow, kSyn, id, 0);
  const auto last = frames();
  EXPECT_EQ(last[0], (Frame{kWindow, kAck, 7, 0, {}}));
  EXPECT_EQ(last[1], (Frame{kWindow, kRst, 9, 0, {}})) << "too many are open";
}

// ---- The end of the connection

TEST_F(Yamux, BrokenRulesCloseTheConnection) {
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

TEST_F(Yamux, WindowIsCountedAcrossFrames) {
  start();
  send(kWindow, kSyn, 1, 0);
  for (int i = 0; i < 4; ++i) send_data(1, Bytes(64 * 1024, 1));
  EXPECT_FALSE(connection_->closed());
  send_data(1, Bytes(1, 1));
  expect_violation("one byte too many");
}

TEST_F(Yamux, PingFloodWithoutReadingIsEnded) {
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

TEST_F(Yamux, PeerThatIsGoingAwayGetsNoNewStreams) {
  start(Role::initiator);
  auto stream = open();
  send(kGoAway, 0, 0, 0);
  EXPECT_EQ(connection_->open_stream().error(), cohive::Errc::closed);
  EXPECT_TRUE(write(*stream, as_bytes("still")));
  send(kGoAway, 0, 0, 2);
  EXPECT_TRUE(connection_->closed());
}

TEST_F(Yamux, SilentPeerIsGivenUp) {
  start();
  runtime_.run_for(9s);
  EXPECT_FALSE(connection_->closed());
  runtime_.run_for(2s);
  ASSERT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), Errc::keepalive_timeout);
}

TEST_F(Yamux, SilenceLaterIsNoticedWithinIntervalAndTimeout) {
  start();
  send(kPing, kAck, 0, 1);
  runtime_.run_for(39s);
  EXPECT_FALSE(connection_->closed());
  EXPECT_EQ(frames(), (std::vector<Frame>{{kPing, kSyn, 0, 2, {}}}));
  runtime_.run_for(2s);
  EXPECT_EQ(connection_->close_reason(), Errc::keepalive_timeout);
}

TEST_F(Yamux, BusyPeerMayAnswerPingsLate) {
  start();
  send(kWindow, kSyn, 1, 0);
  auto stream = accept();
  for (int i = 0; i < 30; ++i) {
    runtime_.run_for(5s);
    send_data(1, as_bytes("x"));
  }
  EXPECT_FALSE(connection_->closed());
}

TEST_F(Yamux, NetworkThatTakesNothingForTenSecondsIsGivenUp) {
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

TEST_F(Yamux, RandomFramesLeaveNothingBehind) {
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

TEST_F(Yamux, WaitersLearnOfTheEnd) {
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

TEST_F(Yamux, AnOrderlyEndSendsWhatIsQueuedThenAFarewellAndWaitsForThePeersEnd) {
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

TEST_F(Yamux, APeerThatDoesNotEndIsLeftAtTheDeadline) {
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

TEST_F(Yamux, APeerThatGoesOnSendingAfterOurEndIsCutOff) {
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

TEST_F(Yamux, ConnectionMayGoBeforeItsStreamsAndTheirTasks) {
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
