// A writer over a path with a rate, a round trip and a queue, which its socket paces.
#include "transport/flight_limit.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <utility>

namespace cohive::transport {
namespace {

constexpr Duration kTick = 1ms;
constexpr std::uint64_t kWrite = 64 * 1024, kLeastWrite = 8 * 1024;
constexpr double kUnpaced = 1e12;  // bytes per second

class Path {
 public:
  double rate = 12.5e6;  // bytes per second
  Duration round_trip = 100ms;
  Duration burst = 1ms;  // acknowledgements come together so often
  Duration rest{};       // of queues, in what the kernel smooths
  double others = 0;     // bytes of others that are always in its queue
  FlightLimit limit;

  /// Sends as much as may be sent.
  void send_for(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) {
      while (const std::uint64_t room = room_now()) sent_ += room;
      tick();
    }
  }
  /// Sends so many bytes each period.
  void send_little_for(Duration time, Duration period, std::uint64_t bytes) {
    for (const TimePoint end = now_ + time; now_ < end; idle_for(period))
      for (std::uint64_t left = bytes; left > 0; tick())
        while (const std::uint64_t written = left > 0 ? std::min(left, room_now()) : 0) {
          sent_ += written;
          left -= written;
        }
  }
  /// Sends so many bytes, and again once all have arrived and so long has passed.
  void send_in_turns_for(Duration time, std::uint64_t bytes, Duration pause) {
    for (const TimePoint end = now_ + time; now_ < end; idle_for(pause)) {
      const std::uint64_t until = sent_ + bytes;
      while (static_cast<double>(until) - acknowledged_ > 1) {
        while (const std::uint64_t room = sent_ < until ? std::min(until - sent_, room_now()) : 0) sent_ += room;
        tick();
      }
    }
  }
  /// Bytes that arrive per second while it does.
  double throughput_in_turns(Duration time, std::uint64_t bytes, Duration pause) {
    const double before = delivered_;
    const TimePoint start = now_;
    send_in_turns_for(time, bytes, pause);
    return (delivered_ - before) / to_seconds(now_ - start);
  }
  void idle_for(Duration time) {
    for (const TimePoint end = now_ + time; now_ < end;) tick();
  }
  /// Bytes that arrive per second while it sends.
  double throughput(Duration time) {
    const double before = delivered_;
    send_for(time);
    return (delivered_ - before) / to_seconds(time);
  }
  double most_in_flight = 0;
  double holds() const { return rate * to_seconds(round_trip); }

 private:
  double in_flight() const { return static_cast<double>(sent_) - acknowledged_; }
  /// Bytes that a write sends now.
  std::uint64_t room_now() {
    const auto flying = static_cast<std::uint64_t>(in_flight());
    // A socket that is full takes bytes again once most of them have left it, be it in the middle of a tick.
    const double unsent = pace_ < kUnpaced ? static_cast<double>(sent_) - paced_ : 0;
    const double few = kWrite / 4.0 + (pace_ < kUnpaced ? pace_ * to_seconds(kTick) / 2 : 0);
    socket_is_full_ = unsent > (socket_is_full_ ? few : kWrite);
    if (flying > 8 << 20 || socket_is_full_) return 0;  // the first is the peer's window
    const Duration queued = from_seconds((paced_ - left_ + others) / rate);
    shortest_ = std::min(shortest_, round_trip + queued);
    const PathState seen{round_trip + queued + rest, shortest_, {}};
    if (flying < FlightLimit::kFew) {
      limit.has_room(now_, seen);
    } else {
      // Packets of one byte each.
      const auto packets = static_cast<std::uint32_t>(static_cast<std::uint64_t>(acknowledged_));
      limit.observe(now_, {packets, 1, seen}, flying);
    }
    if (const auto told = socket_pace_.change(limit.rate()))
      pace_ = *told == SocketPace::kUnpaced ? kUnpaced : static_cast<double>(*told);
    if (limit.pause(flying) > Duration::zero()) return 0;
    const std::uint64_t allowed = limit.bytes();
    return std::clamp(allowed - std::min(allowed, flying), kLeastWrite, kWrite);
  }
  void tick() {
    most_in_flight = std::max(most_in_flight, in_flight());
    now_ += kTick;
    paced_ = std::min(paced_ + pace_ * to_seconds(kTick), static_cast<double>(sent_));
    const double ours = paced_ - left_;
    left_ = std::min(left_ + rate * to_seconds(kTick) * (others > 0 ? ours / (ours + others) : 1), paced_);
    on_way_.push_back({now_ + round_trip, left_});
    while (!on_way_.empty() && on_way_.front().first <= now_) {
      delivered_ = std::max(delivered_, on_way_.front().second);
      on_way_.pop_front();
    }
    if (now_.time_since_epoch() % burst == Duration::zero()) acknowledged_ = delivered_;
  }

