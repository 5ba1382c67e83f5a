#include "flight_limit.hpp"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cmath>
#include <cstddef>
#include <utility>

#include "core/detail/assertion.hpp"

namespace cohive::transport {
namespace {

constexpr Duration kPeriod = 15s;           // the shortest round trip is that of one or two of these
constexpr Duration kLeastRoundTrip = 20ms;  // a busy peer may take as long to acknowledge
constexpr double kGain = 1.4;               // of what the path holds
constexpr double kFirstGain = 2.5;          // while the rate still grows
constexpr double kGrowth = 1.25;            // is much
constexpr double kQueueing = 1.5;           // of the shortest round trip: there is a queue
constexpr double kForeign = 1.25;           // times the round trip that all that may be on its way makes
constexpr double kSmoothed = 1.25;          // of the shortest single round trip: as good as that
constexpr int kLongestQueue = 6;            // times as long as the shortest round trip, that is followed
constexpr int kPatience = 24;               // windows with such a queue: what was on its way is gone by then
constexpr int kLevel = 3;                   // windows without growth end the beginning
constexpr Duration kShortPath = 5ms;
constexpr Duration kShortestPause = 1ms, kLongestPause = 20ms;
constexpr double kPacing = 1.25;     // of what the path has carried, so that more is found out
constexpr double kSamePace = 16;     // a change by one part in so many is none
constexpr double kMostBytes = 1e15;  // more than any path holds or carries in a second

/// Whole bytes of what a computation says, which may be anything.
std::uint64_t whole_bytes(double bytes) {
  return static_cast<std::uint64_t>(std::clamp(bytes, 0.0, kMostBytes));
}

}  // namespace

void FlightLimit::observe(TimePoint now, const TcpProgress& progress, std::uint64_t in_flight) {
  const Duration round_trip = progress.path.round_trip;
  if (round_trip <= Duration::zero()) return;
  // The kernel counts packets. Their size may shrink on the way, and what was delivered before was no less for that.
  const std::uint32_t packets = progress.packets - std::exchange(packets_, progress.packets);
  delivered_ += std::uint64_t{packets} * progress.packet_size;
  const std::uint64_t delivered = delivered_;
  note_round_trip(now, progress.path);
  const Duration length = usual_length();
  // A writer whose socket was full is late, too, but bytes were on their way all the time.
  const bool paused = last_ == TimePoint::min() || (std::exchange(had_room_, false) && now - last_ > length);
  last_ = now;
  if (paused) {
    count_ = 0;
    busy_ = draining_ = false;
    return begin_window(now, delivered);
  }
  if (limit_ != kNone && in_flight < bytes() / 2) full_ = false;
  if (now - windows_[(count_ - 1) % kAveraged].begin < length) return;
  note_queue();
  note_window(now, delivered, round_trip);
  begin_window(now, delivered);
}

/// The round trip where all that may be on its way fills the path.
Duration FlightLimit::own_queue() const {
  const double rate = std::max({best_, best_before_, 1.0});
  return from_seconds(std::max(kGain * to_seconds(usual_length()), static_cast<double>(kLeast) / rate));
}

/// One short round trip in a window shows that the queue was this connection's own.
void FlightLimit::note_queue() {
  const Duration least = std::exchange(least_, Duration::max());
  if (to_seconds(least) <= kForeign * to_seconds(own_queue())) {
    queued_ = 0;
    among_others_ = Duration::zero();
    return;
  }
  if (!draining_) ++queued_;
  if (queued_ >= kPatience) among_others_ = std::min(least, kLongestQueue * usual_length());
}

void FlightLimit::has_room(TimePoint now, const PathState& path) {
  full_ = false;
  had_room_ = true;
  if (path.round_trip > Duration::zero()) note_round_trip(now, path);
}

/// What the kernel smooths holds the rest of a queue that has just run empty; a single round trip does not. It is
/// minutes old, so that it counts only where the path has not become longer since.
Duration FlightLimit::shortest() const {
  const Duration smoothed = std::min(shortest_, shortest_before_);
  const bool holds = single_ > Duration::zero() && to_seconds(smoothed) <= kSmoothed * to_seconds(single_);
  return holds ? std::min(smoothed, single_) : smoothed;
}

Duration FlightLimit::usual_length() const {
  return std::max(shortest(), kLeastRoundTrip);
}

void FlightLimit::begin_window(TimePoint now, std::uint64_t delivered) {
  windows_[count_++ % kAveraged] = {now, delivered};
  full_ = true;
}

/// A period that was busy throughout has seen no round trip without its own queue.
void FlightLimit::note_round_trip(TimePoint now, const PathState& path) {
  if (period_ == TimePoint::min() || now - period_ >= kPeriod) {
    const bool recent = period_ != TimePoint::min() && now - period_ < 2 * kPeriod;
    shortest_before_ = recent ? shortest_ : Duration::max();
    shortest_ = Duration::max();
    best_before_ = std::exchange(best_, 0);
    draining_ = recent && std::exchange(busy_, true);
    period_ = now;
  }
  shortest_ = std::min(shortest_, path.round_trip);
  least_ = std::min(least_, path.round_trip);
  single_ = path.shortest;
  if (draining_ && now - period_ > 2 * way()) draining_ = false;
}

double FlightLimit::rate_since(std::size_t windows_ago, TimePoint now, std::uint64_t delivered) const {
  const Window& from = windows_[(count_ - windows_ago) % kAveraged];
  COHIVE_ASSERT(delivered >= from.delivered && now > from.begin);
  return static_cast<double>(delivered - from.delivered) / to_seconds(now - from.begin);
}

/// At the beginning every round trip counts, as the rate doubles with each; later the mean of several. Where there was
/// little to send, that says only that the path carries at least so much.
void FlightLimit::note_window(TimePoint now, std::uint64_t delivered, Duration round_trip) {
  if (draining_) return;
  if (!beginning_) {
    if (count_ < kAveraged) return;
    const double rate = rate_since(kAveraged, now, delivered);
    if (full_ || rate > fastest_) note_rate(rate);
    return;
  }
  const double rate = rate_since(1, now, delivered);
  const bool queueing = to_seconds(round_trip) > kQueueing * to_seconds(usual_length());
  level_ = rate >= fastest_ * kGrowth ? 0 : level_ + (full_ ? 1 : 0);
  if (queueing || level_ >= kLevel) {
    beginning_ = false;
    rates_.fill(0);
    return note_rate(rate_since(std::min<std::size_t>(count_, 2), now, delivered));
  }
  note_rate(rate);
}

void FlightLimit::note_rate(double rate) {
  rates_[next_rate_++ % kRates] = rate;
  fastest_ = *std::ranges::max_element(rates_);
  best_ = std::max(best_, fastest_);
  const double room = (beginning_ ? kFirstGain : kGain) * fastest_ * to_seconds(way());
  limit_ = std::max(kLeast, whole_bytes(room));
  empty_ = whole_bytes(fastest_ * to_seconds(usual_length()) / 3);
}

double FlightLimit::rate() const noexcept {
  if (beginning_ || shortest() < kShortPath) return 0;
  // What is always allowed may leave within a round trip. Where there has been little to send, the rate says nothing of
  // the path, and a writer that waits for a slow pace would never find out more.
  return std::max(fastest_, static_cast<double>(kLeast) / to_seconds(usual_length()));
}

Duration FlightLimit::pause(std::uint64_t in_flight) const {
  const std::uint64_t allowed = bytes();
  if (in_flight <= allowed) return Duration::zero();
  if (fastest_ <= 0) return kLongestPause;  // nothing arrives
  return std::clamp<Duration>(from_seconds(static_cast<double>(in_flight - allowed) / fastest_), kShortestPause,
                              kLongestPause);
}

std::optional<std::uint64_t> SocketPace::change(double rate) {
  if (rate <= 0) {
    if (std::exchange(told_, 0) == 0) return std::nullopt;
    return kUnpaced;
  }
  const double pace = kPacing * rate;
  if (std::abs(pace - told_) <= told_ / kSamePace) return std::nullopt;
  told_ = pace;
  return whole_bytes(pace);
}

TcpProgress tcp_progress(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return {};
  if (size < offsetof(tcp_info, tcpi_delivered) + sizeof info.tcpi_delivered) return {};
  PathState path{std::chrono::microseconds(info.tcpi_rtt), std::chrono::microseconds(info.tcpi_min_rtt), {}};
  if (size >= offsetof(tcp_info, tcpi_rcv_ooopack) + sizeof info.tcpi_rcv_ooopack)
    path.lost = std::uint64_t{info.tcpi_total_retrans} + info.tcpi_rcv_ooopack;
  return {info.tcpi_delivered, info.tcpi_snd_mss, path};
}

}  // namespace cohive::transport
