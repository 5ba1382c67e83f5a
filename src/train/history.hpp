// What a run has gone through: its last rounds and epochs, for the status of the process, and why some of them failed.
#pragma once

#include <deque>

#include "cohive/averaging/round.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/train/metrics.hpp"

namespace cohive::train {

/// Why a round or a download failed, in one of few words: the same in the log, in the status and as a label of the
/// counter.
std::string cause_of_round_failure(const Error& error);
std::string cause_of_download_failure(const Error& error);

class History {
 public:
  static constexpr std::size_t kRounds = 100, kEpochs = 500;  ///< kept

  History(Runtime& runtime, RunMetrics metrics);

  /// Begins with 0 for an exchange of this name: an alert sees no counter rise that appears with its first failure.
  void count_failures_of(const std::string& what);
  /// \param what  name of the exchange: "gradients"
  void round_averaged(const std::string& what, std::shared_ptr<const averaging::RoundReport> report);
  /// Counts, remembers and logs. \param cause  see above; "missed" when the other peers went on without us
  void round_failed(const std::string& what, const std::string& cause, const std::string& sentence);
  void download_failed(const Error& error);

  struct Epoch {
    std::uint64_t number = 0;                    ///< that has ended
    double samples = 0, samples_per_second = 0;  ///< of the whole run
    double loss = 0;                             ///< the last one reported; NaN: none
    std::size_t peers = 0;
    double waited = 0;  ///< seconds, since the run began
  };
  /// Returns how many seconds the epoch took.
  double epoch_ended(const Epoch& epoch);

  struct Round {
    double time;
    std::string what, outcome, cause, message;
    std::shared_ptr<const averaging::RoundReport> report;  ///< of one that averaged; never null
  };
  /// Oldest first.
  const std::deque<Round>& kept_rounds() const noexcept { return rounds_; }
  /// The same as JSON arrays.
  std::string rounds() const;
  std::string epochs() const;

 private:
  struct EndedEpoch {
    Epoch epoch;
    double time, seconds, waited;
  };
  void keep(Round round);

  Runtime& runtime_;
  const RunMetrics metrics_;
  std::deque<Round> rounds_;
  std::deque<EndedEpoch> epochs_;
  TimePoint epoch_begin_;
  double waited_ = 0;
};

}  // namespace cohive::train
