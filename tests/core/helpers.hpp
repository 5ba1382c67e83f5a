// Small coroutines that the tests of the async core share.
#pragma once

#include <stdexcept>

#include "cohive/core/runtime.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::testing {

/// Counts the objects alive: shows that dropping a task runs the destructors of its variables.
struct Tracker {
  int& alive;
  explicit Tracker(int& count) : alive(count) { ++alive; }
  Tracker(const Tracker&) = delete;
  ~Tracker() { --alive; }
};

inline Task<int> add_later(Runtime& runtime, int a, int b, Duration delay) {
  co_await runtime.sleep_for(delay);
  co_return a + b;
}

inline Task<void> fail_later(Runtime& runtime, Duration delay = 1ms) {
  co_await runtime.sleep_for(delay);
  throw std::runtime_error("broken");
}

inline Task<void> hold(Runtime& runtime, int& alive) {
  Tracker tracker(alive);
  co_await runtime.sleep_for(1h);
}

inline Task<void> hold_nested(Runtime& runtime, int& alive) {
  Tracker tracker(alive);
  co_await hold(runtime, alive);
}

inline Task<void> join_group(TaskGroup& group) {
  co_await group.join();
}

}  // namespace cohive::testing
