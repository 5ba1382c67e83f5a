// What each option and each optimizer makes of a model's parameters: the same as LibTorch alone, where that can be
// said.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohive/torch/lamb.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cohive/torch/strategy.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using ::testing::HasSubstr;
using torch::optim::OptimizerParamGroup;

torch::Tensor batch(std::int64_t seed, torch::ScalarType type) {
  return torch::randn({kBatch, 4}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed))).to(type);
}

/// Two parameters of different shapes.
struct Model {
  explicit Model(torch::ScalarType type = torch::kFloat32) : type(type) {}
  torch::ScalarType type;
  torch::Tensor weight = torch::linspace(-1, 1, 12).reshape({4, 3}).clone().to(type).requires_grad_();
  torch::Tensor bias = torch::full({3}, 0.25, type).requires_grad_();
  std::vector<torch::Tensor> parameters() const { return {weight, bias}; }
  void backward(std::int64_t seed) const { (batch(seed, type).matmul(weight) + bias).pow(2).mean().backward(); }
};

/// What LibTorch makes of a model in some epochs, with the mean gradient of each.
void train_plainly(Model& model, torch::optim::Optimizer& optimizer, std::int64_t epochs) {
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch) {
    optimizer.zero_grad();
    for (std::int64_t i = 0; i < kBatches; ++i) model.backward(epoch * kBatches + i);
    for (auto& parameter : model.parameters()) parameter.mutable_grad().div_(kBatches);
    optimizer.step();
  }
}

void train_together(Model& model, Optimizer& optimizer, std::int64_t epochs) {
  for (std::int64_t i = 0; i < epochs * kBatches; ++i) {
    model.backward(i);
    const auto report = optimizer.step(kBatch);
    ASSERT_EQ(report.epoch_changed, i % kBatches == kBatches - 1);
  }
}

void expect_equal(const Model& ours, const Model& plain, double tolerance) {
  EXPECT_TRUE(torch::allclose(ours.weight, plain.weight, tolerance, tolerance)) << ours.weight << plain.weight;
  EXPECT_TRUE(torch::allclose(ours.bias, plain.bias, tolerance, tolerance)) << ours.bias << plain.bias;
}

struct Kind {
  const char* name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)> make;
  bool float32_only = false;
};

std::vector<Kind> kinds() {
  using namespace torch::optim;
  return {{"SGD", [](auto p) { return std::make_unique<SGD>(p, SGDOptions(0.1).momentum(0.9).nesterov(true)); }},
          {"Adam", [](auto p) { return std::make_unique<Adam>(p, AdamOptions(0.05).weight_decay(0.1)); }},
          {"amsgrad", [](auto p) { return std::make_unique<Adam>(p, AdamOptions(0.05).amsgrad(true)); }},
          {"AdamW", [](auto p) { return std::make_unique<AdamW>(p, AdamWOptions(0.05)); }},
          {"RMSprop", [](auto p) { return std::make_unique<RMSprop>(p, RMSpropOptions(0.01).momentum(0.5)); }},
          {"Adagrad", [](auto p) { return std::make_unique<Adagrad>(p, AdagradOptions(0.1)); }},
          {"Lamb", [](auto p) { return std::make_unique<Lamb>(p, LambOptions(0.05)); }, true}};
}

TEST(TrainingModes, EveryOptimizerStepsAsByItself) {
  for (const auto& kind : kinds())
    for (const auto type : {torch::kFloat32, torch::kFloat64}) {
      if (kind.float32_only && type != torch::kFloat32) continue;
      SCOPED_TRACE(std::string(kind.name) + (type == torch::kFloat32 ? " float32" : " float64"));
      Model ours(type), plain(type);
      Swarm swarm(alone());
      auto local = kind.make(ours.parameters()), reference = kind.make(plain.parameters());
      Optimizer optimizer(swarm, *local, epochs_of_three_batches());
      train_together(ours, optimizer, 4);
      train_plainly(plain, *reference, 4);
      expect_equal(ours, plain, 2e-5);
    }
}

