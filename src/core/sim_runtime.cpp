#include "cohive/core/sim_runtime.hpp"

#include <stdexcept>

namespace cohive {

namespace {
constexpr TimePoint kStart{std::chrono::hours(1)};
constexpr double kWallStart = 1'700'000'000.0;
constexpr std::size_t kShownTasks = 20;
}  // namespace

SimRuntime::SimRuntime(std::uint64_t seed) : Runtime(seed), now_(kStart) {}
SimRuntime::~SimRuntime() {
  shut_down();
}

double SimRuntime::wall_time() const {
  return kWallStart + to_seconds(now_ - kStart + wall_shift_);
}

void SimRuntime::post(std::function<void()> function) {
  posted_.push_back(std::move(function));
}

boost::asio::io_context& SimRuntime::io_context() {
  throw std::logic_error("a simulated runtime has no io_context");
}

void SimRuntime::start_job(std::shared_ptr<detail::OffloadJob> job) {
  job->run();
  if (job->waiter) job->waiter->wake();
}

void SimRuntime::step_ready() {
  drain_ready(1);
  while (!posted_.empty()) {
    auto function = std::move(posted_.front());
    posted_.pop_front();
    function();
  }
}

void SimRuntime::run_until(const bool& done) {
  while (!done) {
    if (has_ready() || !posted_.empty()) {
      step_ready();
    } else if (has_timers()) {
      now_ = std::max(now_, next_timer());
      fire_timers(now_);
    } else {
      std::string message = "nothing left to happen, yet the task has not ended; waiting:";
      auto waiting = tasks();
      for (std::size_t i = 0; i < waiting.size() && i < kShownTasks; ++i) {
        message += "\n  " + waiting[i].group + "/" + waiting[i].name + ": " + waiting[i].waiting_for;
      }
      throw std::logic_error(message);
    }
  }
}

void SimRuntime::run_ready() {
  while (has_ready() || !posted_.empty()) step_ready();
}

void SimRuntime::run_for(Duration duration) {
  const TimePoint end = now_ + duration;
  for (;;) {
    run_ready();
    if (!has_timers() || next_timer() > end) break;
    now_ = std::max(now_, next_timer());
    fire_timers(now_);
  }
  now_ = end;
}

}  // namespace cohive
