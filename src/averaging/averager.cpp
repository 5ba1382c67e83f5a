#include "cohive/averaging/averager.hpp"

#include <algorithm>
#include <cmath>

#include "all_reduce.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "donors.hpp"
#include "group_bits.hpp"
#include "link_meter.hpp"
#include "matchmaking.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kChunkTimeout = 15s;
constexpr Duration kEarlyStream = 120s;  // a part may come this long before we know its group
constexpr std::size_t kMaxUploads = 4;
constexpr Duration kUploadTurn = 5s;  // to wait for one of those; the newcomer had better ask another donor then
constexpr Duration kFirstPause = 100ms, kLongestPause = 2s;  // between attempts of one step, doubling

void check(const AveragerOptions& options) {
  const auto fail = [](const char* what) { throw std::invalid_argument(what); };
  if (options.prefix.empty() || options.prefix.find('.') != std::string::npos)
    fail("an averager's prefix must not be empty nor contain '.'");
  if (options.request_timeout >= options.min_matchmaking_time)
    fail("request_timeout must be below min_matchmaking_time");
  if (options.reducer_timeout > 0s && options.reducer_timeout <= options.sender_timeout)
    fail("reducer_timeout must exceed sender_timeout");
  if (options.initial_group_bits.find_first_not_of("01") != std::string::npos) fail("group bits are made of 0 and 1");
  if (options.target_group_size == 1 || options.min_group_size < 2) fail("a group has at least two members");
  if (const auto* trimmed = std::get_if<TrimmedMean>(&options.aggregation))
    if (!(trimmed->fraction > 0 && trimmed->fraction < 0.5)) fail("the fraction to trim must be above 0 and below 0.5");
  if (const auto* clip = std::get_if<CenteredClip>(&options.aggregation))
    if (!(clip->radius > 0) || !std::isfinite(clip->radius) || clip->iterations < 1 || clip->iterations > 100)
      fail("CenteredClip needs a radius above 0 and 1 to 100 iterations");
  for (const auto& choice : options.codec.choices())
    if (codec::info(choice.codec).needs_agreement)
      fail("codec: this one needs agreement, and belongs into agreed_codec");
  for (const auto& choice : options.agreed_codec.value_or(codec::Codec::none).choices())
    if (!(choice.density > 0 && choice.density <= 1)) fail("the density of top_k must be above 0 and at most 1");
  if (!(options.bandwidth.value().value_or(0) >= 0)) fail("bandwidth must not be negative");
}

}  // namespace

struct Averager::Impl {
  Impl(Dht& d, std::vector<AveragedTensor> t, AveragerOptions o)
      : dht(d),
        runtime(d.runtime()),
        options((check(o), std::move(o))),
        tensors(std::move(t)),
        base(options.prefix + "::" + options.class_name + "."),
        metrics(runtime.metrics(), options.prefix),
        matchmaking(d, options, metrics, base + "rpc_join_group", schema_hash(tensors)),
        meter(d.host()),
        rounds_changed(runtime, "the round of an early sender"),
        priority_changed(runtime, "state priority"),
        uploads(runtime, kMaxUploads, "state uploads"),
        snapshots(runtime, options.state_codec),
        server(d.host()),
        tasks(runtime, "averager") {}

  Task<Result<RoundResult>> attempt(const StepOptions& step, std::shared_ptr<StepControl> control, Deadline deadline);
  Task<Result<>> on_aggregate(rpc::ServerStream& stream);
  Task<Result<>> on_download(rpc::ServerStream& stream);
  Task<Result<>> on_download_pieces(rpc::ServerStream& stream);
  static Task<void> declare_state(Impl& self);
  std::vector<TensorInfo> schema() const {
    std::vector<TensorInfo> infos;
    for (const auto& tensor : tensors) infos.push_back({tensor.shape});
    return infos;
  }