TEST(TrainingModes, ReusedBuffersHoldTheSumOfTheEpoch) {
  auto options = epochs_of_three_batches();
  options.reuse_grad_buffers = true;
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    Model ours(type), plain(type);
    Swarm swarm(alone());
    torch::optim::Adam adam(ours.parameters(), torch::optim::AdamOptions(0.05)), reference(plain.parameters(), 0.05);
    Optimizer optimizer(swarm, adam, options);
    for (std::int64_t i = 0; i < 2 * kBatches; ++i) {
      ours.backward(i);
      optimizer.step(kBatch);
      optimizer.zero_grad();  // as trainers do: the sum stays
    }
    train_plainly(plain, reference, 2);
    expect_equal(ours, plain, 2e-5);

    ours.backward(1);
    optimizer.step(kBatch);
    for (auto& parameter : ours.parameters()) parameter.mutable_grad().reset();
    EXPECT_THROW(optimizer.step(kBatch), std::logic_error) << "a part of the sum is lost";
  }
}

TEST(TrainingModes, DelayedStepsArriveAndNoneIsLost) {
  for (const auto& [gradients, offload, reuse] : {std::tuple(false, true, false),
                                                  {false, true, true},
                                                  {true, true, false},
                                                  {true, true, true},
                                                  {false, false, false},
                                                  {true, false, true}}) {
    SCOPED_TRACE(std::string(gradients ? "gradients and steps" : "steps") + (offload ? ", offloaded" : ""));
    auto options = epochs_of_three_batches();
    options.delay_state_averaging = options.delay_optimizer_step = true;
    options.offload_optimizer = offload;
    options.delay_grad_averaging = gradients;
    options.reuse_grad_buffers = reuse;
    Swarm swarm(alone());
    auto weight = torch::zeros({1000}).requires_grad_();
    torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.25));
    Optimizer optimizer(swarm, sgd, options);
    bool updated = false;
    constexpr int kEpochs = 6;
    for (int i = 0; i < kEpochs * kBatches; ++i) {
      (weight * 2).sum().backward();  // gradients do not depend on when a step arrives
      updated |= optimizer.step(kBatch).updated;
    }
    EXPECT_TRUE(updated) << "steps arrive while the training goes on";
    optimizer.finish();
    EXPECT_TRUE(torch::equal(weight.detach(), torch::full({1000}, -0.25f * 2 * kEpochs))) << weight[0];
  }
}

TEST(TrainingModes, OffloadedStepsAreNotLostToTheModelsRounding) {
  auto options = epochs_of_three_batches();
  options.offload_optimizer = true;
  for (const bool delayed : {false, true}) {
    options.delay_optimizer_step = delayed;
    auto weight = torch::ones({100}, torch::kBFloat16).requires_grad_();
    Swarm swarm(alone());
    Optimizer optimizer(
        swarm, {OptimizerParamGroup({weight})},
        [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 0.001); }, options);
    for (int i = 0; i < 50 * kBatches; ++i) {
      weight.sum().backward();
      optimizer.step(kBatch);
    }
    optimizer.finish();
    // Alone, each step of a thousandth would be rounded away: bfloat16 has 8 bits.
    EXPECT_NEAR(weight[0].item<float>(), 0.95f, 0.004f);
    EXPECT_EQ(weight.scalar_type(), torch::kBFloat16);
  }
}

TEST(TrainingModes, LocalUpdatesStepInEveryBatch) {
  auto options = epochs_of_three_batches();
  options.use_local_updates = true;
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    Model ours(type), plain(type);
    Swarm swarm(alone());
    torch::optim::Adam adam(ours.parameters(), torch::optim::AdamOptions(0.05)), reference(plain.parameters(), 0.05);
    Optimizer optimizer(swarm, adam, options);
    for (std::int64_t i = 0; i < 5; ++i) {
      ours.backward(i);
      optimizer.step(kBatch);
      reference.zero_grad();
      plain.backward(i);
      reference.step();
    }
    expect_equal(ours, plain, 2e-5);
    EXPECT_EQ(optimizer.local_epoch(), 1u);
  }
}

