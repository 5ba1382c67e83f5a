#include "cohive/core/task_group.hpp"

#include "cohive/core/log.hpp"
#include "cohive/core/metrics.hpp"

namespace cohive {

TaskRoot::TaskRoot(Runtime& runtime, TaskGroup& group, Task<void> task, const char* name)
    : Waiter(runtime, "start"), task_(std::move(task)), group_(&group), name_(name), started_(runtime.now()) {
  auto& promise = task_.handle().promise();
  promise.root = this;
  promise.is_root = true;
  suspend_root(task_.handle(), this);
  in_group_.root = in_runtime_.root = this;
  group.members_.push_back(in_group_);
  ++group.size_;
  runtime.all_tasks_.push_back(in_runtime_);
  ++runtime.task_count_;
}

TaskRoot::~TaskRoot() {
  Runtime& loop = runtime();
  if (loop.current_ == this) loop.current_ = nullptr;
  in_group_.unlink();
  in_runtime_.unlink();
  --loop.task_count_;
  TaskGroup* group = group_;
  task_.reset();  // destructors of the frame may still use the group, so it hears last
  if (group_) group->on_left();
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
    root->runtime().metrics().counter("cohive_core_task_failures_total", "Tasks that ended with an exception.").increment();
    if (root->group_ && !root->group_->failure_) root->group_->failure_ = promise.exception;
  }
  delete root;
}
}  // namespace detail

TaskGroup::TaskGroup(Runtime& runtime, const char* name) : runtime_(runtime), name_(name) {}

TaskGroup::~TaskGroup() {
  cancel();
  // What is left is the task that is running right now: it is dropped at its next suspension, without us.
  members_.for_each([](TaskHook& hook) {
    hook.root->group_ = nullptr;
    hook.unlink();
  });
}

void TaskGroup::spawn(Task<void> task, const char* name) {
  auto* root = new TaskRoot(runtime_, *this, std::move(task), name);
  root->wake();
}

void TaskGroup::cancel() noexcept {
  for (;;) {
    TaskRoot* victim = nullptr;
    members_.for_each([&](TaskHook& hook) {
      if (hook.root == runtime_.current_) {
        hook.root->doomed_ = true;
      } else if (!victim) {
        victim = hook.root;
      }
    });
    if (!victim) return;
    delete victim;
  }
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
