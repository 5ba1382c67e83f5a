/// \file
/// What coroutines of one loop wait on: Event, Condition, Semaphore, Channel. Loop thread only, first come first
/// served. Every wait that may depend on a remote peer has a form with a deadline.
#pragma once

#include <deque>
#include <optional>
#include <utility>

#include "cohive/core/runtime.hpp"

namespace cohive {

namespace detail {
class ListWait;

/// The tasks that wait, in the order of arrival, and the ones that were notified and have not run yet.
struct WaitList {
  IntrusiveList<ListWait> waiting;
  IntrusiveList<ListHook> notified;

  inline void notify_one() noexcept;
  inline void notify_all() noexcept;
  bool contended() const noexcept { return !waiting.empty() || !notified.empty(); }
};

/// Waits in a list until woken: yields true, or false when the deadline passed first.
class ListWait : public DeadlineWaiter {
 public:
  ListWait(Runtime& runtime, const char* what, Deadline deadline, WaitList& list, bool ready) noexcept
      : DeadlineWaiter(runtime, what, deadline), list_(list), ready_(ready) {}
  ~ListWait() {
    if (!notified_.linked()) return;
    notified_.unlink();
    list_.notify_one();  // we were chosen and are dropped instead: the next one's turn
  }
  bool await_ready() const noexcept { return ready_; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    suspend_with_deadline(handle);
    list_.waiting.push_back(*this);
  }
  bool await_resume() noexcept {
    notified_.unlink();
    return resumed_in_time();
  }

 private:
  friend struct WaitList;
  WaitList& list_;  // alive while we are linked in it
  ListHook notified_;
  bool ready_;
};

void WaitList::notify_one() noexcept {
  if (ListWait* waiter = waiting.pop_front()) {
    notified.push_back(waiter->notified_);
    waiter->wake();
  }
}
void WaitList::notify_all() noexcept {
  while (ListWait* waiter = waiting.pop_front()) waiter->wake();
}
}  // namespace detail

/// A flag to wait for. Stays set until reset.
class Event {
 public:
  /// Makes an event that is not set. \param what  a string literal: what its waiters wait for
  explicit Event(Runtime& runtime, const char* what = "event") noexcept : runtime_(&runtime), what_(what) {}
  /// Tells whether it is set.
  bool is_set() const noexcept { return set_; }
  /// Sets it: all waiters go on, and later ones do not wait.
  void set() noexcept {
    set_ = true;
    waiters_.notify_all();
  }
  /// Later waiters wait again.
  void reset() noexcept { set_ = false; }
  /// co_await: true once set, false when the deadline passed.
  detail::ListWait wait(Deadline deadline = Deadline::never()) { return {*runtime_, what_, deadline, waiters_, set_}; }

 private:
  Runtime* runtime_;
  const char* what_;
  detail::WaitList waiters_;
  bool set_ = false;
};

/// Wakes the tasks that wait now; check the condition again after waking. A task that is dropped after notify_one()
/// chose it passes the notification on.
class Condition {
 public:
  /// Makes a condition that nothing waits for. \param what  a string literal, as of an Event
  explicit Condition(Runtime& runtime, const char* what = "condition") noexcept : runtime_(&runtime), what_(what) {}
  /// Wakes all waiters.
  void notify_all() noexcept { waiters_.notify_all(); }
  /// Wakes the waiter that came first.
  void notify_one() noexcept { waiters_.notify_one(); }
  /// True while a task waits, or was chosen by notify_one() and has not run yet.
  bool contended() const noexcept { return waiters_.contended(); }
  /// Awaitable: waits for the next notification; false when the deadline passed first.
  detail::ListWait wait(Deadline deadline = Deadline::never()) { return {*runtime_, what_, deadline, waiters_, false}; }

 private:
  Runtime* runtime_;
  const char* what_;
  detail::WaitList waiters_;
};

namespace detail {
class SemaphoreWait;
}

/// Counts units of something scarce, handed out strictly in the order of asking. Units come back when the Units object
/// dies, which must happen before the semaphore does.
class Semaphore {
 public:
  /// Makes a semaphore with so many units. \param what  a string literal, as of an Event
  explicit Semaphore(Runtime& runtime, std::size_t units, const char* what = "semaphore") noexcept
      : runtime_(&runtime), what_(what), available_(units) {}

