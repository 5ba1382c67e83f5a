/// \file
/// Where the lines of log.hpp go, and lines with fields. A thread of its own writes them, so that callers never wait
/// for the reader of the output; when 4 MiB of lines wait, the oldest are dropped, and a line says how many. The last
/// lines, those of level debug included, are kept in memory for a user who asks what the process has been doing.
///
///   log::write(Level::warn, "train", {{"peer", donor}, {"cause", "timeout"}}, log::format("no state from {}", donor));
#pragma once

#include <chrono>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohive/core/log.hpp"

namespace cohive::log {

/// Whether lines have colours.
enum class Color {
  automatic,  ///< on a terminal, unless $NO_COLOR is set
  always,
  never
};

/// Where lines go.
struct Output {
  std::vector<std::pair<std::string, Level>> modules = {};  ///< levels of single modules, in place of Options::level
  Color color = Color::automatic;                           ///< of lines on stderr
  std::string file = {};                                    ///< lines go to this file, too
  std::size_t file_bytes = 10 << 20;  ///< of one file; then it is renamed (run.log to run.1.log) and a new one begun
  std::size_t old_files = 3;          ///< that are kept
  std::size_t recent_lines = 1000;    ///< kept in memory, whatever the levels; 0: none
  /// Takes messages in place of stderr: those of a program that has a log of its own. Called on any thread, at once: it
  /// must neither wait nor log.
  std::function<void(Level level, std::string_view module, std::string_view message)> sink = {};
};
/// Sets this for the process, beside configure(); call before threads start. Throws ErrorException when the file cannot
/// be opened. Lines for systemd's journal ($JOURNAL_STREAM) begin with their priority.
void set_output(const Output& output);
/// Sets the levels from "info" or "info,averaging=debug,dht=off". False, and no change, for other text.
bool set_levels(Options& options, Output& output, std::string_view text);

/// A named value of a line: a peer, a round, the cause of a failure. JSON lines have it, text lines leave it out.
class Field {
 public:
  /// Names a value; both must live as long as the line is being written.
  template <detail::Printable T>
  Field(std::string_view name, const T& value) : name_(name), value_(detail::erased(value)) {}
  /// Returns the name.
  std::string_view name() const noexcept { return name_; }
  /// Returns the value, as it is printed.
  const detail::Argument& value() const noexcept { return value_; }

 private:
  std::string_view name_;
  detail::Argument value_;
};
/// Named values of a line.
using Fields = std::initializer_list<Field>;
/// Writes a line with fields. Any thread; it does not wait for the output.
void write(Level level, std::string_view module, Fields fields, std::string_view message);

/// Writes a line whatever the levels are, and does not keep it: the answer to a user who asks for it.
void write_always(std::string_view module, std::string_view message);
/// The last lines in text format, oldest first, each without its end and cut after 500 bytes.
std::vector<std::string> recent();
/// Lines that were lost because an output took none for too long, since outputs were last set.
std::uint64_t dropped_lines();
/// Tells whether the log file took none of the last lines that were written to it, as on a disk that is full.
bool file_failing();
/// Waits until all lines are written, as long as `limit` for stderr and for a file each; false when they are not.
/// Happens at the end of the process, too.
bool flush(std::chrono::milliseconds limit = std::chrono::seconds(1));

/// Begins the log anew, as it was set: for the child of a fork(), where no thread writes lines and a lock may be held
/// by one that is not there.
void restart_after_fork();

}  // namespace cohive::log
