// A call that waits: the task begins on the loop, which notifies the trainer's thread at its end; meanwhile that thread
// runs what the replica wants to have run there. A wait that is cancelled leaves the task going on as `left_`.
#include "cohive/train/trainer.hpp"

#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "train/detail/membership.hpp"

namespace cohive::train {
namespace {

constexpr Duration kLookWhileWaiting = 100ms;

RunOptions options_in(const Swarm& swarm, RunOptions options) {
  options.client_mode = options.client_mode || swarm.options().client_mode;
  check(options);
  return options;
}

Error closed_error() {
  return Error(Errc::closed, "the training run was closed");
}

}  // namespace

struct Trainer::Impl {
  Impl(Swarm& s, RunOptions opts) : swarm(s), options(options_in(s, std::move(opts))) {}

  void open(const MakeReplica& make);
  void close();
  void destroy();
  Runtime& runtime() const { return swarm.membership().runtime(); }

  /// One call that uses the model at a time. A function of the caller's that runs inside of one makes none.
  class Turn {
   public:
    explicit Turn(Impl& of, bool of_close = false) : impl_(of) {
      if (of.in_turn == std::this_thread::get_id())
        throw std::logic_error("cohive: a call of the Trainer inside of another one, as from a function that steps");
      std::unique_lock lock(of.turns);
      if (of.closed && !of_close) throw ErrorException(closed_error());
      of.cancelled = false;
      of.in_turn = std::this_thread::get_id();
      lock_ = std::move(lock);
    }
    Turn(const Turn&) = delete;
    ~Turn() { impl_.in_turn = std::thread::id(); }

   private:
    Impl& impl_;
    std::unique_lock<std::mutex> lock_;
  };

  template <class F>
  auto wait_for(F make);
  template <class T>
  static Task<T> watched(Impl& self, Task<T> task, std::shared_ptr<std::atomic<bool>> ended);
  bool wait_until(const std::atomic<bool>& ended);
  void finish_left();
  [[noreturn]] void throw_given_up() const;
  void remember(StepReport report);
  void take(std::future<StepReport>& report) { remember(report.get()); }
  template <class T>
  void take(std::future<T>& result) {
    (void)result.get();
  }

  Swarm& swarm;
  const RunOptions options;
  TrainerThread thread;
  std::shared_ptr<Replica> replica;
  std::unique_ptr<Run> run;
  std::function<bool()> give_up;

