// What is averaged beside the parameters: extra tensors and statistics of the optimizer.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <future>
#include <limits>
#include <thread>

#include "cohive/torch/optimizer.hpp"
#include "torch/known_optimizer.hpp"
#include "torch/round_extras.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::OptimizerParamGroup;
using train::ParameterRound;
using train::Place;
constexpr auto kPatience = std::chrono::seconds(120);

// ---- One round

/// Ends a round whose averages are what a test says.
void end_round(libtorch::RoundExtras& extras, const std::vector<averaging::TensorSpan>& memory,
               const std::vector<std::vector<float>>& averages) {
  ASSERT_EQ(memory.size(), averages.size());
  for (std::size_t i = 0; i < memory.size(); ++i) std::ranges::copy(averages[i], memory[i].write.begin());
  extras.end(true);
  extras.publish();
}

std::vector<float> floats(const torch::Tensor& tensor) {
  const auto flat = tensor.detach().to(torch::kFloat32).flatten().contiguous();
  return {flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel()};
}

libtorch::TrainerStream trainer;  // of models in host memory

TEST(RoundExtras, TravelAsHivemindsDo) {
  auto weight = torch::zeros({3, 2}).requires_grad_(), bias = torch::zeros({2}).requires_grad_();
  Adam adam({weight, bias}, AdamOptions(0.1));
  const auto mean = torch::full({4}, 1.5, torch::kFloat64), count = torch::tensor(7);
  libtorch::RoundExtras extras(adam, {{mean, count}, {"exp_avg_sq", "exp_avg"}}, false);
  std::vector<codec::Shape> shapes;
  for (const auto& info : extras.infos()) {
    shapes.push_back(info.shape);
    EXPECT_EQ(info.dtype, codec::DType::float32);
  }
  EXPECT_EQ(shapes, (std::vector<codec::Shape>{{3, 2}, {2}, {3, 2}, {2}, {4}, {}})) << "by name, then by parameter";
  EXPECT_EQ(extras.infos()[0].role, codec::Role::optimizer);
  EXPECT_EQ(extras.infos()[4].role, codec::Role::unspecified);

  const libtorch::RoundExtras offloaded(adam, {{mean, count}, {}}, true);
  EXPECT_EQ(offloaded.infos()[0].dtype, codec::DType::float64) << "as Python's peers that average tensors in place";
}

TEST(RoundExtras, BecomeTheAverage) {
  auto weight = torch::zeros({2}).requires_grad_();
  Adam adam({weight}, AdamOptions(0.1));
  auto mean = torch::tensor({1.0f, 0.1f}), count = torch::tensor(10), flag = torch::tensor(false);
  libtorch::RoundExtras extras(adam, {{mean, count, flag}, {"exp_avg"}}, false);
  libtorch::made_statistic(adam, adam.defaults(), weight, "exp_avg_sq").fill_(1);
  const auto memory = extras.begin(ParameterRound{}, trainer);
  EXPECT_EQ(memory[1].read[1], 0.1f);
  end_round(extras, memory, {{0.5f, 0.25f}, {3.0f, 1e-3f}, {11.6f}, {0.7f}});
  EXPECT_EQ(floats(mean), (std::vector<float>{3.0f, 1e-3f}));
  EXPECT_EQ(count.item<std::int64_t>(), 12);
  EXPECT_TRUE(flag.item<bool>());
  const auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().begin()->second);
  EXPECT_EQ(floats(state.exp_avg()), (std::vector<float>{0.5f, 0.25f}));
}

TEST(RoundExtras, WhatTheModelChangesMeanwhileStays) {
  auto weight = torch::zeros({1}).requires_grad_();
  Adam adam({weight}, AdamOptions(0.1));
  for (const auto how : {ParameterRound{.to = Place::next}, ParameterRound{.to = Place::next, .changes = true}}) {
    auto mean = torch::tensor({1.0f, 4.0f}), count = torch::tensor(10);
    libtorch::RoundExtras extras(adam, {{mean, count}, {}}, false);
    const auto memory = extras.begin(how, trainer);
    mean[1] += 2;
    count += 3;
    const float own = how.changes ? 1 : 0;  // rounds of differences yield these
    end_round(extras, memory, {{2.0f - own, 8.0f - 4 * own}, {20.0f - 10 * own}});
    EXPECT_EQ(floats(mean), (std::vector<float>{2, 10}));
    EXPECT_EQ(count.item<std::int64_t>(), 23);
  }
}

