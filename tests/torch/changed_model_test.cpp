// A model or a swarm that is something else than when the optimizer was made: one sentence at once, and nothing breaks.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>

#include "cohive/torch/optimizer.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

using torch::optim::OptimizerParamGroup;

/// The sentence that a call is refused with; empty when it is not.
template <class Refusal>
std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

std::unique_ptr<torch::optim::Optimizer> make_adam(std::vector<OptimizerParamGroup> groups) {
  return std::make_unique<torch::optim::Adam>(std::move(groups), torch::optim::AdamOptions(0.1));
}

struct ChangedWay {
  const char* name;
  torch::ScalarType type = torch::kFloat32;
  bool offload = false, delay = false;
};

const ChangedWay kChangedWays[] = {{"in place"},
                                   {.name = "delayed", .delay = true},
                                   {.name = "offloaded", .type = torch::kBFloat16, .offload = true},
                                   {.name = "by LibTorch", .type = torch::kFloat64}};

struct Trained {
  explicit Trained(const ChangedWay& way, const std::vector<std::string>& peers = {})
      : swarm(joining(peers)), type(way.type) {
    model->to(type);
    auto options = epochs_of_three_batches();
    options.offload_optimizer = way.offload;
    options.delay_optimizer_step = options.delay_state_averaging = way.delay;
    optimizer.emplace(swarm, std::vector{OptimizerParamGroup(model->parameters())}, &make_adam, options, nullptr,
                      ModelExtras{{extra}, {}});
  }
  StepReport step() {
    model->zero_grad();
    model->forward(torch::ones({kBatch, 4}, model->weight.options().requires_grad(false))).sum().backward();
    return optimizer->step(kBatch);
  }
  torch::nn::Linear model{4, 2};
  torch::Tensor extra = torch::zeros({3});
  Swarm swarm;
  torch::ScalarType type;
  std::optional<Optimizer> optimizer;
};

TEST(ChangedModel, IsRefusedWithASentenceAndGoesOnWhenItIsAsBefore) {
  struct Change {
    const char* sentence;
    std::function<void(Trained&)> make, undo;
  };
  const auto with_data = [](torch::Tensor& tensor, const torch::Tensor& data) { tensor.set_data(data); };
  const Change changes[] = {
      {"parameter 0 was", [](Trained& of) { of.model->to(torch::kFloat16); },
       [](Trained& of) { of.model->to(of.type); }},
      {"parameter 1 was of shape [2]", [&](Trained& of) { with_data(of.model->bias, torch::zeros({3}, of.type)); },
       [&](Trained& of) { with_data(of.model->bias, torch::zeros({2}, of.type)); }},
      {"parameter 0 was contiguous",
       [&](Trained& of) { with_data(of.model->weight, torch::zeros({4, 2}, of.type).t()); },
       [&](Trained& of) { with_data(of.model->weight, torch::zeros({2, 4}, of.type)); }},
      {"extra tensor 0 was of shape [3]", [&](Trained& of) { with_data(of.extra, torch::zeros({5})); },
       [&](Trained& of) { with_data(of.extra, torch::zeros({3})); }},
  };
  for (const auto& way : kChangedWays)
    for (const auto& change : changes) {
      SCOPED_TRACE(std::string(way.name) + ": " + change.sentence);
      Trained trained(way);
      for (int i = 0; i < kBatches + 1; ++i) trained.step();
      change.make(trained);
      const auto file = std::filesystem::temp_directory_path() / "cohive-changed-model.safetensors";
      const std::pair<const char*, std::function<void()>> calls[] = {
          {"step", [&] { trained.optimizer->step(kBatch); }},
          {"load_state_from_peers", [&] { trained.optimizer->load_state_from_peers(); }},
          {"average_parameters", [&] { trained.optimizer->average_parameters(); }},
          {"save_checkpoint", [&] { (void)trained.optimizer->save_checkpoint(file); }},
          {"finish", [&] { trained.optimizer->finish(); }}};
      for (const auto& [name, call] : calls) {
        const auto sentence = refusal_of<std::logic_error>(call);
        EXPECT_NE(sentence.find(change.sentence), std::string::npos) << name << ": " << sentence;
        EXPECT_NE(sentence.find("change the model first, and make its cohive::Optimizer then"), std::string::npos);
      }
      EXPECT_FALSE(std::filesystem::exists(file));
      change.undo(trained);
      const auto epoch = trained.optimizer->local_epoch();
      for (int i = 0; i < 2 * kBatches; ++i) trained.step();
      EXPECT_GT(trained.optimizer->local_epoch(), epoch);
    }
}

/// The trainer is told in its next call; newcomers ask whenever they like.
TEST(ChangedModel, DoesNotBreakADonor) {
  for (const auto& way : kChangedWays) {
    SCOPED_TRACE(way.name);
    Trained donor(way);
    for (int i = 0; i < kBatches + 1; ++i) donor.step();
    donor.model->to(torch::kFloat16);
    Trained newcomer(way, donor.swarm.visible_addresses());
    newcomer.optimizer->load_state_from_peers();
    EXPECT_THROW(donor.step(), std::logic_error);
  }
}

/// model->load_state_dict and its like may give parameters other memory.
TEST(ChangedModel, WithOtherMemoryOfTheSameKindIsTrainedOn) {
  for (const auto& way : kChangedWays) {
    SCOPED_TRACE(way.name);
    Trained trained(way);
    for (int i = 0; i < kBatches; ++i) trained.step();
    trained.model->weight.set_data(torch::full({2, 4}, 9.0, way.type));
    for (int i = 0; i < kBatches; ++i) trained.step();
    trained.optimizer->finish();
    if (way.offload || way.delay) continue;  // the optimizer has copies, or a step on its way, which replace them
    EXPECT_NEAR(trained.model->weight[0][0].item<double>(), 8.9, 0.2) << "a step from the new values";
  }
}

TEST(ChangedModel, OptimizersOfOneRunInOneSwarmAreRefused) {
  Trained first({"in place"});
  auto options = epochs_of_three_batches();
  auto weight = torch::zeros({2}).requires_grad_();
  for (int i = 0; i < 2; ++i) {
    const auto sentence = refusal_of<std::invalid_argument>(
        [&] { Optimizer second(first.swarm, std::vector{OptimizerParamGroup({weight})}, &make_adam, options); });
    EXPECT_NE(sentence.find("run \"test\" has an optimizer in this Swarm already"), std::string::npos) << sentence;
  }
  for (int i = 0; i < kBatches; ++i) first.step();
  EXPECT_EQ(first.optimizer->local_epoch(), 1u) << "the first one goes on";
  Trained newcomer({"in place"}, first.swarm.visible_addresses());
  while (!newcomer.optimizer->load_state_from_peers()) {
  }
  options.run_id = "other";
  Optimizer second(first.swarm, std::vector{OptimizerParamGroup({weight})}, &make_adam, options);
  weight.sum().backward();
  EXPECT_FALSE(second.step(kBatch).epoch_changed);
}

}  // namespace
}  // namespace cohive
