// How work that goes on is given up, by whoever began it.
#pragma once

#include <functional>
#include <mutex>
#include <utility>

namespace cohive::c {

/// Any thread. The function may use whatever lives as long as the work: when end() has returned, nobody is in it any
/// more, and nobody will be. It must not call this object.
class GiveUp {
 public:
  /// Has ask() call the function, once; calls it now, where ask() was called before.
  void set(std::function<void()> function) {
    const std::lock_guard lock(mutex_);
    if (stage_ == Stage::asked) return function();
    if (stage_ == Stage::going_on) function_ = std::move(function);
  }
  /// Gives the work up. Does nothing after the end.
  void ask() {
    const std::lock_guard lock(mutex_);
    if (stage_ == Stage::ended) return;
    stage_ = Stage::asked;
    if (const auto function = std::exchange(function_, nullptr)) function();
  }
  /// Notes that the work has ended, once a call of the function that goes on has returned.
  void end() {
    const std::lock_guard lock(mutex_);
    stage_ = Stage::ended;
    function_ = nullptr;
  }
  /// Tells whether ask() was called and the work goes on.
  bool asked() const {
    const std::lock_guard lock(mutex_);
    return stage_ == Stage::asked;
  }

 private:
  enum class Stage { going_on, asked, ended };
  mutable std::mutex mutex_;
  Stage stage_ = Stage::going_on;
  std::function<void()> function_;
};

}  // namespace cohive::c
