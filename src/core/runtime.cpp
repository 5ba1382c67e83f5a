#include "cohive/core/runtime.hpp"

#include <algorithm>
#include <cassert>
#include <stdexcept>
#include <utility>

#include "cohive/core/metrics.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/task_group.hpp"
#include "task_metrics.hpp"

namespace cohive {

void Waiter::wake() noexcept {
  runtime_->make_ready(*this);
}

void Waiter::note_wait() noexcept {
  if (root_) root_->waiting_for_ = what_;
}

void DeadlineWaiter::expire(void* self) noexcept {
  auto* waiter = static_cast<DeadlineWaiter*>(self);
  if (waiter->woken()) return;  // in time, it just has not run yet
  waiter->expired_ = true;
  waiter->wake();  // leaves the list it waited in
}

void Timer::arm(TimePoint at) {
  runtime_->arm_timer(*this, at);
}
void Timer::disarm() noexcept {
  runtime_->disarm_timer(*this);
}

Runtime::Runtime(std::uint64_t seed)
    : random_(seed),
      metrics_(std::make_unique<Metrics>()),
      background_(std::make_unique<TaskGroup>(*this, "background")) {
  detail::task_failures(*metrics_);
}

Runtime::~Runtime() {
  shut_down();
}

void Runtime::shut_down() noexcept {
  if (background_) background_->cancel();
}

Deadline Runtime::after(Duration duration) const {
  if (duration >= Duration::max() / 4) return Deadline::never();
  return Deadline(now() + duration);
}

void Runtime::random_bytes(MutableBytes out) {
  for (std::size_t i = 0; i < out.size(); i += 8) {
    const std::uint64_t word = random_();
    std::memcpy(out.data() + i, &word, std::min<std::size_t>(8, out.size() - i));
  }
}

double Runtime::random_unit() {
  return static_cast<double>(random_() >> 11) * 0x1.0p-53;
}

Runtime::Sleep Runtime::sleep_for(Duration duration) {
  return Sleep(*this, after(duration).at(), false);
}
Runtime::Sleep Runtime::sleep_until(TimePoint at) {
  return Sleep(*this, at, false);
}
Runtime::Sleep Runtime::yield() {
  return Sleep(*this, {}, true);
}

void Runtime::spawn_background(Task<void> task) {
  background_->spawn(std::move(task), "background task");
}

void Runtime::run_root(Task<void> task, const bool& done) {
  if (running_) throw std::logic_error("Runtime::run called from inside the loop");
  running_ = true;
  const auto ended = on_exit([this] { running_ = false; });
  TaskGroup group(*this, "run");
  group.spawn(std::move(task), "main");
  run_until(done);
}

void Runtime::make_ready(Waiter& waiter) noexcept {
  waiter.woken_ = true;
  const bool was_empty = ready_.empty();
  ready_.push_back(waiter);
  if (was_empty) on_ready();
}

Runtime::Resumed Runtime::resume_next() {
  Waiter* waiter = ready_.pop_front();
  assert(waiter);
  Resumed resumed;
  resumed.waited_for = waiter->what_;
  resumed.code = *static_cast<void* const*>(waiter->handle_.address());  // where every compiler's frames have it
  if (const TaskRoot* root = waiter->root_) {
    resumed.task = root->name_;
    if (root->group_) resumed.group = root->group_->name();
  }
  current_ = waiter->root_;
  waiter->handle_.resume();
  current_ = nullptr;
  drop_doomed();
  return resumed;
}

std::string Runtime::Resumed::text() const {
  const auto or_none = [](const char* name) { return std::string(name ? name : "?"); };
  return or_none(group) + "/" + or_none(task) + ", which waited for " + or_none(waited_for);
}

/// A task that cancelled its own group, or that of a task it works for, goes here, now that it is suspended.
void Runtime::drop_doomed() noexcept {
  while (TaskHook* hook = doomed_.pop_front()) delete hook->root;
}

std::vector<TaskInfo> Runtime::tasks() const {
  std::vector<TaskInfo> result;
  const_cast<IntrusiveList<TaskHook>&>(all_tasks_).for_each([&](TaskHook& hook) {
    const TaskRoot& root = *hook.root;
    result.push_back({root.group_ ? root.group_->name() : "", root.name_, root.waiting_for_, now() - root.started_});
  });
  return result;
}

// Timers: a heap ordered by time, then by the order of arming.

bool Runtime::earlier(const ArmedTimer& a, const ArmedTimer& b) noexcept {
  return a.at != b.at ? a.at < b.at : a.order < b.order;
}

void Runtime::place(std::size_t position, const ArmedTimer& armed) noexcept {
  timers_[position] = armed;
  armed.timer->position_ = position;
}

void Runtime::sift_up(std::size_t position, ArmedTimer armed) noexcept {
  while (position > 0) {
    const std::size_t parent = (position - 1) / kTimerChildren;
    if (!earlier(armed, timers_[parent])) break;
    place(position, timers_[parent]);
    position = parent;
  }
  place(position, armed);
}

void Runtime::sift_down(std::size_t position, ArmedTimer armed) noexcept {
  for (;;) {
    const std::size_t first = kTimerChildren * position + 1;
    if (first >= timers_.size()) break;
    const std::size_t end = std::min(first + kTimerChildren, timers_.size());
    std::size_t child = first;
    for (std::size_t other = first + 1; other < end; ++other)
      if (earlier(timers_[other], timers_[child])) child = other;
    if (!earlier(timers_[child], armed)) break;
    place(position, timers_[child]);
    position = child;
  }
  place(position, armed);
}

void Runtime::arm_timer(Timer& timer, TimePoint at) {
  disarm_timer(timer);
  const ArmedTimer armed{at, timer_order_++, &timer};
  timers_.push_back(armed);
  sift_up(timers_.size() - 1, armed);
  if (timer.position_ == 0) on_timers_changed();
}

void Runtime::disarm_timer(Timer& timer) noexcept {
  if (timer.position_ == Timer::kUnarmed) return;
  const std::size_t position = std::exchange(timer.position_, Timer::kUnarmed);
  const ArmedTimer last = timers_.back();
  timers_.pop_back();
  if (last.timer == &timer) return;
  const bool rises = position > 0 && earlier(last, timers_[(position - 1) / kTimerChildren]);
  rises ? sift_up(position, last) : sift_down(position, last);
}

void Runtime::fire_timers(TimePoint now) {
  while (!timers_.empty() && timers_.front().at <= now) {
    Timer* timer = timers_.front().timer;
    disarm_timer(*timer);
    timer->fire_(timer->argument_);
  }
}

}  // namespace cohive
