#include "outer_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <stdexcept>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/log.hpp"
#include "cohive/optim/passes.hpp"
#include "cohive/optim/step.hpp"
#include "train/checkpoint_content.hpp"

namespace cohive::train {
namespace {

using averaging::Stretch;

constexpr std::uint64_t kFewSteps = 64;  // a round, for which published runs take little momentum
constexpr auto kNone = std::numeric_limits<std::uint64_t>::max();  // no epoch
constexpr double kParts = 1e6;                                     // in which settings are told apart

/// Trainers with other settings would come to other anchors, so they look for groups elsewhere.
std::string suffix_of(const OuterOptimizer& optimizer, const Fragment& fragment) {
  return fragment.name(log::format("_outer_step_{}_{}{}", std::llround(optimizer.lr * kParts),
                                   std::llround(optimizer.momentum * kParts), optimizer.nesterov ? "n" : ""));
}

/// SparseLoCo's, of what differences still owe one round later.
constexpr float kSparseKept = 0.95f;
// The first steps are the largest, and what is not sent comes late: as Deep Gradient Compression does
// (arXiv:1712.01887), they begin with more of the values, and come down to the share that was asked for.
constexpr double kFirstDensity = 16, kWarmUpSteps = 20;

bool is_sparse(const RunOptions& options) {
  return options.agreed_grad_compression && codec::uses(*options.agreed_grad_compression, codec::Codec::sparse2);
}

codec::Compression agreed_compression(const RunOptions& options) {
  if (options.fit_compression) return codec::Codec::block4;
  const auto& agreed = *options.agreed_grad_compression;
  const bool fixed = is_sparse(options) && agreed.fixed();
  return fixed ? codec::Compression::size_adaptive(kSmallTensor, codec::Codec::none, agreed) : agreed;
}

averaging::AveragerOptions how_to_average(const RunOptions& options, const OuterOptimizer& optimizer,
                                          const Fragment& fragment) {
  auto how = optimizer.open_diloco ? averager_options(options, "_grad_averager", "DiLoCoGradAverager")
                                   : averager_options(options, suffix_of(optimizer, fragment), "OuterStepAverager");
  how.codec = options.grad_compression;
  if (options.fit_compression || options.agreed_grad_compression) how.agreed_codec = agreed_compression(options);
  how.one_average = true;
  how.aggregation = options.grad_aggregation;
  if (options.averager_options) options.averager_options(how);
  return how;
}

/// A member's OuterStep::greeting, as far as it makes sense.
struct Greeting {
  std::optional<std::uint64_t> steps, checksum;
  std::optional<RoundWish> wish;
};

Greeting greeting_of(const averaging::Member& member) {
  Greeting greeting;
  const auto* told = member.data.get_if<msgpack::Array>();
  if (!told) return greeting;
  if (!told->items.empty()) greeting.steps = told->items[0].as_uint();
  if (told->items.size() > 1) greeting.checksum = told->items[1].as_uint();
  greeting.wish = read_wish(*told, 2);
  return greeting;
}

std::vector<RoundWish> wishes_of(const std::vector<averaging::Member>& members) {
  std::vector<RoundWish> wishes;
  for (const auto& member : members)
    if (const auto wish = greeting_of(member).wish) wishes.push_back(*wish);
  return wishes;
}

/// The members of a round that have done their part, `own` among them.
std::set<PeerId> contributors_and(const PeerId& own, const averaging::RoundReport& round) {
  const auto contributors = round.contributors();
  std::set<PeerId> all(contributors.begin(), contributors.end());
  all.insert(own);
  return all;
}

std::span<float> part_of(std::vector<float>& values, const Stretch& stretch) {
  return std::span(values).subspan(stretch.offset, stretch.length);
}

void subtract(std::span<float> from, std::span<const float> values) {
  std::ranges::transform(from, values, from.begin(), std::minus());
}
void add(std::span<float> to, std::span<const float> values) {
  std::ranges::transform(to, values, to.begin(), std::plus());
}
/// Does the same for all tensors; one without values is zero.
void subtract_all(std::vector<std::vector<float>>& from, const std::vector<std::vector<float>>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!values[i].empty()) subtract(from[i], values[i]);
}
void add_all(std::vector<std::vector<float>>& to, const std::vector<std::vector<float>>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (!values[i].empty()) add(to[i], values[i]);
}

bool are_finite(const std::vector<std::vector<float>>& values) {
  return std::ranges::all_of(values, [](const auto& one) { return optim::all_finite(std::span<const float>(one)); });
}

/// What values differ by from an anchor takes their place.
void become_difference(std::span<const float> anchor, std::span<float> values) {
  std::ranges::transform(anchor, values, values.begin(), std::minus());
}
void become_differences(const std::vector<std::vector<float>>& anchor, std::vector<std::vector<float>>& values) {
  for (std::size_t i = 0; i < anchor.size(); ++i) become_difference(anchor[i], values[i]);
}

/// The step from an anchor by the mean difference.
void step(const optim::SgdOptions& sgd, std::vector<float>& anchor, std::vector<float>& momentum,
          std::vector<float>& difference) {
  const std::span<float> values(anchor);
  optim::TensorMemory memory{std::span<const float>(values), values, {}, std::span(difference), {}};
  if (sgd.momentum > 0) memory.state[0] = std::span(momentum);
  optim::TensorStep(sgd, memory, {.step = 2}).run(0, values.size());  // a momentum of zero is one
}

/// Keeps in the parameters what this peer has come to and no step has: no average came of it, or it was not offered.
void keep_own(std::vector<std::vector<float>>& difference, const OuterMemory& memory) {
  for (const auto& [stretch, own] : memory.failed) subtract(part_of(difference[stretch.tensor], stretch), own);
  subtract_all(difference, memory.counted);
}

/// Begins at the parameters of this peer, without anything that it has of others.
void begin_where_it_is(OuterMemory& memory, Replica& replica) {
  replica.read_parameters(memory.in_model(memory.anchor));
  for (auto& momentum : memory.momentum) std::ranges::fill(momentum, 0.0f);
  memory.shift.clear();
}

/// The outer step. `difference` becomes the next parameters.
void step_to_difference(OuterMemory& memory, const optim::SgdOptions& sgd) {
  memory.steps += 1;
  for (std::size_t i = 0; i < memory.anchor.size(); ++i) {
    step(sgd, memory.anchor[i], memory.momentum[i], memory.difference[i]);
    std::ranges::copy(memory.anchor[i], memory.difference[i].begin());
  }
  keep_own(memory.difference, memory);
}

/// The outer step. `own` becomes what is added to the parameters that the trainer has gone on to change.
void step_beside(OuterMemory& memory, const optim::SgdOptions& sgd) {
  memory.steps += 1;
  keep_own(memory.own, memory);
  for (std::size_t i = 0; i < memory.anchor.size(); ++i) {
    subtract(memory.own[i], memory.anchor[i]);
    step(sgd, memory.anchor[i], memory.momentum[i], memory.difference[i]);
    add(memory.own[i], memory.anchor[i]);
  }
}

}  // namespace

