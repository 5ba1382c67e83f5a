#include "train/progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>

#include "cohive/core/log.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kUsualColumns = 80, kLeastBar = 5, kMostBar = 30;
constexpr double kLongest = 1e8;  // seconds: three years say enough

std::size_t terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kUsualColumns;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::min(std::ceil(seconds), kLongest));
  return log::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

double seconds_of(auto duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

std::optional<double> End::seconds_left() const {
  std::optional<double> left;
  if (time) left = std::max(seconds_of(*time - SteadyClock::now()), 0.0);
  if (unix_time > 0) {
    const double until = std::max(unix_time - seconds_of(std::chrono::system_clock::now().time_since_epoch()), 0.0);
    left = std::min(left.value_or(until), until);
  }
  return left;
}

Output choose_output(bool json) {
  if (json) return Output::json;
  return ::isatty(STDOUT_FILENO) ? Output::bar : Output::lines;
}

Progress::~Progress() {
  clear_bar();
}

SteadyClock::duration Progress::period() const noexcept {
  return output_ == Output::bar ? std::chrono::milliseconds(250) : std::chrono::seconds(2);
}

std::optional<double> Progress::seconds_left(const TrainingStats& stats) const {
  std::optional<double> left = end_.seconds_left();
  if (end_.epochs > 0 && stats.samples_per_second > 0) {
    const double epochs = static_cast<double>(end_.epochs - std::min(end_.epochs, stats.epoch));
    const double samples = std::max(epochs * stats.target_samples - stats.global_samples, 0.0);
    left = std::min(left.value_or(kLongest), samples / stats.samples_per_second);
  }
  return left;
}

std::string Progress::bar(const TrainingStats& stats, double loss) const {
  const double share = std::clamp(stats.global_samples / stats.target_samples, 0.0, 1.0);
  const std::string before = log::format("epoch {:4} ", stats.epoch);
  std::string after = log::format(" {:3.0f}%  {:.1f} samples/s  loss {:.4f}  {} {}", share * 100,
                                  stats.samples_per_second, loss, stats.peers, stats.peers == 1 ? "peer" : "peers");
  if (const auto left = seconds_left(stats)) after += "  ETA " + clock_text(*left);
  const std::size_t columns = terminal_columns(), text = before.size() + after.size() + 3;
  const std::size_t width = std::clamp(columns > text ? columns - text : 0, kLeastBar, kMostBar);
  const auto done = static_cast<std::size_t>(share * static_cast<double>(width));
  const std::string line = before + "[" + std::string(done, '#') + std::string(width - done, '.') + "]" + after;
  return line.substr(0, columns - 1);  // a line that wraps could not be drawn over
}

void Progress::report(const TrainingStats& stats, double loss) {
  switch (output_) {
    case Output::bar:
      // The cursor stays at the left, so that lines of the log start there.
      std::cout << '\r' << bar(stats, loss) << "\x1b[K\r" << std::flush;
      bar_shown_ = true;
      break;
    case Output::lines:
      std::cout << log::format("epoch {:4}  {:4.0f}/{:.0f} samples  {:7.1f} samples/s  loss {:.4f}  {} peers",
                               stats.epoch, stats.global_samples, stats.target_samples, stats.samples_per_second, loss,
                               stats.peers)
                << std::endl;
      break;
    case Output::json: {
      const auto left = seconds_left(stats);
      say("", "progress",
          {{"epoch", stats.epoch},
           {"samples", stats.global_samples},
           {"target_batch_size", static_cast<std::int64_t>(stats.target_samples)},
           {"samples_per_second", stats.samples_per_second},
           {"loss", loss},
           {"peers", stats.peers},
           {"eta_seconds", left ? nlohmann::json(*left) : nlohmann::json()}});
    }
  }
}

void Progress::say(const std::string& text, const std::string& event, nlohmann::json fields) {
  clear_bar();
  if (output_ != Output::json) {
    std::cout << text << std::endl;
    return;
  }
  fields["event"] = event;
  std::cout << fields.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
}

void Progress::clear_bar() {
  if (bar_shown_) std::cout << "\r\x1b[K" << std::flush;
  bar_shown_ = false;
}

}  // namespace cohive::tools
