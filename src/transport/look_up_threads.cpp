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

/// The threads of all look-ups of the process. They come when there is work and go when there is none.
class LookUpThreads {
 public:
  static LookUpThreads& get() {
    static auto* threads = new LookUpThreads;  // some may outlive the static objects
    return *threads;
  }
  /// False when the system gives us no thread.
  bool start(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(work));
    if (count_ == kMaxThreads) return true;
    try {
      std::thread([this] { run(); }).detach();
      ++count_;
    } catch (const std::system_error&) {
      if (count_ == 0) waiting_.pop_back();
    }
    return count_ > 0;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (!waiting_.empty()) {
      auto work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
    --count_;
  }
  std::mutex mutex_;
  std::deque<std::function<void()>> waiting_;
  std::size_t count_ = 0;
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

Task<std::vector<Multiaddr>> in_background(Runtime& runtime, LookUp look_up) {
  struct Waiting {
    std::shared_ptr<Inquiry> inquiry;
    ~Waiting() {
      inquiry->given_up = true;
      const std::lock_guard lock(inquiry->mutex);
      inquiry->runtime = nullptr;
    }
  };
  const Waiting waiting{std::make_shared<Inquiry>(runtime)};
  const bool started = LookUpThreads::get().start([inquiry = waiting.inquiry, look_up = std::move(look_up)]() mutable {
    auto found = look_up(inquiry->given_up);
    const std::lock_guard lock(inquiry->mutex);
    if (!inquiry->runtime) return;
    inquiry->found = std::move(found);
    inquiry->runtime->post([inquiry] { inquiry->done.set(); });
  });
  if (!started) {
    log::warn("transport", "no thread to resolve a name on");
    co_return std::vector<Multiaddr>();
  }
  co_await waiting.inquiry->done.wait();
  co_return std::move(waiting.inquiry->found);
}

}  // namespace cohive::transport
