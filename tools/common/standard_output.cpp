#include "common/standard_output.hpp"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <iostream>
#include <mutex>
#include <streambuf>
#include <string>

#include "cohive/core/log.hpp"
#include "common/signals.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kMostBuffered = 64 * 1024;

/// Of a pipe, and of a terminal that was closed; or nobody has read for too long.
bool without_reader(int failure) {
  return failure == EPIPE || failure == EIO || failure == ETIMEDOUT;
}

class StandardOutput final : public std::streambuf {
 public:
  int failure() const noexcept { return failure_; }

 protected:
  int_type overflow(int_type symbol) override {
    if (traits_type::eq_int_type(symbol, traits_type::eof())) return traits_type::not_eof(symbol);
    const char one = traits_type::to_char_type(symbol);
    return xsputn(&one, 1) == 1 ? symbol : traits_type::eof();
  }
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    const std::lock_guard lock(mutex_);
    if (failure_ != 0) return 0;
    buffer_.append(text, static_cast<std::size_t>(count));
    return buffer_.size() < kMostBuffered || flush() ? count : 0;
  }
  int sync() override {
    const std::lock_guard lock(mutex_);
    return flush() ? 0 : -1;
  }

 private:
  bool flush() {
    if (failure_ == 0) failure_ = write_all();
    buffer_.clear();
    return failure_ == 0;
  }
  /// Returns errno of the write that failed.
  int write_all() {
    for (std::string_view rest = buffer_; !rest.empty();) {
      if (!wait_until_ready(STDOUT_FILENO, POLLOUT)) return tell(ETIMEDOUT);
      // A pipe that is ready takes so many bytes without waiting.
      const ssize_t count = ::write(STDOUT_FILENO, rest.data(), std::min<std::size_t>(rest.size(), PIPE_BUF));
      if (count >= 0)
        rest.remove_prefix(static_cast<std::size_t>(count));
      else if (errno != EINTR && errno != EAGAIN)
        return tell(errno);
    }
    return 0;
  }
  static int tell(int failure) {
    if (without_reader(failure))
      log::info("output", "nobody reads the standard output any more: going on without it");
    else
      log::warn("output", "the standard output is lost from here on: {}", std::strerror(failure));
    return failure;
  }

  std::mutex mutex_;  // downloads are told of by another thread
  std::string buffer_;
  std::atomic<int> failure_{0};
};

/// Never destroyed: std::cout is flushed when the process ends.
StandardOutput& standard_output() {
  static StandardOutput& output = *new StandardOutput;
  return output;
}

}  // namespace

void write_standard_output() noexcept {
  std::cout.rdbuf(&standard_output());
}

bool lost_output() noexcept {
  const int failure = standard_output().failure();
  return failure != 0 && !without_reader(failure);
}

}  // namespace cohive::tools
