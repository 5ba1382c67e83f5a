#include "cohive/averaging/averager.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <ranges>
#include <stdexcept>

#include "averaging/groups/notices.hpp"
#include "averaging/groups/stragglers.hpp"
#include "averaging/rounds/link_meter.hpp"
#include "averaging/rounds/round_state.hpp"
#include "averaging/rounds/rounds.hpp"
#include "averaging/rounds/running_round.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/averaging/group_finder.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/names.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "cohive/transport/network.hpp"
#include "core/detail/bounded_parse.hpp"

namespace cohive::averaging {
namespace {

constexpr int kShareOfSenderTimeout =
    4;  // the sender's timeout is so many times that of a straggler, before any round is known
constexpr Duration kStragglerTimeout = 5s;                   // where senders have all the time
constexpr Duration kNoticeTime = 5s;                         // for members to hear that a round is given up
constexpr Duration kGoodbye = 2s;                            // the same, that this peer averages no more
constexpr Duration kFirstPause = 100ms, kLongestPause = 2s;  // between attempts of one round, doubling
/// Bounds the bytes of a part's values: what scales, code books and the message around them add fits into a record.
constexpr std::size_t kLargestPart = 15 << 20;
static_assert(kLargestPart + kLargestPart / 20 < rpc::kMaxStreamRecord, "scales, code books and messages take 5 %");

void check(const Aggregation& aggregation) {
  const auto fail = [](const char* what) { throw std::invalid_argument(what); };
  if (const auto* trimmed = std::get_if<TrimmedMean>(&aggregation))
    if (!(trimmed->fraction > 0 && trimmed->fraction < 0.5)) fail("the fraction to trim must be above 0 and below 0.5");
  if (const auto* clip = std::get_if<CenteredClip>(&aggregation))
    if (!(clip->radius > 0) || !std::isfinite(clip->radius) || clip->iterations < 1 || clip->iterations > 100)
      fail("CenteredClip needs a radius above 0 and 1 to 100 iterations");
  if (const auto* clip = std::get_if<ClippedMean>(&aggregation))
    if (!(clip->factor >= 1) || !std::isfinite(clip->factor)) fail("the factor of ClippedMean must be 1 or more");
  if (const auto* mean = std::get_if<MeanOfSenders>(&aggregation))
    if (mean->clip != 0 && (!(mean->clip >= 1) || !std::isfinite(mean->clip)))
      fail("MeanOfSenders clips at 1 or more times the median norm, or with 0 not at all");
}

void check(const AveragerOptions& options) {
  const auto fail = [](const std::string& what) { throw std::invalid_argument(what); };
  if (const auto fault = fault_of_name(options.prefix, kMaxPrefix)) fail("an averager's prefix " + *fault);
  if (options.request_timeout >= options.min_matchmaking_time)
    fail("request_timeout must be below min_matchmaking_time");
  if (options.reducer_timeout > 0s && options.reducer_timeout <= options.sender_timeout)
    fail("reducer_timeout must exceed sender_timeout");
  if (options.initial_group_bits.find_first_not_of("01") != std::string::npos) fail("group bits are made of 0 and 1");
  if (options.target_group_size == 1 || options.min_group_size < 2) fail("a group has at least two members");
  check(options.aggregation);
  if (!(options.verified_share >= 0 && options.verified_share <= 1)) fail("verified_share must be from 0 to 1");
  for (const auto& choice : options.codec.choices())
    if (codec::info(choice.codec).needs_agreement)
      fail("AveragerOptions::codec must need no agreement: give this one to agreed_codec");
  for (const auto& choice : options.agreed_codec.value_or(codec::Codec::none).choices()) {
    if (!(choice.density > 0 && choice.density <= 1))
      fail("the density of top_k and sparse2 must be above 0 and at most 1");
    if (choice.codec == codec::Codec::sparse2 && options.verified_share > 0)
      fail("averages in sparse2 have what earlier ones have lost, and cannot be made again: leave verified_share out");
  }
  if (!(options.bandwidth.value().value_or(0) >= 0)) fail("bandwidth must not be negative");
  if (options.part_size_bytes > kLargestPart)
    fail("part_size_bytes must be at most " + std::to_string(kLargestPart) + ": no larger part can travel");
}

/// Refuses parts that are too large because values without a codec travel as float32, whatever dtype they are cut by.
void check_parts(const std::vector<TensorInfo>& schema, const AveragerOptions& options) {
  for (std::size_t i = 0; i < schema.size(); ++i) {
    const TensorInfo& tensor = schema[i];
    const auto chosen = options.codec.choose({tensor.key.value_or(i), tensor.shape, tensor.dtype, tensor.role});
    if (!chosen || chosen->codec != codec::Codec::none) continue;
    const std::size_t most = kLargestPart / sizeof(float) * codec::size_of(tensor.dtype);
    if (options.part_size_bytes > most && tensor.elements() > kLargestPart / sizeof(float))
      throw std::invalid_argument("part_size_bytes must be at most " + std::to_string(most) + " for tensor " +
                                  std::to_string(i) + ", whose values travel as float32: no larger part can travel");
  }
}

std::vector<TensorInfo> infos_of(const std::vector<AveragedTensor>& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& tensor : tensors)
    infos.push_back({tensor.shape, tensor.schema_dtype, tensor.requires_grad, tensor.role, tensor.key});
  return infos;
}

std::vector<TensorSpan> memory_of(const std::vector<AveragedTensor>& tensors) {
  std::vector<TensorSpan> memory;
  for (const auto& tensor : tensors) memory.emplace_back(tensor.values);
  return memory;
}

/// Peers find each other by it: those that check averages have to know what an average is.
std::string schema_hash_of(const std::vector<TensorInfo>& schema, const AveragerOptions& options) {
  const std::string hash = schema_hash(schema);
  if (options.verified_share == 0) return hash;
  const auto digest = crypto::sha256({as_bytes(hash), as_bytes("checked: " + description(options.aggregation))});
  return to_string(ByteView(digest).first(hash.size()));
}

std::vector<PeerId> members_of(const Group& group) {
  std::vector<PeerId> members;
  for (const Member& member : group.members) members.push_back(member.peer);
  return members;
}

std::string notice_of(const std::string& group_id, const std::vector<PeerId>& stragglers) {
  proto::SpoilersNotice notice;
  notice.set_group_id(group_id);
  for (const PeerId& peer : stragglers | std::views::take(Stragglers::kMostTold)) notice.add_peers(peer.binary());
  return notice.SerializeAsString();
}

codec::CodecSet offered_by(const AveragerOptions& options) {
  codec::CodecSet offered;
  if (options.agreed_codec)
    for (const auto& choice : options.agreed_codec->choices())
      if (codec::info(choice.codec).needs_agreement) offered.insert(choice.codec);
  return offered;
}

}  // namespace