  /// Units of a semaphore that are held; they go back when it dies.
  class [[nodiscard]] Units {
   public:
    Units() = default;
    /// As acquire() makes them.
    Units(Semaphore* owner, std::size_t count) : owner_(owner), count_(count) {}
    Units(Units&& other) noexcept : owner_(std::exchange(other.owner_, nullptr)), count_(other.count_) {}
    Units& operator=(Units&& other) noexcept {
      if (this == &other) return *this;
      release();
      owner_ = std::exchange(other.owner_, nullptr);
      count_ = other.count_;
      return *this;
    }
    ~Units() { release(); }
    /// Gives them back now.
    void release() noexcept {
      if (owner_) std::exchange(owner_, nullptr)->give_back(count_);
    }
    /// Tells whether there are any.
    explicit operator bool() const noexcept { return owner_ != nullptr; }

   private:
    Semaphore* owner_ = nullptr;
    std::size_t count_ = 0;
  };

  /// Waits its turn; empty Units when the deadline passed. `count` must not exceed the initial number of units.
  Task<Units> acquire(std::size_t count = 1, Deadline deadline = Deadline::never());
  /// Without waiting; empty when there are too few or other tasks wait.
  Units try_acquire(std::size_t count = 1) noexcept;
  /// Returns how many units are neither held nor set aside for a task that is about to run.
  std::size_t available() const noexcept { return available_; }

 private:
  friend class detail::SemaphoreWait;
  void give_back(std::size_t count) noexcept;
  void grant() noexcept;
  Runtime* runtime_;
  const char* what_;
  std::size_t available_;
  IntrusiveList<detail::SemaphoreWait> line_;
  IntrusiveList<ListHook> granted_;  // units set aside for tasks that have not run yet
};

/// Mutual exclusion across suspension points: a semaphore of one unit.
class Mutex : public Semaphore {
 public:
  /// Makes one that nobody holds. \param what  a string literal, as of an Event
  explicit Mutex(Runtime& runtime, const char* what = "mutex") noexcept : Semaphore(runtime, 1, what) {}
  /// Waits its turn; empty Units when the deadline passed.
  Task<Units> lock(Deadline deadline = Deadline::never()) { return acquire(1, deadline); }
};

/// A bounded queue between coroutines.
template <class T>
class Channel {
 public:
  /// Makes an open channel. \param capacity  items that wait in it before senders do
  Channel(Runtime& runtime, std::size_t capacity, const char* what = "channel")
      : capacity_(capacity), readable_(runtime, what), writable_(runtime, what) {}

  /// Waits for room. False when closed or the deadline passed; `item` is then lost.
  Task<bool> send(T item, Deadline deadline = Deadline::never()) {
    bool waited = false;
    while (!closed_ && (items_.size() >= capacity_ || (!waited && writable_.contended()))) {
      if (!co_await writable_.wait(deadline)) co_return false;
      waited = true;
    }
    const bool sent = push(std::move(item));
    if (items_.size() < capacity_) writable_.notify_one();  // room for another task that waits
    co_return sent;
  }
  /// False when full or closed.
  bool try_send(T item) {
    if (items_.size() >= capacity_) return false;
    return push(std::move(item));
  }
  /// The next item; nullopt when closed and drained, or the deadline passed.
  Task<std::optional<T>> receive(Deadline deadline = Deadline::never()) {
    bool waited = false;
    while (items_.empty() || (!closed_ && !waited && readable_.contended())) {
      if (closed_ || !co_await readable_.wait(deadline)) co_return std::nullopt;
      waited = true;
    }
    co_return pop();
  }
  /// Takes an item without waiting; nullopt when there is none.
  std::optional<T> try_receive() {
    if (items_.empty()) return std::nullopt;
    return pop();
  }
  /// No more items come in; the items inside can still be received.
  void close() noexcept {
    closed_ = true;
    readable_.notify_all();
    writable_.notify_all();
  }
  /// Tells whether close() was called.
  bool closed() const noexcept { return closed_; }
  /// Returns how many items wait.
  std::size_t size() const noexcept { return items_.size(); }
  /// Tells whether none does.
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