OuterStep::OuterStep(const ExchangeContext& context, OuterOptimizer optimizer, Fragment fragment,
                     std::shared_ptr<LinkFit> fit)
    : name_(fragment.name("outer_step")),
      replica_(context.replica),
      runtime_(context.dht.runtime()),
      options_(context.options),
      optimizer_(optimizer),
      memory_(std::make_shared<OuterMemory>(std::move(fragment))),
      infos_(memory_->fragment.infos(replica_.gradient_infos())),
      averager_(context.dht, infos_, how_to_average(options_, optimizer_, memory_->fragment)),
      fit_(std::move(fit)) {
  forget_what_is_owed();
  if (!replica_.copies_parameters())
    throw std::invalid_argument("cohive: outer_optimizer needs parameters in host memory, or a model of LibTorch");
  double of_model = 0;
  for (const auto& info : replica_.gradient_infos()) of_model += static_cast<double>(info.elements());
  for (const auto& info : infos_) {
    values_ += static_cast<double>(info.elements());
    for (auto* values : {&memory_->anchor, &memory_->momentum, &memory_->difference})
      values->emplace_back(info.elements());
  }
  if (of_model > 0) share_ = values_ / of_model;
  replica_.read_parameters(memory_->in_model(memory_->anchor));
}

// ---- A round