/// A mean trusts the owner of a part as it trusts each sender, but an aggregate that bears liars is worth what its
/// owner is; and where averages are checked, an owner keeps what all have sent it.
GroupOptions group_options(const AveragerOptions& options) {
  GroupOptions result;
  result.prefix = options.prefix;
  result.initial_group_bits = options.initial_group_bits;
  result.target_group_size = options.target_group_size;
  result.min_group_size = options.min_group_size;
  result.min_matchmaking_time = options.min_matchmaking_time;
  result.request_timeout = options.request_timeout;
  result.straggler_timeout =
      options.sender_timeout > 0s ? options.sender_timeout / kShareOfSenderTimeout : kStragglerTimeout;
  result.mode = options.mode;
  result.caps_shares = bears_liars(options.aggregation) || options.verified_share > 0;
  result.one_average = options.one_average;
  return result;
}

struct Averager::Impl {
  Impl(Dht& d, std::vector<TensorInfo> infos, std::optional<std::vector<TensorSpan>> memory, AveragerOptions o)
      : dht(d),
        runtime(d.runtime()),
        options((check(o), std::move(o))),
        schema(std::move(infos)),
        own_tensors(std::move(memory)),
        base(options.prefix + "::" + options.class_name + "."),
        metrics(runtime.metrics(), options.prefix),
        meter(d.host()),
        leaving(d.host(), base + "rpc_leave"),
        naming(d.host(), base + "rpc_spoilers"),
        rounds(d.host()),
        finder((options.group_finder ? options.group_finder : make_matchmaking)(
            {dht, group_options(options), metrics, base, schema_hash_of(schema, options), offered_by(options)})),
        server(d.host()),
        background(runtime, "averager") {
    check_parts(schema, options);
    if (!options.scheme) options.scheme = plain_all_reduce();
    if (own_tensors) {
      forget_what_is_owed();
      own_parts();  // throws for memory that does not fit
    }
  }

