// Steps of an outer optimizer (DiLoCo, https://arxiv.org/abs/2311.08105), as an exchange: trainers step locally; at the
// end of an epoch they average how far each has come from the parameters that all began with, and SGD with Nesterov
// momentum steps from there.
//   anchor - parameters > average > anchor' = SGD(anchor) > parameters = anchor'
#pragma once

#include <algorithm>
#include <stdexcept>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/optim/step.hpp"
#include "cohive/train/exchange.hpp"
#include "cohive/train/run_options.hpp"

namespace cohive::train {

inline constexpr optim::SgdOptions kOuterSgd{.lr = 0.7, .momentum = 0.9, .nesterov = true};

class OuterStep final : public Exchange {
 public:
  OuterStep(const ExchangeContext& context, optim::SgdOptions sgd, std::uint64_t every)
      : replica_(context.replica),
        runtime_(context.dht.runtime()),
        sgd_(sgd),
        every_(every),
        averager_(context.dht, context.replica.gradient_infos(),
                  averager_options(context.options, "_outer_step", "OuterStepAverager")),
        memory_(std::make_shared<Memory>()) {
    if (!context.options.use_local_updates)
      throw std::invalid_argument("cohive: outer steps average what local steps have changed: set use_local_updates");
    const auto live = replica_.host_values();
    if (live.empty()) throw std::invalid_argument("cohive: outer steps need parameters in host memory");
    for (const auto& values : live) {
      memory_->anchor.emplace_back(values.begin(), values.end());
      memory_->momentum.emplace_back(values.size());
      memory_->difference.emplace_back(values.size());
    }
  }

  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_; }
  bool due(std::uint64_t epoch) const override { return epoch % every_ == 0; }
  bool needs_every_round() const override { return true; }  // anchors are not averaged

  Task<Offer> offer(const Moment&) override {
    co_await runtime_.offload([memory = memory_, live = replica_.host_values(), used = replica_.in_use()] {
      for (std::size_t i = 0; i < live.size(); ++i)
        std::ranges::transform(memory->anchor[i], live[i], memory->difference[i].begin(), std::minus());
    });
    // What is not averaged counts as no step: the same for all members that have lost its reducer.
    averaging::HostPartsOptions options;
    options.on_result = [memory = memory_](const averaging::StretchResult& result) {
      if (result.averaged) return;
      const auto& [tensor, first, length] = result.stretch;
      std::ranges::fill(std::span(memory->difference[tensor]).subspan(first, length), 0.0f);
    };
    std::vector<averaging::TensorSpan> memory(memory_->difference.begin(), memory_->difference.end());
    co_return Offer{std::make_shared<averaging::HostParts>(runtime_, replica_.gradient_infos(), std::move(memory),
                                                           std::move(options))};
  }

  Task<Effect> take(const Moment&, const averaging::RoundReport* round) override {
    if (!round) co_return Effect::behind;
    co_await runtime_.offload([memory = memory_, sgd = sgd_, live = replica_.host_values(), used = replica_.in_use()] {
      auto& [anchor, momentum, difference] = *memory;
      for (std::size_t i = 0; i < live.size(); ++i) {
        const std::span<float> from(anchor[i]);
        const optim::TensorMemory step{
            std::span<const float>(from), from, {}, std::span(difference[i]), {std::span(momentum[i])}};
        optim::TensorStep(sgd, step, {.step = 2}).run(0, from.size());  // a momentum of zero is one
        std::ranges::copy(from, live[i].begin());
      }
    });
    co_return Effect::none;
  }

  std::vector<Kept> kept() override {
    std::vector<Kept> kept;
    for (std::size_t i = 0; i < memory_->anchor.size(); ++i) {
      const auto& shape = replica_.gradient_infos()[i].shape;
      kept.push_back({"anchor." + std::to_string(i), shape, memory_->anchor[i], memory_});
      kept.push_back({"momentum." + std::to_string(i), shape, memory_->momentum[i], memory_});
    }
    return kept;
  }
  Task<void> reset() override {
    co_await runtime_.offload([memory = memory_, live = replica_.host_values(), used = replica_.in_use()] {
      for (std::size_t i = 0; i < live.size(); ++i) {
        std::ranges::copy(live[i], memory->anchor[i].begin());
        std::ranges::fill(memory->momentum[i], 0.0f);
      }
    });
  }

  /// For tests, between two calls of the run.
  const std::vector<std::vector<float>>& anchor() const { return memory_->anchor; }
  const std::vector<std::vector<float>>& momentum() const { return memory_->momentum; }

 private:
  struct Memory {
    std::vector<std::vector<float>> anchor, momentum, difference;
  };
  const std::string name_ = "outer_step";
  Replica& replica_;
  Runtime& runtime_;
  const optim::SgdOptions sgd_;
  const std::uint64_t every_;
  averaging::Averager averager_;
  std::shared_ptr<Memory> memory_;
};

/// For RunOptions::parameter_exchange.
inline ExchangeFactory outer_step(optim::SgdOptions sgd = kOuterSgd, std::uint64_t every = 1) {
  return [=](const ExchangeContext& context) { return std::make_unique<OuterStep>(context, sgd, every); };
}

}  // namespace cohive::train