  TimePoint now_{Duration(1s)};
  Duration shortest_ = Duration::max();  // single round trip
  std::uint64_t sent_ = 0;
  bool socket_is_full_ = false;
  SocketPace socket_pace_;
  double pace_ = kUnpaced;                                          // bytes per second
  double paced_ = 0, left_ = 0, delivered_ = 0, acknowledged_ = 0;  // left the socket, the queue; arrived; known of
  std::deque<std::pair<TimePoint, double>> on_way_;
};

TEST(FlightLimit, BoundsNothingUntilSomethingIsKnown) {
  const FlightLimit limit;
  EXPECT_EQ(limit.bytes(), FlightLimit::kNone);
  EXPECT_EQ(limit.pause(1'000'000'000), Duration::zero());
  EXPECT_EQ(limit.rate(), 0);
}

TEST(FlightLimit, FillsThePathAndHalfAsMuchAtMost) {
  Path path;
  path.send_for(3s);
  path.most_in_flight = 0;
  EXPECT_GT(path.throughput(10s), 0.97 * path.rate);
  EXPECT_LT(path.most_in_flight, 1.6 * path.holds());
  EXPECT_NEAR(path.limit.rate(), path.rate, 0.05 * path.rate);
}

TEST(FlightLimit, IsNotDeceivedByAcknowledgementsThatComeInBursts) {
  Path path;
  path.burst = 40ms;
  path.send_for(3s);
  path.most_in_flight = 0;
  EXPECT_GT(path.throughput(10s), 0.85 * path.rate);
  EXPECT_LT(path.most_in_flight, 1.9 * path.holds()) << "a burst is on its way, too";
}

TEST(FlightLimit, KeepsWhatItKnowsOverAPause) {
  Path path;
  path.send_for(3s);
  path.idle_for(5s);
  path.most_in_flight = 0;
  path.send_for(500ms);
  EXPECT_LT(path.most_in_flight, 1.6 * path.holds());
}

TEST(FlightLimit, FollowsALinkThatGetsFaster) {
  Path path;
  path.send_for(3s);
  path.rate *= 4;
  path.send_for(5s);
  EXPECT_GT(path.throughput(5s), 0.95 * path.rate);
}

TEST(FlightLimit, FollowsALinkThatGetsSlower) {
  Path path;
  path.send_for(3s);
  path.rate /= 4;
  path.send_for(8s);
  path.most_in_flight = 0;
  path.send_for(5s);
  EXPECT_LT(path.most_in_flight, 2.2 * path.holds());
}

TEST(FlightLimit, DoesNotStarveWhenTheWayGetsLonger) {
  Path path;
  path.round_trip = 40ms;
  path.send_for(3s);
  path.round_trip = 160ms;
  path.send_for(60s);
  EXPECT_GT(path.throughput(5s), 0.9 * path.rate);
}

TEST(FlightLimit, AQueueOfItsOwnIsNoLongerWay) {
  Path path;
  path.send_for(120s);
  path.most_in_flight = 0;
  path.send_for(40s);
  EXPECT_LT(path.most_in_flight, 1.8 * path.holds()) << "periods that were busy throughout let the queue run empty";
}

TEST(FlightLimit, WhatTheKernelSmoothsMakesNoLongerWay) {
  Path path;
  path.rest = 20ms;
  path.send_for(3s);
  path.most_in_flight = 0;
  EXPECT_GT(path.throughput(40s), 0.97 * path.rate);
  EXPECT_LT(path.most_in_flight, 1.6 * path.holds());
}

/// Connections that send by losses alone keep the queue of the thinnest link full.
TEST(FlightLimit, DoesNotStarveBesideOthersThatFillTheQueue) {
  for (const double rate : {2.5e6, 12.5e6}) {
    SCOPED_TRACE(rate);
    Path path;
    path.rate = rate;
    path.round_trip = 50ms;
    path.send_for(20s);
    path.others = 0.1 * rate;
    path.send_for(5s);
    const double beside = path.throughput(5s);
    EXPECT_GT(beside, 0.25 * rate);
    path.others = 0;
    path.send_for(20s);
    path.most_in_flight = 0;
    path.send_for(10s);
    EXPECT_LT(path.most_in_flight, 1.6 * path.holds() + kWrite) << "they have gone";
  }
}

/// What little was sent says nothing of the path.
TEST(FlightLimit, WhoHasSentLittleIsNotPacedByThat) {
  for (const Duration period : {20ms, 50ms, 80ms, 100ms, 150ms, 200ms, 500ms})
    for (const std::uint64_t bytes : {100'000, 150'000, 200'000, 300'000}) {
      SCOPED_TRACE(testing::Message() << to_seconds(period) << " s, " << bytes << " bytes");
      Path path;
      path.round_trip = 50ms;
      path.send_little_for(3s, period, bytes);
      path.send_for(3s);
      EXPECT_GT(path.throughput(3s), 0.9 * path.rate);
    }
}

/// A kernel that waits for what was lost delivers nothing meanwhile.
TEST(FlightLimit, IsFastAgainAfterAnOutage) {
  for (const Duration outage : {200ms, 400ms, 600ms, 1000ms, 3000ms, 10000ms}) {
    SCOPED_TRACE(to_seconds(outage));
    Path path;
    path.round_trip = 50ms;
    path.send_for(3s);
    const double rate = std::exchange(path.rate, 1);
    path.send_for(outage);
    path.rate = rate;
    path.send_for(3s);
    EXPECT_GT(path.throughput(2s), 0.9 * rate);
  }
}

/// Who sends in turns has no time in which the network is full for long.
TEST(FlightLimit, BurstsAreFastAgainAfterAnOutage) {
  for (const std::uint64_t bytes : {64'000, 128'000, 256'000, 512'000, 1'000'000, 4'000'000})
    for (const Duration pause : {0ms, 50ms, 100ms}) {
      SCOPED_TRACE(testing::Message() << bytes << " bytes, pauses of " << to_seconds(pause) << " s");
      Path path;
      path.rate = 25e6;
      path.round_trip = 50ms;
      path.send_for(3s);
      path.send_in_turns_for(1s, bytes, pause);
      const double usual = path.throughput_in_turns(5s, bytes, pause);
      const double rate = std::exchange(path.rate, 1);
      path.send_for(2s);
      path.rate = rate;
      path.send_in_turns_for(3s, bytes, pause);
      EXPECT_GT(path.throughput_in_turns(5s, bytes, pause), 0.6 * usual) << usual;
    }
}

TEST(FlightLimit, AShortPathIsNotPaced) {
  Path path;
  path.round_trip = 1ms;
  path.rate = 500e6;
  path.send_for(2s);
  EXPECT_EQ(path.limit.rate(), 0);
  EXPECT_GT(path.throughput(2s), 0.95 * path.rate);
}

TEST(FlightLimit, APathThatHasBecomeShortIsNotPacedAnyMore) {
  Path path;
  path.round_trip = 8ms;
  path.others = 0.1 * path.rate;
  path.send_for(40s);
  EXPECT_GT(path.limit.rate(), 0);
  path.round_trip = 2ms;
  path.others = 0;
  path.send_for(2s);
  EXPECT_EQ(path.limit.rate(), 0);
  EXPECT_GT(path.throughput(5s), 0.9 * path.rate) << "at the pace of the share beside others";
}

/// The path's largest packet may shrink in the middle of a connection, and the kernel counts packets.
TEST(FlightLimit, SmallerPacketsTakeBackNothingThatWasDelivered) {
  for (const std::uint32_t first : {1'000'000u, 0xffff'f000u}) {
    SCOPED_TRACE(first);
    FlightLimit limit;
    std::uint32_t packets = first;
    TimePoint now{Duration(1s)};
    const auto deliver_for = [&](Duration time, std::uint32_t size) {
      for (const TimePoint end = now + time; now < end; now += 10ms)
        limit.observe(now, {packets += 100, size, {50ms, 50ms, {}}}, 4 << 20);
    };
    deliver_for(5s, 1448);
    EXPECT_NEAR(limit.rate(), 14.48e6, 0.05 * 14.48e6);
    const std::uint64_t before = limit.bytes();
    deliver_for(500ms, 536);
    EXPECT_LE(limit.bytes(), before);
    deliver_for(2s, 536);
    EXPECT_NEAR(limit.rate(), 5.36e6, 0.05 * 5.36e6);
  }
}

TEST(SocketPace, IsToldOfChangesThatAreLargeAndOnceOfItsEnd) {
  SocketPace pace;
  EXPECT_EQ(pace.change(0), std::nullopt) << "as it began";
  EXPECT_EQ(pace.change(1e6), 1'250'000u);
  EXPECT_EQ(pace.change(1.05e6), std::nullopt);
  EXPECT_EQ(pace.change(2e6), 2'500'000u);
  EXPECT_EQ(pace.change(0), SocketPace::kUnpaced);
  EXPECT_EQ(pace.change(0), std::nullopt);
  EXPECT_EQ(pace.change(2e6), 2'500'000u);
}

}  // namespace
}  // namespace cohive::transport
