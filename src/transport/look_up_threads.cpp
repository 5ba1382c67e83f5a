#include "look_up_threads.hpp"

#include <deque>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>

#include "cohive/core/log.hpp"
#include "cohive/core/sync.hpp"

namespace cohive::transport {
namespace {

constexpr std::size_t kMaxThreads = 8;
constexpr std::size_t kMaxForStrangers = kMaxThreads / 2;

/// The threads of all look-ups of the process. They come when there is work and go when there is none.
class LookUpThreads {
 public:
  static LookUpThreads& get() {
    static auto* threads = new LookUpThreads;  // some may outlive the static objects
    return *threads;
  }
  /// False when the system gives us no thread.
  bool start(std::function<void()> work, NamedBy named_by) {
    const std::lock_guard lock(mutex_);
    auto& waiting = named_by == NamedBy::user ? waiting_ : strangers_waiting_;
    waiting.push_back(std::move(work));
    // Where strangers' names have their share of the threads, one of those takes the work when it is done.
    if (count_ == kMaxThreads || (named_by == NamedBy::stranger && for_strangers_ == kMaxForStrangers)) return true;
    try {
      std::thread([this] { run(); }).detach();
      ++count_;
    } catch (const std::system_error&) {
      if (count_ == 0) waiting.pop_back();
    }
    return count_ > 0;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      const bool for_user = !waiting_.empty();
      if (!for_user && (strangers_waiting_.empty() || for_strangers_ == kMaxForStrangers)) break;
      auto& waiting = for_user ? waiting_ : strangers_waiting_;
      auto work = std::move(waiting.front());
      waiting.pop_front();
      if (!for_user) ++for_strangers_;
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
      if (!for_user) --for_strangers_;
    }
    --count_;
  }
  std::mutex mutex_;
  std::deque<std::function<void()>> waiting_, strangers_waiting_;  // of our user, first; of strangers
  std::size_t count_ = 0;
  std::size_t for_strangers_ = 0;  // of these threads
};

/// What a look-up and the coroutine that waits for it share.
struct Inquiry {
  explicit Inquiry(Runtime& r) : runtime(&r), done(r, "name resolution") {}
  std::mutex mutex;
  Runtime* runtime;  ///< null once no task waits: it may be gone
  std::atomic<bool> given_up = false;
  std::vector<Multiaddr> found;
  Event done;
};

}  // namespace

Task<std::vector<Multiaddr>> in_background(Runtime& runtime, LookUp look_up, NamedBy named_by) {
  struct Waiting {
    std::shared_ptr<Inquiry> inquiry;
    ~Waiting() {
      inquiry->given_up = true;
      const std::lock_guard lock(inquiry->mutex);
      inquiry->runtime = nullptr;
    }
  };
  const Waiting waiting{std::make_shared<Inquiry>(runtime)};
  auto work = [inquiry = waiting.inquiry, look_up = std::move(look_up)]() mutable {
    auto found = look_up(inquiry->given_up);
    const std::lock_guard lock(inquiry->mutex);
    if (!inquiry->runtime) return;
    inquiry->found = std::move(found);
    inquiry->runtime->post([inquiry] { inquiry->done.set(); });
  };
  const bool started = LookUpThreads::get().start(std::move(work), named_by);
  if (!started) {
    log::warn("transport", "no thread to resolve a name on");
    co_return std::vector<Multiaddr>();
  }
  co_await waiting.inquiry->done.wait();
  co_return std::move(waiting.inquiry->found);
}

}  // namespace cohive::transport
