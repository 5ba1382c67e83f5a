// FlightLimit: how many bytes a connection may have on their way, from what its network has shown so far.
//
// A kernel sends as much as the peer's window allows, whatever the path carries: what does not fit waits in the queue
// of the thinnest link, delays all that shares it, and is dropped when the queue is full. (BBR does so in particular
// where the peer's window, not the link, bounds it: it takes that for an application that has little to send, and goes
// on as at its start, at 2.9 times the rate of the link.) A path is full with its rate times its round trip; two
// fifths more bridge what varies. The rate is what arrives per second. Acknowledgements that share a full queue on
// their way back come in bursts, so it is counted over several round trips. The round trip is the shortest of the last
// half minute; now and then the queue is let run empty for it. Where the queue stays long although so little is on its
// way, others fill it: the round trip is what it is then, or this connection would starve beside them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>

#include "cohive/core/time.hpp"
#include "cohive/transport/path.hpp"

namespace cohive::transport {

/// TcpProgress is what the kernel knows of a TCP connection.
struct TcpProgress {
  std::uint32_t packets = 0;      ///< that the peer has acknowledged since the connection began; begins anew after 2^32
  std::uint32_t packet_size = 0;  ///< bytes of those that are sent now, which may change
  PathState path;
};
/// Asks the kernel about a socket; all is zero where it does not tell.
TcpProgress tcp_progress(int fd);

class FlightLimit {
 public:
  static constexpr std::uint64_t kNone = std::numeric_limits<std::uint64_t>::max();
  static constexpr std::uint64_t kLeast = 32 * 1024;  // always allowed: 26 ms of a home uplink of 10 Mbit/s
  static constexpr std::uint64_t kFew = kLeast / 2;   // below, there has been little to send

  /// Takes what the kernel tells before a write.
  /// \param in_flight  bytes that the peer has not acknowledged
  void observe(TimePoint now, const TcpProgress& progress, std::uint64_t in_flight);
  /// The same where so little is on its way that there is no need to ask about deliveries.
  void has_room(TimePoint now, const PathState& path);

  /// Bytes that may be on their way; kNone while nothing is known.
  std::uint64_t bytes() const noexcept { return draining_ ? std::max(kLeast, empty_) : limit_; }
  /// Bytes per second that the path carries; 0 while that is being found out, and on short paths, whose queues are soon
  /// empty again.
  double rate() const noexcept;
  /// How long a writer had better wait that has so many bytes on their way; zero: not at all.
  Duration pause(std::uint64_t in_flight) const;

 private:
  /// The beginning of a round trip's worth of deliveries.
  struct Window {
    TimePoint begin{};
    std::uint64_t delivered = 0;  // until then
  };
  void note_round_trip(TimePoint now, const PathState& path);
  void begin_window(TimePoint now, std::uint64_t delivered);
  void note_window(TimePoint now, std::uint64_t delivered, Duration round_trip);
  void note_queue();
  void note_rate(double rate);
  double rate_since(std::size_t windows_ago, TimePoint now, std::uint64_t delivered) const;
  Duration shortest() const;
  Duration usual_length() const;
  Duration way() const { return std::max(usual_length(), among_others_); }
  Duration own_queue() const;

  static constexpr std::size_t kAveraged = 4, kRates = 8;
  std::uint32_t packets_ = 0;    // that were delivered by the last look at them
  std::uint64_t delivered_ = 0;  // bytes of these
  TimePoint last_ = TimePoint::min();
  bool had_room_ = false;                    // since then, at some time
  std::array<Window, kAveraged> windows_{};  // without a pause between them; the newest one is not over
  std::size_t count_ = 0;                    // of windows since a pause
  bool full_ = true;                         // in the newest one there was always enough to send
  Duration shortest_ = Duration::max(), shortest_before_ = Duration::max();  // of this period, and of the last one
  Duration single_{};                                                        // the shortest that the kernel has seen
  TimePoint period_ = TimePoint::min();                                      // when this one began
  bool busy_ = true;                                                         // all of this period
  bool draining_ = false;                                                    // the queue, at the beginning of a period
  Duration least_ = Duration::max();                                         // round trip in the newest window
  int queued_ = 0;                                                           // windows without a short round trip
  Duration among_others_ = Duration::zero();                                 // round trip in the queue of others
  bool beginning_ = true;                                                    // the rate still grows
  int level_ = 0;                                                            // windows of the beginning without growth
  std::array<double, kRates> rates_{};                                       // bytes per second
  std::size_t next_rate_ = 0;
  double fastest_ = 0;                           // of these
  double best_ = 0, best_before_ = 0;            // of this period, and of the last one
  std::uint64_t limit_ = kNone, empty_ = kNone;  // bytes on their way; so many leave the queue empty
};

/// Follows the rate of a FlightLimit for a socket, which is told each time that it has changed by much. What may be on
/// its way would otherwise leave in one burst after a pause, into the queue of the thinnest link.
class SocketPace {
 public:
  static constexpr std::uint64_t kUnpaced = std::numeric_limits<std::uint64_t>::max();  // as the kernel says it

  /// Returns what the socket is to be told, in bytes per second; nullopt where that is what it was told last. Sockets
  /// begin unpaced.
  /// \param rate  of the FlightLimit; 0 where nothing is to hold the socket back
  std::optional<std::uint64_t> change(double rate);

 private:
  double told_ = 0;  // bytes per second; 0: unpaced
};

}  // namespace cohive::transport
