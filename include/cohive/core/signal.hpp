/// \file
/// Signal: tells subscribers that something has happened. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <vector>

namespace cohive {

/// Ends a subscription when it dies.
using Subscription = std::shared_ptr<void>;

/// Calls all subscribers at each emission, in the order of their subscription.
template <class... Args>
class Signal {
 public:
  /// Called with what is emitted.
  using Callback = std::function<void(Args...)>;

  /// Calls `callback` at each emission for as long as the returned object lives. It may subscribe and unsubscribe
  /// other callbacks and itself.
  [[nodiscard]] Subscription subscribe(Callback callback) {
    std::erase_if(callbacks_, [](const auto& weak) { return weak.expired(); });
    auto shared = std::make_shared<Callback>(std::move(callback));
    callbacks_.push_back(shared);
    return shared;
  }

  /// Calls all callbacks that were there before, in the order in which they came.
  void emit(Args... args) {
    for (const auto& weak : std::vector(callbacks_))
      if (const auto callback = weak.lock()) (*callback)(args...);
  }

 private:
  std::vector<std::weak_ptr<Callback>> callbacks_;
};

}  // namespace cohive
