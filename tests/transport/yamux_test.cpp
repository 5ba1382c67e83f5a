// The yamux rules for streams, seen by a peer that speaks single frames: what we send, how much we accept, how streams
// end.
#include <algorithm>
#include <set>

#include "cohive/transport/multistream.hpp"
#include "yamux_peer.hpp"

namespace cohive::transport {
namespace {

using namespace yamux_test;

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
    EXPECT_LE(frame.payload.size() + 12, SecureChannel::kMaxAppend);
    total += frame.payload.size();
  }
  EXPECT_EQ(sent.front().payload.size() + 12, SecureChannel::kMaxAppend);
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

TEST_F(Yamux, AStreamOfSmallWritesLeavesLargeOnesTheirTurn) {
  for (const std::size_t talkers : {1, 40}) {
    SCOPED_TRACE(talkers);
    wire_ = test::Wire(runtime_);
    start(Role::initiator);
    auto bulk = open();
    send(kWindow, 0, 1, 1 << 30);
    ASSERT_TRUE(write(*bulk, Bytes(2 << 20, 1))) << "the queue gets long";
    frames();
    wire_.stall(true);
    TaskGroup group(runtime_);
    std::vector<StreamPtr> small;
    for (std::size_t i = 0; i < talkers; ++i) {
      small.push_back(open());
      send(kWindow, 0, static_cast<std::uint32_t>(3 + 2 * i), 1 << 30);
      group.spawn([](Stream& s) -> Task<void> {
        const Bytes data(1024, 2);
        while (co_await s.write(data, Deadline::never())) {
        }
      }(*small.back()));
    }
    runtime_.run_ready();
    group.spawn([](Stream& s) -> Task<void> {
      const Bytes data(32 << 20, 1);
      (void)co_await s.write(data, Deadline::never());
    }(*bulk));
    runtime_.run_ready();
    std::size_t large = 0, all = 0;
    for (int i = 0; i < 60; ++i) {
      wire_.let_one_through();
      for (const auto& frame : frames()) {
        all += frame.payload.size();
        if (frame.id == 1) large += frame.payload.size();
      }
    }
    EXPECT_GT(all, std::size_t{60} * 50'000);
    EXPECT_GT(large, all / 4);
    EXPECT_LT(large, all) << "nor do large ones starve small ones";
    group.cancel();
    connection_.reset();
  }
}

TEST_F(Yamux, ASmallWriteGoesAheadOfAFullQueue) {
  start(Role::initiator);
  auto bulk = open();
  send(kWindow, 0, 1, 8 << 20);
  ASSERT_TRUE(write(*bulk, Bytes(2 << 20, 1)));
  wire_.stall(true);
  EXPECT_EQ(write(*bulk, Bytes(1 << 20, 1), 10ms).error(), cohive::Errc::timeout);
  auto question = open();
  EXPECT_TRUE(write(*question, Bytes(1000, 1), 10ms));
  EXPECT_TRUE(write(*question, Bytes(1000, 1), 10ms)) << "in two parts";
  EXPECT_EQ(write(*question, Bytes(1000, 1), 10ms).error(), cohive::Errc::timeout) << "this is a transfer";
  wire_.let_one_through();
  runtime_.run_ready();
  EXPECT_TRUE(write(*question, Bytes(1000, 1), 10ms)) << "the next one, once some of the queue has gone";
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

TEST_F(Yamux, AStreamThatCarriesMuchBeginsWithTheWindowThatAnEarlierOneNeeded) {
  start(Role::responder, {.max_window = 1'000'000});
  runtime_.run_for(5ms);
  send(kPing, kAck, 0, 1);
  send(kWindow, kSyn, 1, 0);
  auto first = accept();
  for (std::size_t window = kWindowSize; window < 1'000'000;) {
    for (std::size_t left = window / 2 + 1; left > 0; left -= std::min<std::size_t>(left, 60'000)) {
      send_data(1, Bytes(std::min<std::size_t>(left, 60'000), 1));
      while (first->readable()) read(*first).value();
    }
    window -= window / 2 + 1;
    for (const auto& frame : frames())
      if (frame.type == kWindow) window += frame.length;
  }

  send(kWindow, kSyn, 3, 0);
  auto bulk = accept();
  EXPECT_EQ(granted(3), 0u);
  send_data(3, Bytes(60'000, 1));
  EXPECT_EQ(granted(3), 1'000'000u - kWindowSize) << "before anything is read";
  send(kWindow, kSyn, 5, 0);
  auto question = accept();
  send_data(5, Bytes(1'000, 1));
  EXPECT_EQ(granted(5), 0u);
  send(kWindow, kSyn, 7, 0);
  auto limited = accept();
  limited->limit_window(kWindowSize);
  send_data(7, Bytes(60'000, 1));
  EXPECT_EQ(granted(7), 0u);
}

TEST_F(Yamux, StreamThatWillReceiveMuchGrantsRoomBeforeTheFirstByte) {
  start(Role::responder);
  send(kWindow, kSyn, 1, 0);
  auto bulk = accept();
  bulk->hint_bulk_receive();
  EXPECT_EQ(granted(1), 1024u * 1024u - kWindowSize);
  bulk->hint_bulk_receive();
  EXPECT_EQ(granted(1), 0u) << "only once";
  send(kWindow, kSyn, 3, 0);
  auto limited = accept();
  limited->limit_window(kWindowSize);
  limited->hint_bulk_receive();
  EXPECT_EQ(granted(3), 0u);
}

TEST_F(Yamux, StreamThatWillReceiveMuchGrantsRoomAsItOpens) {
  start(Role::initiator);
  auto stream = select_lazily(open(), "/bulk/1");
  frames();
  stream->hint_bulk_receive();
  const auto sent = frames();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].type, kWindow);
  EXPECT_EQ(sent[0].flags, kSyn);
  EXPECT_EQ(sent[0].length, 1024u * 1024u - kWindowSize);
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

TEST_F(Yamux, APayloadThatIsMuchSmallerThanItsBlockDoesNotPinIt) {
  start();
  send(kWindow, kSyn, 1, 0);
  auto stream = accept();
  send_data(1, Bytes(200'000, 1));  // from here on blocks are large
  EXPECT_EQ(read_all(*stream).size(), 200'000u);
  send_data(1, Bytes(40 * 1024, 2));
  for (std::size_t left = 40 * 1024; left > 0;) {
    const Slice slice = read(*stream).value();
    ASSERT_LE(slice.size(), left);
    left -= slice.size();
    EXPECT_TRUE(slice.unique()) << "the connection holds the block, too";
  }
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

/// A channel that claims to encrypt, and passes all bytes as they are: the test's peer speaks plain frames.
class PretendingChannel final : public SecureChannel {
 public:
  using SecureChannel::SecureChannel;
  Task<Result<Slice>> receive() override {
    Slice slice = Slice::uninitialised(kReadTurn);
    auto count = co_await raw_->read_some({slice.mutable_data(), slice.size()});
    if (!count) co_return count.error();
    bytes_in_ += *count;
    co_return slice.sub(0, *count);
  }
  bool encrypts() const noexcept override { return true; }
  void append(std::span<const ByteView> parts) override {
    for (const ByteView part : parts) std::ranges::copy(part, extend(part.size()));
  }
};

const TransportOptions kShortKeys{.keepalive_interval = 2s, .keepalive_timeout = 1s, .max_key_bytes = 100'000};

TEST_F(Yamux, AConnectionWhoseKeysAreWornEnds) {
  start(Role::responder, kShortKeys, nullptr, std::make_unique<PretendingChannel>(wire_.our_end()));
  send(kPing, kAck, 0, 1);
  send_data(1, Bytes(60'000), kSyn);
  auto stream = accept();
  runtime_.run_for(1500ms);
  EXPECT_FALSE(connection_->closed()) << "a stream is open";
  send_data(1, Bytes(50'000));
  runtime_.run_for(1s);
  EXPECT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), cohive::Errc::closed);
}

TEST_F(Yamux, AConnectionWhoseKeysAreHalfWornEndsWhenNoStreamIsOpen) {
  start(Role::responder, kShortKeys, nullptr, std::make_unique<PretendingChannel>(wire_.our_end()));
  send(kPing, kAck, 0, 1);
  send_data(1, Bytes(60'000), kSyn);
  send(kWindow, kRst, 1, 0);
  runtime_.run_for(1500ms);
  EXPECT_TRUE(connection_->closed()) << "nothing is lost";
  EXPECT_EQ(connection_->close_reason(), cohive::Errc::closed);
}

/// A bundle has no keys of its own, and moves on before those of the connections that carry it are worn:
/// p2p/bundles.hpp.
TEST_F(Yamux, AConnectionWithoutKeysGoesOnHoweverMuchItCarries) {
  start(Role::responder, kShortKeys);
  send(kPing, kAck, 0, 1);
  send_data(1, Bytes(150'000), kSyn);
  send(kWindow, kRst, 1, 0);
  runtime_.run_for(1500ms);
  EXPECT_FALSE(connection_->closed());
}

TEST_F(Yamux, DataBeyondTheWindowOfTheStreamThatTheyOpenAreAViolation) {
  start();
  send(kData, kSyn, 1, 262'145);
  EXPECT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), Errc::muxer_violation);
}

TEST_F(Yamux, CreditThatOverflowsIsHarmless) {
  start();
  send(kWindow, kSyn, 1, 0xffffffff);
  send(kWindow, 0, 1, 0xffffffff);
  EXPECT_FALSE(connection_->closed());
}

}  // namespace
}  // namespace cohive::transport
