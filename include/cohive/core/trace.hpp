/// \file
/// Trace: what a process did when, in a file of Chrome trace events, which https://ui.perfetto.dev shows. Loop thread
/// only.
///
///   TraceSpan span(runtime, "dial", "dial");       // until it dies
///   if (span) span.note("peer", peer.text());
///
/// Without Trace::start() a span costs one look at a flag. The file is written by the pool, and bounded.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cohive/core/result.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive {

/// Writes what a process does when as Chrome trace events. Does nothing until start().
class Trace {
 public:
  static constexpr std::size_t kMostBytes = std::size_t{256} << 20;  ///< of a file, where start() is not told

  /// Use of().
  explicit Trace(Runtime& runtime);
  ~Trace();
  Trace(const Trace&) = delete;
  /// The one of this loop.
  static Trace& of(Runtime& runtime) { return runtime.local<Trace>(); }
  /// Whether any loop of this process traces: a cheap first question.
  static bool any() noexcept { return running_.load(std::memory_order_relaxed) > 0; }
  /// Tells whether a file of this process is not whole because it could not be written.
  static bool any_failed() noexcept { return failed_; }

  /// Begins a file; what another trace has left there is replaced. Errors: Errc::io, Errc::in_use while one is written.
  /// \param process     the name of its track, as a peer id
  /// \param most_bytes  when the file holds so much, the trace ends
  Result<> start(const std::string& path, const std::string& process, std::size_t most_bytes = kMostBytes);
  /// Writes what is left and closes the file.
  void stop();
  /// Tells whether a file is being written.
  bool on() const noexcept { return file_ != nullptr; }

  /// Adds what went on from `begin` to `end`. Category and name are literals of letters.
  /// \param args  members of a JSON object, or empty
  void add(const char* category, const char* name, TimePoint begin, TimePoint end, std::string_view args);

 private:
  struct File;
  static Task<void> keep_writing(Trace& self, std::weak_ptr<File> file);
  static Task<void> write_rest(Runtime& runtime, std::shared_ptr<File> file);
  static void warn_of_failure(const File& file);
  std::shared_ptr<File> take_file();  // no more is added to it
  static std::atomic<int> running_;
  static std::atomic<bool> failed_;

  Runtime& runtime_;
  std::shared_ptr<File> file_;
  std::uint64_t spans_ = 0;
  std::size_t bytes_ = 0, most_bytes_ = 0;
  double offset_ = 0;  // microseconds, of Unix time to that of the loop
};

/// From its begin to its end, where the loop traces.
class TraceSpan {
 public:
  /// Begins it. \param category,name  literals of letters
  TraceSpan(Runtime& runtime, const char* category, const char* name) {
    if (!Trace::any() || !Trace::of(runtime).on()) return;
    runtime_ = &runtime;
    category_ = category;
    name_ = name;
    begin_ = runtime.now();
  }
  ~TraceSpan() { end(); }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;
  /// Tells whether a trace is being written: notes may be left out else.
  explicit operator bool() const noexcept { return runtime_ != nullptr; }
  /// Adds a member to its arguments. \param key  a literal
  void note(const char* key, std::string_view text);
  /// The same with a number.
  void note(const char* key, double number);
  /// Ends it before its time.
  void end();

 private:
  Runtime* runtime_ = nullptr;
  const char *category_ = nullptr, *name_ = nullptr;
  TimePoint begin_{};
  std::string args_;
};

}  // namespace cohive
