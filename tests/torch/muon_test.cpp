#include "cohive/torch/muon.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "torch/known_optimizer.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

namespace to = torch::optim;

torch::Tensor tensor_of(const nlohmann::json& values, at::IntArrayRef shape) {
  return torch::tensor(values.get<std::vector<float>>()).view(shape);
}

/// Values between -1 and 1 that make no matrix of a low rank, whose least singular values would be rounding.
torch::Tensor waves(std::int64_t count, double frequency) {
  return torch::sin(torch::arange(count, torch::kFloat32).pow(2) * frequency);
}

/// A matrix that Muon steps, and an embedding and a bias that AdamW does.
struct MuonModel {
  torch::Tensor matrix = waves(12, 1).view({4, 3}).requires_grad_();
  torch::Tensor embedding = torch::linspace(-2, 1, 10).view({5, 2}).requires_grad_();
  torch::Tensor bias = torch::zeros({3}).requires_grad_();

  std::vector<to::OptimizerParamGroup> groups() const {
    return {{{matrix}, std::make_unique<MuonOptions>(0.1)},
            {{embedding, bias}, std::make_unique<to::AdamWOptions>(0.05)}};
  }
  std::vector<torch::Tensor> parameters() const { return {matrix, embedding, bias}; }
  void backward(std::int64_t batch) const {
    const auto input = waves(20, 0.7 * static_cast<double>(batch + 1)).view({5, 4});
    const auto out = (input.mm(matrix) + bias).mul(embedding.sum(1, true));
    (out - 1).pow(2).mean().backward();
  }
};

/// A model with its Muon, alone in a swarm.
struct MuonTrainer {
  explicit MuonTrainer(OptimizerOptions options = epochs_of_three_batches())
      : swarm(alone()),
        optimizer(
            swarm, model.groups(), [](auto groups) { return std::make_unique<Muon>(std::move(groups)); },
            std::move(options)) {}
  void train(std::int64_t first, std::int64_t batches) {
    for (std::int64_t i = first; i < first + batches; ++i) {
      model.backward(i);
      optimizer.step(kBatch);
      optimizer.zero_grad();
    }
  }
  MuonModel model;
  Swarm swarm;
  Optimizer optimizer;
};

TEST(Muon, TakesTheStepsOfPyTorch) {
  std::ifstream file(COHIVE_TEST_DATA "/muon_vectors.json");
  for (const auto& one : nlohmann::json::parse(file)["cases"]) {
    const auto shape = one["shape"].get<std::vector<std::int64_t>>();
    auto parameter = tensor_of(one["start"], shape).clone().requires_grad_();
    Muon muon(
        {parameter},
        MuonOptions(one["lr"]).momentum(one["momentum"]).nesterov(one["nesterov"]).weight_decay(one["weight_decay"]));
    for (const auto& gradient : one["gradients"]) {
      parameter.mutable_grad() = tensor_of(gradient, shape);
      muon.step();
    }
    EXPECT_LT((parameter - tensor_of(one["float32"], shape)).abs().max().item<double>(), 1e-5) << one["shape"];
    const double moved = (parameter - tensor_of(one["start"], shape)).abs().max().item<double>();
    EXPECT_LT((parameter - tensor_of(one["bfloat16"], shape)).abs().max().item<double>(), 0.03 * moved)
        << "PyTorch itself rounds to 8 bits";
  }
}

TEST(Muon, MakesMatricesOrthogonal) {
  torch::manual_seed(3);
  for (const auto& shape : {std::vector<std::int64_t>{20, 7}, {7, 20}, {16, 16}, {1, 9}}) {
    const auto values = torch::linalg_svdvals(orthogonalised(100 * torch::randn(shape) + torch::ones(shape)));
    EXPECT_LT(values.max().item<double>(), 1.5);
    EXPECT_GT(values.max().item<double>(), 0.6);
  }
  EXPECT_TRUE(torch::equal(orthogonalised(torch::zeros({3, 4})), torch::zeros({3, 4})));
}

TEST(Muon, SeesAConvolutionAsAMatrixOfItsOutputChannels) {
  const auto start = torch::linspace(-1, 1, 54), gradient = torch::sin(torch::arange(54, torch::kFloat32));
  const auto convolution = start.clone().view({2, 3, 3, 3}).requires_grad_();
  const auto matrix = start.clone().view({2, 27}).requires_grad_();
  convolution.mutable_grad() = gradient.view({2, 3, 3, 3});
  matrix.mutable_grad() = gradient.view({2, 27});
  Muon({convolution}).step();
  Muon({matrix}).step();
  EXPECT_TRUE(torch::equal(convolution.view({2, 27}), matrix));
}

TEST(Muon, StepsOtherGroupsAsAdamWAndFollowsTheirRate) {
  MuonModel ours, plain;
  Muon muon(ours.groups());
  to::AdamW adam({plain.embedding, plain.bias}, to::AdamWOptions(0.05));
  for (std::int64_t i = 0; i < 5; ++i) {
    if (i == 3) {
      muon.param_groups()[1].options().set_lr(0.01);
      adam.param_groups()[0].options().set_lr(0.01);
    }
    muon.zero_grad();
    ours.backward(i);
    plain.embedding.mutable_grad() = ours.embedding.grad().clone();
    plain.bias.mutable_grad() = ours.bias.grad().clone();
    muon.step();
    adam.step();
    EXPECT_TRUE(torch::equal(ours.embedding, plain.embedding));
    EXPECT_TRUE(torch::equal(ours.bias, plain.bias));
  }
}