msgpack::Value OuterStep::greeting(std::uint64_t) const {
  msgpack::Array greeting;
  greeting.items.emplace_back(told_steps(*memory_));
  greeting.items.emplace_back(memory_->checksum);
  if (fit_) write_wish(fit_->wish(), greeting);
  return greeting;
}

/// A member that has made fewer outer steps is late.
bool OuterStep::is_late(const averaging::Member& member, const averaging::Member& own) const {
  const auto theirs = greeting_of(member).steps;
  return theirs && *theirs < greeting_of(own).steps.value_or(0);
}

averaging::RoundCodecs OuterStep::codecs(const std::vector<averaging::Member>& members, bool divided) {
  const auto outcome = fit_ ? outcome_of(wishes_of(members)) : std::nullopt;
  if (!averages_parameters(divided)) return {.agreed = !outcome || outcome->few_bits};
  few_bits_ = outcome && outcome->few_bits;
  return {.ordinary = parameter_compression(options_, few_bits_), .agreed = false};
}

Task<void> OuterStep::prepare(const Moment& moment) {
  began_ = runtime_.now();
  if (moment.occasion == Occasion::epoch_end)
    whole_ = std::exchange(trained_from_, moment.epoch) + memory_->fragment.count == moment.epoch;
  co_return;
}

double OuterStep::weight_of(const Moment& moment) const {
  if (moment.occasion == Occasion::epoch_end) return optimizer_.open_diloco ? 1 : moment.samples;
  return moment.occasion == Occasion::extra ? 1 : 0;
}

Task<Exchange::Offer> OuterStep::offer(const Moment& moment) {
  const bool parameters = averages_parameters(moment.divided);
  finite_ = co_await runtime_.offload(
      [&replica = replica_, memory = memory_, parameters, keeps_own = is_delayed(moment), used = replica_.in_use()] {
        replica.read_parameters(memory->in_model(memory->difference));
        memory->failed.clear();
        memory->averaged.clear();
        if (!parameters) become_differences(memory->anchor, memory->difference);
        if (keeps_own) {
          memory->own = memory->difference;
          if (parameters) become_differences(memory->anchor, memory->own);
        }
        const bool finite = are_finite(memory->difference);
        if (!finite) {
          memory->difference = memory->anchor;
          if (!parameters) become_differences(memory->anchor, memory->difference);
          return false;
        }
        for (const auto* no_difference : {&memory->counted, &memory->shift})
          parameters ? add_all(memory->difference, *no_difference) : subtract_all(memory->difference, *no_difference);
        return true;
      });
  if (!is_delayed(moment))
    owed_before_.reset();
  else if (options_.checkpoints.directory.empty())
    owed_before_.emplace();  // a copy needs memory
  else
    owed_before_ = co_await copy_of_what_is_owed();
  // What is not averaged counts as no step of the anchor, the same for all members that have lost its reducer. What
  // this peer has come to there stays in its parameters, and is part of the next difference.
  averaging::HostPartsOptions how;
  how.residuals = residuals_;
  how.answers = answers_;
  if (answers_) how.density_factor = std::max(1.0, std::pow(kFirstDensity, 1 - memory_->steps / kWarmUpSteps));
  how.on_result = [memory = memory_, parameters](const averaging::StretchResult& result) {
    if (result.averaged) {
      const std::lock_guard lock(memory->mutex);
      return memory->averaged.push_back(result.stretch);
    }
    const auto part = part_of(memory->difference[result.stretch.tensor], result.stretch);
    const auto anchor = part_of(memory->anchor[result.stretch.tensor], result.stretch);
    std::vector<float> own(part.begin(), part.end());
    if (parameters) {
      become_difference(anchor, own);
      std::ranges::copy(anchor, part.begin());
    } else {
      std::ranges::fill(part, 0.0f);
    }
    const std::lock_guard lock(memory->mutex);
    memory->failed.push_back({result.stretch, std::move(own)});
  };
  std::vector<averaging::TensorSpan> values(memory_->difference.begin(), memory_->difference.end());
  co_return Offer{std::make_shared<averaging::HostParts>(runtime_, infos_, std::move(values), std::move(how)),
                  finite_ ? weight_of(moment) : 0, finite_};
}

