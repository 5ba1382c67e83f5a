// LineWriter: lines of the log on their way to an output that may be slow, or take nothing at all: a paused terminal, a
// pipe without a reader, a full disk. A thread writes them; the caller never waits for it. spdlog's asynchronous logger
// is not used because its end waits for the output, however long that takes.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace cohive::log {

class LineWriter {
 public:
  using Write = std::function<void(std::string_view lines)>;       ///< may wait, must not throw
  using Report = std::function<std::string(std::uint64_t count)>;  ///< the line that stands where so many were dropped
  static constexpr std::size_t kMaxBytes = 4 << 20;  ///< that wait to be written; beyond, the oldest are dropped

  LineWriter(Write write, Report report);
  /// Does not wait: what has not been written may be lost. See flush().
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;

  /// Any thread. Returns at once.
  void push(std::string line);
  /// Waits until all lines pushed before are written, as long as `limit`. False when they are not.
  bool flush(std::chrono::milliseconds limit);
  std::uint64_t dropped() const;

 private:
  struct State;
  static void run(State& state);
  std::shared_ptr<State> state_;
};

/// Writes to the standard error stream; what it does not take (closed, no reader) is lost.
void write_to_stderr(std::string_view lines);

}  // namespace cohive::log
