// Four trainers beside one process that computes with all their batches: step by step the same parameters, to the
// rounding of float32. And trainers that are stopped as a whole beside some that are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <random>

#include "checkpoint/temporary_folder.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/optim/step.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/power_sgd_averager.hpp"
#include "train/four_trainers.hpp"

namespace cohive::train {
namespace {

using Values = std::vector<float>;
using Weights = std::vector<Values>;
using checkpoint::TemporaryFolder;

constexpr std::size_t kInputs = 24, kHidden = 16;

const std::vector<codec::Shape> kShapes{{kInputs, kHidden}, {kHidden}};

/// A network of one hidden layer, y = b tanh(a x), that learns another one.
struct Network {
  static Weights draw(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    Weights weights{Values(kInputs * kHidden), Values(kHidden)};
    for (float& value : weights[0]) value = normal(random) / 4;
    for (float& value : weights[1]) value = normal(random);
    return weights;
  }
  static double answer(const auto& weights, const Values& x, std::vector<double>& hidden) {
    double y = 0;
    for (std::size_t h = 0; h < kHidden; ++h) {
      double sum = 0;
      for (std::size_t i = 0; i < kInputs; ++i) sum += double{weights[0][i * kHidden + h]} * double{x[i]};
      hidden[h] = std::tanh(sum);
      y += hidden[h] * double{weights[1][h]};
    }
    return y;
  }
  /// The gradient of the mean square error over the batch that trainer number `trainer` draws in an epoch.
  static Weights gradient(const auto& weights, std::uint64_t epoch, std::size_t trainer) {
    static const Weights truth = draw(99);
    std::mt19937_64 random(1000 * epoch + trainer);
    std::normal_distribution<float> normal;
    Weights out{Values(kInputs * kHidden), Values(kHidden)};
    std::vector<double> hidden(kHidden);
    for (std::int64_t sample = 0; sample < kSamples; ++sample) {
      Values x(kInputs);
      for (float& value : x) value = normal(random);
      const double wanted = answer(truth, x, hidden);
      const double error = 2 * (answer(weights, x, hidden) - wanted) / double{kSamples};
      for (std::size_t h = 0; h < kHidden; ++h) {
        out[1][h] += static_cast<float>(error * hidden[h]);
        const double back = error * double{weights[1][h]} * (1 - hidden[h] * hidden[h]);
        for (std::size_t i = 0; i < kInputs; ++i) out[0][i * kHidden + h] += static_cast<float>(back * double{x[i]});
      }
    }
    return out;
  }
};

optim::AdamOptions adam_of(std::uint64_t epoch) {
  optim::AdamOptions options;
  options.lr = 0.02 * std::pow(0.98, static_cast<double>(epoch));
  options.weight_decay = 0.01;
  return options;
}

class PlainModel final : public TrainedModel {
 public:
  explicit PlainModel(Runtime& runtime) : replica_(runtime, kShapes, adam_of(0)) {
    replica_.schedule([](std::uint64_t epoch) { return optim::Options(adam_of(epoch)); });
    const auto first = Network::draw(1);
    for (std::size_t p = 0; p < first.size(); ++p) std::ranges::copy(first[p], replica_.parameter(p).begin());
  }
  Replica& replica() override { return replica_; }
  void compute(std::uint64_t epoch, std::size_t trainer) override {
    const std::vector<std::span<float>> live{replica_.parameter(0), replica_.parameter(1)};
    const auto gradient = Network::gradient(live, epoch, trainer);
    replica_.add_gradients({gradient[0], gradient[1]}, double{kSamples});
  }
  Values parameters() override {
    Values all(replica_.parameter(0).begin(), replica_.parameter(0).end());
    all.insert(all.end(), replica_.parameter(1).begin(), replica_.parameter(1).end());
    return all;
  }

 private:
  PlainReplica replica_;
};

std::unique_ptr<TrainedModel> plain_model(Runtime& runtime, const RunOptions&) {
  return std::make_unique<PlainModel>(runtime);
}

/// Whose optimizer steps arrays that somebody else owns.
enum class Owner { cohive, caller };

/// The same network in arrays of the test's own.
class ArrayModel final : public TrainedModel {
 public:
  ArrayModel(Runtime& runtime, Owner owner)
      : weights_(Network::draw(1)),
        statistics_{{Values(kInputs * kHidden), Values(kHidden)}, {Values(kInputs * kHidden), Values(kHidden)}} {
    const auto parameters = arrays(weights_);
    if (owner == Owner::cohive) {
      replica_ = std::make_unique<BufferReplica>(runtime, parameters, adam_of(0));
      replica_->schedule([](std::uint64_t epoch) { return optim::Options(adam_of(epoch)); });
      return;
    }
    CallersOptimizer optimizer;
    optimizer.step = [this](const std::vector<std::span<float>>& gradients, std::uint64_t epoch) {
      for (std::size_t p = 0; p < weights_.size(); ++p) step(p, gradients[p], epoch);
    };
    optimizer.where = StepThread::worker;
    for (auto& of : statistics_)
      for (const auto& array : arrays(of)) optimizer.statistics.push_back(array);
    replica_ = std::make_unique<BufferReplica>(runtime, parameters, optimizer);
  }
  Replica& replica() override { return *replica_; }
  void compute(std::uint64_t epoch, std::size_t trainer) override {
    auto gradient = std::make_shared<Weights>(Network::gradient(weights_, epoch, trainer));
    auto given = arrays(*gradient);
    for (auto& one : given) one.owner = gradient;
    replica_->give_gradients(given, double{kSamples});
  }
  Values parameters() override {
    Values all = weights_[0];
    all.insert(all.end(), weights_[1].begin(), weights_[1].end());
    return all;
  }

