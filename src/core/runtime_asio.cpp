// The loop on real time: one io_context, one timer of the system for all our timers, a thread pool for offloaded work.
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <thread>

#include "cohive/core/metrics.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive {
namespace {

namespace asio = boost::asio;

/// Resumptions between two looks at the sockets.
constexpr std::size_t kBudget = 256;
constexpr Duration kLagPeriod = 100ms;

class AsioRuntime final : public Runtime {
 public:
  explicit AsioRuntime(RuntimeOptions options)
      : Runtime(options.seed ? options.seed : entropy()),
        context_(1),
        work_(context_.get_executor()),
        system_timer_(context_),
        pool_(options.pool_threads ? options.pool_threads : std::max(1u, std::thread::hardware_concurrency())),
        lag_(metrics().histogram("cohive_core_loop_lag_seconds", "How late the loop runs its timers.",
                                 {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1})),
        tasks_(metrics().gauge("cohive_core_tasks", "Tasks alive.")) {
    background().spawn(measure_lag(*this), "loop lag");
  }
  ~AsioRuntime() override {
    pool_.join();
    shut_down();
  }

  TimePoint now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
  double wall_time() const override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  void post(std::function<void()> function) override { asio::post(context_, std::move(function)); }
  asio::io_context& io_context() override { return context_; }
  bool simulated() const noexcept override { return false; }

 protected:
  void on_ready() noexcept override {
    if (drain_posted_) return;
    drain_posted_ = true;
    asio::post(context_, [this] { drain(); });
  }

  void on_timers_changed() noexcept override {
    if (system_timer_armed_ && system_timer_at_ <= next_timer()) return;
    arm_system_timer();
  }

  void run_until(const bool& done) override {
    while (!done) context_.run_one();
  }

  void start_job(std::shared_ptr<detail::OffloadJob> job) override {
    asio::post(pool_, [this, job = std::move(job)]() mutable {
      job->run();
      asio::post(context_, [job = std::move(job)] {
        if (job->waiter) job->waiter->wake();
      });
    });
  }

 private:
  static std::uint64_t entropy() {
    std::random_device device;
    return (std::uint64_t{device()} << 32) ^ device();
  }

  void drain() {
    drain_posted_ = false;
    if (drain_ready(kBudget)) on_ready();
  }

  void arm_system_timer() {
    system_timer_armed_ = true;
    system_timer_at_ = next_timer();
    system_timer_.expires_at(system_timer_at_);
    system_timer_.async_wait([this](boost::system::error_code error) {
      if (error) return;  // re-armed earlier
      system_timer_armed_ = false;
      fire_timers(now());
      if (has_timers() && !system_timer_armed_) arm_system_timer();
    });
  }

  static Task<void> measure_lag(AsioRuntime& self) {
    for (;;) {
      const TimePoint due = self.now() + kLagPeriod;
      co_await self.sleep_until(due);
      self.lag_.observe(to_seconds(self.now() - due));
      self.tasks_.set(static_cast<double>(self.task_count()));
    }
  }

  asio::io_context context_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::steady_timer system_timer_;
  bool system_timer_armed_ = false;
  TimePoint system_timer_at_;
  bool drain_posted_ = false;
  asio::thread_pool pool_;
  Histogram lag_;
  Gauge tasks_;
};

}  // namespace

std::unique_ptr<Runtime> make_runtime(RuntimeOptions options) {
  return std::make_unique<AsioRuntime>(options);
}

Task<int> wait_for_signal(Runtime& runtime) {
  struct State {
    asio::signal_set signals;
    Event received;
    int number = 0;
    explicit State(Runtime& r) : signals(r.io_context(), SIGINT, SIGTERM), received(r, "signal") {}
  };
  auto state = std::make_shared<State>(runtime);
  state->signals.async_wait([weak = std::weak_ptr(state)](boost::system::error_code error, int number) {
    auto alive = weak.lock();
    if (error || !alive) return;
    alive->number = number;
    alive->received.set();
  });
  co_await state->received.wait();
  co_return state->number;
}

struct RuntimeThread::Impl {
  std::shared_ptr<Event> stop;
  std::thread thread;
};

namespace {
Task<void> until(std::shared_ptr<Event> event) {
  co_await event->wait();
}
}  // namespace

RuntimeThread::RuntimeThread(RuntimeOptions options)
    : runtime_(make_runtime(options)), impl_(std::make_unique<Impl>()) {
  impl_->stop = std::make_shared<Event>(*runtime_, "stop");
  impl_->thread = std::thread([loop = runtime_.get(), stop = impl_->stop] { loop->run(until(stop)); });
}

RuntimeThread::~RuntimeThread() {
  runtime_->post([stop = impl_->stop] { stop->set(); });
  impl_->thread.join();
}

}  // namespace cohive