  Dht& dht;
  Runtime& runtime;
  AveragerOptions options;
  std::vector<AveragedTensor> tensors;
  std::string base;
  AveragingMetrics metrics;
  Matchmaking matchmaking;
  LinkMeter meter;
  std::shared_ptr<AllReduce> round;
  Condition rounds_changed;
  std::string awaited;  // group of which a member has sent before our trigger
  double priority = 0;
  Condition priority_changed;
  Semaphore uploads;  // of either protocol
  Snapshots snapshots;
  ResidualsPtr residuals = make_residuals(schema());
  bool stepping = false;
  std::size_t serving = 0;   // members whose parts we average, or who have not got all results yet
  std::uint64_t rounds = 0;  // that we were in
  rpc::Server server;
  TaskGroup tasks;
};

Averager::Averager(Dht& dht, std::vector<AveragedTensor> tensors, AveragerOptions options)
    : impl_(std::make_unique<Impl>(dht, std::move(tensors), std::move(options))) {}
Averager::~Averager() = default;

void Averager::start() {
  Impl& self = *impl_;
  if (self.options.mode == PeerMode::client) return;
  self.server.add_streaming(self.base + "rpc_join_group",
                            [&self](rpc::ServerStream& s) { return self.matchmaking.serve(s); });
  self.server.add_streaming(self.base + "rpc_aggregate_part",
                            [&self](rpc::ServerStream& s) { return self.on_aggregate(s); });
  self.server.add_streaming(self.base + "rpc_download_state",
                            [&self](rpc::ServerStream& s) { return self.on_download(s); });
  self.server.add_streaming(self.base + "rpc_download_pieces",
                            [&self](rpc::ServerStream& s) { return self.on_download_pieces(s); });
  self.tasks.spawn(Impl::declare_state(self), "declare state");
}

// ---- A round

Task<Result<RoundResult>> Averager::step(StepOptions step) {
  Impl& self = *impl_;
  if (self.stepping) throw std::logic_error("two averaging rounds of one averager at once");
  struct Stepping {
    Impl& self;
    explicit Stepping(Impl& impl) : self(impl) { self.stepping = true; }
    ~Stepping() {
      self.stepping = false;
      self.rounds_changed.notify_all();
    }
  } guard{self};
  const Deadline deadline = self.runtime.after(step.timeout);
  auto control = step.control ? step.control : std::make_shared<StepControl>(self.runtime, step.weight);
  if (!step.control) control->trigger.set();
  if (step.scheduled_time) control->scheduled_time = step.scheduled_time;
  if (!step.control || !control->scheduled_time)
    control->scheduled_time =
        step.scheduled_time.value_or(self.dht.now() + to_seconds(self.options.min_matchmaking_time));
  struct Finish {
    std::shared_ptr<StepControl> control;
    ~Finish() { control->stage = StepControl::Stage::finished; }
  } finish{control};
  for (Duration pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    auto giving_up = [](std::shared_ptr<StepControl> c) -> Task<void> { co_await c->cancelled.wait(); };
    auto outcome = co_await race(self.runtime, self.attempt(step, control, deadline), giving_up(control));
    if (outcome.index() == 1) co_return Error(Errc::round_cancelled);
    auto& result = std::get<0>(outcome);
    if (result) co_return std::move(result);
    (result.error().code() == make_error_code(Errc::no_group) ? self.metrics.no_group : self.metrics.rounds_failed)
        .increment();
    if (!step.allow_retries || self.runtime.now() >= deadline.at() || control->cancelled.is_set())
      co_return result.error();
    log::info("averaging", "trying again: {}", result.error());
    co_await control->cancelled.wait(self.runtime.after(std::min(pause, deadline.remaining(self.runtime.now()))));
  }
}

