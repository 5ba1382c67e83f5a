// The loop on real time: one io_context, one timer of the system for all our timers, a thread pool for offloaded work.
#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <optional>
#include <thread>

#include "cohive/core/asio.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "turn_meter.hpp"

namespace cohive {
namespace {

namespace asio = boost::asio;

/// For resumptions, between two looks at the sockets; and how many of these go between two looks at the clock. One that
/// works through what a peer has sent takes up to a millisecond.
constexpr Duration kQuota = 1ms;
constexpr std::size_t kResumptions = 4;
constexpr Duration kLagPeriod = 100ms;
/// A turn that takes so long is counted: no peer was served meanwhile. The log names one in so much time.
constexpr Duration kStall = 50ms, kStallsToldEvery = 10s;
/// How many turns a timer that is late by as much leaves to others first, within as much time.
constexpr int kTurnsBeforeLateTimers = 8;
constexpr Duration kProcessorTimeEvery = 10ms;  // of what is told of a stall
/// A slow disk and a silent router at a time, and one of each besides.
constexpr std::size_t kIoThreads = 4;

class AsioRuntime final : public Runtime {
 public:
  AsioRuntime(std::unique_ptr<asio::io_context> own, asio::io_context& context, RuntimeOptions options)
      : Runtime(options.seed ? options.seed : entropy()),
        own_(std::move(own)),
        context_(context),
        self_(std::make_shared<AsioRuntime*>(this)),
        system_timer_(context_),
        pool_(options.pool_threads ? options.pool_threads : std::max(1u, std::thread::hardware_concurrency())),
        lag_timer_(*this, &AsioRuntime::measure_lag, this),
        lag_(metrics().histogram("cohive_core_loop_lag_seconds", "How late the loop runs its timers.",
                                 {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1})),
        stalls_(metrics().counter("cohive_core_loop_stalls_total",
                                  "Turns of the loop that took longer than 50 ms, in which nothing else was served.")),
        tasks_(metrics().gauge("cohive_core_tasks", "Tasks alive.")) {}
  ~AsioRuntime() override {
    shut_down();  // first: jobs that have not begun need not run any more
    pool_.join();
    if (io_pool_) io_pool_->join();
    *self_ = nullptr;
  }

  TimePoint now() const override { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }
  double wall_time() const override {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  }
  void post(std::function<void()> function) override {
    post_turn([function = std::move(function)](AsioRuntime& self) {
      self.meter_.begin();
      function();
      self.end_turn([] { return std::string("a posted function"); });
    });
  }
  asio::io_context& io_context() override { return context_; }
  bool simulated() const noexcept override { return false; }

 protected:
  void on_ready() noexcept override {
    if (drain_posted_) return;
    drain_posted_ = true;
    post_turn([](AsioRuntime& self) { self.drain(); });
  }

  void on_timers_changed() noexcept override {
    if (late_timers_posted_) return;  // a turn that is to come looks at all timers
    if (system_timer_armed_ && system_timer_at_ <= next_timer()) return;
    arm_system_timer();
  }

  void run_until(const bool& done) override {
    if (context_.get_executor().running_in_this_thread())
      throw std::logic_error("Runtime::run called from a handler of its io_context");
    auto work = asio::make_work_guard(context_);  // what ends the task may come from another thread
    if (context_.stopped()) context_.restart();
    driver_ = std::this_thread::get_id();
    done_ = &done;
    const auto undriven = on_exit([this] {
      driver_ = std::thread::id();
      done_ = nullptr;
    });
    context_.run();  // and not run_one() until done, which frees what Asio keeps for reuse each time
    if (!done) throw ErrorException(Error(Errc::cancelled, "the io_context was stopped"));
    if (std::exchange(stopped_by_us_, false)) {
      work.reset();
      context_.restart();  // run() is no reason why it should be stopped afterwards
    }
  }

  void start_job(std::shared_ptr<detail::OffloadJob> job) override {
    if (job->waits && !io_pool_) io_pool_.emplace(kIoThreads);
    asio::post(job->waits ? *io_pool_ : pool_, [this, job = std::move(job)]() mutable {
      if (!job->abandoned.load(std::memory_order_relaxed)) job->run();
      post_turn([job = std::move(job)](AsioRuntime&) {
        if (job->waiter) job->waiter->wake();
      });
    });
  }

 private:
  static std::uint64_t entropy() {
    std::random_device device;
    return (std::uint64_t{device()} << 32) ^ device();
  }

  /// While it lives, its thread is the one inside the runtime.
  class Turn {
   public:
    explicit Turn(AsioRuntime& runtime) : inside_(runtime.inside_) {
      const auto me = std::this_thread::get_id(), driver = runtime.driver_.load();
      std::thread::id nobody;
      if ((driver != nobody && driver != me) || !inside_.compare_exchange_strong(nobody, me))
        throw std::logic_error("two threads run the io_context of a cohive::Runtime, or one runs it inside itself");
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;
    ~Turn() { inside_ = std::thread::id(); }

   private:
    std::atomic<std::thread::id>& inside_;
  };

  /// Any thread: `function(runtime)` in a turn of the loop, unless the runtime has gone by then.
  template <class F>
  void post_turn(F function) {
    asio::post(context_, [self = self_, function = std::move(function)] {
      if (!*self) return;
      const Turn turn(**self);
      function(**self);
    });
  }