  std::shared_ptr<TensorParts> own_parts() {
    return std::make_shared<HostParts>(runtime, schema, *own_tensors,
                                       HostPartsOptions{.residuals = residuals, .answers = answers});
  }
  void forget_what_is_owed() {
    residuals = make_residuals(schema);
    answers = std::make_shared<AnswerResiduals>(schema);
  }
  static Task<void> run_round(Impl& self, Round::State& state);
  using Reported = Result<std::shared_ptr<const RoundReport>>;
  Task<Reported> try_until(Round::State& state, Deadline deadline);
  Task<Reported> attempt(Round::State& state, Deadline deadline);
  Task<Result<>> await_trigger(Round::State& state, Deadline deadline);
  Task<Result<RoundReport>> average(Round::State& state, const WorkDivision& work, Rounds::Entry& entry);
  void round_ended(const Group& group, const RoundEnd& end);
  void name_stragglers(const Group& group, const std::vector<PeerId>& stragglers);
  Result<> hear_leaving(const PeerId& peer, ByteView record);
  Result<> hear_of_stragglers(const PeerId& witness, ByteView record);
  RoundLimits limits_of(const Round::State& state) const;
  bool is_reached_by_parts();
  Member own_member(const Round::State& state);

  Dht& dht;
  Runtime& runtime;
  AveragerOptions options;
  const std::vector<TensorInfo> schema;
  const std::optional<std::vector<TensorSpan>> own_tensors;
  ResidualsPtr residuals;  // of own_tensors, as the next
  AnswerResidualsPtr answers;
  const std::string base;
  AveragingMetrics metrics;
  LinkMeter meter;
  Notices leaving, naming;
  Rounds rounds;
  std::unique_ptr<GroupFinder> finder;
  std::weak_ptr<Round::State> current;
  bool left = false;
  bool reached_by_parts = true;
  const std::uint64_t bytes_of_all = encoded_bytes(schema, options.codec);
  rpc::Server server;
  TaskGroup background;
};

Averager::Averager(Dht& dht, std::vector<TensorInfo> schema, AveragerOptions options)
    : impl_(std::make_unique<Impl>(dht, std::move(schema), std::nullopt, std::move(options))) {}
Averager::Averager(Dht& dht, std::vector<AveragedTensor> tensors, AveragerOptions options)
    : impl_(std::make_unique<Impl>(dht, infos_of(tensors), memory_of(tensors), std::move(options))) {}

Averager::~Averager() {
  if (const auto round = impl_->current.lock()) round->cancel();
}

void Averager::start() {
  Impl& self = *impl_;
  self.leaving.serve(self.server,
                     [&self](const PeerId& peer, ByteView record) { return self.hear_leaving(peer, record); });
  self.naming.serve(self.server,
                    [&self](const PeerId& from, ByteView record) { return self.hear_of_stragglers(from, record); });
  if (self.options.mode == PeerMode::client) return;
  self.finder->serve(self.server);
  self.server.add_streaming(self.base + "rpc_aggregate_part",
                            [&self](rpc::ServerStream& stream) { return self.rounds.serve(stream); });
  if (self.options.verified_share == 0) return;
  self.server.add_streaming(self.base + "rpc_show_part",
                            [&self](rpc::ServerStream& stream) { return self.rounds.show(stream); });
  self.server.add_unary(self.base + "rpc_verdict", [&self](PeerId caller, std::string request) {
    return self.rounds.hear(std::move(caller), std::move(request));
  });
}

// ---- A round