Task<Result<RoundResult>> Averager::Impl::attempt(const StepOptions& step, std::shared_ptr<StepControl> control,
                                                  Deadline deadline) {
  const TimePoint start = runtime.now();
  control->stage = StepControl::Stage::looking_for_group;
  const auto bandwidth = options.bandwidth.is_measured() ? meter.bandwidth() : options.bandwidth.value();
  metrics.bandwidth.set(bandwidth.value_or(0));
  auto group = co_await matchmaking.look_for_group(
      encode_gathered({dht.host().id(), options.mode, bandwidth, step.gather}), *control, deadline);
  if (!group) co_return group.error();
  struct Forget {
    Matchmaking& matchmaking;
    bool averaged = false;
    ~Forget() {
      if (!averaged) matchmaking.forget_group();
    }
  } forget{matchmaking};
  matchmaking.set_bits(next_group_bits(matchmaking.bits(), as_bytes(group->id),
                                       group->index_of(dht.host().id()).value(), group->members.size(),
                                       options.target_group_size));
  const TimePoint grouped = runtime.now();
  metrics.matchmaking_seconds.observe(to_seconds(grouped - start));
  auto current =
      std::make_shared<AllReduce>(dht.host(), options, metrics, tensors,
                                  AllReduce::Setup{base + "rpc_aggregate_part", *group, control->weight, residuals});
  if (auto prepared = co_await current->prepare(); !prepared) co_return prepared.error();
  struct Registered {
    Impl& self;
    std::shared_ptr<AllReduce> round;
    bool complete = false;
    ~Registered() {
      if (!complete) round->cancel();  // senders that wait for us get an answer
      if (self.round == round) self.round.reset();
    }
  } registered{*this, current};
  round = current;
  ++rounds;
  rounds_changed.notify_all();

  control->stage = StepControl::Stage::awaiting_trigger;
  const bool bounded = options.allreduce_timeout > 0s;
  const Duration patience = std::max<Duration>(options.allreduce_timeout, deadline.remaining(runtime.now()));
  if (!co_await control->trigger.wait(bounded ? runtime.after(patience) : Deadline::never()))
    co_return Error(cohive::Errc::timeout, "waiting for the trigger");
  control->stage = StepControl::Stage::running;
  const double weight = options.mode == PeerMode::auxiliary ? 0 : control->weight;
  if (!std::isfinite(weight) || weight < 0)
    co_return Error(cohive::Errc::invalid_argument, "an averaging weight must be finite and not negative");
  current->set_weight(weight);
  const TimePoint triggered = runtime.now();
  const Deadline end = limit_of(runtime, options.allreduce_timeout);
  TaskGroup watching(runtime, "all-reduce watch", TaskGroup::Local());
  if (options.bandwidth.is_measured()) watching.spawn(LinkMeter::watch(meter), "link meter");
  auto result = co_await within(runtime, end, current->run(), "all-reduce");
  watching.cancel();
  if (!result) co_return result.error();
  registered.complete = true;
  forget.averaged = true;
  std::vector<PeerId> lost = result->lost_senders;
  lost.insert(lost.end(), result->failed_reducers.begin(), result->failed_reducers.end());
  matchmaking.round_ended(lost);
  result->group_id = group->id;
  result->leader = group->leader;
  result->agreed_codecs = group->agreed_codecs;
  result->matchmaking = grouped - start;
  result->allreduce = runtime.now() - triggered;
  metrics.allreduce_seconds.observe(to_seconds(result->allreduce));
  metrics.group_size.set(static_cast<double>(group->members.size()));
  (result->parts_failed ? metrics.rounds_partial : metrics.rounds_ok).increment();
  priority_changed.notify_all();
  co_return result;
}

/// A sender may come before we heard of its group, or before our own trigger: it waits.
Task<Result<>> Averager::Impl::on_aggregate(rpc::ServerStream& stream) {
  auto first = co_await stream.receive(runtime.after(kChunkTimeout));
  if (!first) co_return first.error();
  if (!*first) co_return Error(Errc::bad_partition, stream.peer(), "no part");
  auto message = parse_part(**first);
  if (!message) co_return message.error();
  const auto ours = [&] { return round && round->group_id() == message->group_id; };
  const Deadline patience = runtime.after(kEarlyStream);
  const std::uint64_t known = rounds;
  while (!ours() && stepping && rounds == known)
    if (!co_await rounds_changed.wait(patience)) break;
  if (!ours()) {
    const Envelope refusal = envelope_code(kBadGroupId);
    co_return co_await stream.send(as_bytes(refusal.head), runtime.after(kChunkTimeout));
  }
  if (!round->started.is_set()) {
    awaited = round->group_id();
    rounds_changed.notify_all();
  }
  struct Serving {
    Impl& self;
    explicit Serving(Impl& impl) : self(impl) { ++self.serving; }
    ~Serving() {
      --self.serving;
      self.rounds_changed.notify_all();
    }
  } serving_one{*this};
  co_return co_await AllReduce::serve(round, stream, std::move(**first));
}

