// LinkFit: how long a round of local steps is, and whether it travels in few bits, so that the exchange takes place
// behind the training on the links that the trainers have.
//   with the search for a round:  each member tells its wish: what would have suited its own last rounds
//   in the round:                 all members come to the same codec by these wishes, which they have all been told
//   after the round:              and to the same length of the next one
//   newcomers:                    take what the run has agreed on, with the state
// Where fragments are averaged in turn, a round is that of one of them, and has as many fewer local steps.
// What this peer's own link carries makes its wish, and what others do makes that little longer. A member, honest with
// a thin link or hostile, can have rounds of few bits that are four times as long as the others wish; most members of a
// group together can have rounds of 10 to 500 local steps of each trainer, and no others.
#pragma once

#include <atomic>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cohive/averaging/round.hpp"
#include "cohive/train/run_options.hpp"

namespace cohive::train {

inline constexpr double kMuchMomentum = 0.5;  // of the outer optimizer: published runs have long rounds beyond it

/// A member of a round would have the next ones be so.
struct RoundWish {
  double target = 0;      ///< samples of all trainers together, at least 1
  bool few_bits = false;  ///< in the codec that needs agreement
  bool given = false;     ///< chosen by its user, whatever the links carry
};

/// Appends a wish to what members tell one another.
void write_wish(const RoundWish& wish, msgpack::Array& to);
/// Reads what write_wish() has written from place `at` on; nullopt for anything else, and for impossible numbers.
std::optional<RoundWish> read_wish(const msgpack::Array& from, std::size_t at);
/// Returns what the members of a round do: as long rounds as one of them wishes, but not much longer than the middle
/// wish, and few bits where one wishes for them. Of wishes that were given, where these are half of all or more.
/// nullopt: there is none.
std::optional<RoundWish> outcome_of(std::vector<RoundWish> wishes);

/// A round with others, as this peer saw it.
struct SeenRound {
  std::size_t members = 2;
  double values = 0;          ///< that were averaged
  double share = 1;           ///< of the values of the model
  std::uint64_t steps = 0;    ///< local ones of this peer
  double computing = 0;       ///< seconds that these took
  bool whole = false;         ///< this peer has trained since the end of the round before
  double behind = 0;          ///< seconds from the end of the epoch to the average
  double transfer = 0;        ///< of these, the seconds in which values travelled
  bool parameters = false;    ///< parameters were averaged, as in a divided run; else differences
  bool few_bits = false;      ///< values travelled in as few bits as they can
  averaging::LinkRates link;  ///< what the link of this peer carries
};

/// Values of a tensor below which it travels as it is where others travel in few bits: norms and biases, for which that
/// costs more than it saves.
inline constexpr std::uint64_t kSmallTensor = 4096;

/// Returns how parameters travel, where a divided run averages these in place of differences. They need more bits.
codec::Compression parameter_compression(const RunOptions& options, bool few_bits);

class LinkFit {
 public:
  explicit LinkFit(const RunOptions& options);

  /// Returns the samples of a round. Any thread.
  double target() const noexcept;
  /// Called with every batch: the first one says how long the first rounds are, where nothing else does. Any thread.
  void count(double samples);

  // ---- The loop's thread

  /// Returns for how many seconds a round may wait for a member, as that is behind the training.
  double patience() const noexcept { return patience_; }
  /// Returns what this peer tells the members of the next round.
  RoundWish wish() const;
  /// Takes what the members of a round have wished, and makes a wish of what was seen of it.
  void round_ended(const SeenRound& seen, std::vector<RoundWish> wishes);
  /// Returns what newcomers take over: Exchange::kept(). Written between two rounds, before restored().
  std::span<float> kept() noexcept { return {&kept_, 1}; }
  void restored();
  /// A download of the state has taken so many seconds: where rounds are shorter, the state was old when it came, and
  /// this peer wishes for longer ones.
  /// \param round  seconds of one, by the reports of the trainers
  void downloaded(double seconds, double round);
  /// Returns what was told last of the rounds, for people; empty before two rounds.
  const std::string& told() const noexcept { return told_; }

 private:
  const codec::Compression& codec_of(bool few) const;
  double bits(bool few) const;
  double step() const;
  double exchange(double bits) const;
  double training_for(bool few) const;
  double waited_share(bool few, double training) const;
  double training_of(double samples) const;
  void note(const SeenRound& seen, double target);
  void agree(const SeenRound& seen, std::vector<RoundWish> wishes);
  void make_wish(double target_then);
  void tell(const SeenRound& seen);
  std::string why_not(const SeenRound& seen, double steps) const;
  static double seconds_of_link(const SeenRound& seen, double bits);

  const bool fits_target_, fits_bits_, delayed_;
  const double usual_target_, fragments_, least_steps_, matchmaking_;
  const bool agrees_;  // where all do, rounds have few bits
  const codec::Compression ordinary_, agreed_, parameters_, few_parameters_;
  std::atomic<double> target_ = 0;  // 0: no batch was counted yet
  bool few_bits_ = true;            // of the last round, as its members have wished
  double patience_ = 0;
  bool refused_ = false;        // it had more bits all the same: a member has not offered the codec
  bool of_parameters_ = false;  // the last round, that is
  RoundWish wish_;              // target 0: none of its own yet
  float kept_ = 0;              // the target
  struct Seen {
    double step;            // seconds
    double fixed, per_bit;  // seconds of an exchange, of which the second for each bit that a value takes
    double download;        // seconds that a newcomer waits for the state, per bit as well
    double computing;       // seconds
    double samples;         // of all trainers, while it computed; 0: it came in the middle of the round
  };
  std::deque<Seen> seen_;  // of the last rounds
  std::string told_;
  double told_steps_ = 0;
  std::size_t untold_ = 0;     // rounds since what was told is not true any more
  std::size_t unsettled_ = 0;  // rounds since this peer has had the ones that it wishes
  bool told_few_ = false, told_hidden_ = false;
};

}  // namespace cohive::train
