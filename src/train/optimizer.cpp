#include "cohive/train/optimizer.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/train/metrics.hpp"
#include "cohive/train/progress_tracker.hpp"
#include "optimizer_state.hpp"
#include "session.hpp"
#include "state_shelf.hpp"

namespace cohive {

using averaging::Averager;
using averaging::Round;
using averaging::RoundOptions;
using averaging::RoundResult;
using averaging::StateSharing;
using train::GlobalProgress;

namespace {

/// A round whose matchmaking began before its tensors are ready, so that finding a group costs no training time.
struct Scheduled {
  std::shared_ptr<std::optional<Round>> round;  ///< used on the loop only; empty once it is over
  std::shared_ptr<Event> triggered;             ///< the same
  std::future<Result<RoundResult>> result;
  explicit operator bool() const { return round != nullptr; }
  bool over() const { return result.wait_for(std::chrono::seconds(0)) == std::future_status::ready; }
};

constexpr std::uint64_t kAnyEpoch = std::numeric_limits<std::uint64_t>::max();
constexpr Duration kFirstRetry = 500ms, kLastRetry = 8s;  // of a failed state download

averaging::AveragerOptions averager_options(const StrategyOptions& strategy, const OptimizerOptions& options,
                                            const char* suffix, const char* class_name) {
  averaging::AveragerOptions result;
  result.prefix = strategy.run_id + suffix;
  result.class_name = class_name;
  result.min_matchmaking_time = options.matchmaking_time;
  result.request_timeout = std::min<Duration>(result.request_timeout, options.matchmaking_time / 2);
  result.allreduce_timeout = options.averaging_timeout;
  result.sender_timeout = options.matchmaking_time;
  result.reducer_timeout = options.matchmaking_time * 2;
  result.bandwidth = options.bandwidth;
  result.mode = strategy.client_mode ? averaging::PeerMode::client
                : options.auxiliary  ? averaging::PeerMode::auxiliary
                                     : averaging::PeerMode::node;
  return result;
}

std::vector<torch::Tensor> checked(std::vector<torch::Tensor> parameters) {
  for (const auto& parameter : parameters)
    if (!train::dtype_of(parameter))
      throw std::invalid_argument("cohive::Optimizer: parameters must be float32, float64, float16 or bfloat16");
  if (parameters.empty()) throw std::invalid_argument("cohive::Optimizer: the optimizer has no parameters");
  return parameters;
}

OptimizerOptions checked(OptimizerOptions options) {
  if (options.target_batch_size < 1)
    throw std::invalid_argument("cohive::Optimizer: target_batch_size must be at least 1");
  if (options.average_state_every < 1)
    throw std::invalid_argument("cohive::Optimizer: average_state_every must be at least 1");
  return options;
}

/// float32 buffers in the host's memory, shaped like the parameters, and the averager's view of them.
struct Buffers {
  std::vector<torch::Tensor> tensors;
  std::vector<averaging::AveragedTensor> views;
  explicit Buffers(const std::vector<torch::Tensor>& like) {
    for (const auto& tensor : like) {
      tensors.push_back(torch::zeros(tensor.sizes(), torch::kFloat32));
      averaging::AveragedTensor view;
      view.schema_dtype = *train::dtype_of(tensor);
      view.values = {tensors.back().data_ptr<float>(), static_cast<std::size_t>(tensors.back().numel())};
      for (auto size : tensor.sizes()) view.shape.push_back(static_cast<std::uint32_t>(size));
      views.push_back(std::move(view));
    }
  }
};

/// When a round for which no group has been found is given up.
struct Patience {
  train::ProgressTracker* tracker;
  std::uint64_t epoch;  ///< the run passes it: the others have averaged without us
  Duration time;        ///< from the trigger, when the trainer waits
  Averager* next;       ///< the time counts once others wait for us in the round that this averager is in
};

/// Others wait for the parameters of a member that has missed the gradients. It hears so from them before the report of
/// the epoch has come through the DHT, if it owns parts of the round.
Task<void> until_late(std::shared_ptr<Event> triggered, Patience patience) {
  if (patience.next) co_await patience.next->someone_waits();
  co_await triggered->wait();
  co_await patience.tracker->runtime().sleep_for(patience.time);
}

Task<void> give_up(std::shared_ptr<std::optional<Round>> round, std::shared_ptr<Event> triggered, Patience with) {
  Runtime& runtime = with.tracker->runtime();
  const bool passed =
      (co_await race(runtime, with.tracker->epoch_passed(with.epoch), until_late(triggered, with))).index() == 0;
  if ((*round)->stage() == Round::Stage::looking_for_group) {
    log::info("train", "no group in time: {}",
              passed      ? "the others have averaged without us"
              : with.next ? "others have averaged gradients without us, and wait for our parameters"
                          : "nobody else averages parameters");
    (*round)->cancel();
  }
}

Task<Result<RoundResult>> result_with_patience(std::shared_ptr<std::optional<Round>> round,
                                               std::shared_ptr<Event> triggered, Patience patience) {
  TaskGroup watching(patience.tracker->runtime(), "patience", TaskGroup::Local());
  watching.spawn(give_up(round, triggered, patience), "patience");
  auto result = co_await (*round)->result();
  watching.cancel();
  round->reset();
  co_return result;
}

}  // namespace

struct Optimizer::Impl {
  Impl(Strategy& s, torch::optim::Optimizer& o, OptimizerOptions opts);
  ~Impl();

