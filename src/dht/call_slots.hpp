// Bounds how many calls run at once. Unlike a Semaphore it wakes one waiter per freed slot, so that thousands may
// queue.
#pragma once

#include "cohive/core/sync.hpp"

namespace cohive::dht {

class CallSlots {
 public:
  CallSlots(Runtime& runtime, std::size_t slots) : freed_(runtime, "a slot for a DHT call"), free_(slots) {}

  /// Held by a running call.
  class Slot {
   public:
    explicit Slot(CallSlots* owner) : owner_(owner) {}
    Slot(Slot&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)) {}
    Slot& operator=(Slot&&) = delete;
    ~Slot() {
      if (owner_) owner_->give_back();
    }

   private:
    CallSlots* owner_;
  };

  Task<Slot> acquire() {
    PassOn pass_on{*this};
    while (free_ == 0) co_await freed_.wait();
    --free_;
    co_return Slot(this);
  }

 private:
  // A waiter that is dropped between being woken and running must not swallow the wake-up.
  struct PassOn {
    CallSlots& slots;
    ~PassOn() {
      if (slots.free_ > 0) slots.freed_.notify_one();
    }
  };
  void give_back() {
    ++free_;
    freed_.notify_one();
  }
  Condition freed_;
  std::size_t free_;
};

}  // namespace cohive::dht