Round Averager::begin(RoundOptions options) {
  Impl& self = *impl_;
  const auto before = self.current.lock();
  if (before && !before->finished()) throw std::logic_error("two averaging rounds of one averager at once");
  auto state = std::make_shared<Round::State>(self.runtime, std::move(options), self.own_tensors.has_value());
  state->plan.scheduled_time =
      state->options.scheduled_time.value_or(self.dht.now() + to_seconds(self.options.min_matchmaking_time));
  state->plan.expected_members = state->options.expected_members;
  state->plan.random_bits = state->options.random_group_bits;
  state->plan.lead_delay = state->options.lead_delay;
  state->plan.early = state->options.early;
  state->plan.meets = state->options.meets;
  state->plan.others = state->options.others;
  state->plan.last = state->options.last;
  self.current = state;
  state->tasks.spawn(Impl::run_round(self, *state), "averaging round");
  return Round(std::move(state));
}

Task<Result<RoundReport>> Averager::step(RoundOptions options, double weight) {
  Round round = begin(std::move(options));
  round.trigger(weight);
  co_return co_await round.result();
}

Task<void> Averager::Impl::run_round(Impl& self, Round::State& state) {
  const auto finish = on_exit([&state] {
    state.enter(Round::Stage::finished);
    state.tensors.reset();
  });
  state.result = co_await self.try_until(state, self.runtime.after(state.options.timeout));
}

Task<Averager::Impl::Reported> Averager::Impl::try_until(Round::State& state, Deadline deadline) {
  for (Duration pause = kFirstPause;; pause = std::min(pause * 2, kLongestPause)) {
    if (left) co_return Error(Errc::left);
    state.enter(Round::Stage::looking_for_group);
    auto result = co_await attempt(state, deadline);
    if (result) co_return result;
    const bool found_none = result.error() == Errc::no_group || result.error() == Errc::members_left;
    (found_none ? metrics.no_group : metrics.rounds_failed).increment();
    // Tensors that were handed over are exchanged once.
    const bool exchanged = state.stage == Round::Stage::running && state.tensors;
    const bool again = state.options.allow_retries && !exchanged && result.error() != Errc::members_left;
    if (!again || runtime.now() >= deadline.at()) co_return result;
    log::info("averaging", "trying again: {}", result.error());
    co_await runtime.sleep_for(std::min(pause, deadline.remaining(runtime.now())));
  }
}

/// Whether other members can send their values to us: a limited relay may end the connection before. This peer then
/// owns no parts, unless all members are like it, and calls the owners itself.
bool Averager::Impl::is_reached_by_parts() {
  const auto relays = dht.host().relays();
  std::uint64_t most = 0;
  for (const p2p::HeldReservation& relay : relays)
    most = std::max(most, relay.limit.bytes > 0 ? relay.limit.bytes : transport::RawConnection::kUnlimited);
  const bool reached = relays.empty() || most >= bytes_of_all;
  if (std::exchange(reached_by_parts, reached) != reached && !reached)
    log::info("averaging",
              "other members average for this one: its relays carry {} bytes a connection, a round takes {}", most,
              bytes_of_all);
  return reached;
}

/// This peer as it joins a group.
Member Averager::Impl::own_member(const Round::State& state) {
  auto bandwidth = options.bandwidth.is_measured() ? meter.bandwidth() : options.bandwidth.value();
  if (!is_reached_by_parts()) bandwidth = 0;
  metrics.bandwidth.set(bandwidth.value_or(0));
  if (bandwidth) bandwidth = std::min(*bandwidth, kMaxBandwidth);  // as the other members will take it
  return {dht.host().id(), options.mode, bandwidth, state.options.gather};
}

