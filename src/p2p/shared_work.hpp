// Work that several callers may want at the same moment: done once, and only for as long as one of them waits.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "cohive/core/errors.hpp"
#include "cohive/core/result.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::p2p {

template <class Key, class T>
class SharedWork {
 public:
  /// \param name  for diagnostics and in the error of a caller whose deadline passed; a string literal
  SharedWork(Runtime& runtime, const char* name) : runtime_(runtime), name_(name) {}
  ~SharedWork() { close(Error(cohive::Errc::closed, name_)); }

  /// The result of the work under way for `key`, or else of what `make()` begins.
  Task<Result<T>> join(Key key, Deadline deadline, std::function<Task<Result<T>>()> make) {
    std::shared_ptr<Work> work;
    if (const auto found = works_.find(key); found != works_.end()) work = found->second.lock();
    if (!work) {
      work = std::make_shared<Work>(runtime_, name_, this, key);
      works_.insert_or_assign(std::move(key), work);
      work->task.spawn(run(Unfinished(work), make()), name_);
    }
    make = nullptr;
    if (!co_await work->done.wait(deadline)) co_return Error(cohive::Errc::timeout, work->name);
    co_return *work->result;
  }

  /// Drops all work; callers that wait for it get `reason`. What callers touch afterwards is theirs alone.
  void close(const Error& reason) {
    std::vector<std::shared_ptr<Work>> working;
    for (const auto& [key, weak] : works_)
      if (auto work = weak.lock()) working.push_back(std::move(work));
    works_.clear();
    for (const auto& work : working) {
      work->finish(reason);
      work->task.cancel();
    }
  }
  std::size_t size() const noexcept { return works_.size(); }
  /// What is under way for keys that `which` accepts goes on while the result lives, without any caller.
  std::vector<std::shared_ptr<const void>> hold(const std::function<bool(const Key&)>& which) const {
    std::vector<std::shared_ptr<const void>> result;
    for (const auto& [key, weak] : works_)
      if (auto work = weak.lock(); work && which(key)) result.push_back(std::move(work));
    return result;
  }

 private:
  struct Work {
    Work(Runtime& runtime, const char* what, SharedWork* shared, const Key& key_)
        : name(what), owner(shared), key(key_), done(runtime, what), task(runtime, what) {}
    ~Work() { leave(); }
    void finish(Result<T> outcome) {
      leave();
      if (result) return;
      result.emplace(std::move(outcome));
      done.set();
    }
    /// Takes the work off the list.
    void leave() {
      if (owner) std::exchange(owner, nullptr)->forget(*this);
    }
    const char* name;
    SharedWork* owner;
    Key key;
    Event done;
    std::optional<Result<T>> result;
    TaskGroup task;  // last: what it runs reports to the members above
  };

  /// Finishes the work when its task is dropped. The task may drop the last caller, and with it the work, while it
  /// runs.
  struct Unfinished {
    explicit Unfinished(const std::shared_ptr<Work>& of) : weak(of) {}
    Unfinished(Unfinished&&) = default;
    ~Unfinished() {
      if (const auto work = weak.lock()) work->finish(Error(cohive::Errc::cancelled, work->name));
    }
    std::weak_ptr<Work> weak;
  };

  static Task<void> run(Unfinished unfinished, Task<Result<T>> body) {
    auto result = co_await std::move(body);
    if (const auto work = unfinished.weak.lock()) work->finish(std::move(result));
  }

  void forget(const Work& work) {
    const auto found = works_.find(work.key);
    if (found == works_.end()) return;
    const auto current = found->second.lock();
    if (!current || current.get() == &work) works_.erase(found);
  }

  Runtime& runtime_;
  const char* name_;
  std::map<Key, std::weak_ptr<Work>> works_;
};

}  // namespace cohive::p2p
