#include "cohive/core/sim_runtime.hpp"

#include <dlfcn.h>

#include <stdexcept>

#include "cohive/core/log.hpp"
#include "turn_meter.hpp"

namespace cohive {

namespace {
constexpr TimePoint kStart{std::chrono::hours(1)};
constexpr double kWallStart = 1'700'000'000.0;
constexpr std::size_t kShownTasks = 20;
constexpr Duration kSimulatedLook = 1ms;  // how far the lower bound of a turn may lie below the truth

struct Watch {
  std::function<void(const SimRuntime::LongTurn&)> report;
  Duration limit{};
};
Watch& watch() {
  static Watch of_process;
  return of_process;
}
std::function<void(const std::string&, const std::string&)>& failure_report() {
  static std::function<void(const std::string&, const std::string&)> of_process;
  return of_process;
}
std::unique_ptr<TurnMeter> wanted_meter() {
  return watch().report ? std::make_unique<TurnMeter>(watch().limit, kSimulatedLook) : nullptr;
}

/// Returns ", at PROGRAM+ADDRESS" for code of this process.
std::string place_of(const void* code) {
  Dl_info info{};
  if (::dladdr(code, &info) == 0 || !info.dli_fname) return "";
  const auto offset = reinterpret_cast<std::uintptr_t>(code) - reinterpret_cast<std::uintptr_t>(info.dli_fbase);
  return log::format(", at {}+{:#x}", info.dli_fname, offset);
}

}  // namespace

SimRuntime::SimRuntime(std::uint64_t seed) : Runtime(seed), now_(kStart), meter_(wanted_meter()) {}
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

void SimRuntime::watch_turns(std::function<void(const LongTurn&)> report, Duration limit) {
  watch() = {std::move(report), limit};
}
void SimRuntime::watch_failures(std::function<void(const std::string&, const std::string&)> report) {
  failure_report() = std::move(report);
}
void SimRuntime::on_task_failed(const std::string& task, const std::string& what) {
  if (const auto& report = failure_report()) report(task, what);
}
void SimRuntime::end_turn(const Resumed* resumed, const char* what) {
  const auto turn = meter_ ? meter_->end() : std::nullopt;
  if (!turn) return;
  const Watch watching = watch();
  if (turn->processor > watching.limit && watching.report)
    watching.report({resumed ? resumed->text() + place_of(resumed->code) : what, turn->processor});
  meter_->begin();
}
void SimRuntime::leave_loop() noexcept {
  if (meter_) meter_->pause();
}
void SimRuntime::enter_loop() noexcept {
  if (meter_) meter_->go_on();
}

void SimRuntime::start_job(std::shared_ptr<detail::OffloadJob> job) {
  {
    const OffLoop elsewhere(*this);
    job->run();
  }
  if (job->waiter) job->waiter->wake();
}

void SimRuntime::step_ready() {
  if (has_ready()) {
    const Resumed resumed = resume_next();
    end_turn(&resumed);
  }
  while (!posted_.empty()) {
    auto function = std::move(posted_.front());
    posted_.pop_front();
    function();
    end_turn(nullptr, "a posted function");
  }
}

void SimRuntime::fire_due() {
  fire_timers(now_);
  end_turn(nullptr, "timers");
}

void SimRuntime::run_until(const bool& done) {
  if (meter_) meter_->begin();
  while (!done) {
    if (has_ready() || !posted_.empty()) {
      step_ready();
    } else if (has_timers()) {
      now_ = std::max(now_, next_timer());
      fire_due();
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
  if (meter_) meter_->begin();
  while (has_ready() || !posted_.empty()) step_ready();
}

void SimRuntime::run_for(Duration duration) {
  if (meter_) meter_->begin();
  const TimePoint end = now_ + duration;
  for (;;) {
    run_ready();
    if (!has_timers() || next_timer() > end) break;
    now_ = std::max(now_, next_timer());
    fire_due();
  }
  now_ = end;
}

}  // namespace cohive