Task<void> Averager::drained(Deadline deadline) {
  while (impl_->serving > 0)
    if (!co_await impl_->rounds_changed.wait(deadline)) co_return;
}

Task<void> Averager::awaited() {
  const auto waiting = [](const Impl& self) {
    return self.round && !self.round->started.is_set() && self.round->group_id() == self.awaited;
  };
  while (!waiting(*impl_)) co_await impl_->rounds_changed.wait();
}

// ---- State

void Averager::set_state_provider(StateProvider provider) {
  impl_->snapshots.set_provider(std::move(provider));
  impl_->priority_changed.notify_all();
}

void Averager::set_state_priority(double priority) {
  impl_->priority = priority;
  impl_->priority_changed.notify_all();
}

Task<void> Averager::Impl::declare_state(Impl& self) {
  const msgpack::Value own = msgpack::Value::bin(self.dht.host().id().bytes());
  for (;;) {
    const bool sharing = self.snapshots.sharing() && self.options.share_state && self.options.mode == PeerMode::node;
    const double expiration = self.dht.now() + to_seconds(self.options.declare_state_period);
    (void)co_await self.dht.store(self.options.prefix + ".all_averagers", own,
                                  sharing ? msgpack::Value(self.priority) : msgpack::Value(), expiration);
    // Declared again in time, and at once when something changes.
    co_await self.priority_changed.wait(self.runtime.after(self.options.declare_state_period * 2 / 3));
  }
}

Task<Result<>> Averager::Impl::on_download(rpc::ServerStream& stream) {
  auto units = co_await uploads.acquire(1, runtime.after(kUploadTurn));
  if (!units) co_return Error(cohive::Errc::limit_exceeded, "too many downloads at once");
  metrics.state_uploads.increment();
  std::optional<SharedState> state;
  if (options.share_state) state = co_await snapshots.state();
  co_return co_await send_state(runtime, stream, std::move(state), options.state_codec);
}

Task<Result<>> Averager::Impl::on_download_pieces(rpc::ServerStream& stream) {
  if (!options.share_state) co_return ok();
  co_return co_await serve_pieces(runtime, stream, snapshots, uploads, metrics);
}

Task<Result<DownloadedState>> Averager::download_state(DownloadOptions options) {
  Impl& self = *impl_;
  const PieceSource pieces{self.base + "rpc_download_pieces", kChunkTimeout, options.max_bytes, options.max_donors};
  const DownloadSetup setup{self.options.prefix + ".all_averagers", self.base + "rpc_download_state", pieces};
  DownloadReport report;
  report.on_progress = [&metrics = self.metrics, &options](const DownloadProgress& progress) {
    metrics.download_done.set(static_cast<double>(progress.bytes_done));
    metrics.download_total.set(static_cast<double>(progress.bytes_total));
    metrics.download_donors.set(static_cast<double>(progress.donors));
    if (options.on_progress) options.on_progress(progress);
  };
  auto state = co_await download_from_donors(self.dht, setup, report, self.runtime.after(options.limit));
  if (state) self.metrics.state_downloads.increment();
  self.metrics.donors_rejected.increment(static_cast<double>(report.liars.size()));
  for (const auto& [peer, bytes] : report.contributed)
    self.metrics.state_bytes_received.increment(static_cast<double>(bytes));
  self.metrics.download_donors.set(0);
  co_return state;
}

void Averager::reset_error_feedback() {
  impl_->residuals = make_residuals(impl_->schema());
}

const std::string& Averager::group_bits() const noexcept {
  return impl_->matchmaking.bits();
}
void Averager::set_group_bits(std::string bits) {
  impl_->matchmaking.set_bits(std::move(bits));
}
const AveragerOptions& Averager::options() const noexcept {
  return impl_->options;
}
Dht& Averager::dht() const noexcept {
  return impl_->dht;
}

}  // namespace cohive::averaging