  double now() const { return session.thread->runtime().wall_time(); }
  void open();
  void drop_loop_objects();
  void accumulate(std::int64_t batch);
  void schedule_rounds(const GlobalProgress& global);
  void start_rounds(const GlobalProgress& global);
  Scheduled start_round(Averager& averager, msgpack::Value gather, Patience patience);
  std::optional<std::size_t> finish_round(Scheduled& round, double weight, bool gradients);
  void abandon_rounds();
  Task<void> serve_others();
  bool end_epoch(const GlobalProgress& global, StepReport& report);
  bool drop_gradients_that_are_no_numbers();
  void take_optimizer_step(std::uint64_t next_epoch, bool with_gradients);
  void enter_epoch(std::uint64_t epoch);
  bool has_group(const Scheduled& round) const;
  bool out_of_sync(const GlobalProgress& global) const;
  bool catch_up();
  bool load_state();
  template <class F>
  void change_state(F work);
  std::size_t average_state(Scheduled& round);

  Strategy& strategy;
  train::Session& session;
  torch::optim::Optimizer& optimizer;
  OptimizerOptions options;
  std::vector<torch::Tensor> parameters;
  std::vector<torch::Tensor> accumulators;
  Buffers gradients, state;
  std::int64_t samples = 0, times = 0, anchor = 0;
  std::uint64_t local_epoch = 0;
  bool checked_start = false;
  Duration retry = kFirstRetry;

