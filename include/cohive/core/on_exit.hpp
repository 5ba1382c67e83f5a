/// \file
/// on_exit: what happens at the end of a scope, however it is left; in a coroutine also when its task is dropped.
#pragma once

#include <utility>

namespace cohive {

/// Calls a function when it dies; made by on_exit().
template <class F>
class [[nodiscard]] OnExit {
 public:
  /// Calls `function` when this object ends.
  explicit OnExit(F function) : function_(std::move(function)) {}
  OnExit(const OnExit&) = delete;
  OnExit& operator=(const OnExit&) = delete;
  ~OnExit() {
    if (armed_) function_();
  }
  /// Lets the end of the scope pass without a call.
  void cancel() noexcept { armed_ = false; }

 private:
  F function_;
  bool armed_ = true;
};

/// Calls `function` where the returned object's life ends: `const auto done = on_exit([&] { --running; });`
/// It must not throw. In a coroutine it may refer to variables of the frame that were made before it.
template <class F>
OnExit<F> on_exit(F function) {
  return OnExit<F>(std::move(function));
}

}  // namespace cohive
