// Four trainers of a model of LibTorch beside one process with torch::optim that computes with all their batches: step
// by step the same parameters, to the rounding of float32.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "torch/torch_replica.hpp"
#include "train/four_trainers.hpp"

namespace cohive {
namespace {

using train::kSamples, train::kTrainers;

constexpr double kRate = 0.01, kDecay = 0.98;  // of the learning rate, in each epoch

struct Network {
  Network() {
    torch::manual_seed(1);
    model->push_back(torch::nn::Linear(12, 16));
    model->push_back(torch::nn::Tanh());
    model->push_back(torch::nn::Linear(16, 1));
    adam = std::make_unique<torch::optim::AdamW>(model->parameters(), kRate);
  }
  /// Some trainers train the last layer alone for a while, then all do.
  static bool frozen(std::uint64_t epoch, std::size_t trainer) {
    return epoch / 5 % 3 == 1 ? trainer < 2 : epoch / 5 % 3 == 2;
  }
  void backward(std::uint64_t epoch, std::size_t trainer) {
    model[0]->as<torch::nn::Linear>()->weight.requires_grad_(!(freezes && frozen(epoch, trainer)));
    auto generator = at::detail::createCPUGenerator(1000 * epoch + trainer);
    const auto x = torch::randn({kSamples, 12}, generator);
    torch::mse_loss(model->forward(x), torch::sin(x.sum(1, true))).backward();
  }
  std::vector<float> parameters() const {
    std::vector<float> all;
    for (const auto& parameter : model->parameters()) {
      const auto flat = parameter.detach().contiguous();
      all.insert(all.end(), flat.data_ptr<float>(), flat.data_ptr<float>() + flat.numel());
    }
    return all;
  }
  bool freezes = false;
  torch::nn::Sequential model;
  std::unique_ptr<torch::optim::AdamW> adam;
};

std::unique_ptr<torch::optim::LRScheduler> decaying(torch::optim::Optimizer& optimizer) {
  return std::make_unique<torch::optim::StepLR>(optimizer, 1, kDecay);
}

class TorchModel final : public train::TrainedModel {
 public:
  TorchModel(Runtime& runtime, const train::RunOptions& options, bool freezes)
      : replica_(libtorch::make_replica(runtime, {network_.model->parameters(), *network_.adam, decaying}, options)) {
    network_.freezes = freezes;
  }
  train::Replica& replica() override { return replica_->replica(); }
  void compute(std::uint64_t epoch, std::size_t trainer) override {
    network_.backward(epoch, trainer);
    replica_->intake().take_batch(double{kSamples}, 1);
  }
  std::vector<float> parameters() override { return network_.parameters(); }

 private:
  Network network_;
  std::unique_ptr<libtorch::TorchReplica> replica_;
};

train::FourTrainers::MakeModel torch_model(bool freezes) {
  return [freezes](Runtime& runtime, const train::RunOptions& options) {
    return std::make_unique<TorchModel>(runtime, options, freezes);
  };
}

std::vector<std::vector<float>> steps_of_torch(std::uint64_t epochs, bool freezes) {
  Network one;
  one.freezes = freezes;
  std::vector<std::vector<float>> history;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    one.adam->zero_grad();
    for (std::size_t trainer = 0; trainer < kTrainers; ++trainer) one.backward(epoch, trainer);
    for (auto& parameter : one.model->parameters())
      if (parameter.grad().defined()) parameter.mutable_grad() /= static_cast<double>(kTrainers);
    // LibTorch's schedulers let the rate be in their first step; PyTorch's do not, and neither do cohive's epochs.
    one.adam->param_groups()[0].options().set_lr(kRate * std::pow(kDecay, static_cast<double>(epoch)));
    one.adam->step();
    history.push_back(one.parameters());
  }
  return history;
}

TEST(OneProcess, OfLibTorchTakesTheStepsOfFourTrainers) {
  constexpr std::uint64_t kEpochs = 50;
  for (const bool freezes : {false, true}) {
    SCOPED_TRACE(freezes ? "some freeze a layer, then all" : "all train all");
    train::FourTrainers trainers(torch_model(freezes));
    trainers.train(kEpochs);
    train::expect_steps_of(steps_of_torch(kEpochs, freezes), trainers);
  }
}

/// What an outer step has changed is in the anchor of the state at once, and in the trainer's parameters later.
TEST(TorchReplicas, AreCopiedWithTheChangesThatAreNotPublishedYet) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {  // stepped by cohive, and by LibTorch
    SCOPED_TRACE(c10::toString(type));
    sim::Swarm swarm{{.seed = 3}};
    const auto weight = torch::arange(4, type).requires_grad_();
    torch::optim::Adam adam({weight}, torch::optim::AdamOptions(0.01));
    OptimizerOptions options;
    options.run_id = "copied";
    options.use_local_updates = true;
    const auto model = libtorch::make_replica(swarm.runtime(), {{weight}, adam}, options);
    train::Replica& replica = model->replica();
    std::vector<float> change{1, -2, 0.5f, 4};
    replica.change_parameters({std::span(change)});
    const auto parameters_of = [&](auto copy) { return to_bytes(swarm.run(std::move(copy)).value().tensors[0].data); };
    const auto copied = parameters_of(replica.snapshot(1));
    EXPECT_EQ(weight[1].item<double>(), 1) << "the trainer goes on with its own";
    replica.publish();
    EXPECT_EQ(weight[1].item<double>(), -1);
    EXPECT_EQ(parameters_of(replica.snapshot(1)), copied);
    swarm.run(replica.close());
  }
}

/// Rounds that average statistics write to them while newcomers read.
TEST(TorchReplicas, AreReadWhereTheyAreUnlessStatisticsAreAveraged) {
  for (const bool averaged : {false, true}) {
    sim::Swarm swarm{{.seed = 3}};
    const auto weight = torch::arange(4, torch::kFloat32).requires_grad_();
    torch::optim::Adam adam({weight}, torch::optim::AdamOptions(0.01));
    OptimizerOptions options;
    options.run_id = "read";
    libtorch::ModelParts parts{{weight}, adam};
    if (averaged) parts.extras.average_opt_statistics = {"exp_avg"};
    const auto model = libtorch::make_replica(swarm.runtime(), std::move(parts), options);
    EXPECT_EQ(swarm.run(model->replica().view(1)).value().reader == nullptr, averaged);
    swarm.run(model->replica().close());
  }
}

}  // namespace
}  // namespace cohive