  std::unique_ptr<train::TrainMetrics> metrics;
  std::unique_ptr<train::ProgressTracker> tracker;
  std::unique_ptr<Averager> grad_averager, state_averager;
  std::unique_ptr<StateSharing> state_sharing;
  Scheduled grad_round, state_round;
  const std::shared_ptr<train::StateShelf> shelf = std::make_shared<train::StateShelf>();  // shared with those who copy
  std::unique_ptr<TaskGroup> upkeep;
  TrainingStats stats;
};

Optimizer::Impl::Impl(Strategy& s, torch::optim::Optimizer& o, OptimizerOptions opts)
    : strategy(s),
      session(s.session()),
      optimizer(o),
      options(checked(std::move(opts))),
      parameters(checked(train::parameters_of(o))),
      gradients(parameters),
      state(parameters) {
  for (const auto& parameter : parameters) {
    accumulators.push_back(
        torch::zeros(parameter.sizes(), parameter.options().dtype(torch::kFloat32).requires_grad(false)));
  }
  change_state([] {});
  try {
    session.on_loop([this] { open(); });
    session.call([this] { return tracker->refresh(); });
  } catch (...) {
    drop_loop_objects();
    throw;
  }
}

/// On the loop, as all that these objects do.
void Optimizer::Impl::open() {
  Runtime& runtime = session.thread->runtime();
  metrics = std::make_unique<train::TrainMetrics>(runtime.metrics());
  train::TrackerOptions tracking;
  tracking.run_id = strategy.options().run_id;
  tracking.target_batch_size = static_cast<double>(options.target_batch_size);
  tracking.client_mode = strategy.options().client_mode;
  tracker = std::make_unique<train::ProgressTracker>(*session.dht, session.key, tracking);
  auto grad_options = averager_options(strategy.options(), options, "_grad_averager", "GradientAverager");
  grad_options.codec = options.grad_compression;
  grad_options.aggregation = options.grad_aggregation;
  grad_options.agreed_codec = options.grad_agreed_codec;
  grad_averager = std::make_unique<Averager>(*session.dht, gradients.views, grad_options);
  auto state_options = averager_options(strategy.options(), options, "_state_averager", "TrainingStateAverager");
  state_options.codec = options.state_compression;
  state_options.aggregation = options.state_aggregation;
  state_averager = std::make_unique<Averager>(*session.dht, state.views, state_options);
  averaging::StateSharingOptions sharing{state_options.prefix, state_options.class_name, options.state_compression};
  sharing.share = !strategy.options().client_mode && !options.auxiliary;
  state_sharing = std::make_unique<StateSharing>(*session.dht, std::move(sharing));
  state_sharing->set_provider([from = shelf] { return from->copy(); });
  upkeep = std::make_unique<TaskGroup>(runtime, "training");
  upkeep->spawn(train::StateShelf::give_up_idle_copies(shelf, runtime), "idle copies of the state");
  tracker->start();
  grad_averager->start();
  state_averager->start();
  state_sharing->start();
}

void Optimizer::Impl::drop_loop_objects() {
  session.on_loop([this] {
    upkeep.reset();
    grad_averager.reset();
    state_averager.reset();
    state_sharing.reset();
    tracker.reset();
  });
}

Optimizer::Impl::~Impl() {
  abandon_rounds();
  session.call([this] { return tracker->close(); });
  session.call([this] { return serve_others(); });
  drop_loop_objects();
}

/// Who leaves right after a round takes nobody's results along.
Task<void> Optimizer::Impl::serve_others() {
  const Deadline limit = session.thread->runtime().after(options.matchmaking_time);
  co_await grad_averager->drain(limit);
  co_await state_averager->drain(limit);
}

/// hivemind's rule: gradients of batches of different size are weighted relative to the first batch of the epoch.
void Optimizer::Impl::accumulate(std::int64_t batch) {
  if (times == 0) anchor = batch;
  torch::NoGradGuard no_grad;
  const double factor = static_cast<double>(batch) / static_cast<double>(anchor);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) continue;
    accumulators[i].add_(gradient, factor);
    gradient.zero_();
  }
  samples += batch;
  ++times;
}

Scheduled Optimizer::Impl::start_round(Averager& averager, msgpack::Value gather, Patience patience) {
  Scheduled scheduled;
  scheduled.round = std::make_shared<std::optional<Round>>();
  scheduled.triggered = std::make_shared<Event>(session.thread->runtime(), "trigger of the trainer");
  RoundOptions wanted;
  wanted.gather = std::move(gather);
  wanted.timeout = options.averaging_timeout;
  wanted.expected_members = tracker->snapshot().expected;  // a newcomer has reported its progress by now
  wanted.allow_retries = false;
  scheduled.result = session.thread->runtime().submit(
      [&averager, wanted, patience, scheduled_round = scheduled.round, triggered = scheduled.triggered] {
        scheduled_round->emplace(averager.begin(wanted));
        return result_with_patience(scheduled_round, triggered, patience);
      });
  return scheduled;
}