  std::mutex turns;
  std::atomic<std::thread::id> in_turn;
  std::atomic<bool> cancelled = false, closed = false;
  // In turn.
  StepReport settled;  // of work that was awaited between two steps: the next one reports it
  bool has_closed = false;
  /// A task whose wait was cancelled.
  struct Left {
    std::shared_ptr<std::atomic<bool>> ended;
    std::function<void()> take;  ///< its result, or throws what it has thrown
  };
  std::optional<Left> left;
  // Of the loop.
  std::function<void()> drop;  // the task that goes on
};

// ---- Waiting

/// On the loop.
template <class T>
Task<T> Trainer::Impl::watched(Impl& self, Task<T> task, std::shared_ptr<std::atomic<bool>> ended) {
  const auto end = on_exit([&self, ended] {
    *ended = true;
    self.thread.notify();
  });
  Droppable<T> call(self.runtime(), std::move(task), "a call of the trainer");
  self.drop = [&call] { call.drop(); };
  const auto forget = on_exit([&self] { self.drop = nullptr; });
  if constexpr (std::is_void_v<T>) {
    if (!co_await call) throw ErrorException(closed_error());
  } else {
    auto value = co_await call;
    if (!value) throw ErrorException(closed_error());
    co_return std::move(*value);
  }
}

/// False: the wait was cancelled.
bool Trainer::Impl::wait_until(const std::atomic<bool>& ended) {
  thread.run_until([&] { return ended || closed || cancelled || (give_up && give_up()); },
                   give_up ? kLookWhileWaiting : 0s);
  return ended;
}

/// Runs the task that `make` makes on the loop, and returns what it does.
template <class F>
auto Trainer::Impl::wait_for(F make) {
  using T = detail::TaskValue<std::invoke_result_t<F&>>;
  finish_left();
  const auto ended = std::make_shared<std::atomic<bool>>(false);
  auto shared = std::make_shared<std::future<T>>(
      runtime().submit([this, make = std::move(make), ended]() mutable { return watched(*this, make(), ended); }));
  if (wait_until(*ended)) return shared->get();
  left = Left{ended, [this, shared] { take(*shared); }};
  throw_given_up();
}

void Trainer::Impl::throw_given_up() const {
  throw ErrorException(closed ? closed_error() : Error(Errc::cancelled, "the wait for the training run was cancelled"));
}

/// For the next step(), which tells the trainer.
void Trainer::Impl::remember(StepReport report) {
  report.include(settled);
  settled = report;
}

void Trainer::Impl::finish_left() {
  if (!left) return;
  if (!wait_until(*left->ended)) throw_given_up();
  std::exchange(left, std::nullopt)->take();
}

// ---- Beginning and end

void Trainer::Impl::open(const MakeReplica& make) {
  auto& membership = swarm.membership();
  try {
    membership.on_loop([&] {
      replica = make(membership.runtime(), thread);
      run = std::make_unique<Run>(*membership.dht, membership.key, *replica, options);
    });
    if (auto opened = wait_for([this] { return run->open_checkpoints(); }); !opened)
      throw ErrorException(opened.error());
    membership.on_loop([this] { run->start(); });
  } catch (...) {
    destroy();
    throw;
  }
}

void Trainer::Impl::destroy() {
  Membership& membership = swarm.membership();
  membership.on_loop([this] { run.reset(); });
  if (replica) membership.call([this] { return replica->close(); });
  membership.on_loop([this] { replica.reset(); });
}

void Trainer::Impl::close() {
  closed = true;
  thread.notify();
  const Turn turn(*this, true);
  if (std::exchange(has_closed, true)) return;
  auto& membership = swarm.membership();
  if (left) {
    membership.on_loop([this] {
      if (drop) drop();
    });
    thread.run_until([this] { return left->ended->load(); });
    left.reset();
  }
  try {
    membership.call([this] { return run->close(); });
  } catch (const std::exception& error) {  // a caller could not do more about it, and a destructor less
    log::error("train", "leaving the run failed: {}", log::quoted(error.what()));
  }
}

Trainer::Trainer(Swarm& swarm, RunOptions options, const MakeReplica& make)
    : impl_(std::make_unique<Impl>(swarm, std::move(options))) {
  impl_->open(make);
}

Trainer::~Trainer() {
  impl_->close();
  impl_->destroy();
}

void Trainer::close() {
  impl_->close();
}

// ---- Training

StepReport Trainer::step(const TakeBatch& take, const std::function<void()>& before_wait) {
  const Impl::Turn turn(*impl_);
  impl_->finish_left();
  Run& run = *impl_->run;
  if (const auto update = run.publish()) impl_->remember(*update);
  if (run.count(take()) == Run::Next::synchronise) {
    if (before_wait) before_wait();
    impl_->remember(impl_->wait_for([&run] { return run.synchronise(); }));
  }
  StepReport report = std::exchange(impl_->settled, {});
  report.epoch = run.epoch();
  run.checkpoint_if_due();
  return report;
}

StepReport Trainer::step(std::int64_t samples) {
  if (samples < 0) throw std::invalid_argument("cohive: a batch has no negative number of samples");
  return step([samples] { return samples; });
}

std::optional<StepReport> Trainer::publish() {
  const Impl::Turn turn(*impl_);
  impl_->finish_left();
  return impl_->run->publish();
}

void Trainer::forget_samples() {
  impl_->run->forget_samples();
}

void Trainer::forget(const std::function<void()>& forget_batches) {
  const Impl::Turn turn(*impl_);
  impl_->finish_left();
  forget_batches();
  forget_samples();
}

void Trainer::settle() {
  const Impl::Turn turn(*impl_);
  impl_->remember(impl_->wait_for([this] { return impl_->run->settle(); }));
}

bool Trainer::load_state_from_peers() {
  const Impl::Turn turn(*impl_);
  return impl_->wait_for([this] { return impl_->run->catch_up(); });
}

std::size_t Trainer::average_parameters() {
  const Impl::Turn turn(*impl_);
  return impl_->wait_for([this] { return impl_->run->average_parameters(); });
}

std::size_t Trainer::finish() {
  const Impl::Turn turn(*impl_);
  return impl_->wait_for([this] { return impl_->run->finish(); });
}

// ---- States

Result<> Trainer::save_checkpoint(const std::filesystem::path& path) {
  const Impl::Turn turn(*impl_);
  return impl_->wait_for([this, path] { return impl_->run->save_checkpoint(path); });
}

Result<std::uint64_t> Trainer::load_checkpoint(const std::filesystem::path& path) {
  const Impl::Turn turn(*impl_);
  return impl_->wait_for([this, path] { return impl_->run->load_checkpoint(path); });
}

Result<std::filesystem::path> Trainer::checkpoint_now() {
  const Impl::Turn turn(*impl_);
  return impl_->wait_for([this] { return impl_->run->checkpoint_now(); });
}

void Trainer::restore(std::uint64_t epoch, std::function<void()> write) {
  const Impl::Turn turn(*impl_);
  impl_->wait_for([this, epoch, write = std::move(write)] { return impl_->run->restore(epoch, write); });
}

checkpoint::Metadata Trainer::loaded_strings() const {
  return impl_->run->loaded_strings();
}

// ---- Beside the training

std::uint64_t Trainer::epoch() const noexcept {
  return impl_->run->epoch();
}
TrainingStats Trainer::stats() const {
  return impl_->run->stats();
}
GlobalProgress Trainer::progress() const {
  return impl_->run->progress();
}
void Trainer::report_loss(double loss) {
  impl_->run->report_loss(loss);
}

void Trainer::cancel_wait() {
  impl_->cancelled = true;
  impl_->thread.notify();
}
void Trainer::give_up_when(std::function<bool()> asked) {
  impl_->give_up = std::move(asked);
}

Run& Trainer::run() noexcept {
  return *impl_->run;
}
Swarm& Trainer::swarm() const noexcept {
  return impl_->swarm;
}
const RunOptions& Trainer::options() const noexcept {
  return impl_->options;
}
void Trainer::on_loop(const std::function<void()>& function) {
  impl_->swarm.membership().on_loop([&] { function(); });
}

}  // namespace cohive::train