Task<Effect> OuterStep::take(const Moment& moment, const averaging::RoundReport* round) {
  owed_before_.reset();
  if (moment.occasion == Occasion::given_up) co_return Effect::none;
  if (!finite_) co_return Effect::behind;
  if (round && moment.occasion == Occasion::epoch_end) fit_next_rounds(moment, *round);
  const bool told = round && is_told_to_be_behind(*round);
  const bool behind = told && believes_to_be_behind();
  const bool nothing = values_ > 0 && memory_->averaged.empty();
  if (!round || behind || nothing) {
    co_await keep_what_was_averaged(moment);
    co_return behind ? Effect::behind : Effect::none;
  }
  averaged_ = true;
  alone_ = false;
  const bool parameters = averages_parameters(moment.divided);
  compare_anchors(*round, parameters);
  if (moment.occasion == Occasion::epoch_end) warn_of_short_rounds(moment.batches);
  optim::SgdOptions sgd{.lr = optimizer_.lr, .momentum = optimizer_.momentum};
  sgd.nesterov = optimizer_.nesterov && optimizer_.momentum > 0;
  // Beside the epochs few local steps have been made: the mean is where all of them end.
  if (moment.occasion == Occasion::extra) sgd = {.lr = 1};
  const bool delayed = is_delayed(moment);
  co_await runtime_.offload(
      [&replica = replica_, memory = memory_, sgd, parameters, delayed, told, used = replica_.in_use()] {
        if (parameters) become_differences(memory->anchor, memory->difference);
        if (delayed) {
          step_beside(*memory, sgd);
          replica.change_parameters(memory->in_model(memory->own));
        } else {
          step_to_difference(*memory, sgd);
          replica.write_parameters(memory->in_model(memory->difference));
        }
        memory->shift.clear();
        if (!told) memory->counted.clear();  // nobody has stepped by it: it is part of the next difference
        memory->checksum = checksum_of(memory->anchor);
      });
  co_return delayed ? Effect::publishable : Effect::none;
}

/// Some or all reducers have taken this peer's difference, and it makes no step by what they answered: most of them
/// have left it out, or it is behind. What they have taken is in the anchor of the others. What they have not taken is
/// in the next difference. So is what came of local steps since the offer, which the parameters have and `own` lacks.
Task<void> OuterStep::keep_what_was_averaged(const Moment& moment) {
  if (weight_of(moment) <= 0 || memory_->averaged.empty()) co_return;
  counted_at_steps_ = memory_->steps;
  co_await runtime_.offload(
      [&replica = replica_, memory = memory_, delayed = is_delayed(moment), used = replica_.in_use()] {
        const std::lock_guard lock(memory->mutex);
        const auto averaged = std::exchange(memory->averaged, {});
        if (!delayed) {  // the averages have taken its place; the trainer waits
          replica.read_parameters(memory->in_model(memory->difference));
          become_differences(memory->anchor, memory->difference);
        }
        auto& own = delayed ? memory->own : memory->difference;
        subtract_all(own, memory->shift);
        if (memory->counted.empty())
          for (const auto& values : own) memory->counted.emplace_back(values.size());
        // In place of what an earlier round has counted there: this difference has that, too.
        for (const Stretch& stretch : averaged)
          std::ranges::copy(part_of(own[stretch.tensor], stretch),
                            part_of(memory->counted[stretch.tensor], stretch).begin());
      });
}

Task<void> OuterStep::drop() {
  owed_before_.reset();
  co_return;
}

/// Most of the others have made a step that this peer has missed. One of them alone can say any number, and a leader
/// can name any number of members: those count that have taken part, and where there are some that this peer has
/// averaged with before, these alone. Where this peer has made its last steps alone, their number says little: others
/// may have made as many to an anchor of their own. Of two such peers the same one gives way on both sides.
bool OuterStep::is_told_to_be_behind(const averaging::RoundReport& round) const {
  struct Say {
    std::size_t all = 0, ahead = 0;
  };
  Say acquainted, strangers;
  const PeerId own = averager_.dht().host().id();
  const auto contributors = contributors_and(own, round);
  const auto is_ahead = [&](const Greeting& told) {
    if (!told.steps) return false;
    const auto steps = static_cast<float>(*told.steps);
    if (steps != memory_->steps || !alone_) return steps > memory_->steps;
    const std::uint64_t checksum = told.checksum.value_or(0);
    return checksum != 0 && checksum != memory_->checksum && (contributors.size() > 2 || checksum > memory_->checksum);
  };
  for (const auto& member : round.group) {
    if (member.peer == own || !contributors.contains(member.peer)) continue;
    Say& say = averager_.dht().host().reputation().has_history(member.peer) ? acquainted : strangers;
    ++say.all;
    say.ahead += is_ahead(greeting_of(member));
  }
  const Say& say = acquainted.all > 0 ? acquainted : strangers;
  return 2 * say.ahead > say.all;
}