/// Triggers a round, waits for it and counts it. Returns the size of its group, 0 on failure, nothing when the others
/// averaged without us.
std::optional<std::size_t> Optimizer::Impl::finish_round(Scheduled& round, double weight, bool gradients_round) {
  auto current = std::exchange(round, Scheduled());
  session.on_loop([&] {
    if (*current.round) (*current.round)->trigger(weight);
    current.triggered->set();
  });
  auto result = current.result.get();
  if (!result && result.error() == averaging::Errc::round_cancelled) {
    (gradients_round ? metrics->grad_missed : metrics->state_failed).increment();
    return std::nullopt;
  }
  if (!result) {
    log::info("train", "{} averaging failed, proceeding with local values: {}",
              gradients_round ? "gradient" : "parameter", result.error());
    ++(gradients_round ? stats.grad_rounds_failed : stats.state_rounds_failed);
    (gradients_round ? metrics->grad_local : metrics->state_failed).increment();
    return 0;
  }
  const std::size_t size = result->group.size();
  session.on_loop([&] {
    std::vector<PeerId> members;
    for (const auto& member : result->group) members.push_back(member.peer);
    tracker->took_part(members);
  });
  stats.bytes_sent += result->bytes_sent;
  stats.bytes_received += result->bytes_received;
  ++(gradients_round ? stats.grad_rounds : stats.state_rounds);
  if (!result->agreed_codecs.empty()) ++stats.grad_rounds_extended;
  (gradients_round ? metrics->grad_ok : metrics->state_ok).increment();
  if (gradients_round) {
    if (stats.rounds_by_group_size.size() <= size) stats.rounds_by_group_size.resize(size + 1);
    ++stats.rounds_by_group_size[size];
  }
  log::debug("train", "averaged {} with {} peers in {:.3f} s (group found in {:.3f} s)",
             gradients_round ? "gradients" : "parameters", size, to_seconds(result->allreduce),
             to_seconds(result->matchmaking));
  return size;
}

/// Rounds that will not be used. Where a group has formed, the others must not wait: its round runs with weight 0. Both
/// are told before either is waited for, as its members may be waiting in the other.
void Optimizer::Impl::abandon_rounds() {
  std::vector<Scheduled> rounds;
  for (Scheduled* round : {&grad_round, &state_round})
    if (*round) rounds.push_back(std::exchange(*round, Scheduled()));
  if (rounds.empty()) return;
  session.on_loop([&] {
    for (const Scheduled& scheduled : rounds) {
      auto& round = *scheduled.round;
      if (round && round->stage() == Round::Stage::looking_for_group) round->cancel();
      if (round) round->trigger(0);
    }
  });
  for (const Scheduled& round : rounds) round.result.wait();
}

/// Begins matchmaking as soon as the epoch's end is nearer than the time it takes.
void Optimizer::Impl::schedule_rounds(const GlobalProgress& global) {
  for (Scheduled* round : {&grad_round, &state_round})
    if (*round && round->over()) *round = {};  // found no group in its time: this one looks again
  if (global.eta - now() <= to_seconds(options.matchmaking_time)) start_rounds(global);
}

/// Those of this epoch's end that have not begun.
void Optimizer::Impl::start_rounds(const GlobalProgress& global) {
  if (global.peers < 2) return;
  const std::uint64_t next = std::max(local_epoch + 1, global.epoch);
  if (!grad_round)
    grad_round = start_round(*grad_averager, msgpack::Value(),
                             {tracker.get(), local_epoch, options.matchmaking_time / 4, state_averager.get()});
  // Python averages the state after the epoch. A search that begins only now takes one matchmaking_time.
  if (!state_round && next % static_cast<std::uint64_t>(options.average_state_every) == 0)
    state_round = start_round(*state_averager, msgpack::Value(next),
                              {tracker.get(), next, options.matchmaking_time * 2, nullptr});
}

/// Whatever writes to the parameters or the optimizer's statistics does so through here.
template <class F>
void Optimizer::Impl::change_state(F work) {
  shelf->change([&]() -> std::optional<train::StateDescription> {
    work();
    if (strategy.options().client_mode || options.auxiliary) return std::nullopt;  // they share nothing
    return train::describe_state(optimizer, local_epoch, "");
  });
}

std::size_t Optimizer::Impl::average_state(Scheduled& round) {
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < parameters.size(); ++i) state.tensors[i].copy_(parameters[i]);
  const std::size_t group = finish_round(round, 1.0, false).value_or(0);
  if (group > 0)
    change_state([&] {
      for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].copy_(state.tensors[i]);
    });
  return group;
}

