// What a run has been through, look by look, in memory and in a file of JSON lines.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/result.hpp"
#include "monitor/run_view.hpp"

namespace cohive::tools {

/// One look at a run.
struct Look {
  double time = 0;
  std::uint64_t epoch = 0;
  double samples = 0, samples_per_second = 0;
  std::size_t trainers = 0, clients = 0;
  std::optional<double> loss;
  std::uint64_t loss_step = 0;
  double epoch_samples = 0;
  std::optional<std::size_t> nodes, reachable;
};

class LookHistory {
 public:
  static constexpr std::size_t kKept = 20'000;
  static constexpr double kPeriod = 60;  ///< seconds between two looks that are kept, where nothing has changed

  explicit LookHistory(std::string run_id) : run_id_(std::move(run_id)) {}

  /// Keeps the look where it says something new; returns its line for the file then.
  std::optional<std::string> add(const RunView& view);
  /// Takes back the last looks at this run that a file holds, as many as are kept. Returns how many lines from there on
  /// are none. Takes a while for a long file: not for the loop.
  /// Errors: Errc::io when the file exists and cannot be read.
  Result<std::size_t> load(const std::string& path);

  const std::deque<Look>& looks() const { return looks_; }
  /// The last look at which there were trainers; its time is 0 when there is none.
  RunView last_seen() const;
  /// What the last whole epoch came to, as far as it can be told.
  std::optional<double> last_epoch_size() const;

 private:
  void keep(const Look& look);
  std::string run_id_;
  std::deque<Look> looks_;
  double most_samples_ = 0;  // of the epoch that runs
  std::optional<double> epoch_size_;
};

/// A look, and at which run.
struct RecordedLook {
  std::string run_id;
  Look look;
};
/// A look as a line, and back; nothing for another text.
std::string line_of(const Look& look, const std::string& run_id);
std::optional<RecordedLook> look_from(const std::string& line);

/// At most so many of them, evenly, with the last one.
template <class Range>
auto thinned(const Range& all, std::size_t most) {
  if (all.size() <= most) return std::vector(all.begin(), all.end());
  std::vector<typename Range::value_type> some;
  for (std::size_t i = 0; i < most; ++i) some.push_back(all[(i + 1) * all.size() / most - 1]);
  return some;
}

/// Calls `add` with looks in their order, but for one whose number is below that of the look before: it came late.
/// Where a second one is below, too, the run has begun anew, or has gone back to a checkpoint: `drop` gives up before
/// what was added from the least of their numbers on.
template <class Range, class Number, class Add, class Drop>
void follow_run(Range&& looks, Number number, Add add, Drop drop) {
  std::optional<std::uint64_t> last;
  std::optional<Look> fallen;
  for (const Look& look : looks) {
    const bool falls = last && number(look) < *last;
    if (falls && !fallen) {
      fallen = look;
      continue;
    }
    if (falls) {
      const std::uint64_t begin = std::min(number(*fallen), number(look));
      drop(begin);
      if (number(*fallen) == begin) add(*fallen);
    }
    fallen.reset();
    add(look);
    last = number(look);
  }
}

/// The newest loss of each epoch. Where the epochs fall for more than one look, the run has begun anew, or has gone
/// back to a checkpoint: the losses from there on take the place of older ones.
std::vector<Look> losses_of(const std::deque<Look>& looks);

}  // namespace cohive::tools