/// If no state bears out what members say, they are believed less often each time.
bool OuterStep::believes_to_be_behind() {
  if (!doubt_.is_over(runtime_.now())) return false;
  doubt_.begin(runtime_.now());
  told_at_steps_ = memory_->steps;
  return true;
}

/// The members told checksums of the anchors that they began the round with. Rounds of parameters repair these.
void OuterStep::compare_anchors(const averaging::RoundReport& round, bool parameters) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> anchors;  // steps, checksum
  const auto contributors = contributors_and(averager_.dht().host().id(), round);
  for (const auto& member : round.group) {
    const auto [steps, checksum, wish] = greeting_of(member);
    if (contributors.contains(member.peer) && steps && checksum && *checksum != 0) anchors.emplace(*steps, *checksum);
  }
  memory_->differs = !parameters && anchors.size() > 1;
}

void OuterStep::fit_next_rounds(const Moment& moment, const averaging::RoundReport& round) {
  if (!fit_ || round.group.size() < 2) return;
  const bool parameters = averages_parameters(moment.divided);
  Duration last_arrival{};  // before, this peer has waited for a member whose epoch ended later
  for (const auto& member : round.exchanged) last_arrival = std::max(last_arrival, member.arrival.value_or(0s));
  fit_->round_ended({.members = round.group.size(),
                     .values = values_,
                     .share = share_,
                     .steps = moment.batches,
                     .computing = moment.seconds,
                     .whole = whole_,
                     .behind = to_seconds(runtime_.now() - began_),
                     .transfer = to_seconds(round.allreduce - last_arrival),
                     .parameters = parameters,
                     .few_bits = parameters ? few_bits_ : !round.agreed_codecs.empty(),
                     .link = round.link},
                    wishes_of(round.group));
}

void OuterStep::warn_of_short_rounds(std::uint64_t batches) {
  batches *= memory_->fragment.count;
  if (batches > kFewSteps || optimizer_.momentum <= kMuchMomentum || std::exchange(warned_, true)) return;
  log::warn("train",
            "a round of {} local steps is short for an outer momentum of {}: with {} or less, or with a larger "
            "target_batch_size, such runs learn better",
            batches, optimizer_.momentum, kMuchMomentum);
}

void OuterStep::forget_what_is_owed() {
  const bool sparse = is_sparse(options_);
  residuals_ = averaging::make_residuals(infos_, sparse ? kSparseKept : 1);
  if (sparse) answers_ = std::make_shared<averaging::AnswerResiduals>(infos_);
}

// ---- Checkpoints

Task<std::vector<checkpoint::NamedTensor>> OuterStep::copy_of_what_is_owed() {
  co_return co_await runtime_.offload(
      [residuals = residuals_, infos = infos_] { return owed_tensors(residuals, infos); });
}

Task<std::vector<checkpoint::NamedTensor>> OuterStep::save() {
  if (owed_before_) co_return *owed_before_;
  co_return co_await copy_of_what_is_owed();
}

Task<Result<>> OuterStep::restore(std::vector<checkpoint::NamedTensor> saved) {
  const auto rest = std::make_shared<std::vector<checkpoint::NamedTensor>>(std::move(saved));
  co_return co_await runtime_.offload(
      [rest, residuals = residuals_, infos = infos_] { return take_residuals(*rest, residuals, infos); });
}

// ---- The state