TEST(RoundExtras, ARoundOfNextParametersHasWhatWasThereWhenTheTrainerWaited) {
  auto weight = torch::zeros({1}).requires_grad_();
  Adam adam({weight}, AdamOptions(0.1));
  auto mean = torch::tensor({1.0f});
  libtorch::RoundExtras extras(adam, {{mean}, {}}, false);
  extras.hold_tensors(trainer);
  mean += 1;
  EXPECT_EQ(extras.begin(ParameterRound{.from = Place::next, .to = Place::next}, trainer)[0].read[0], 1.0f);
  EXPECT_EQ(extras.begin(ParameterRound{}, trainer)[0].read[0], 2.0f);
}

TEST(RoundExtras, ARoundWithoutAverageChangesNothing) {
  auto weight = torch::zeros({1}).requires_grad_();
  Adam adam({weight}, AdamOptions(0.1));
  auto mean = torch::tensor({1.0f});
  libtorch::RoundExtras extras(adam, {{mean}, {}}, false);
  extras.begin(ParameterRound{}, trainer)[0].write[0] = 9;
  extras.end(false);
  extras.publish();
  EXPECT_EQ(mean.item<float>(), 1.0f);
}

TEST(RoundExtras, WhatPeersSendCannotBecomeNumbersThatAStepCannotUse) {
  constexpr float kHuge = std::numeric_limits<float>::max();
  auto weight = torch::full({2}, 0.5f).requires_grad_();
  Adam adam({weight}, AdamOptions(0.1));
  auto half = torch::zeros({1}, torch::kFloat16), large = torch::tensor(5), small = torch::zeros({1}, torch::kUInt8);
  libtorch::RoundExtras extras(adam, {{half, large, small}, {"exp_avg", "exp_avg_sq", "step"}}, false);
  end_round(extras, extras.begin(ParameterRound{}, trainer),
            {{kHuge, -kHuge}, {-1, -kHuge}, {-kHuge}, {kHuge}, {kHuge}, {-1}});
  EXPECT_TRUE(torch::isfinite(half).all().item<bool>());
  EXPECT_GT(large.item<std::int64_t>(), 0);
  EXPECT_EQ(small.item<std::int64_t>(), 0);
  const auto& state = static_cast<torch::optim::AdamParamState&>(*adam.state().begin()->second);
  EXPECT_EQ(floats(state.exp_avg_sq()), (std::vector<float>{0, 0}));
  EXPECT_EQ(floats(state.exp_avg()), (std::vector<float>{0, 0})) << "a step divides it by the root of its square";
  EXPECT_EQ(state.step(), 0);

  auto centred = torch::full({1}, 0.5f).requires_grad_();
  torch::optim::RMSprop rmsprop({centred}, torch::optim::RMSpropOptions(0.1).centered(true));
  libtorch::RoundExtras moments(rmsprop, {{}, {"grad_avg", "square_avg"}}, false);
  end_round(moments, moments.begin(ParameterRound{}, trainer), {{5}, {4}});
  centred.mutable_grad() = torch::zeros({1});
  rmsprop.step();
  EXPECT_TRUE(torch::isfinite(centred).all().item<bool>());
}

TEST(RoundExtras, SquaresOfWhichACodecLeavesNothingStayOurs) {
  for (const bool changes : {false, true}) {
    auto weight = torch::zeros({3}).requires_grad_();
    Adam adam({weight}, AdamOptions(0.1));
    libtorch::RoundExtras extras(adam, {{}, {"exp_avg_sq"}}, false);
    auto squares = libtorch::made_statistic(adam, adam.defaults(), weight, "exp_avg_sq");
    squares.copy_(torch::tensor({1e-9f, 1e-9f, 1.0f}));
    const auto memory = extras.begin(ParameterRound{.changes = changes}, trainer);
    const float own = changes ? 1e-9f : 0;  // rounds of differences yield these
    end_round(extras, memory, {{0 - own, -1e-9f - own, changes ? 2.0f : 3.0f}});
    EXPECT_EQ(floats(squares), (std::vector<float>{1e-9f, 1e-9f, 3})) << changes;
  }
}

TEST(RoundExtras, TensorsThatCannotBeAveragedAreRefused) {
  auto weight = torch::zeros({1}).requires_grad_();
  Adam adam({weight}, AdamOptions(0.1));
  const auto refused = [&](ModelExtras extras) {
    EXPECT_THROW(libtorch::RoundExtras(adam, std::move(extras), false), std::invalid_argument);
  };
  refused({{torch::Tensor()}, {}});
  refused({{torch::zeros({2}, torch::kComplexFloat)}, {}});
  refused({{torch::eye(2).to_sparse()}, {}});
  refused({{weight}, {}});
  refused({{}, {"momentum_buffer"}});
  refused({{}, {"max_exp_avg_sq"}});  // without amsgrad
  refused({{}, {"exp_avg", "exp_avg"}});
}

