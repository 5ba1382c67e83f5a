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
  how.aggregation = options.grad_aggregation;
  return how;
}

std::span<float> part_of(std::vector<float>& values, const Stretch& stretch) {
  return std::span(values).subspan(stretch.offset, stretch.length);
}
std::span<float> part_of(std::span<float> values, const Stretch& stretch) {
  return values.subspan(stretch.offset, stretch.length);
}

void subtract(std::span<float> from, std::span<const float> values) {
  std::ranges::transform(from, values, from.begin(), std::minus());
}
void add(std::span<float> to, std::span<const float> values) {
  std::ranges::transform(to, values, to.begin(), std::plus());
}

/// The step from an anchor by the mean difference.
void step(const optim::SgdOptions& sgd, std::vector<float>& anchor, std::vector<float>& momentum,
          std::vector<float>& difference) {
  const std::span<float> values(anchor);
  optim::TensorMemory memory{std::span<const float>(values), values, {}, std::span(difference), {}};
  if (sgd.momentum > 0) memory.state[0] = std::span(momentum);
  optim::TensorStep(sgd, memory, {.step = 2}).run(0, values.size());  // a momentum of zero is one
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
  const auto live = replica_.host_values();
  if (live.empty())
    throw std::invalid_argument("cohive: outer_optimizer needs parameters that are float32 in host memory");
  for (const auto& values : live) {
    memory_->anchor.emplace_back(values.begin(), values.end());
    memory_->momentum.emplace_back(values.size());
    memory_->difference.emplace_back(values.size());
  }
}

// ---- A round

Task<Exchange::Offer> OuterStep::offer(const Moment& moment) {
  changes_ = is_delayed(moment) ? replica_.host_changes() : std::vector<std::span<float>>();
  co_await runtime_.offload(
      [memory = memory_, changes = changes_, live = replica_.host_values(), used = replica_.in_use()] {
        memory->failed.clear();
        for (std::size_t i = 0; i < live.size(); ++i) {
          std::ranges::transform(memory->anchor[i], live[i], memory->difference[i].begin(), std::minus());
          if (!changes.empty()) std::ranges::copy(memory->difference[i], changes[i].begin());
        }
      });
  // What is not averaged counts as no step of the anchor, the same for all members that have lost its reducer. What
  // this peer has come to there stays in its parameters, and is part of the next difference.
  averaging::HostPartsOptions how;
  how.residuals = residuals_;
  how.on_result = [memory = memory_, changes = changes_](const averaging::StretchResult& result) {
    if (result.averaged) return;
    const Stretch& stretch = result.stretch;
    std::ranges::fill(part_of(memory->difference[stretch.tensor], stretch), 0.0f);
    if (!changes.empty()) std::ranges::fill(part_of(changes[stretch.tensor], stretch), 0.0f);
    const std::lock_guard lock(memory->mutex);
    memory->failed.push_back(stretch);
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
  const auto changes = std::exchange(changes_, {});
  if (!round || moment.occasion == Occasion::given_up) co_return Effect::none;
  if (is_behind(*round)) co_return Effect::behind;
  averaged_ = true;
  if (moment.occasion == Occasion::epoch_end) warn_of_short_rounds(moment.batches);
  optim::SgdOptions sgd{.lr = optimizer_.lr, .momentum = optimizer_.momentum};
  sgd.nesterov = optimizer_.nesterov && optimizer_.momentum > 0;
  // Beside the epochs few local steps have been made: the mean is where all of them end.
  if (moment.occasion == Occasion::extra) sgd = {.lr = 1};
  co_await runtime_.offload([memory = memory_, sgd, changes, live = replica_.host_values(), used = replica_.in_use()] {
    auto& [anchor, momentum, difference, steps, mutex, failed] = *memory;
    steps += 1;
    if (!changes.empty()) {
      for (std::size_t i = 0; i < anchor.size(); ++i) {
        subtract(changes[i], anchor[i]);
        step(sgd, anchor[i], momentum[i], difference[i]);
        add(changes[i], anchor[i]);
      }
      return;
    }
    std::vector<std::vector<float>> own;
    for (const Stretch& stretch : failed) {
      const auto part = part_of(live[stretch.tensor], stretch);
      subtract(own.emplace_back(part.begin(), part.end()), part_of(anchor[stretch.tensor], stretch));
    }
    for (std::size_t i = 0; i < live.size(); ++i) {
      step(sgd, anchor[i], momentum[i], difference[i]);
      std::ranges::copy(anchor[i], live[i].begin());
    }
    for (std::size_t k = 0; k < failed.size(); ++k) add(part_of(live[failed[k].tensor], failed[k]), own[k]);
  });
  if (changes.empty()) co_return Effect::none;
  replica_.finish_changes();
  co_return Effect::publishable;
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
  co_await runtime_.offload([memory = memory_, live = replica_.host_values(), used = replica_.in_use()] {
    for (std::size_t i = 0; i < live.size(); ++i)
      std::ranges::transform(memory->anchor[i], live[i], memory->difference[i].begin(), std::minus());
  });
}

Task<void> OuterStep::reset() {
  averaged_ = false;
  memory_->steps = 0;
  residuals_ = averaging::make_residuals(replica_.gradient_infos());
  co_await runtime_.offload([memory = memory_, live = replica_.host_values(), used = replica_.in_use()] {
    for (std::size_t i = 0; i < live.size(); ++i) {
      std::ranges::copy(live[i], memory->anchor[i].begin());
      std::ranges::fill(memory->momentum[i], 0.0f);
    }
  });
}

Task<void> OuterStep::loaded() {
  if (!std::exchange(carries_, false)) co_return;
  averaged_ = true;
  co_await runtime_.offload([memory = memory_, live = replica_.host_values(), used = replica_.in_use()] {
    for (std::size_t i = 0; i < live.size(); ++i)
      std::ranges::transform(memory->anchor[i], memory->difference[i], live[i].begin(), std::minus());
  });
}

}  // namespace cohive::train