TEST(TrainingModes, SchedulersFollowTheEpochs) {
  Model model;
  Swarm swarm(alone());
  torch::optim::SGD sgd(model.parameters(), 0.8);
  Optimizer optimizer(swarm, sgd, epochs_of_three_batches(),
                      [](torch::optim::Optimizer& of) { return std::make_unique<torch::optim::StepLR>(of, 1, 0.5); });
  train_together(model, optimizer, 3);
  EXPECT_DOUBLE_EQ(sgd.param_groups()[0].options().get_lr(), 0.1) << "one step for each epoch that has ended";
}

TEST(TrainingModes, TheNormOfAnEpochsGradientsIsBounded) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    auto weight = torch::zeros({4}, type).requires_grad_();
    Swarm swarm(alone());
    torch::optim::SGD sgd({weight}, 1.0);
    Optimizer optimizer(swarm, sgd, epochs_of_three_batches());
    optimizer.clip_grad_norm(1);
    for (int i = 0; i < kBatches; ++i) {
      (weight * 3).sum().backward();  // its norm is 6
      optimizer.step(kBatch);
    }
    EXPECT_NEAR(weight.norm().item<double>(), 1, 1e-4);
  }
}

TEST(TrainingModes, TheSizeOfABatchIsItsLeadingDimension) {
  Model model;
  Swarm swarm(alone());
  torch::optim::SGD sgd(model.parameters(), 0.1);
  Optimizer optimizer(swarm, sgd, epochs_of_three_batches());
  EXPECT_THROW(optimizer.step(), std::logic_error);
  for (int i = 0; i < kBatches; ++i) {
    model.backward(i);
    EXPECT_EQ(optimizer.step(batch(i, torch::kFloat32)).epoch_changed, i == kBatches - 1);
  }
  EXPECT_THROW(optimizer.step(torch::tensor(1)), std::invalid_argument);
}

TEST(TrainingModes, AModelThatDoesNotGoWithTheOptionsIsRefused) {
  Swarm swarm(alone());
  auto weight = torch::zeros({4}, torch::kFloat64).requires_grad_();
  torch::optim::SGD sgd({weight}, 0.1);
  auto options = epochs_of_three_batches();
  options.offload_optimizer = true;
  EXPECT_THROW(Optimizer(swarm, sgd, options), std::invalid_argument) << "there is nowhere to step in host memory";
  options.offload_optimizer = false;
  options.delay_optimizer_step = true;
  EXPECT_THROW(Optimizer(swarm, sgd, options), std::invalid_argument) << "LibTorch steps, and its parameters are live";
  torch::optim::LBFGS lbfgs({weight}, 0.1);
  EXPECT_THROW(Optimizer(swarm, lbfgs, epochs_of_three_batches()), std::invalid_argument);
}

TEST(TrainingModes, FrozenParametersStayAsTheyAre) {
  for (const auto& kind : kinds())
    for (const auto type : {torch::kFloat32, torch::kFloat64})
      for (const bool delayed : {false, true}) {
        if (type != torch::kFloat32 && (kind.float32_only || delayed)) continue;
        SCOPED_TRACE(kind.name);
        auto options = epochs_of_three_batches();
        options.delay_optimizer_step = options.offload_optimizer = options.delay_state_averaging = delayed;
        Model ours(type), untouched(type);
        ours.weight.requires_grad_(false);
        Swarm swarm(alone());
        auto local = kind.make(ours.parameters());
        Optimizer optimizer(swarm, *local, options);
        train_together(ours, optimizer, 2);
        optimizer.finish();
        EXPECT_TRUE(torch::equal(ours.weight, untouched.weight));
        EXPECT_FALSE(torch::equal(ours.bias, untouched.bias));
      }
}

