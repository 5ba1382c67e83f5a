/// \file
/// What coroutines of one loop wait on: Event, Condition, Semaphore, Channel. Loop thread only, first come first served.
/// Every wait that may depend on a remote peer has a form with a deadline.
#pragma once

#include <deque>
#include <optional>

#include "cohive/core/runtime.hpp"

namespace cohive {

namespace detail {
/// Waits in a list until woken: yields true, or false when the deadline passed first.
class ListWait : public DeadlineWaiter {
 public:
  ListWait(Runtime& runtime, const char* what, Deadline deadline, IntrusiveList<Waiter>& list, bool ready) noexcept
      : DeadlineWaiter(runtime, what, deadline), list_(list), ready_(ready) {}
  bool await_ready() const noexcept { return ready_; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    suspend_with_deadline(handle);
    list_.push_back(*this);
  }
  bool await_resume() noexcept { return resumed_in_time(); }

 private:
  IntrusiveList<Waiter>& list_;
  bool ready_;
};
}  // namespace detail

/// A flag to wait for. Stays set until reset.
class Event {
 public:
  explicit Event(Runtime& runtime, const char* what = "event") noexcept : runtime_(&runtime), what_(what) {}
  bool is_set() const noexcept { return set_; }
  void set() noexcept {
    set_ = true;
    while (Waiter* waiter = waiters_.pop_front()) waiter->wake();
  }
  void reset() noexcept { set_ = false; }
  /// co_await: true once set, false when the deadline passed.
  detail::ListWait wait(Deadline deadline = Deadline::never()) {
    return {*runtime_, what_, deadline, waiters_, set_};
  }

 private:
  Runtime* runtime_;
  const char* what_;
  IntrusiveList<Waiter> waiters_;
  bool set_ = false;
};

/// Wakes those who wait now; check the condition again after waking.
class Condition {
 public:
  explicit Condition(Runtime& runtime, const char* what = "condition") noexcept : runtime_(&runtime), what_(what) {}
  void notify_all() noexcept {
    while (Waiter* waiter = waiters_.pop_front()) waiter->wake();
  }
  void notify_one() noexcept {
    if (Waiter* waiter = waiters_.pop_front()) waiter->wake();
  }
  detail::ListWait wait(Deadline deadline = Deadline::never()) { return {*runtime_, what_, deadline, waiters_, false}; }

 private:
  Runtime* runtime_;
  const char* what_;
  IntrusiveList<Waiter> waiters_;
};

/// Counts units of something scarce. Units come back when the Units object dies.
class Semaphore {
 public:
  explicit Semaphore(Runtime& runtime, std::size_t units, const char* what = "semaphore") noexcept
      : condition_(runtime, what), available_(units) {}

  class Units {
   public:
    Units() = default;
    Units(Semaphore* owner, std::size_t count) : owner_(owner), count_(count) {}
    Units(Units&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), count_(other.count_) {}
    Units& operator=(Units&& other) noexcept {
      std::swap(owner_, other.owner_);
      std::swap(count_, other.count_);
      return *this;
    }
    ~Units() { release(); }
    void release() noexcept {
      if (owner_) std::exchange(owner_, nullptr)->give_back(count_);
    }
    explicit operator bool() const noexcept { return owner_ != nullptr; }

   private:
    Semaphore* owner_ = nullptr;
    std::size_t count_ = 0;
  };

  /// Waits its turn; empty Units when the deadline passed. `count` must not exceed the initial number of units.
  Task<Units> acquire(std::size_t count = 1, Deadline deadline = Deadline::never());
  /// Without waiting; empty when there are too few or others wait.
  Units try_acquire(std::size_t count = 1) noexcept;
  std::size_t available() const noexcept { return available_; }

 private:
  void give_back(std::size_t count) noexcept;
  struct Queued;
  Condition condition_;
  std::size_t available_;
  std::uint64_t next_ticket_ = 0;
  std::deque<std::uint64_t> line_;
  friend struct SemaphorePlace;
};

/// Mutual exclusion across suspension points: a semaphore of one unit.
class Mutex : public Semaphore {
 public:
  explicit Mutex(Runtime& runtime, const char* what = "mutex") noexcept : Semaphore(runtime, 1, what) {}
  Task<Units> lock(Deadline deadline = Deadline::never()) { return acquire(1, deadline); }
};

/// A bounded queue between coroutines.
template <class T>
class Channel {
 public:
  Channel(Runtime& runtime, std::size_t capacity, const char* what = "channel")
      : capacity_(capacity), readable_(runtime, what), writable_(runtime, what) {}

  /// Waits for room. False when closed or the deadline passed; `item` is then lost.
  Task<bool> send(T item, Deadline deadline = Deadline::never()) {
    while (!closed_ && items_.size() >= capacity_) {
      if (!co_await writable_.wait(deadline)) co_return false;
    }
    co_return push(std::move(item));
  }
  /// False when full or closed.
  bool try_send(T item) {
    if (items_.size() >= capacity_) return false;
    return push(std::move(item));
  }
  /// The next item; nullopt when closed and drained, or the deadline passed.
  Task<std::optional<T>> receive(Deadline deadline = Deadline::never()) {
    while (items_.empty()) {
      if (closed_ || !co_await readable_.wait(deadline)) co_return std::nullopt;
    }
    co_return pop();
  }
  std::optional<T> try_receive() {
    if (items_.empty()) return std::nullopt;
    return pop();
  }
  /// No more items come in; those inside can still be received.
  void close() noexcept {
    closed_ = true;
    readable_.notify_all();
    writable_.notify_all();
  }
  bool closed() const noexcept { return closed_; }
  std::size_t size() const noexcept { return items_.size(); }
  bool empty() const noexcept { return items_.empty(); }

 private:
  bool push(T item) {
    if (closed_) return false;
    items_.push_back(std::move(item));
    readable_.notify_one();
    return true;
  }
  std::optional<T> pop() {
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    writable_.notify_one();
    if (!items_.empty()) readable_.notify_one();
    return item;
  }
  std::size_t capacity_;
  std::deque<T> items_;
  Condition readable_;
  Condition writable_;
  bool closed_ = false;
};

}  // namespace cohive