Task<Averager::Impl::Reported> Averager::Impl::attempt(Round::State& state, Deadline deadline) {
  const TimePoint start = runtime.now();
  Member own = own_member(state);
  std::optional<Rounds::Search> search(std::in_place, rounds);
  TraceSpan searching(runtime, "round", "find a group");
  if (searching) searching.note("averager", options.prefix);
  auto found = co_await finder->find(std::move(own), state.plan, deadline);
  if (!found) {
    searching.note("error", found.error().message());
    co_return found.error();
  }
  if (state.options.codecs) found->codecs = state.options.codecs(found->members);
  const auto group = std::make_shared<const Group>(std::move(*found));
  if (searching) searching.note("group_id", to_hex(as_bytes(group->id)));
  searching.end();
  Rounds::Entry entry(rounds, group);
  search.reset();
  struct Ended {
    Impl& self;
    const Group& group;
    RoundEnd end{};
    ~Ended() { self.round_ended(group, end); }
  } ended{*this, *group, {.group_id = group->id}};
  const TimePoint grouped = runtime.now();
  const auto work = co_await divide_work(runtime, dht.host().id(), group, schema, options.min_vector_size);
  if (!work) co_return work.error();
  metrics.matchmaking_seconds.observe(to_seconds(grouped - start));
  state.group = group;
  state.enter(Round::Stage::awaiting_trigger);
  if (state.options.allow_retries) {
    // Members that give up before anything was exchanged leave time for another group.
    auto first = co_await race(runtime, await_trigger(state, deadline), entry.until_alone());
    if (first.index() == 1) co_return Error(Errc::no_group, "all other members of the group have given it up");
    if (auto& triggered = std::get<0>(first); !triggered) co_return triggered.error();
  } else if (auto triggered = co_await await_trigger(state, deadline); !triggered) {
    co_return triggered.error();
  }
  state.enter(Round::Stage::running);
  TraceSpan averaging(runtime, "round", "all-reduce");
  if (averaging) {
    averaging.note("averager", options.prefix);
    averaging.note("group_id", to_hex(as_bytes(group->id)));
    averaging.note("members", static_cast<double>(group->members.size()));
  }
  auto result = co_await average(state, *work, entry);
  if (!result) averaging.note("error", result.error().message());
  averaging.end();
  if (!result) co_return result.error();
  entry.complete();
  result->matchmaking = grouped - start;
  const auto report = std::make_shared<const RoundReport>(std::move(*result));
  ended.end.report = report;
  for (const PeerId& peer : report->lost())
    if (!dht.host().connected(peer)) ended.end.absent.push_back(peer);
  metrics.allreduce_seconds.observe(to_seconds(report->allreduce));
  metrics.group_size.set(static_cast<double>(group->members.size()));
  (report->parts_failed ? metrics.rounds_partial : metrics.rounds_ok).increment();
  co_return report;
}

/// Members that wait for a round that has failed here need not wait for long.
void Averager::Impl::round_ended(const Group& group, const RoundEnd& end) {
  finder->round_ended(end);
  if (left || end.report) return;
  background.spawn(leaving.tell(members_of(group), group.id, runtime.after(kNoticeTime)), "a round that is given up");
}

/// Members that wait for them as well need not wait for longer than this one.
void Averager::Impl::name_stragglers(const Group& group, const std::vector<PeerId>& stragglers) {
  if (left) return;
  background.spawn(naming.tell(members_of(group), notice_of(group.id, stragglers), runtime.after(kNoticeTime)),
                   "members in vain");
}

Result<> Averager::Impl::hear_leaving(const PeerId& peer, ByteView record) {
  const std::string group_id = to_string(record);
  if (group_id.size() > kMaxGroupId) return Error(cohive::Errc::malformed, peer, "a group that is left");
  const auto partners = finder->partners();  // anybody may say so, and a line for each would fill the log
  if (std::ranges::find(partners, peer) != partners.end())
    log::info("averaging", "{} {}", peer, group_id.empty() ? "averages no more" : "gives up its round");
  if (group_id.empty()) finder->peer_left(peer);
  rounds.member_left(peer, group_id);
  return ok();
}

Result<> Averager::Impl::hear_of_stragglers(const PeerId& witness, ByteView record) {
  proto::SpoilersNotice notice;
  if (!parse_bounded(notice, record)) return Error(cohive::Errc::malformed, witness, "members in vain");
  std::vector<PeerId> stragglers;
  for (const std::string& bytes : notice.peers())
    if (const auto peer = PeerId::from_bytes(as_bytes(bytes))) stragglers.push_back(*peer);
  finder->stragglers_named(witness, notice.group_id(), stragglers);
  return ok();
}