/// Peers would average the parameters of others, and what is offloaded would come back to others.
TEST(TrainingModes, AnOptimizerOfOtherParametersThanItsGroupsHaveIsRefused) {
  Swarm swarm(alone());
  for (const bool offload : {false, true}) {
    const auto type = offload ? torch::kFloat16 : torch::kFloat32;
    const auto first = torch::zeros({2}, type).requires_grad_(), second = torch::zeros({2}, type).requires_grad_();
    auto options = epochs_of_three_batches();
    options.offload_optimizer = offload;
    const auto refusal = [&](auto change) -> std::string {
      const auto make = [change](auto groups) {
        auto parameters = groups[0].params();
        change(parameters);
        return std::make_unique<torch::optim::SGD>(std::move(parameters), 0.1);
      };
      try {
        Optimizer(swarm, {OptimizerParamGroup({first, second})}, make, options);
      } catch (const std::invalid_argument& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_EQ(refusal([](auto&) {}), "");
    EXPECT_THAT(refusal([](auto& parameters) { std::swap(parameters[0], parameters[1]); }), HasSubstr("their order"));
    EXPECT_THAT(refusal([](auto& parameters) { parameters.pop_back(); }), HasSubstr("other parameters"));
    EXPECT_THAT(refusal([](auto& parameters) { parameters[0] = torch::zeros({2}).requires_grad_(); }),
                HasSubstr("other parameters"));
  }
}

TEST(TrainingModes, ParametersThatCannotBeTrainedTogetherAreRefused) {
  Swarm swarm(alone());
  const auto options = epochs_of_three_batches();
  Model model;
  const auto make = [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 0.1); };
  EXPECT_THROW(Optimizer(swarm, {OptimizerParamGroup({model.bias}), OptimizerParamGroup({model.bias})}, make, options),
               std::invalid_argument)
      << "twice";
  EXPECT_THROW(Optimizer(swarm, {OptimizerParamGroup(std::vector{model.bias, model.bias})}, make, options),
               std::invalid_argument);
  EXPECT_THROW(Optimizer(swarm, {OptimizerParamGroup({torch::zeros({2})})}, make, options), std::invalid_argument)
      << "nothing to train";

  torch::optim::SGD sgd({model.bias}, 0.1);
  Optimizer optimizer(swarm, sgd, options);
  sgd.add_param_group(OptimizerParamGroup({model.weight}));
  model.backward(1);
  EXPECT_THROW(optimizer.step(kBatch), std::logic_error) << "peers average what there was at the beginning";
}

TEST(StrategyOptionsTest, WhatIsSetInANestedFieldCounts) {
  const StrategyOptions options{
      .swarm = {.initial_peers = {"/ip4/10.0.0.1/tcp/1"}, .client_mode = true},
      .optimizer = {.run_id = "nested", .target_batch_size = 7, .delay_grad_averaging = true}};
  EXPECT_EQ(options.swarm_options().initial_peers, options.swarm.initial_peers);
  EXPECT_EQ(options.swarm_options().host_maddrs, options.host_maddrs);
  const OptimizerOptions run = options.optimizer_options();
  EXPECT_EQ(run.run_id, "nested");
  EXPECT_EQ(run.target_batch_size, 7);
  EXPECT_EQ(run.matchmaking_time, 5s) << "HivemindStrategy's";
  EXPECT_FALSE(run.delay_state_averaging) << "HivemindStrategy's";
  EXPECT_TRUE(run.delay_optimizer_step) << "goes with delay_grad_averaging";
  EXPECT_TRUE(run.client_mode) << "one option, wherever it is set";
  EXPECT_TRUE(StrategyOptions{.optimizer = {.delay_optimizer_step = true}}.optimizer_options().offload_optimizer);
  EXPECT_EQ((StrategyOptions{.run_id = "same", .optimizer = {.run_id = "same"}}.optimizer_options().run_id), "same");
}

TEST(StrategyOptionsTest, TwoValuesOfOneOptionAreRefusedBeforeASwarmIsJoined) {
  const auto refusal = [](StrategyOptions options) {
    options.bootstrap_timeout = std::chrono::hours(1);  // it would wait
    try {
      Strategy strategy(std::move(options));
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::vector<std::string> one{"/ip4/127.0.0.1/tcp/1"}, other{"/ip4/127.0.0.1/tcp/2"};
  EXPECT_EQ(refusal({.initial_peers = one, .swarm = {.initial_peers = other}}),
            "StrategyOptions: initial_peers and swarm.initial_peers are set to different values; set one of them");
  EXPECT_THAT(refusal({.host_maddrs = one, .swarm = {.host_maddrs = other}}), HasSubstr("swarm.host_maddrs"));
  EXPECT_THAT(refusal({.wait_for_swarm = 1s, .swarm = {.wait_for_swarm = 2s}}), HasSubstr("wait_for_swarm"));
  EXPECT_THAT(refusal({.run_id = "a", .optimizer = {.run_id = "b"}}), HasSubstr("optimizer.run_id"));
  EXPECT_THAT(refusal({.batch_size = 1, .optimizer = {.batch_size = 2}}), HasSubstr("optimizer.batch_size"));
  EXPECT_THAT(refusal({.matchmaking_time = 1s, .optimizer = {.matchmaking_time = 2s}}), HasSubstr("matchmaking_time"));
  EXPECT_THAT(refusal({.delay_optimizer_step = false, .optimizer = {.delay_optimizer_step = true}}),
              HasSubstr("delay_optimizer_step"));
  const auto tune = [](averaging::AveragerOptions&) {};
  EXPECT_THAT(refusal({.averager_opts = tune, .optimizer = {.averager_options = tune}}), HasSubstr("averager_opts"));
}

TEST(TrainingModes, ABatchOfAnotherSizeDoesNotReplaceThatOfTheOptions) {
  for (const bool nested : {false, true}) {
    SCOPED_TRACE(nested ? "optimizer.batch_size" : "batch_size");
    StrategyOptions options;
    options.run_id = "sizes";
    options.target_batch_size = 3 * kBatch;
    options.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
    (nested ? options.optimizer.batch_size : options.batch_size) = 2 * kBatch;
    Strategy strategy(options);
    auto weight = torch::zeros({10}).requires_grad_();
    strategy.setup({OptimizerParamGroup({weight})},
                   [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 0.5); });
    weight.sum().backward();
    EXPECT_FALSE(strategy.step(torch::zeros({kBatch, 3})).epoch_changed);
    weight.sum().backward();
    EXPECT_TRUE(strategy.step().epoch_changed) << "with the samples of a batch of the options' size";
  }
}

TEST(TrainingModes, AStrategyHasTheDefaultsOfHivemindStrategy) {
  StrategyOptions options;
  options.run_id = "strategy";
  options.target_batch_size = kBatches * kBatch;
  options.host_maddrs = {"/ip4/127.0.0.1/tcp/0"};
  options.delay_grad_averaging = true;  // steps are delayed and offloaded with it
  Strategy strategy(options);
  EXPECT_THROW(strategy.step(kBatch), std::logic_error);
  auto weight = torch::zeros({10}).requires_grad_();
  strategy.setup({OptimizerParamGroup({weight})},
                 [](auto groups) { return std::make_unique<torch::optim::SGD>(std::move(groups), 0.5); });
  EXPECT_TRUE(strategy.optimizer().options().delay_optimizer_step);
  EXPECT_TRUE(strategy.optimizer().options().offload_optimizer);
  EXPECT_FALSE(strategy.optimizer().options().delay_state_averaging);
  for (int i = 0; i < kBatches; ++i) {
    weight.sum().backward();
    i == 0 ? strategy.step(torch::zeros({kBatch, 3})) : strategy.step();  // the first batch says how large they are
  }
  strategy.optimizer().finish();
  EXPECT_EQ(weight[0].item<float>(), -0.5f);
  EXPECT_THROW(strategy.setup({}, nullptr), std::logic_error);

  options.delay_optimizer_step = false;
  EXPECT_THROW(Strategy{options}, std::invalid_argument) << "delayed gradients cannot be stepped with at once";
}

}  // namespace
}  // namespace cohive