  void drain() {
    drain_posted_ = false;
    meter_.begin();
    for (const TimePoint end = meter_.ended() + kQuota; has_ready() && meter_.ended() < end;) {
      std::array<Resumed, kResumptions> resumed;
      std::size_t count = 0;
      while (count < resumed.size() && has_ready()) resumed[count++] = resume_next();
      end_turn([&] { return names_of({resumed.data(), count}); });
    }
    const bool more = has_ready();
    // No timer of our own keeps the caller's context running when no task is left.
    if (task_count() == 0) {
      lag_timer_.disarm();
      if (!has_timers() && system_timer_armed_) system_timer_armed_ = system_timer_.cancel() == 0;
    } else if (!lag_timer_.armed()) {
      lag_due_ = now() + kLagPeriod;
      lag_timer_.arm(lag_due_);
    }
    if (more) on_ready();
    if (done_ && *done_ && !context_.stopped()) {
      stopped_by_us_ = true;
      context_.stop();
    }
  }

  template <class Name>
  void end_turn(Name name) {
    const auto turn = meter_.end();
    if (!turn) [[likely]]
      return;
    stalls_.increment();
    if (meter_.ended() < stall_told_ + kStallsToldEvery) return;
    stall_told_ = meter_.ended();
    log::info("core", "the loop served nothing else for {:.0f} ms, in which it computed for {:.0f} ms: {}",
              to_seconds(turn->wall) * 1000, to_seconds(turn->processor) * 1000, name());
  }

  static std::string names_of(std::span<const Resumed> resumed) {
    std::vector<std::string> names;
    for (const Resumed& one : resumed)
      if (auto text = one.text(); std::ranges::find(names, text) == names.end()) names.push_back(std::move(text));
    std::string all;
    for (const auto& name : names) all += (all.empty() ? "" : "; or ") + name;
    return all;
  }

  void arm_system_timer() {
    system_timer_armed_ = true;
    system_timer_at_ = next_timer();
    system_timer_.expires_at(system_timer_at_);
    system_timer_.async_wait([self = self_](boost::system::error_code error) {
      if (error || !*self) return;  // re-armed earlier
      const Turn turn(**self);
      (*self)->on_system_timer();
    });
  }

  void on_system_timer() {
    system_timer_armed_ = false;
    if (leave_turn_to_others()) return;
    meter_.begin();
    fire_timers(now());
    end_turn([] { return std::string("timers"); });
    if (has_timers() && !system_timer_armed_) arm_system_timer();
  }

  /// After a stall, of this thread or of the whole machine, deadlines have passed for which all came in time: answers
  /// lie in the sockets, or have woken tasks that did not run yet. They go first, or healthy peers would be taken for
  /// dead. A loop that is always late still fires its timers: a few turns later.
  bool leave_turn_to_others() {
    const TimePoint time = now();
    if (turns_left_to_others_ == 0) late_since_ = time;
    const bool is_late = has_timers() && next_timer() < time - kStall;
    if (!is_late || turns_left_to_others_ == kTurnsBeforeLateTimers || time - late_since_ >= kStall) {
      turns_left_to_others_ = 0;
      return false;
    }
    ++turns_left_to_others_;
    late_timers_posted_ = true;
    post_turn([](AsioRuntime& self) {
      self.late_timers_posted_ = false;
      self.on_system_timer();
    });
    return true;
  }

  static void measure_lag(void* runtime) {
    auto& self = *static_cast<AsioRuntime*>(runtime);
    self.lag_.observe(to_seconds(self.now() - self.lag_due_));
    self.tasks_.set(static_cast<double>(self.task_count()));
    if (self.task_count() == 0) return;
    self.lag_due_ = self.now() + kLagPeriod;
    self.lag_timer_.arm(self.lag_due_);
  }

  const std::unique_ptr<asio::io_context> own_;
  asio::io_context& context_;
  const std::shared_ptr<AsioRuntime*> self_;  // handlers of a caller's context may come after us
  std::atomic<std::thread::id> inside_, driver_;
  const bool* done_ = nullptr;  // while Runtime::run waits for it
  bool stopped_by_us_ = false;
  asio::steady_timer system_timer_;
  bool system_timer_armed_ = false;
  TimePoint system_timer_at_;
  bool late_timers_posted_ = false;  // a turn of theirs, in place of the system's timer
  int turns_left_to_others_ = 0;     // by timers that are late
  TimePoint late_since_;             // the first of these turns
  bool drain_posted_ = false;
  asio::thread_pool pool_;
  std::optional<asio::thread_pool> io_pool_;  // from the first job on that waits
  Timer lag_timer_;
  TimePoint lag_due_;
  Histogram lag_;
  TurnMeter meter_{kStall, kProcessorTimeEvery};
  Counter stalls_;
  TimePoint stall_told_ = TimePoint::min();
  Gauge tasks_;
};

}  // namespace

std::unique_ptr<Runtime> make_runtime(RuntimeOptions options) {
  auto own = std::make_unique<asio::io_context>(1);
  asio::io_context& context = *own;
  return std::make_unique<AsioRuntime>(std::move(own), context, options);
}

std::unique_ptr<Runtime> make_runtime(asio::io_context& context, RuntimeOptions options) {
  return std::make_unique<AsioRuntime>(nullptr, context, options);
}

Task<int> wait_for_signal(Runtime& runtime) {
  asio::signal_set signals(runtime.io_context(), SIGINT, SIGTERM);
  co_return (co_await signals.async_wait(use_task)).value();
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
