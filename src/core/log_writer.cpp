#include "log_writer.hpp"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

namespace cohive::log {
namespace {

constexpr std::size_t kBatch = 64 * 1024;  // bytes of lines that are written together

/// Signals are for the program's other threads; this one learns from write() that a pipe has no reader.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

struct LineWriter::State {
  Write write;
  Report report;
  std::mutex mutex;
  std::condition_variable pushed, written;
  std::deque<std::string> lines;
  std::size_t bytes = 0;
  std::uint64_t dropped = 0, unreported = 0;
  std::uint64_t pushed_count = 0, done_count = 0;  // lines; dropped ones are done
  bool started = false, ended = false;
};

LineWriter::LineWriter(Write write, Report report) : state_(std::make_shared<State>()) {
  state_->write = std::move(write);
  state_->report = std::move(report);
}

LineWriter::~LineWriter() {
  const std::lock_guard lock(state_->mutex);
  state_->ended = true;
  state_->pushed.notify_all();
}

void LineWriter::push(std::string line) {
  State& state = *state_;
  const std::lock_guard lock(state.mutex);
  if (!state.started) {
    const SignalsBlocked blocked;
    try {
      std::thread([kept = state_] { run(*kept); }).detach();
      state.started = true;
    } catch (const std::system_error&) {  // no thread to be had: lines wait for one
    }
  }
  state.bytes += line.size();
  state.lines.push_back(std::move(line));
  ++state.pushed_count;
  while (state.bytes > kMaxBytes) {
    state.bytes -= state.lines.front().size();
    state.lines.pop_front();
    ++state.dropped;
    ++state.unreported;
    ++state.done_count;
  }
  state.pushed.notify_one();
}

void LineWriter::run(State& state) {
  std::unique_lock lock(state.mutex);
  for (;;) {
    state.pushed.wait(lock, [&] { return !state.lines.empty() || state.ended; });
    if (state.lines.empty()) return;
    std::string batch;
    if (const auto count = std::exchange(state.unreported, 0); count > 0) batch = state.report(count);
    std::uint64_t taken = 0;
    for (; !state.lines.empty() && batch.size() < kBatch; ++taken) {
      state.bytes -= state.lines.front().size();
      batch += state.lines.front();
      state.lines.pop_front();
    }
    lock.unlock();
    state.write(batch);
    lock.lock();
    state.done_count += taken;
    state.written.notify_all();
  }
}

bool LineWriter::flush(std::chrono::milliseconds limit) {
  State& state = *state_;
  std::unique_lock lock(state.mutex);
  const std::uint64_t wanted = state.pushed_count;
  return state.written.wait_for(lock, limit, [&] { return state.done_count >= wanted; });
}

std::uint64_t LineWriter::dropped() const {
  const std::lock_guard lock(state_->mutex);
  return state_->dropped;
}

void write_to_stderr(std::string_view lines) {
  while (!lines.empty()) {
    const ssize_t count = ::write(STDERR_FILENO, lines.data(), lines.size());
    if (count >= 0) {
      lines.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {  // the stream is shared with a program that does not wait
      pollfd wait{STDERR_FILENO, POLLOUT, 0};
      ::poll(&wait, 1, -1);
    } else if (errno != EINTR) {
      return;
    }
  }
}

}  // namespace cohive::log