/// False when the others ended it without us: our parameters are old now.
bool Optimizer::Impl::end_epoch(const GlobalProgress& global, StepReport& report) {
  torch::NoGradGuard no_grad;
  const double scale = times > 0 ? 1.0 / static_cast<double>(times) : 0.0;
  for (std::size_t i = 0; i < parameters.size(); ++i) gradients.tensors[i].copy_(accumulators[i]).mul_(scale);
  const bool usable = drop_gradients_that_are_no_numbers();
  start_rounds(global);
  const std::uint64_t sent_before = stats.bytes_sent;
  if (grad_round) {
    const auto group = finish_round(grad_round, usable ? static_cast<double>(samples) : 0.0, true);
    if (!group && !options.auxiliary) return false;
    report.grad_group = group.value_or(0);
  }
  const std::uint64_t next_epoch = std::max(local_epoch + 1, global.epoch);
  if (!options.auxiliary) take_optimizer_step(next_epoch, usable || report.grad_group > 1);
  // As hivemind does: who has missed the gradients learns it now, instead of being waited for in the next round.
  enter_epoch(next_epoch);
  if (state_round) {
    report.state_group = average_state(state_round);
    session.on_loop([&] { tracker->restart_timer(); });
  }
  report.epoch_changed = true;
  report.bytes_sent = stats.bytes_sent - sent_before;
  return true;
}

/// One batch of them is enough to spoil a model for good, and nobody averages them: the others' gradients count alone.
bool Optimizer::Impl::drop_gradients_that_are_no_numbers() {
  if (std::ranges::all_of(gradients.tensors, train::all_finite)) return true;
  log::warn("train", "gradients of epoch {} hold NaN or infinity, and do not count", local_epoch);
  for (auto& gradient : gradients.tensors) gradient.zero_();
  return false;
}

/// \param with_gradients  else there are none to go by: a new epoch with the same parameters
void Optimizer::Impl::take_optimizer_step(std::uint64_t next_epoch, bool with_gradients) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto& gradient = parameters[i].mutable_grad();
    if (!gradient.defined()) gradient = torch::empty_like(parameters[i]);
    gradient.copy_(gradients.tensors[i]);
  }
  change_state([&] {
    if (with_gradients) optimizer.step();
    local_epoch = next_epoch;
  });
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    parameters[i].mutable_grad().zero_();
    accumulators[i].zero_();
  }
  samples = times = 0;
}

void Optimizer::Impl::enter_epoch(std::uint64_t epoch) {
  local_epoch = epoch;
  session.on_loop([&] {
    tracker->update_epoch(epoch);
    state_sharing->set_priority(static_cast<double>(epoch));
    metrics->epoch.set(static_cast<double>(epoch));
  });
}

bool Optimizer::Impl::has_group(const Scheduled& round) const {
  if (!round || round.over()) return false;
  bool found = false;
  session.on_loop([&] { found = !*round.round || (*round.round)->stage() != Round::Stage::looking_for_group; });
  return found;
}

/// Whether the swarm's parameters are newer than ours. When the others are one epoch ahead, that is the epoch whose end
/// we are about to reach together, if we have a group with them; else they averaged without us.
bool Optimizer::Impl::out_of_sync(const GlobalProgress& global) const {
  if (options.auxiliary || global.epoch <= local_epoch) return false;
  return !checked_start || global.epoch > local_epoch + 1 || !has_group(grad_round);
}

/// Downloads the swarm's state; after a failure it makes the trainer wait, for its gradients would be of no use.
bool Optimizer::Impl::catch_up() {
  checked_start = load_state();
  for (auto& parameter : parameters)
    if (parameter.grad().defined()) parameter.mutable_grad().zero_();
  if (checked_start) {
    retry = kFirstRetry;
  } else {
    auto pause = [](Runtime& runtime, Duration time) -> Task<void> { co_await runtime.sleep_for(time); };
    session.call([&] { return pause(session.thread->runtime(), retry); });
    retry = std::min(retry * 2, kLastRetry);
  }
  return checked_start;
}

