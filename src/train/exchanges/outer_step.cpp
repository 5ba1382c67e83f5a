#include "outer_step.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/log.hpp"
#include "cohive/optim/step.hpp"

namespace cohive::train {
namespace {

using averaging::Stretch;

constexpr std::uint64_t kFewSteps = 64;  // a round, for which published runs take little momentum
constexpr double kMuchMomentum = 0.5;    // for so few
constexpr float kMostSteps = 1 << 24;    // that a float counts
constexpr double kParts = 1e6;           // in which settings are told apart

/// Trainers with other settings would come to other anchors, so they look for groups elsewhere.
std::string suffix_of(const OuterOptimizer& optimizer) {
  return log::format("_outer_step_{}_{}{}", std::llround(optimizer.lr * kParts),
                     std::llround(optimizer.momentum * kParts), optimizer.nesterov ? "n" : "");
}

averaging::AveragerOptions how_to_average(const RunOptions& options, const OuterOptimizer& optimizer) {
  auto how = averager_options(options, suffix_of(optimizer), "OuterStepAverager");
  how.codec = options.grad_compression;
  how.agreed_codec = options.agreed_grad_compression;
  how.one_average = true;
  how.aggregation = options.grad_aggregation;
  return how;
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

std::vector<std::span<float>> views(std::vector<std::vector<float>>& values) {
  return {values.begin(), values.end()};
}

/// The step from an anchor by the mean difference.
void step(const optim::SgdOptions& sgd, std::vector<float>& anchor, std::vector<float>& momentum,
          std::vector<float>& difference) {
  const std::span<float> values(anchor);
  optim::TensorMemory memory{std::span<const float>(values), values, {}, std::span(difference), {}};
  if (sgd.momentum > 0) memory.state[0] = std::span(momentum);
  optim::TensorStep(sgd, memory, {.step = 2}).run(0, values.size());  // a momentum of zero is one
}

/// The outer step. `difference` becomes the next parameters.
void step_to_difference(OuterMemory& memory, const optim::SgdOptions& sgd) {
  memory.steps += 1;
  for (std::size_t i = 0; i < memory.anchor.size(); ++i) {
    step(sgd, memory.anchor[i], memory.momentum[i], memory.difference[i]);
    std::ranges::copy(memory.anchor[i], memory.difference[i].begin());
  }
  for (const auto& [stretch, own] : memory.failed) subtract(part_of(memory.difference[stretch.tensor], stretch), own);
}

/// The outer step. `own` becomes what is added to the parameters that the trainer has gone on to change.
void step_beside(OuterMemory& memory, const optim::SgdOptions& sgd) {
  memory.steps += 1;
  for (const auto& [stretch, own] : memory.failed)
    std::ranges::fill(part_of(memory.own[stretch.tensor], stretch), 0.0f);
  for (std::size_t i = 0; i < memory.anchor.size(); ++i) {
    subtract(memory.own[i], memory.anchor[i]);
    step(sgd, memory.anchor[i], memory.momentum[i], memory.difference[i]);
    add(memory.own[i], memory.anchor[i]);
  }
}

}  // namespace

OuterStep::OuterStep(const ExchangeContext& context, OuterOptimizer optimizer)
    : replica_(context.replica),
      runtime_(context.dht.runtime()),
      options_(context.options),
      optimizer_(optimizer),
      averager_(context.dht, context.replica.gradient_infos(), how_to_average(context.options, optimizer)),
      memory_(std::make_shared<OuterMemory>()),
      residuals_(averaging::make_residuals(context.replica.gradient_infos())) {
  if (!replica_.copies_parameters())
    throw std::invalid_argument("cohive: outer_optimizer needs parameters in host memory, or a model of LibTorch");
  for (const auto& info : replica_.gradient_infos())
    for (auto* values : {&memory_->anchor, &memory_->momentum, &memory_->difference})
      values->emplace_back(info.elements());
  replica_.read_parameters(views(memory_->anchor));
}

// ---- A round

/// A donor can have given any number.
msgpack::Value OuterStep::greeting(std::uint64_t) const {
  return msgpack::Value(static_cast<std::uint64_t>(std::clamp(memory_->steps, 0.0f, kMostSteps)));
}

Task<Exchange::Offer> OuterStep::offer(const Moment& moment) {
  co_await runtime_.offload(
      [&replica = replica_, memory = memory_, keeps_own = is_delayed(moment), used = replica_.in_use()] {
        replica.read_parameters(views(memory->difference));
        memory->failed.clear();
        for (std::size_t i = 0; i < memory->anchor.size(); ++i)
          std::ranges::transform(memory->anchor[i], memory->difference[i], memory->difference[i].begin(), std::minus());
        if (keeps_own) memory->own = memory->difference;
      });
  // What is not averaged counts as no step of the anchor, the same for all members that have lost its reducer. What
  // this peer has come to there stays in its parameters, and is part of the next difference.
  averaging::HostPartsOptions how;
  how.residuals = residuals_;
  how.on_result = [memory = memory_](const averaging::StretchResult& result) {
    if (result.averaged) return;
    const auto part = part_of(memory->difference[result.stretch.tensor], result.stretch);
    const std::lock_guard lock(memory->mutex);
    memory->failed.push_back({result.stretch, {part.begin(), part.end()}});
    std::ranges::fill(part, 0.0f);
  };
  std::vector<averaging::TensorSpan> values(memory_->difference.begin(), memory_->difference.end());
  const double weight = moment.occasion == Occasion::epoch_end ? moment.samples
                        : moment.occasion == Occasion::extra   ? 1
                                                               : 0;
  co_return Offer{
      std::make_shared<averaging::HostParts>(runtime_, replica_.gradient_infos(), std::move(values), std::move(how)),
      weight};
}

Task<Effect> OuterStep::take(const Moment& moment, const averaging::RoundReport* round) {
  if (!round || moment.occasion == Occasion::given_up) co_return Effect::none;
  if (is_behind(*round)) co_return Effect::behind;
  averaged_ = true;
  if (moment.occasion == Occasion::epoch_end) warn_of_short_rounds(moment.batches);
  optim::SgdOptions sgd{.lr = optimizer_.lr, .momentum = optimizer_.momentum};
  sgd.nesterov = optimizer_.nesterov && optimizer_.momentum > 0;
  // Beside the epochs few local steps have been made: the mean is where all of them end.
  if (moment.occasion == Occasion::extra) sgd = {.lr = 1};
  const bool delayed = is_delayed(moment);
  co_await runtime_.offload([&replica = replica_, memory = memory_, sgd, delayed, used = replica_.in_use()] {
    if (delayed) {
      step_beside(*memory, sgd);
      replica.change_parameters(views(memory->own));
    } else {
      step_to_difference(*memory, sgd);
      replica.write_parameters(views(memory->difference));
    }
  });
  co_return delayed ? Effect::publishable : Effect::none;
}

/// Most of the others have made a step that this peer has missed. One of them alone can say any number.
bool OuterStep::is_behind(const averaging::RoundReport& round) const {
  std::size_t ahead = 0;
  for (const auto& member : round.group) {
    const auto steps = member.data.as_uint();
    ahead += steps && static_cast<float>(*steps) > memory_->steps;
  }
  return 2 * ahead > round.group.size() - 1;
}

void OuterStep::warn_of_short_rounds(std::uint64_t batches) {
  if (batches > kFewSteps || optimizer_.momentum <= kMuchMomentum || std::exchange(warned_, true)) return;
  log::warn("train",
            "a round of {} local steps is short for an outer momentum of {}: with {} or less, or with a larger "
            "target_batch_size, such runs learn better",
            batches, optimizer_.momentum, kMuchMomentum);
}

// ---- The state

std::vector<Exchange::Kept> OuterStep::kept() {
  std::vector<Kept> kept;
  kept.push_back({"steps", {1}, std::span(&memory_->steps, 1), memory_});
  for (std::size_t i = 0; i < memory_->anchor.size(); ++i) {
    const auto& shape = replica_.gradient_infos()[i].shape;
    kept.push_back({"anchor." + std::to_string(i), shape, memory_->anchor[i], memory_});
    kept.push_back({"momentum." + std::to_string(i), shape, memory_->momentum[i], memory_});
  }
  return kept;
}

/// What this peer has come to since the round before it missed one goes on from the anchor of the others.
Task<void> OuterStep::replacing() {
  carries_ = averaged_;
  if (!carries_) co_return;
  co_await runtime_.offload([&replica = replica_, memory = memory_, used = replica_.in_use()] {
    replica.read_parameters(views(memory->difference));
    for (std::size_t i = 0; i < memory->anchor.size(); ++i) subtract(memory->difference[i], memory->anchor[i]);
  });
}

Task<void> OuterStep::reset() {
  averaged_ = false;
  memory_->steps = 0;
  residuals_ = averaging::make_residuals(replica_.gradient_infos());
  co_await runtime_.offload([&replica = replica_, memory = memory_, used = replica_.in_use()] {
    replica.read_parameters(views(memory->anchor));
    for (auto& momentum : memory->momentum) std::ranges::fill(momentum, 0.0f);
  });
}

Task<void> OuterStep::loaded() {
  if (!std::exchange(carries_, false)) co_return;
  averaged_ = true;
  co_await runtime_.offload([&replica = replica_, memory = memory_, used = replica_.in_use()] {
    for (std::size_t i = 0; i < memory->anchor.size(); ++i) add(memory->difference[i], memory->anchor[i]);
    replica.write_parameters(views(memory->difference));
  });
}

}  // namespace cohive::train
