// Parameters that have no gradient for a while, or ever: steps are those of LibTorch, which leaves them alone.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohive/torch/lamb.hpp"
#include "cohive/torch/optimizer.hpp"
#include "torch/known_optimizer.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using torch::optim::OptimizerParamGroup;

constexpr std::int64_t kFrozenEpochs = 8;

/// Whether the first parameter has gradients in an epoch: not in the first ones, nor in one later on.
bool frozen(std::int64_t epoch) {
  return epoch < 3 || epoch == 6;
}

/// Two parameters that are trained and one that no batch uses. Gradients do not depend on the parameters, so that it
/// does not matter when a step arrives, and all types hold them exactly.
struct PartlyFrozen {
  explicit PartlyFrozen(torch::ScalarType type = torch::kFloat32) : type(type) {}
  torch::ScalarType type;
  torch::Tensor weight = ((torch::arange(12).to(type) - 5) / 4).reshape({4, 3}).requires_grad_();
  torch::Tensor bias = torch::full({3}, 0.25, type).requires_grad_();
  torch::Tensor unused = torch::full({5}, 4.0, type).requires_grad_();
  std::vector<torch::Tensor> parameters() const { return {weight, bias, unused}; }
  std::vector<OptimizerParamGroup> groups() const {
    return {OptimizerParamGroup({weight}), OptimizerParamGroup({bias, unused})};
  }
  void backward(std::int64_t seed) {
    weight.requires_grad_(!frozen(seed / kBatches));
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    const auto of_weight = torch::randint(1, 8, {4, 3}, generator).to(type) / 4;
    const auto of_bias = torch::randint(1, 8, {3}, generator).to(type) / 4;
    ((weight * of_weight).sum() + (bias * of_bias).sum()).backward();
  }
};

void train_with_libtorch(PartlyFrozen& model, torch::optim::Optimizer& optimizer) {
  for (std::int64_t epoch = 0; epoch < kFrozenEpochs; ++epoch) {
    optimizer.zero_grad();
    for (std::int64_t i = 0; i < kBatches; ++i) model.backward(epoch * kBatches + i);
    for (auto& parameter : model.parameters())
      if (parameter.grad().defined()) parameter.mutable_grad().div_(kBatches);
    optimizer.step();
  }
}

struct DecayingKind {
  const char* name;
  OptimizerFactory make;
  bool float32_only = false;
};

std::vector<DecayingKind> decaying_kinds() {
  using namespace torch::optim;
  return {
      {"SGD",
       [](auto p) { return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).dampening(0.5).weight_decay(0.1)); }},
      {"Adam", [](auto p) { return std::make_unique<Adam>(p, AdamOptions(0.05).weight_decay(0.1)); }},
      {"amsgrad", [](auto p) { return std::make_unique<Adam>(p, AdamOptions(0.05).amsgrad(true).weight_decay(0.1)); }},
      {"AdamW", [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions(0.05).weight_decay(0.1)); }},
      {"RMSprop",
       [](auto p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.01).momentum(0.5).weight_decay(0.1)); }},
      {"Adagrad",
       [](auto p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.1).lr_decay(0.1).weight_decay(0.1)); }},
      {"Lamb", [](auto p) { return std::make_unique<Lamb>(p, LambOptions(0.05)); }, true}};
}

struct AbsentWay {
  const char* name;
  torch::ScalarType type = torch::kFloat32;
  bool offload = false, delay = false, reuse = false, bound = false;
};

double steps_of(torch::optim::Optimizer& optimizer, const torch::Tensor& parameter) {
  for (const auto& [name, value] : libtorch::statistics_of(optimizer, parameter))
    if (name == "step") return value.item<double>();
  return 0;
}

TEST(AbsentGradients, LeaveAParameterAsLibTorchDoes) {
  for (const auto& way : {AbsentWay{"in place"}, AbsentWay{.name = "float64, by LibTorch", .type = torch::kFloat64},
                          AbsentWay{.name = "bfloat16, offloaded", .type = torch::kBFloat16, .offload = true},
                          AbsentWay{.name = "delayed", .offload = true, .delay = true},
                          AbsentWay{.name = "reused buffers", .reuse = true},
                          AbsentWay{.name = "with a bound of the norm", .bound = true}})
    for (const auto& kind : decaying_kinds()) {
      if (kind.float32_only && way.type == torch::kFloat64) continue;
      SCOPED_TRACE(std::string(kind.name) + ", " + way.name);
      auto options = epochs_of_three_batches();
      options.offload_optimizer = way.offload;
      options.delay_optimizer_step = options.delay_grad_averaging = options.delay_state_averaging = way.delay;
      options.reuse_grad_buffers = way.reuse;
      PartlyFrozen ours(way.type), plain(way.offload ? torch::kFloat32 : way.type), untouched(way.type);
      Swarm swarm(alone());
      Optimizer optimizer(swarm, ours.groups(), kind.make, options);
      if (way.bound) optimizer.clip_grad_norm(1e6);
      for (std::int64_t i = 0; i < kFrozenEpochs * kBatches; ++i) {
        ours.backward(i);
        optimizer.step(kBatch);
        if (i == 3 * kBatches - 1) EXPECT_TRUE(torch::equal(ours.weight, untouched.weight)) << "it is frozen still";
      }
      optimizer.finish();
      const auto reference = kind.make(plain.groups());
      train_with_libtorch(plain, *reference);
      const auto stepped = libtorch::parameters_of(optimizer.optimizer());  // the float32 ones where there are two
      const auto expected = plain.parameters();
      for (std::size_t p = 0; p < expected.size(); ++p) {
        EXPECT_TRUE(torch::allclose(stepped[p], expected[p], 1e-5, 1e-5)) << p << stepped[p] << expected[p];
        EXPECT_EQ(steps_of(optimizer.optimizer(), stepped[p]), steps_of(*reference, expected[p])) << p;
      }
      EXPECT_TRUE(torch::equal(ours.unused, untouched.unused)) << "no weight decay";
    }
}

/// Who joins goes on from what the others have of every parameter, also where LibTorch keeps nothing of some.
TEST(AbsentGradients, AreNoReasonToLoseTheStatisticsOfOtherParameters) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    PartlyFrozen model(type), late_model(type);
    const auto make = decaying_kinds()[3].make;
    auto options = epochs_of_three_batches();
    options.target_batch_size = kBatch;
    Swarm swarm(alone());
    Optimizer optimizer(swarm, model.groups(), make, options);
    for (std::int64_t i = 0; i < 2; ++i) {
      model.backward(i);
      optimizer.step(kBatch);
    }
    Swarm late_swarm(joining(swarm.visible_addresses()));
    Optimizer late(late_swarm, late_model.groups(), make, options);
    while (!late.load_state_from_peers()) {
    }
    const auto ours = model.parameters(), theirs = late_model.parameters();
    const double steps[] = {0, 2, 0};
    for (std::size_t p = 0; p < ours.size(); ++p) {
      EXPECT_TRUE(torch::equal(ours[p], theirs[p]));
      EXPECT_EQ(steps_of(late.optimizer(), theirs[p]), steps[p]) << p;
    }
    const auto moment = [](Optimizer& of, const torch::Tensor& parameter) {
      return libtorch::statistics_of(of.optimizer(), parameter).front().second;
    };
    EXPECT_TRUE(torch::equal(moment(optimizer, model.bias), moment(late, late_model.bias)));
    EXPECT_TRUE(moment(late, late_model.bias).any().item<bool>());
  }
}

}  // namespace
}  // namespace cohive
