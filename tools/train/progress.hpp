// What cohive-train prints while it trains: a bar on a terminal, lines otherwise, JSON lines with --json.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cohive/torch/optimizer.hpp"

namespace cohive::tools {

enum class Output { bar, lines, json };
/// A bar where people look at it.
Output choose_output(bool json);

/// For durations: nobody sets it.
using SteadyClock = std::chrono::steady_clock;

/// When the training ends, as far as that is known.
struct End {
  std::optional<SteadyClock::time_point> time;
  double unix_time = 0;      ///< by the clock of this machine, which may be set meanwhile; 0: no such limit
  std::uint64_t epochs = 0;  ///< 0: no such limit

  /// Seconds until the first of the two times; 0 when it is over, nothing where there is none.
  std::optional<double> seconds_left() const;
};

class Progress {
 public:
  Progress(Output output, End end) : output_(output), end_(end) {}
  ~Progress();
  Progress(const Progress&) = delete;

  /// From one report to the next.
  SteadyClock::duration period() const noexcept;
  void report(const TrainingStats& stats, double loss);
  /// Something happened: `text` for people, `fields` with the name of the event for --json.
  void say(const std::string& text, const std::string& event, nlohmann::json fields);
  /// Seconds until the end of the training; nullopt where it has none, or no speed yet.
  std::optional<double> seconds_left(const TrainingStats& stats) const;

 private:
  std::string bar(const TrainingStats& stats, double loss) const;
  void clear_bar();

  Output output_;
  End end_;
  bool bar_shown_ = false;
};

}  // namespace cohive::tools