// ---- Runs

OptimizerOptions epochs_of(std::int64_t batches) {
  OptimizerOptions options;
  options.run_id = "extras";
  options.target_batch_size = batches * kBatch;
  options.delay_state_averaging = false;
  options.matchmaking_time = 2s;
  options.averaging_timeout = 30s;
  return options;
}

/// A parameter, and extra tensors that nothing but rounds changes.
struct TrainerWithExtras {
  TrainerWithExtras(const std::vector<std::string>& peers, const OptimizerOptions& options, float value,
                    torch::ScalarType type = torch::kFloat32)
      : weight(torch::zeros({4}, type).requires_grad_()),
        mean(torch::zeros({3})),
        count(torch::tensor(std::int64_t{0})),
        swarm(joining(peers)),
        optimizer(
            swarm, {OptimizerParamGroup({weight})},
            [](auto groups) { return std::make_unique<Adam>(std::move(groups), AdamOptions(0.01)); }, options, nullptr,
            ModelExtras{{mean, count}, {"exp_avg_sq"}}) {
    hold(value);
  }
  void hold(float value) {
    mean.fill_(value);
    count.fill_(value * 10);
  }
  StepReport step() {
    weight.sum().backward();
    return optimizer.step(kBatch);
  }
  torch::Tensor weight, mean, count;
  Swarm swarm;
  Optimizer optimizer;
};

TEST(ModelExtras, AreAveragedInEveryMode) {
  struct Mode {
    const char* name;
    std::function<void(OptimizerOptions&)> set = [](auto&) {};
    torch::ScalarType type = torch::kFloat32;
  };
  const std::vector<Mode> modes = {
      {"at once"},
      {"state delayed", [](auto& o) { o.delay_state_averaging = true; }},
      {"all delayed",
       [](auto& o) {
         o.delay_state_averaging = o.offload_optimizer = o.delay_optimizer_step = o.delay_grad_averaging = true;
       }},
      {"offloaded", [](auto& o) { o.delay_state_averaging = o.offload_optimizer = o.delay_optimizer_step = true; },
       torch::kBFloat16},
      {"local updates", [](auto& o) { o.delay_state_averaging = o.use_local_updates = true; }},
      {"stepped by LibTorch", [](auto& o) { o.delay_state_averaging = true; }, torch::kFloat64}};
  for (const auto& mode : modes) {
    SCOPED_TRACE(mode.name);
    auto options = epochs_of(40);
    mode.set(options);
    TrainerWithExtras first({}, options, 1, mode.type), second(first.swarm.visible_addresses(), options, 3, mode.type);
    first.step();
    second.step();
    while (first.optimizer.stats().peers < 2 || second.optimizer.stats().peers < 2) std::this_thread::yield();
    const auto train = [&](TrainerWithExtras& trainer, float own, std::atomic<bool>& done,
                           const std::atomic<bool>& other_done) {
      const auto give_up = std::chrono::steady_clock::now() + kPatience;
      while (!(done && other_done) && std::chrono::steady_clock::now() < give_up) {
        trainer.step();
        std::this_thread::sleep_for(std::chrono::milliseconds(5));  // what a batch takes
        const float mean = trainer.mean[0].item<float>();
        done = mean == 2;
        if (!done && mean != own) trainer.hold(own);  // it has missed an epoch, and taken the state of the other one
      }
    };
    std::atomic<bool> first_done = false, second_done = false;
    auto beside = std::async(std::launch::async, [&] { train(second, 3, second_done, first_done); });
    train(first, 1, first_done, second_done);
    beside.get();
    for (const auto* trainer : {&first, &second}) {
      EXPECT_EQ(floats(trainer->mean), (std::vector<float>{2, 2, 2}));
      EXPECT_EQ(trainer->count.item<std::int64_t>(), 20);
      EXPECT_TRUE(torch::isfinite(trainer->weight).all().item<bool>());
    }
  }
}

TEST(ModelExtras, AreHandedToNewcomers) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    TrainerWithExtras first({}, epochs_of(1), 1, type);
    for (int i = 0; i < 2; ++i) first.step();
    first.mean.fill_(7);
    TrainerWithExtras late(first.swarm.visible_addresses(), epochs_of(1), 3, type);
    while (!late.optimizer.load_state_from_peers()) {
    }
    EXPECT_EQ(late.optimizer.local_epoch(), 2u);
    EXPECT_TRUE(torch::equal(late.weight, first.weight));
    EXPECT_EQ(floats(late.mean), floats(first.mean));
    EXPECT_EQ(late.count.item<std::int64_t>(), 10);
  }
}

}  // namespace
}  // namespace cohive
