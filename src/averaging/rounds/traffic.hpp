// What this member sees of another one in the exchange of a round.
#pragma once

#include "cohive/averaging/round.hpp"

namespace cohive::averaging {

/// Adds the peers that are not in a list to it.
void add_new(std::vector<PeerId>& list, const std::vector<PeerId>& more);

class MemberTraffic {
 public:
  /// Its first part came at this time.
  void arrived(TimePoint at) {
    if (!arrival_) arrival_ = at;
  }
  void waited_for_part(Duration time) { part_wait_ = std::max(part_wait_, time); }
  void waited_for_result(Duration time) { result_wait_ = std::max(result_wait_, time); }
  /// `bytes` went out from `begin` to `end`; came in at `now`.
  void sent(std::size_t bytes, TimePoint begin, TimePoint end);
  void received(std::size_t bytes, TimePoint now);

  /// \param trigger  of this member
  Exchanged summary(TimePoint trigger) const;

 private:
  /// Bytes in one direction, and the time in which they moved.
  struct Flow {
    std::uint64_t bytes = 0;
    std::optional<TimePoint> begin;
    TimePoint end{};
    std::uint64_t before = 0;  // of `bytes`: those that had come when the time began
    std::optional<double> rate() const;
  };

  std::optional<TimePoint> arrival_;
  Duration part_wait_{}, result_wait_{};
  Flow out_, in_;
};

}  // namespace cohive::averaging
