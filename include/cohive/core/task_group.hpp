/// \file
/// TaskGroup: the owner of running tasks. Nothing in cohive runs without one.
#pragma once

#include <exception>

#include "cohive/core/runtime.hpp"

namespace cohive {

/// A spawned task.
class TaskRoot final : public Waiter {
 public:
  /// As TaskGroup::spawn() makes it.
  TaskRoot(TaskGroup& group, Task<void> task, const char* name);
  ~TaskRoot();

 private:
  friend class Runtime;
  friend class TaskGroup;
  friend class Waiter;
  friend void detail::root_finished(TaskRoot* root) noexcept;
  Task<void> task_;
  TaskGroup* group_;
  const char* name_;
  const char* waiting_for_ = "start";
  TimePoint started_;
  TaskRoot* parent_;  ///< the task whose coroutine holds our group; outlives us
  TaskHook in_group_;
  TaskHook in_runtime_;
};

/// Tasks that live no longer than this object, which is a member of what they work for; a coroutine's own are in a
/// Nursery. Loop thread only.
///
/// cancel() and the destructor drop the tasks: their frames are destroyed on the spot, destructors clean up. A task may
/// cancel or destroy its own group; it is then dropped at its next suspension. A task that ends with an exception is a
/// defect: it is logged, counted, and rethrown by join().
class TaskGroup {
 public:
  /// Makes a group without tasks. \param name a string literal, for diagnostics.
  explicit TaskGroup(Runtime& runtime, const char* name = "tasks");
  ~TaskGroup();
  TaskGroup(const TaskGroup&) = delete;
  TaskGroup& operator=(const TaskGroup&) = delete;

  /// Starts `task` on a later turn of the loop. `name` is a string literal shown in diagnostics.
  void spawn(Task<void> task, const char* name = "task");
  /// Drops every task.
  void cancel() noexcept;
  /// Waits until no task is left; rethrows the first exception of one. Not for a task of this group.
  Task<void> join();

  /// Returns the number of tasks that have not ended.
  std::size_t size() const noexcept { return size_; }
  /// Tells whether all tasks have ended.
  bool empty() const noexcept { return size_ == 0; }
  /// Returns the loop that the tasks run on.
  Runtime& runtime() const noexcept { return runtime_; }
  /// Returns the name in diagnostics.
  const char* name() const noexcept { return name_; }

 private:
  friend class Nursery;
  friend class Runtime;
  friend class TaskRoot;
  friend void detail::root_finished(TaskRoot* root) noexcept;
  TaskGroup(Runtime& runtime, const char* name, TaskRoot* owner) : runtime_(runtime), name_(name), owner_(owner) {}
  void on_left() noexcept;
  void disown(IntrusiveList<TaskHook>& tasks) noexcept;
  Runtime& runtime_;
  const char* name_;
  TaskRoot* owner_ = nullptr;
  bool* gone_ = nullptr;  // set by the destructor, for a cancel() under way
  IntrusiveList<TaskHook> members_;
  IntrusiveList<Waiter> joiners_;
  std::exception_ptr failure_;
  std::size_t size_ = 0;
};

/// The tasks of a coroutine: a local variable of the one that is running now, or a part of one. They may work on the
/// coroutine's variables: when one of them cancels the group that the coroutine belongs to, both are dropped at its
/// next suspension, and not the coroutine under its feet.
class Nursery : public TaskGroup {
 public:
  /// The same for the coroutine that runs now.
  explicit Nursery(Runtime& runtime, const char* name = "nursery");
};

}  // namespace cohive