std::vector<Exchange::Kept> OuterStep::kept() {
  std::vector<Kept> kept;
  kept.push_back({"steps", {1}, std::span(&memory_->steps, 1), memory_});
  if (fit_ && memory_->fragment.index == 0) kept.push_back({"rounds", {1}, fit_->kept(), fit_});
  for (std::size_t i = 0; i < memory_->anchor.size(); ++i) {
    const auto& shape = infos_[i].shape;
    kept.push_back({"anchor." + std::to_string(i), shape, memory_->anchor[i], memory_});
    kept.push_back({"momentum." + std::to_string(i), shape, memory_->momentum[i], memory_});
  }
  return kept;
}

/// The anchor has what repairs have moved it by, and the parameters have not: whoever goes on from both would take it
/// for something that it has come to. The copy's parameters have it, too. Those that are no float32 stay as they are.
Task<void> OuterStep::complete(averaging::SharedState& state) {
  if (memory_->shift.empty()) co_return;
  const auto tensors = std::make_shared<std::vector<codec::Tensor>>(std::move(state.tensors));
  co_await runtime_.offload([tensors, memory = memory_] {
    for (std::size_t i = 0; i < memory->shift.size(); ++i) {
      const auto& shift = memory->shift[i];
      codec::Tensor& tensor = tensors->at(memory->fragment.tensors[i]);
      const std::size_t bytes = shift.size() * sizeof(float);
      if (shift.empty() || tensor.dtype != codec::DType::float32 || tensor.data.size() != bytes) continue;
      std::vector<float> moved(shift.size());
      std::memcpy(moved.data(), tensor.data.data(), bytes);
      add(moved, shift);
      tensor.data = Slice::copy_of({reinterpret_cast<const std::uint8_t*>(moved.data()), bytes});
    }
  });
  state.tensors = std::move(*tensors);
}

/// What this peer comes to alone is no difference from an anchor: the next round would step by all of it at once, and
/// the momentum would repeat it for many more.
Task<void> OuterStep::alone() {
  finite_ = co_await runtime_.offload([&replica = replica_, memory = memory_, used = replica_.in_use()] {
    replica.read_parameters(memory->in_model(memory->difference));
    if (!are_finite(memory->difference)) return false;
    begin_where_it_is(*memory, replica);
    memory->counted.clear();
    memory->checksum = checksum_of(memory->anchor);
    return true;
  });
  if (!finite_) co_return;
  memory_->steps += 1;  // whoever still has the anchor before learns that this is another one
  memory_->differs = false;
  averaged_ = false;
  alone_ = true;
  forget_what_is_owed();
}

/// What this peer has come to since the round before it missed one goes on from the anchor of the others.
Task<void> OuterStep::replacing() {
  carries_ = false;
  if (averaged_ && finite_) co_await renewing();
}

/// Until loaded() `difference` is what the parameters have beyond the anchor.
Task<void> OuterStep::renewing() {
  carries_ = true;
  trained_from_ = kNone;
  memory_->checksum = 0;
  co_await runtime_.offload([&replica = replica_, memory = memory_, used = replica_.in_use()] {
    replica.read_parameters(memory->in_model(memory->difference));
    subtract_all(memory->difference, memory->anchor);
    add_all(memory->difference, memory->shift);
  });
}

Task<void> OuterStep::reset() {
  averaged_ = false;
  alone_ = false;
  finite_ = true;
  if (!carries_) memory_->counted.clear();
  trained_from_ = kNone;
  memory_->steps = 0;
  memory_->checksum = 0;
  forget_what_is_owed();
  co_await runtime_.offload(
      [&replica = replica_, memory = memory_, used = replica_.in_use()] { begin_where_it_is(*memory, replica); });
}

/// What rounds have counted is in the anchor of the others only if they have made a step more.
Task<void> OuterStep::loaded() {
  if (memory_->steps > told_at_steps_) doubt_.end();
  alone_ = false;
  if (!std::exchange(carries_, false)) co_return;
  averaged_ = true;
  const bool has_counted = memory_->steps > counted_at_steps_;
  co_await runtime_.offload([&replica = replica_, memory = memory_, has_counted, used = replica_.in_use()] {
    memory->shift.clear();
    if (has_counted) add_all(memory->difference, std::exchange(memory->counted, {}));
    add_all(memory->difference, memory->anchor);
    replica.write_parameters(memory->in_model(memory->difference));
  });
}

}  // namespace cohive::train
