// Scheduled: the rounds of one exchange. One begins before its tensors are ready, so that finding a group costs no
// training time; its limits follow those before it, and so does the number of groups that a large run divides into.
// Loop thread only.
#pragma once

#include <deque>
#include <memory>

#include "cohive/train/exchange.hpp"
#include "round_pace.hpp"

namespace cohive::train {

/// Returns the bits by which a round among so many trainers is divided into groups of about `group`; 0: one of all.
std::size_t bits_of(std::size_t expected, std::size_t group);

class Scheduled {
 public:
  explicit Scheduled(std::unique_ptr<Exchange> of);

  Exchange& exchange() const noexcept { return *exchange_; }
  averaging::Averager& averager() const noexcept { return exchange_->averager(); }

  // ---- The round

  /// Begins one. None is in progress.
  void begin(averaging::RoundOptions options);
  /// Returns the round that has begun, until take(); null: none has. Who waits for its group owns it, too: it may be
  /// given up meanwhile.
  const std::shared_ptr<averaging::Round>& round() const noexcept { return round_; }
  /// Tells that an epoch has ended for the round that has begun, if one has: its members wait for values of that one.
  void take_up() noexcept { taken_up_ = true; }
  /// Tells whether a round has begun that no end of an epoch has taken up: whoever waits for it waits for that end.
  bool awaits_epoch() const noexcept { return round_ && !taken_up_; }
  /// Hands the round over.
  std::shared_ptr<averaging::Round> take() { return std::exchange(round_, nullptr); }
  /// Tells whether a group has been found that waits for our tensors.
  bool has_group() const;
  /// Tells whether a group is still being looked for in a round that other groups may have ended.
  bool may_be_apart() const;
  /// Forgets a round that has ended without a group: another one may begin.
  void forget_ended();
  /// Gives up the round, if there is one: whoever waits for its group goes on without.
  void give_up();

  // ---- Groups

  /// Returns the bits of a round among so many trainers, which is divided among 2^n groups.
  /// \param group  wanted size of a group; 0: one of all
  /// \param all    whatever the last groups let expect
  std::size_t bits_for(std::size_t expected, std::size_t group, bool all) const;
  /// Tells whether the last round that began was divided.
  bool is_divided() const noexcept { return group_bits_ > 0; }
  /// Tells whether too few groups were met to know the trainers.
  bool is_new() const noexcept { return met_.size() < 2; }
  /// Notes how a round went; null: it found no group, or failed. \param found  a group
  void ended(const averaging::RoundReport* report, bool found);

  double carried = 0;  ///< samples of this peer that no round of this exchange has averaged yet: see Epochs::carry

 private:
  void count_group(const std::vector<averaging::Member>& members);

  std::unique_ptr<Exchange> exchange_;
  RoundPace pace_;
  std::shared_ptr<averaging::Round> round_;
  bool taken_up_ = false;
  std::size_t group_bits_ = 0;                 // of the last round that began
  std::deque<std::size_t> met_;                // trainers that each of the last groups lets expect
  std::deque<std::vector<PeerId>> companies_;  // of the last groups, more of them
  std::size_t known_ = 0;                      // different trainers in these
  std::size_t misses_ = 0;                     // rounds without a group since then
};

}  // namespace cohive::train
