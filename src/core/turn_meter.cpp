#include "turn_meter.hpp"

#include <ctime>

namespace cohive {
namespace {

Duration clock_time(clockid_t clock) noexcept {
  timespec time{};
  ::clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}
Duration wall_clock() noexcept {
  return clock_time(CLOCK_MONOTONIC);
}  // std::chrono::steady_clock's
Duration processor_time() noexcept {
  return clock_time(CLOCK_THREAD_CPUTIME_ID);
}

}  // namespace

void TurnMeter::look_if_due() noexcept {
  if (began_ - looked_at_ <= look_every_) return;
  used_then_ = processor_time();
  looked_at_ = began_;
}

void TurnMeter::begin() noexcept {
  began_ = wall_clock();
  elsewhere_ = used_elsewhere_ = {};
  look_if_due();
}

std::optional<TurnMeter::Long> TurnMeter::end() noexcept {
  std::optional<Long> result;
  const Duration now = wall_clock(), wall = now - began_ - elsewhere_;
  if (wall > limit_) [[unlikely]] {
    const Duration others = began_ - looked_at_;  // turns since the last look, had they computed all the time
    result = {wall, std::clamp(processor_time() - used_then_ - used_elsewhere_ - others, Duration(), wall)};
  }
  began_ = now;
  elsewhere_ = used_elsewhere_ = {};
  look_if_due();
  return result;
}

void TurnMeter::pause() noexcept {
  used_at_pause_ = processor_time();
  paused_at_ = wall_clock();
}

void TurnMeter::go_on() noexcept {
  elsewhere_ += wall_clock() - paused_at_;
  used_elsewhere_ += processor_time() - used_at_pause_;
}

}  // namespace cohive
