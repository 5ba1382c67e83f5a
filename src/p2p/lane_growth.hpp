// LaneGrowth: over how many connections the bytes of one peer go, from how fast they have come.
// Where packets get lost at random, one connection carries less than the path does, and two carry twice as much. More
// are tried while no queue shows that the path is full and something holds a single one back, and taken back where the
// bytes do not come faster. A new one carries more than it will until it has lost packets, so that only the second
// measurement after each step counts.
#pragma once

#include <cstddef>

#include "cohive/core/time.hpp"

namespace cohive::p2p {

class LaneGrowth {
 public:
  /// A transfer, as it went for some seconds.
  struct Load {
    double rate = 0;  ///< bytes per second, of the direction that carried more
    Duration round_trip{};
    Duration shortest = Duration::max();  ///< round trip that there was without a queue
    bool held_back = true;  ///< packets were lost without a queue, or as much is on its way as buffers may hold
  };
  /// Returns whether bytes wait for the thinnest link of a path.
  static bool is_queueing(Duration round_trip, Duration shortest);

  explicit LaneGrowth(std::size_t most) : most_(most) {}
  /// How many connections there are to be, where `lanes` have carried so much.
  std::size_t after(const Load& load, std::size_t lanes, TimePoint now);
  /// No more are tried for a while, which is longer each time.
  void rest(TimePoint now);

 private:
  const std::size_t most_;
  double rate_ = 0;           // before the last step
  std::size_t count_ = 1;     // of connections, then
  std::size_t usual_ = 1;     // connections that have helped
  std::size_t measured_ = 0;  // connections at the last measurement
  bool excused_ = false;      // the last step has not helped
  TimePoint rested_ = TimePoint::min();
  Duration pause_ = Duration::zero();
};

}  // namespace cohive::p2p
