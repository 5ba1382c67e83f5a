// How far claims of samples are believed. An epoch ends when the samples that trainers report make a batch; whoever wants
// may report. What came into the averages tells more: a trainer knows by which weight each member of its rounds counted.
//   * While claims and weights fit, every claim counts, so that newcomers and Python trainers end epochs as always.
//   * After a round into which much less came than was claimed, a trainer counts up to twice the speed that its
//     weights have shown. All that is claimed beyond, by however many keys, counts as a quarter of a batch at most.
//   * Members of one round see the same, so that they agree when the next epoch ends. A trainer that the run has left
//     behind forgets what it saw, and counts every claim.
#pragma once

#include <optional>
#include <unordered_map>
#include <vector>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"

namespace cohive::train {

/// What a trainer reports of the epoch that the run is in.
struct SampleClaim {
  std::optional<PeerId> peer;
  double samples = 0, samples_per_second = 0;
  double age = 0;  ///< seconds
};

/// Of all claims together.
struct BelievedSamples {
  double samples = 0;
  double estimated = 0;  ///< with what has come since the reports
  double samples_per_second = 0;
};

/// A member of a round, and the weight by which it counted; unset where this peer has not seen it.
struct ShownWeight {
  PeerId peer;
  std::optional<double> weight;
};

class ClaimBounds {
 public:
  explicit ClaimBounds(double target) : target_(target) {}

  /// An epoch begins for this peer, by a round or by catching up: when there was no round since the last one, the run
  /// went on without it.
  void epoch_began(TimePoint now);
  /// A round of gradients has ended, in which this peer counted by `own`, of a group that everybody could join.
  /// \param delayed  the epoch that ended is the last one, as another one has begun meanwhile
  void averaged(const std::vector<ShownWeight>& others, double own, bool delayed, TimePoint now);

  BelievedSamples add_up(const std::vector<SampleClaim>& claims, double own, TimePoint now);
  bool doubting() const noexcept { return doubtful_epochs_ > 0; }

 private:
  struct Shown {
    double rate = 0;  // samples a second
    int missed = 0;   // rounds since
  };
  double target_;
  struct Epoch {
    TimePoint began{}, ended{};
    double claimed = 0;  // at most, this peer's own samples included
  };
  Epoch current_, last_;
  bool averaged_ = false;  // in the current epoch
  int doubtful_epochs_ = 0;
  std::unordered_map<PeerId, Shown> shown_;
};

}  // namespace cohive::train
