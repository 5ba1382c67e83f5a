/// \file
/// Runtime: the event loop. It carries clock, randomness, timers, metrics and the way to other threads; protocol code
/// asks it and never the operating system, so the same code runs on real sockets and on virtual time.
///
/// Threads: everything here belongs to the loop thread, except post() and submit().
#pragma once

#include <atomic>
#include <coroutine>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <vector>

#include "cohive/core/bytes.hpp"
#include "cohive/core/intrusive_list.hpp"
#include "cohive/core/task.hpp"
#include "cohive/core/time.hpp"

namespace boost::asio {
class io_context;
}

namespace cohive {

class Metrics;
class Runtime;
class TaskGroup;

/// A suspended coroutine: the base of every awaitable that really waits. Lives in the coroutine's frame, so destroying
/// the frame takes it out of whatever list it waits in.
class Waiter : public ListHook {
 public:
  /// \param what shown when a user asks what a task is waiting for; a string literal
  Waiter(Runtime& runtime, const char* what) noexcept : runtime_(&runtime), what_(what) {}

  /// Puts the coroutine on the ready queue; it runs on a later turn of the loop, in order.
  void wake() noexcept;
  /// Returns the loop that it waits on.
  Runtime& runtime() const noexcept { return *runtime_; }

 protected:
  /// For await_suspend(): notes who waits, and for what.
  template <class Promise>
  void suspend(std::coroutine_handle<Promise> handle) noexcept {
    handle_ = handle;
    root_ = handle.promise().root;
    note_wait();
  }
  /// The same where a task begins.
  void suspend_root(std::coroutine_handle<> handle, TaskRoot* root) noexcept {
    handle_ = handle;
    root_ = root;
  }
  /// True from wake() on: the coroutine is about to run and no longer waits for anything.
  bool woken() const noexcept { return woken_; }
  /// Drops `task` as the waiting task itself would: should its destructors cancel the group of the waiting task, that
  /// one goes afterwards and not in their midst. This object may be gone when the call returns.
  template <class T>
  void drop_for_waiter(Task<T> task) noexcept;