bool Optimizer::Impl::load_state() {
  abandon_rounds();
  auto downloaded = session.call([this] {
    averaging::DownloadOptions download;
    download.limit = options.load_state_timeout;
    download.on_progress = options.on_download;
    return state_sharing->download(std::move(download));
  });
  if (!downloaded) {
    log::warn("train", "cannot catch up with the swarm yet: {}", downloaded.error());
    return false;
  }
  Result<std::uint64_t> epoch = local_epoch;
  change_state([&] {
    epoch = train::unpack_state(optimizer, *downloaded, local_epoch);
    if (!epoch) return;
    const std::uint64_t global_epoch = tracker->snapshot().epoch;
    // The donor may have been about to enter the epoch that others announced.
    local_epoch = *epoch + 1 == global_epoch ? global_epoch : *epoch;
  });
  if (!epoch) {
    log::warn("train", "downloaded state refused: {}", epoch.error());
    return false;
  }
  for (auto& accumulator : accumulators) accumulator.zero_();
  samples = times = 0;
  session.on_loop([this] { grad_averager->reset_residuals(); });  // owed to a model that is no more
  ++stats.state_downloads;
  metrics->downloads.increment();
  enter_epoch(local_epoch);
  log::info("train", "downloaded the state of epoch {} from {} ({} bytes, {} donors)", local_epoch, downloaded->donor,
            downloaded->bytes, downloaded->contributed.size());
  return true;
}

Optimizer::Optimizer(Strategy& strategy, torch::optim::Optimizer& optimizer, OptimizerOptions options)
    : impl_(std::make_unique<Impl>(strategy, optimizer, std::move(options))) {}
Optimizer::~Optimizer() = default;

bool Optimizer::catch_up() {
  Impl& self = *impl_;
  if (self.out_of_sync(self.tracker->snapshot())) return self.catch_up();
  self.checked_start = true;
  return false;
}

StepReport Optimizer::step(std::int64_t batch_size) {
  Impl& self = *impl_;
  if (batch_size < 1 && !self.options.auxiliary)
    throw std::invalid_argument("cohive::Optimizer: a batch has at least one sample");
  StepReport report;
  if (self.out_of_sync(self.tracker->snapshot())) {
    report.loaded_state = self.catch_up();
    report.epoch = self.local_epoch;
    return report;
  }
  self.checked_start = true;
  if (!self.options.auxiliary) {
    self.accumulate(batch_size);
    self.metrics->samples.increment(static_cast<double>(batch_size));
    self.session.on_loop([&] { self.tracker->report(self.local_epoch, static_cast<double>(self.samples)); });
  }
  const GlobalProgress global = self.tracker->snapshot();
  self.schedule_rounds(global);
  const bool ready = global.epoch > self.local_epoch ||
                     global.samples >= static_cast<double>(self.options.target_batch_size) || self.now() >= global.eta;
  if (ready && !self.end_epoch(global, report)) report.loaded_state = self.catch_up();
  self.metrics->global_epoch.set(static_cast<double>(global.epoch));
  self.metrics->peers.set(static_cast<double>(global.peers));
  self.metrics->global_rate.set(global.samples_per_second);
  report.epoch = self.local_epoch;
  return report;
}

std::size_t Optimizer::average_parameters() {
  Impl& self = *impl_;
  self.abandon_rounds();
  auto round = self.start_round(*self.state_averager, msgpack::Value(self.local_epoch),
                                {self.tracker.get(), kAnyEpoch, self.options.averaging_timeout, nullptr});
  return self.average_state(round);
}

void Optimizer::report_loss(double loss) {
  impl_->metrics->loss.set(loss);
}
std::uint64_t Optimizer::epoch() const {
  return impl_->local_epoch;
}

TrainingStats Optimizer::stats() const {
  TrainingStats stats = impl_->stats;
  const GlobalProgress global = impl_->tracker->snapshot();
  stats.epoch = impl_->local_epoch;
  stats.global_samples = global.samples;
  stats.samples_per_second = global.samples_per_second;
  stats.peers = global.peers;
  return stats;
}

}  // namespace cohive
