#include "claim_bounds.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "cohive/core/log.hpp"

namespace cohive::train {
namespace {

constexpr double kTooMuch = 1.4;      // claims for each sample that came; trainers that missed the round claimed, too
constexpr int kDoubtfulEpochs = 5;    // after such a round
constexpr double kFaster = 2;         // than the weights have shown
constexpr double kUnshownShare = 0.25;  // of a batch
constexpr int kRememberedRounds = 10;
constexpr double kShortestEpoch = 0.1;  // seconds

}  // namespace

void ClaimBounds::epoch_began(TimePoint now) {
  if (!std::exchange(averaged_, false)) {
    shown_.clear();
    doubtful_epochs_ = 0;
  }
  last_ = std::exchange(current_, Epoch{now});
  last_.ended = now;
}

void ClaimBounds::averaged(const std::vector<ShownWeight>& others, double own, bool delayed, TimePoint now) {
  averaged_ = true;
  // Who reduces nothing sees no weights. Else a member whose weight was not seen did not count.
  if (std::ranges::none_of(others, [](const ShownWeight& one) { return one.weight.has_value(); })) return;
  const Epoch& epoch = delayed ? last_ : current_;
  const double seconds = std::max(to_seconds((delayed ? last_.ended : now) - epoch.began), kShortestEpoch);
  double came = own;
  for (auto& [peer, shown] : shown_) ++shown.missed;
  for (const ShownWeight& one : others) {
    came += one.weight.value_or(0);
    shown_[one.peer] = {one.weight.value_or(0) / seconds, 0};
  }
  std::erase_if(shown_, [](const auto& item) { return item.second.missed > kRememberedRounds; });
  const double claimed = std::max(epoch.claimed, target_);  // or it would not have ended, by speeds that were claimed
  const bool too_much = claimed > kTooMuch * came;
  if (too_much && doubtful_epochs_ == 0)
    log::warn("train", "trainers claimed {:.0f} samples of which {:.0f} came: those that do not average count little",
              claimed, came);
  doubtful_epochs_ = too_much ? kDoubtfulEpochs : std::max(doubtful_epochs_ - 1, 0);
}

BelievedSamples ClaimBounds::add_up(const std::vector<SampleClaim>& claims, double own, TimePoint now) {
  const double elapsed = to_seconds(now - current_.began);
  BelievedSamples believed;
  double unshown = 0, claimed = own;
  for (const SampleClaim& claim : claims) {
    const auto shown = claim.peer ? shown_.find(*claim.peer) : shown_.end();
    double most = 0, fastest = 0;
    if (!doubting()) {
      most = fastest = std::numeric_limits<double>::infinity();
    } else if (shown != shown_.end()) {
      fastest = kFaster * shown->second.rate;
      most = fastest * elapsed;
    }
    const double samples = std::min(claim.samples, most), rate = std::min(claim.samples_per_second, fastest);
    claimed += claim.samples;
    unshown += claim.samples - samples;
    believed.samples += samples;
    believed.estimated += samples + std::max(0.0, claim.age) * rate;
    believed.samples_per_second += rate;
  }
  current_.claimed = std::max(current_.claimed, claimed);
  const double more = std::min(unshown, kUnshownShare * target_);
  believed.samples += own + more;
  believed.estimated += own + more;
  return believed;
}

}  // namespace cohive::train