TEST(Muon, LeavesParametersWithoutAGradientAlone) {
  MuonModel model;
  const auto before = model.matrix.detach().clone();
  Muon muon(model.groups());
  muon.step();
  EXPECT_TRUE(torch::equal(model.matrix, before));
  EXPECT_EQ(muon.state().count(model.matrix.unsafeGetTensorImpl()), 0u);
}

TEST(Muon, RefusesWhatItCannotStep) {
  const auto vector = torch::zeros({3}).requires_grad_(), matrix = torch::zeros({3, 3}).requires_grad_();
  EXPECT_THROW(Muon({vector}), std::invalid_argument);
  EXPECT_THROW(Muon({matrix}, MuonOptions(0.1).momentum(1)), std::invalid_argument);
  EXPECT_THROW(Muon({matrix}, MuonOptions(0.1).ns_steps(0)), std::invalid_argument);
  EXPECT_THROW(Muon({{{matrix}, std::make_unique<to::SGDOptions>(0.1)}}), std::invalid_argument);
}

TEST(Muon, GoesOnFromAnArchive) {
  MuonModel first, second;
  Muon one(first.groups()), other(second.groups());
  const auto train = [](MuonModel& model, Muon& muon, std::int64_t batch) {
    muon.zero_grad();
    model.backward(batch);
    muon.step();
  };
  for (std::int64_t i = 0; i < 3; ++i) train(first, one, i);
  one.param_groups()[0].options().set_lr(0.03);
  std::stringstream archive;
  torch::save(one, archive);
  torch::load(other, archive);
  {
    torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < 3; ++i) second.parameters()[i].copy_(first.parameters()[i]);
  }
  train(first, one, 3);
  train(second, other, 3);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_TRUE(torch::equal(first.parameters()[i], second.parameters()[i])) << i;

  MuonModel third;
  Muon matrices({third.matrix});
  std::stringstream again;
  torch::save(one, again);
  EXPECT_THROW(torch::load(matrices, again), c10::Error);
}

TEST(Muon, AnArchiveThatDoesNotFitChangesNothing) {
  MuonModel model;
  Muon muon(model.groups());
  model.backward(0);
  muon.step();
  const auto momentum = libtorch::statistics_of(muon, model.matrix).front().second.clone();
  MuonModel of_another;
  auto groups = of_another.groups();
  groups[1].params().pop_back();  // what shows behind the first group
  groups[0].options().set_lr(0.25);
  Muon another(groups);
  std::stringstream archive;
  torch::save(another, archive);
  const double rate = muon.param_groups()[0].options().get_lr();
  EXPECT_THROW(torch::load(muon, archive), c10::Error);
  EXPECT_EQ(muon.param_groups()[0].options().get_lr(), rate);
  const auto kept = libtorch::statistics_of(muon, model.matrix);
  ASSERT_FALSE(kept.empty());
  EXPECT_TRUE(torch::equal(kept.front().second, momentum));
}

TEST(Muon, StepsInASwarmAsByItself) {
  MuonTrainer trainer;
  MuonModel plain;
  Muon muon(plain.groups());
  for (std::int64_t epoch = 0; epoch < 4; ++epoch) {
    trainer.train(epoch * kBatches, kBatches);
    muon.zero_grad();
    for (std::int64_t i = 0; i < kBatches; ++i) plain.backward(epoch * kBatches + i);
    for (const auto& parameter : plain.parameters()) parameter.mutable_grad().div_(kBatches);
    muon.step();
  }
  EXPECT_EQ(trainer.optimizer.local_epoch(), 4u);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_LT((trainer.model.parameters()[i] - plain.parameters()[i]).abs().max().item<double>(), 1e-5) << i;
}

TEST(Muon, KeepsItsAveragesInCheckpoints) {
  const auto path = std::filesystem::path(::testing::TempDir()) / "muon.safetensors";
  MuonTrainer first, second;
  first.train(0, 2 * kBatches);
  ASSERT_TRUE(first.optimizer.save_checkpoint(path));
  ASSERT_TRUE(second.optimizer.load_checkpoint(path));
  first.train(2 * kBatches, kBatches);
  second.train(2 * kBatches, kBatches);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_TRUE(torch::equal(first.model.parameters()[i], second.model.parameters()[i])) << i;
  std::filesystem::remove(path);
}

TEST(Muon, TrainsAsTheDocumentHasIt) {
  const MuonModel model;
  const auto before = model.matrix.detach().clone();
  const std::vector<torch::Tensor> matrices{model.matrix}, others{model.embedding, model.bias};
  Swarm swarm(alone());
  const auto options = epochs_of_three_batches();
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, std::make_unique<cohive::MuonOptions>(0.02));
  groups.emplace_back(others, std::make_unique<torch::optim::AdamWOptions>(1e-3));
  cohive::Optimizer optimizer(swarm, groups, [](auto all) { return std::make_unique<cohive::Muon>(all); }, options);
  for (std::int64_t i = 0; i < kBatches; ++i) {
    model.backward(i);
    optimizer.step(kBatch);
  }
  EXPECT_FALSE(torch::equal(model.matrix, before));
}

TEST(Muon, IsNeverOffloaded) {
  auto options = epochs_of_three_batches();
  options.offload_optimizer = true;
  try {
    MuonTrainer trainer(options);
    FAIL() << "a processor would take minutes for a step";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("Muon steps where the model is"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace cohive
