#include "cohive/core/task_group.hpp"

#include "cohive/core/log.hpp"
#include "cohive/core/metrics.hpp"
#include "task_metrics.hpp"

namespace cohive {

TaskRoot::TaskRoot(TaskGroup& group, Task<void> task, const char* name)
    : Waiter(group.runtime_, "start"),
      task_(std::move(task)),
      group_(&group),
      name_(name),
      started_(runtime().now()),
      parent_(group.owner_) {
  auto& promise = task_.handle().promise();
  promise.root = this;
  promise.is_root = true;
  suspend_root(task_.handle(), this);
  in_group_.root = in_runtime_.root = this;
  group.members_.push_back(in_group_);
  ++group.size_;
  runtime().all_tasks_.push_back(in_runtime_);
  ++runtime().task_count_;
}

TaskRoot::~TaskRoot() {
  Runtime& loop = runtime();
  const bool running = loop.current_ == this;
  if (running) loop.current_ = parent_;
  in_runtime_.unlink();
  --loop.task_count_;
  loop.dying_.push_back(in_group_);
  task_.reset();  // destructors of the frame may still use the group, or end it, so it hears last
  in_group_.unlink();
  if (running) loop.current_ = nullptr;
  if (group_) group_->on_left();
}

namespace detail {
void root_finished(TaskRoot* root) noexcept {
  auto& promise = root->task_.handle().promise();
  if (promise.exception) {
    std::string what = "unknown exception";
    try {
      std::rethrow_exception(promise.exception);
    } catch (const std::exception& error) {
      what = error.what();
    } catch (...) {
    }
    log::error("core", "task {} failed: {}", root->name_, log::quoted(what));
    task_failures(root->runtime().metrics()).increment();
    if (root->group_ && !root->group_->failure_) root->group_->failure_ = promise.exception;
    const std::string group = root->group_ ? root->group_->name_ : "?";
    root->runtime().on_task_failed(group + '/' + root->name_, what);
  }
  delete root;
}
}  // namespace detail

TaskGroup::TaskGroup(Runtime& runtime, const char* name) : runtime_(runtime), name_(name) {}
Nursery::Nursery(Runtime& runtime, const char* name) : TaskGroup(runtime, name, runtime.current_) {}

TaskGroup::~TaskGroup() {
  cancel();
  if (gone_) *gone_ = true;
  disown(runtime_.doomed_);
  disown(runtime_.dying_);
}

/// What could not be dropped yet goes without us.
void TaskGroup::disown(IntrusiveList<TaskHook>& tasks) noexcept {
  tasks.for_each([this](TaskHook& hook) {
    if (hook.root->group_ == this) hook.root->group_ = nullptr;
  });
}

void TaskGroup::spawn(Task<void> task, const char* name) {
  assert(task.valid());
  auto* root = new TaskRoot(*this, std::move(task), name);
  root->wake();
}

void TaskGroup::cancel() noexcept {
  bool gone = false;
  bool* const outer = std::exchange(gone_, &gone);
  // The running task and the tasks it works for must outlive its turn.
  for (TaskRoot* root = runtime_.current_; root; root = root->parent_) {
    if (root->group_ == this) runtime_.doomed_.push_back(root->in_group_);
  }
  while (TaskHook* hook = members_.pop_front()) {
    delete hook->root;
    if (gone) {  // a destructor of that task ended this group
      if (outer) *outer = true;
      return;
    }
  }
  gone_ = outer;
}

void TaskGroup::on_left() noexcept {
  if (--size_ > 0) return;
  while (Waiter* joiner = joiners_.pop_front()) joiner->wake();
}

namespace {
class Joining : public Waiter {
 public:
  Joining(Runtime& runtime, IntrusiveList<Waiter>& list) noexcept : Waiter(runtime, "join"), list_(list) {}
  bool await_ready() const noexcept { return false; }
  template <class Promise>
  void await_suspend(std::coroutine_handle<Promise> handle) noexcept {
    suspend(handle);
    list_.push_back(*this);
  }
  void await_resume() const noexcept {}

 private:
  IntrusiveList<Waiter>& list_;
};
}  // namespace

Task<void> TaskGroup::join() {
  while (size_ > 0) co_await Joining(runtime_, joiners_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace cohive