 private:
  static std::vector<BufferTensor> arrays(Weights& of) {
    return {{.name = "a", .data = of[0].data(), .shape = {kInputs, kHidden}, .strides = {kHidden, 1}},
            {.name = "b", .data = of[1].data(), .shape = {kHidden}}};
  }
  void step(std::size_t p, std::span<float> gradient, std::uint64_t epoch) {
    const std::span<float> values(weights_[p]);
    const optim::TensorMemory memory{std::span<const float>(values),
                                     values,
                                     {},
                                     gradient,
                                     {std::span(statistics_[0][p]), std::span(statistics_[1][p])}};
    optim::TensorStep step(adam_of(epoch - 1), memory, {static_cast<std::int64_t>(epoch)});
    step.run(0, step.size());
  }

  Weights weights_;
  std::vector<Weights> statistics_;
  std::unique_ptr<BufferReplica> replica_;
};

FourTrainers::MakeModel array_model(Owner owner) {
  return [owner](Runtime& runtime, const RunOptions&) { return std::make_unique<ArrayModel>(runtime, owner); };
}

/// What one process does, with one optimizer step for the batches of all.
/// \param late  epochs that a step comes late: gradients are those of parameters without it
std::vector<Values> one_process(std::uint64_t epochs, std::size_t late = 0) {
  Weights weights = Network::draw(1);
  std::deque<Weights> seen(late, weights);  // by the epochs that come
  const Weights zeros{Values(weights[0].size()), Values(weights[1].size())};
  std::vector<Weights> statistics(2, zeros);
  std::vector<Values> history;
  for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
    Weights mean = zeros;
    seen.push_back(weights);
    for (std::size_t trainer = 0; trainer < kTrainers; ++trainer) {
      const auto gradient = Network::gradient(seen.front(), epoch, trainer);
      for (std::size_t p = 0; p < mean.size(); ++p)
        for (std::size_t i = 0; i < mean[p].size(); ++i) mean[p][i] += gradient[p][i] / float{kTrainers};
    }
    history.emplace_back();
    for (std::size_t p = 0; p < mean.size(); ++p) {
      const std::span<float> values(weights[p]);
      const optim::TensorMemory memory{std::span<const float>(values),
                                       values,
                                       {},
                                       std::span(mean[p]),
                                       {std::span(statistics[0][p]), std::span(statistics[1][p])}};
      optim::TensorStep step(adam_of(epoch), memory, {static_cast<std::int64_t>(epoch) + 1});
      step.run(0, step.size());
      history.back().insert(history.back().end(), values.begin(), values.end());
    }
    seen.pop_front();
  }
  return history;
}

TEST(OneProcess, TakesTheStepsOfFourTrainers) {
  constexpr std::uint64_t kEpochs = 50;
  FourTrainers trainers(plain_model);
  trainers.train(kEpochs);
  expect_steps_of(one_process(kEpochs), trainers);
}

TEST(OneProcess, TakesTheStepsOfFourTrainersWithArraysOfTheirOwn) {
  constexpr std::uint64_t kEpochs = 10;
  for (const Owner owner : {Owner::cohive, Owner::caller}) {
    SCOPED_TRACE(owner == Owner::cohive ? "stepped by cohive" : "stepped by the caller");
    FourTrainers trainers(array_model(owner));
    trainers.train(kEpochs);
    expect_steps_of(one_process(kEpochs), trainers);
  }
}

class TrainersThatDelayAll : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Models, TrainersThatDelayAll, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Arrays" : "Plain"; });

/// \param tune  beside what delays all
void expect_steps_an_epoch_late(bool arrays, std::uint64_t epochs, void (*tune)(RunOptions&)) {
  FourTrainers trainers(arrays ? array_model(Owner::cohive) : FourTrainers::MakeModel(plain_model),
                        [tune](RunOptions& options, std::size_t) {
                          options.delay_state_averaging = options.offload_optimizer = true;
                          options.delay_optimizer_step = options.delay_grad_averaging = true;
                          tune(options);
                        });
  trainers.train(epochs);
  const auto expected = one_process(epochs, 1);
  for (std::size_t i = 0; i < kTrainers; ++i) {
    ASSERT_EQ(trainers[i].history.size(), epochs);
    for (std::size_t epoch = 1; epoch < epochs; ++epoch)
      ASSERT_LT(distance(trainers[i].history[epoch], expected[epoch - 1]), 1e-5)
          << "trainer " << i << ", epoch " << epoch;
  }
}

TEST_P(TrainersThatDelayAll, TakeTheStepsOfOneProcessWhoseStepsAreAnEpochLate) {
  expect_steps_an_epoch_late(GetParam(), 50, [](RunOptions&) {});
}

/// Tensors as small as these travel without any loss, as differences, too.
TEST_P(TrainersThatDelayAll, TakeTheSameStepsWhereParametersTravelAsDifferences) {
  expect_steps_an_epoch_late(GetParam(), 20, [](RunOptions& options) { options.full_state_every = 4; });
}

TEST(OneProcess, TakesTheStepsOfTrainersThatAreStoppedWhileTheirParametersTravelAsDifferences) {
  constexpr std::uint64_t kPause = 6, kEpochs = 12;
  const TemporaryFolder files;
  const auto tune = [&](RunOptions& options, std::size_t number) {
    options.full_state_every = 4;
    options.checkpoints.directory = files / std::to_string(number);
    options.checkpoints.resume = true;
  };
  {
    FourTrainers swarm(plain_model, tune);
    swarm.train(kPause);
    for (std::size_t i = 0; i < kTrainers; ++i) ASSERT_TRUE(swarm.run(swarm[i].run->checkpoint_now()));
  }
  FourTrainers swarm(plain_model, tune);
  swarm.train(kEpochs);
  const auto expected = one_process(kEpochs);
  for (std::size_t i = 0; i < kTrainers; ++i) {
    ASSERT_EQ(swarm[i].history.size(), kEpochs - kPause);
    EXPECT_LT(distance(swarm[i].history.back(), expected.back()), 1e-5);
  }
}

struct Compressed {
  const char* name;
  std::function<void(RunOptions&)> set;
  const char* owed;     ///< how names of what is not delivered yet end in checkpoints
  bool repeats = true;  ///< steps do not depend on which member averages which part
};
std::map<std::string, Bytes> tensors_in(const std::filesystem::path& file) {
  std::map<std::string, Bytes> tensors;
  for (const auto& [name, tensor] : checkpoint::read_file(file).value().tensors)
    tensors.emplace(name, Bytes(tensor.data.view().begin(), tensor.data.view().end()));
  return tensors;
}
class FourTrainersThatCompress : public ::testing::TestWithParam<Compressed> {};

/// All are stopped at once and begin anew from their checkpoints; nothing else is left of the swarm. What compression
/// has not delivered yet would be missing in the steps that follow.
TEST_P(FourTrainersThatCompress, GoOnFromTheirCheckpointsAsIfNothingHadHappened) {
  constexpr std::uint64_t kPause = 4, kEpochs = 8;
  const TemporaryFolder files;
  const auto tune = [&](RunOptions& options, std::size_t number) {
    GetParam().set(options);
    options.checkpoints.directory = files / std::to_string(number);
    options.checkpoints.resume = true;
  };
  std::vector<std::map<std::string, Bytes>> before;
  {
    FourTrainers swarm(plain_model, tune);
    swarm.train(kPause);
    for (std::size_t i = 0; i < kTrainers; ++i) {
      const auto written = swarm.run(swarm[i].run->checkpoint_now());
      ASSERT_TRUE(written) << written.error();
      before.push_back(tensors_in(*written));
      EXPECT_TRUE(
          std::ranges::any_of(before.back(), [](const auto& one) { return one.first.ends_with(GetParam().owed); }));
    }
  }
  FourTrainers swarm(plain_model, tune);
  for (std::size_t i = 0; i < kTrainers; ++i) {
    EXPECT_EQ(swarm[i].run->epoch(), kPause);
    ASSERT_TRUE(swarm.run(swarm[i].run->save_checkpoint(files / "again")));
    EXPECT_EQ(tensors_in(files / "again"), before[i]);
  }
  if (!GetParam().repeats) return;
  swarm.train(kEpochs);
  FourTrainers undisturbed(plain_model, [](RunOptions& options, std::size_t) { GetParam().set(options); });
  undisturbed.train(kEpochs);
  for (std::size_t i = 0; i < kTrainers; ++i)
    EXPECT_LT(distance(swarm[i].history.back(), undisturbed[i].history.back()), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Schemes, FourTrainersThatCompress,
                         ::testing::Values(Compressed{"PowerSgd",
                                                      [](RunOptions& options) {
                                                        options.grad_averager_factory = power_sgd_averager(
                                                            {.averager_rank = 2, .min_compression_ratio = 0.2});
                                                      },
                                                      ".residual"},
                                           Compressed{"TopK",
                                                      [](RunOptions& options) {
                                                        options.agreed_grad_compression =
                                                            codec::CodecSpec{codec::Codec::top_k, 0.1};
                                                      },
                                                      ".owed", false}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cohive::train