 private:
  friend class Runtime;
  void note_wait() noexcept;
  bool woken_ = false;
  std::coroutine_handle<> handle_;
  TaskRoot* root_ = nullptr;
  Runtime* runtime_;
  const char* what_;
};

/// Calls `fire(argument)` on the loop at a given time. Re-arming costs a heap operation and no allocation.
class Timer {
 public:
  /// Gets the argument of the timer.
  using Callback = void (*)(void*);
  /// Makes a timer that is not armed.
  Timer(Runtime& runtime, Callback fire, void* argument) noexcept
      : runtime_(&runtime), fire_(fire), argument_(argument) {}
  ~Timer() { disarm(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  /// Sets the time, in place of another one.
  void arm(TimePoint at);
  /// The same; a deadline that never comes leaves the timer as it is.
  void arm(Deadline deadline) {
    if (!deadline.is_never()) arm(deadline.at());
  }
  /// Gives the time up; it is not called any more.
  void disarm() noexcept;
  /// Tells whether it is to fire.
  bool armed() const noexcept { return position_ != kUnarmed; }

 private:
  friend class Runtime;
  static constexpr std::size_t kUnarmed = ~std::size_t{0};
  Runtime* runtime_;
  Callback fire_;
  void* argument_;
  std::size_t position_ = kUnarmed;  // in Runtime::timers_
};

/// A Waiter that also gives up at a deadline. Awaiting it yields true when woken, false when the deadline passed.
class DeadlineWaiter : public Waiter {
 public:
  /// Makes a wait that ends at the deadline.
  DeadlineWaiter(Runtime& runtime, const char* what, Deadline deadline,
                 Timer::Callback on_timer = &DeadlineWaiter::expire) noexcept
      : Waiter(runtime, what), deadline_(deadline), timer_(runtime, on_timer, this) {}

 protected:
  /// The timer's callback: ends the wait, unless it was ended in time.
  static void expire(void* self) noexcept;
  /// For await_suspend(): as suspend(), and arms the timer.
  template <class Promise>
  void suspend_with_deadline(std::coroutine_handle<Promise> handle) {
    suspend(handle);
    timer_.arm(deadline_);
  }
  /// For await_resume(): whether it was woken before the deadline.
  bool resumed_in_time() noexcept {
    timer_.disarm();
    return !expired_;
  }

 private:
  Deadline deadline_;
  Timer timer_;
  bool expired_ = false;
};

namespace detail {

class OffloadJob {
 public:
  virtual ~OffloadJob() = default;
  virtual void run() noexcept = 0;      // on a worker thread
  bool waits = false;                   // it waits for a disk or a router more than it computes
  Waiter* waiter = nullptr;             // loop thread only; null once the awaiting coroutine is gone
  std::atomic<bool> abandoned = false;  // the same for workers: what has not begun need not run
};

template <class F>
class Offload;

}  // namespace detail

/// What a live task is doing: for diagnosing hangs.
struct TaskInfo {
  std::string group;        ///< of the task
  std::string name;         ///< as it was spawned
  std::string waiting_for;  ///< as its awaitable says
  Duration age;             ///< since it was spawned
};

/// How a task is linked into its group and into the runtime's list of all tasks.
struct TaskHook : ListHook {
  TaskRoot* root = nullptr;  ///< the task itself
};

/// The event loop with all that protocols ask of their surroundings: clock, timers, randomness, threads for long work,
/// metrics.
class Runtime {
 public:
  virtual ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  /// Monotonic time of the loop, and Unix time in seconds (the DHT's clock).
  virtual TimePoint now() const = 0;
  /// Returns Unix seconds: for messages and records, not for waits.
  virtual double wall_time() const = 0;
  /// Returns the deadline that is so far ahead; after a quarter of the longest Duration or more, one that never comes.
  Deadline after(Duration duration) const;

  /// Seeded: the same seed gives the same simulated run. Not for secrets, which come from crypto::random_bytes.
  std::mt19937_64& random() noexcept { return random_; }
  /// Fills the bytes from random().
  void random_bytes(MutableBytes out);
  /// Uniform in [0, 1).
  double random_unit();

  /// Returns what programs on this loop count.
  Metrics& metrics() noexcept { return *metrics_; }
  /// The one T of this runtime, made on first use as T(runtime): what a module keeps per loop, such as instruments.
  template <class T>
  T& local();

  class Sleep;
  /// Awaitables: wait until then; let every other ready task run once.
  Sleep sleep_for(Duration duration);
  /// Awaitable: the same, to a point in time.
  Sleep sleep_until(TimePoint at);
  /// Awaitable: lets all that is ready run first.
  Sleep yield();

  /// Runs `work()` on the thread pool and resumes here with its result or exception. `work` must own all it touches:
  /// if the awaiting task is dropped meanwhile, work that has begun still runs to its end and its result is discarded.
  /// Under simulation it runs at once, in place.
  template <class F>
  detail::Offload<F> offload(F work);
  /// The same for work that waits for a disk, a router or another process: a few threads of its own do it, so that no
  /// codec, reduction or signature waits behind it.
  template <class F>
  detail::Offload<F> offload_io(F work);
  /// Marks work that is done in place under simulation and by other threads elsewhere: while it lives, the time is not
  /// taken for the loop's (see SimRuntime::watch_turns).
  class OffLoop;

  /// Drives the loop on this thread until `task` ends; returns its result or rethrows. Not reentrant: throws
  /// std::logic_error when called from inside the loop. See make_runtime() about an io_context that the program uses,
  /// too.
  template <class T>
  T run(Task<T> task);

  /// Any thread: runs `function` on the loop soon.
  virtual void post(std::function<void()> function) = 0;
  /// Any thread: starts the task made by `make()` on the loop; the future carries its result.
  template <class F>
  auto submit(F make) -> std::future<detail::TaskValue<std::invoke_result_t<F&>>>;

  /// The loop's io_context; throws std::logic_error under simulation.
  virtual boost::asio::io_context& io_context() = 0;
  /// True under simulation.
  virtual bool simulated() const noexcept = 0;

  /// Tasks that belong to the process rather than to an object.
  TaskGroup& background() noexcept { return *background_; }

  /// Every live task, oldest first.
  std::vector<TaskInfo> tasks() const;
  /// Returns how many tasks there are.
  std::size_t task_count() const noexcept { return task_count_; }

 protected:
  /// Makes a loop without a clock. \param seed  of random()
  explicit Runtime(std::uint64_t seed);

  /// Names a resumption, to find what keeps the loop busy. Its texts are string literals, null where there is no name.
  struct Resumed {
    const char* group = nullptr;       ///< of the task
    const char* task = nullptr;        ///< as it was spawned
    const char* waited_for = nullptr;  ///< as its awaitable says
    const void* code = nullptr;        ///< of the innermost coroutine, for a debugger
    /// Returns "<group>/<task>, which waited for <what>".
    std::string text() const;
  };
  /// Resumes the coroutine that has been ready for longest; there must be one.
  Resumed resume_next();
  /// Tells whether a coroutine can go on.
  bool has_ready() const noexcept { return !ready_.empty(); }
  /// Fires every timer due at `now`.
  void fire_timers(TimePoint now);
  /// Tells whether a timer is armed.
  bool has_timers() const noexcept { return !timers_.empty(); }
  /// Returns when the next timer fires; there must be one.
  TimePoint next_timer() const { return timers_.front().at; }
  /// Drops all background tasks; the destructor of a derived class calls it first.
  void shut_down() noexcept;

  /// Called when a coroutine is ready where none was.
  virtual void on_ready() noexcept = 0;
  /// Called when a timer was armed that is now the earliest.
  virtual void on_timers_changed() noexcept = 0;
  /// Runs the loop until `done` is true.
  virtual void run_until(const bool& done) = 0;
  /// Has a worker run the job, and wakes its waiter on the loop.
  virtual void start_job(std::shared_ptr<detail::OffloadJob> job) = 0;
  /// Called where work begins that is not the loop's, and where it ends.
  virtual void leave_loop() noexcept {}
  virtual void enter_loop() noexcept {}
  /// Called when a task has ended with an exception: with its group and name, and what was thrown.
  virtual void on_task_failed(const std::string& /*task*/, const std::string& /*what*/) {}

 private:
  friend class Waiter;
  friend class Timer;
  friend class Nursery;
  friend class TaskGroup;
  friend class TaskRoot;
  friend void detail::root_finished(TaskRoot* root) noexcept;
  template <class F>
  friend class detail::Offload;

  void make_ready(Waiter& waiter) noexcept;
  void arm_timer(Timer& timer, TimePoint at);
  void disarm_timer(Timer& timer) noexcept;
  struct ArmedTimer {  // holds what is compared, since the timers lie all over the memory
    TimePoint at{};
    std::uint64_t order = 0;  // ties fire in the order they were armed
    Timer* timer = nullptr;
  };
  static constexpr std::size_t kTimerChildren = 4;  // of each in the heap
  void sift_up(std::size_t position, ArmedTimer armed) noexcept;
  void sift_down(std::size_t position, ArmedTimer armed) noexcept;
  void place(std::size_t position, const ArmedTimer& armed) noexcept;
  static bool earlier(const ArmedTimer& a, const ArmedTimer& b) noexcept;
  void spawn_background(Task<void> task);
  void run_root(Task<void> task, const bool& done);
  void drop_doomed() noexcept;

  std::mt19937_64 random_;
  std::unique_ptr<Metrics> metrics_;
  IntrusiveList<Waiter> ready_;
  std::vector<ArmedTimer> timers_;  // a heap with positions kept in the timers
  std::uint64_t timer_order_ = 0;
  TaskRoot* current_ = nullptr;
  IntrusiveList<TaskHook> doomed_;  // cancelled while running: dropped at their next suspension
  IntrusiveList<TaskHook> dying_;   // being destroyed right now
  IntrusiveList<TaskHook> all_tasks_;
  std::size_t task_count_ = 0;
  bool running_ = false;
  std::unordered_map<std::type_index, std::shared_ptr<void>> locals_;
  std::unique_ptr<TaskGroup> background_;
};
/// Marks work of other threads that the loop's thread does in place, as in a simulation: no turn is charged with it.
class Runtime::OffLoop {
 public:
  explicit OffLoop(Runtime& runtime) noexcept : runtime_(runtime) { runtime_.leave_loop(); }
  ~OffLoop() { runtime_.enter_loop(); }
  OffLoop(const OffLoop&) = delete;
  OffLoop& operator=(const OffLoop&) = delete;

 private:
  Runtime& runtime_;
};

/// What sleep_until() and yield() wait for.
class Runtime::Sleep : public Waiter {
 public:
  /// As sleep_until() and yield() make it.
  Sleep(Runtime& runtime, TimePoint at, bool yield_only) noexcept
      : Waiter(runtime, yield_only ? "yield" : "sleep"),
        at_(at),
        yield_only_(yield_only),
        timer_(runtime, &Sleep::fire, this) {}
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) {
    suspend(handle);
    yield_only_ ? wake() : timer_.arm(at_);
  }
  void await_resume() const noexcept {}

 private:
  static void fire(void* self) { static_cast<Sleep*>(self)->wake(); }
  TimePoint at_;
  bool yield_only_;
  Timer timer_;
};

/// How a runtime on real time is made.
struct RuntimeOptions {
  std::uint64_t seed = 0;     ///< 0: taken from the system's entropy
  unsigned pool_threads = 0;  ///< worker threads for offload; 0: one per core
};
/// A loop on real time and real sockets, with an io_context of its own: Runtime::run turns it.
std::unique_ptr<Runtime> make_runtime(RuntimeOptions options = {});

/// The same on the caller's io_context, which outlives the runtime and may serve anything else, such as other runtimes.
///
///  - The caller turns it, by context.run() or the like, which returns once no task of the runtime is left and nothing
///    else is to do. So does Runtime::run: it runs all handlers of the context meanwhile, restarts one that was
///    stopped, and throws ErrorException (Errc::cancelled) when the context is stopped before the task has ended.
///    Called from a handler of the context it throws std::logic_error.
///  - Any thread may turn it, but one at a time, since the runtime has no locks. When two threads meet in the runtime
///    (several run the context, or one calls Runtime::run beside another's context.run()), the second one gets
///    std::logic_error out of its run().
///  - The runtime is destroyed on that thread, or when no thread runs the context; neither by its own tasks nor by
///    functions posted to it. Whatever it had posted is dropped then. Handlers of the program are not touched.
std::unique_ptr<Runtime> make_runtime(boost::asio::io_context& context, RuntimeOptions options = {});

/// Waits for SIGINT or SIGTERM and returns the signal's number. Real runtimes only.
Task<int> wait_for_signal(Runtime& runtime);

/// A Runtime that turns on its own thread, for programs whose main thread trains. The destructor stops it.
class RuntimeThread {
 public:
  /// Starts the thread.
  explicit RuntimeThread(RuntimeOptions options = {});
  ~RuntimeThread();
  /// Returns the loop; its own thread alone may use it, but for post() and submit().
  Runtime& runtime() noexcept { return *runtime_; }
  /// Runs the task made by `make()` on the loop and blocks the calling (not loop) thread for its result.
  template <class F>
  auto run(F make) {
    return runtime_->submit(std::move(make)).get();
  }

 private:
  struct Impl;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive

#include "cohive/core/runtime_inl.hpp"  // IWYU pragma: export