Task<Result<>> Averager::Impl::await_trigger(Round::State& state, Deadline deadline) {
  const Duration allreduce = limits_of(state).allreduce.value_or(Duration::zero());
  const Duration patience = std::max<Duration>(allreduce, deadline.remaining(runtime.now()));
  const Deadline end = allreduce > 0s ? runtime.after(patience) : Deadline::never();
  if (!co_await state.triggered.wait(end)) co_return Error(cohive::Errc::timeout, "waiting for the trigger");
  if (!std::isfinite(state.weight) || state.weight < 0)
    co_return Error(cohive::Errc::invalid_argument, "an averaging weight must be finite and not negative");
  co_return ok();
}

Task<Result<RoundReport>> Averager::Impl::average(Round::State& state, const WorkDivision& work, Rounds::Entry& entry) {
  entry.triggered();
  const TimePoint triggered = runtime.now();
  const RoundLimits limits = limits_of(state);
  const Deadline end = timeout_after(runtime, limits.allreduce.value_or(Duration::zero()));
  const auto tensors = state.tensors ? state.tensors : own_parts();
  const double weight = options.mode == PeerMode::auxiliary ? 0 : state.weight;
  RunningRound running({dht.host(), options, metrics, base, schema, limits,
                        [this, least = state.limits.least](const PeerId& member) {
                          auto patience = finder->timeout_for(member);
                          if (patience) patience = std::max(*patience, least);
                          return patience;
                        },
                        [this, group = work.group](const auto& stragglers) { name_stragglers(*group, stragglers); }},
                       work, {weight, options.averaging_alpha}, *tensors, entry);
  Nursery watching(runtime, "all-reduce watch");
  if (options.bandwidth.is_measured() || options.measures_link) watching.spawn(LinkMeter::watch(meter), "link meter");
  auto averaged = co_await within(runtime, end, running.run(), "all-reduce");
  watching.cancel();
  if (!averaged) co_return averaged.error();
  co_await tensors->finish();
  auto result = std::move(running).report(triggered);
  result.allreduce = runtime.now() - triggered;
  result.link = meter.rates();
  co_return result;
}

/// The limits of a round, within those of the options; unset: none.
RoundLimits Averager::Impl::limits_of(const Round::State& state) const {
  const auto bounded = [&state](std::optional<Duration> wanted, Duration most) -> std::optional<Duration> {
    if (wanted) wanted = std::max(*wanted, state.limits.least);
    if (most <= 0s) return wanted;
    return std::min(wanted.value_or(most), most);
  };
  return {bounded(state.limits.allreduce, options.allreduce_timeout),
          bounded(state.limits.sender, options.sender_timeout), bounded(state.limits.reducer, options.reducer_timeout)};
}

// ---- Waiting for other members, and leaving them

Task<void> Averager::member_waiting(double share, std::function<bool(const Member&, const Member&)> who_counts) {
  return impl_->rounds.member_waiting(share, std::move(who_counts));
}

Task<void> Averager::drain(Deadline deadline) {
  return impl_->rounds.drain(deadline);
}

Task<void> Averager::leave(Deadline deadline) {
  Impl& self = *impl_;
  if (std::exchange(self.left, true)) co_return;
  auto partners = self.finder->partners();
  if (const auto round = self.current.lock()) round->cancel();
  self.finder->leave();
  co_await self.leaving.tell(std::move(partners), {}, deadline.min(self.dht.runtime().after(kGoodbye)));
}

void Averager::reset_residuals() {
  if (impl_->own_tensors) impl_->forget_what_is_owed();
}

const std::vector<TensorInfo>& Averager::schema() const noexcept {
  return impl_->schema;
}
std::string Averager::group_bits() const {
  return impl_->finder->group_bits();
}
const AveragerOptions& Averager::options() const noexcept {
  return impl_->options;
}
Dht& Averager::dht() const noexcept {
  return impl_->dht;
}

}  // namespace cohive::averaging
