// Four trainers beside one process that computes with all their batches: step by step the same parameters, to the
// rounding of float32. And trainers that are stopped as a whole beside some that are not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "bench/cheap_keys.hpp"
#include "checkpoint/temporary_folder.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/optim/step.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/power_sgd_averager.hpp"
#include "cohive/train/run.hpp"
#include "support/swarm.hpp"

namespace cohive::train {
namespace {

using Values = std::vector<float>;
using Weights = std::vector<Values>;
using checkpoint::TemporaryFolder;

constexpr std::size_t kTrainers = 4, kInputs = 24, kHidden = 16;
constexpr std::int64_t kSamples = 8;  // of a batch
constexpr std::int64_t kTargetBatch = kTrainers * kSamples;

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

std::vector<std::span<float>> live(PlainReplica& replica) {
  return {replica.parameter(0), replica.parameter(1)};
}
std::vector<std::span<const float>> views(const Weights& weights) {
  return {weights[0], weights[1]};
}

/// The learning rate falls with the epochs, in all of them.
void schedule(PlainReplica& replica, const optim::AdamOptions& adam) {
  replica.schedule([adam](std::uint64_t epoch) {
    auto options = adam;
    options.lr *= std::pow(0.98, static_cast<double>(epoch));
    return optim::Options(options);
  });
}

struct Scenario {
  struct Trainer {
    std::unique_ptr<Dht> dht;
    std::unique_ptr<PlainReplica> replica;
    std::unique_ptr<Run> run;
    std::vector<Weights> history;  ///< parameters after each epoch that it trained
    std::vector<std::size_t> groups;
  };
  /// A whole swarm of its own.
  struct Swarm {
    sim::Swarm net;
    std::vector<std::unique_ptr<Trainer>> trainers;
    bench::CheapKeys keys;

    ~Swarm() {
      for (auto& trainer : trainers) {
        trainer->run.reset();
        trainer->replica.reset();
        trainer->dht.reset();
      }
    }
    Trainer& operator[](std::size_t number) { return *trainers[number]; }
  };

  static RunOptions usual_options() {
    RunOptions options;
    options.run_id = "four";
    options.target_batch_size = kTargetBatch;
    options.matchmaking_time = 2s;
    options.averaging_timeout = 30s;
    options.delay_state_averaging = false;
    options.checkpoints.every = 0s;
    return options;
  }

  std::unique_ptr<Swarm> start(const std::function<void(RunOptions&, std::size_t)>& tune = nullptr) const {
    auto swarm = std::make_unique<Swarm>();
    for (std::size_t i = 0; i < kTrainers; ++i) {
      auto trainer = std::make_unique<Trainer>();
      trainer->dht = std::make_unique<Dht>(swarm->net.add_host());
      std::vector<Multiaddr> initial;
      if (i > 0) initial = {swarm->net.host(0).visible_addresses().front()};
      EXPECT_TRUE(swarm->net.run(trainer->dht->start(initial)));
      trainer->replica = std::make_unique<PlainReplica>(swarm->net.runtime(), kShapes, adam);
      schedule(*trainer->replica, adam);
      const auto first = Network::draw(1);
      for (std::size_t p = 0; p < first.size(); ++p) std::ranges::copy(first[p], trainer->replica->parameter(p).begin());
      RunOptions how = usual_options();
      if (tune) tune(how, i);
      trainer->run = std::make_unique<Run>(
          *trainer->dht, std::make_shared<dht::RsaSignatureValidator>(swarm->keys.der(i + 1)), *trainer->replica, how);
      const auto opened = swarm->net.run(trainer->run->open_checkpoints());
      EXPECT_TRUE(opened) << opened.error();
      trainer->run->start();
      swarm->trainers.push_back(std::move(trainer));
    }
    return swarm;
  }

  /// One batch in each epoch, of which the end is awaited.
  static Task<void> train(Runtime& runtime, Trainer& me, std::size_t number, std::uint64_t until) {
    while (me.run->epoch() < until) {
      const std::uint64_t epoch = me.run->epoch();
      co_await runtime.sleep_for(1s);  // what a batch takes: the end of an epoch is foreseen by it
      const auto gradient = Network::gradient(live(*me.replica), epoch, number);
      me.replica->add_gradients(views(gradient), double{kSamples});
      auto next = me.run->count(kSamples);
      for (StepReport report; !report.epoch_changed; next = me.run->count(0)) {
        if (next == Run::Next::synchronise) report = co_await me.run->synchronise();
        EXPECT_FALSE(report.loaded_state) << "the batch of trainer " << number << " is lost";
        if (report.epoch_changed) me.groups.push_back(report.grad_group);
        if (report.epoch_changed || report.loaded_state) break;
        co_await runtime.sleep_for(50ms);
      }
      me.history.push_back({Values(me.replica->parameter(0).begin(), me.replica->parameter(0).end()),
                            Values(me.replica->parameter(1).begin(), me.replica->parameter(1).end())});
    }
  }
  static void train(Swarm& swarm, std::uint64_t until) {
    std::vector<Task<void>> tasks;
    for (std::size_t i = 0; i < kTrainers; ++i)
      tasks.push_back(train(swarm.net.runtime(), swarm[i], i, until));
    swarm.net.run(when_all(swarm.net.runtime(), std::move(tasks)));
  }

  /// What one process does, with one optimizer step for the batches of all.
  std::vector<Weights> one_process(std::uint64_t epochs) const {
    Weights weights = Network::draw(1);
    std::vector<Weights> statistics(2, Weights{Values(weights[0].size()), Values(weights[1].size())});
    std::vector<Weights> history;
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      Weights mean{Values(weights[0].size()), Values(weights[1].size())};
      for (std::size_t trainer = 0; trainer < kTrainers; ++trainer) {
        const auto gradient = Network::gradient(weights, epoch, trainer);
        for (std::size_t p = 0; p < mean.size(); ++p)
          for (std::size_t i = 0; i < mean[p].size(); ++i) mean[p][i] += gradient[p][i] / float{kTrainers};
      }
      auto rate = adam;
      rate.lr *= std::pow(0.98, static_cast<double>(epoch));
      for (std::size_t p = 0; p < mean.size(); ++p) {
        const std::span<float> values(weights[p]);
        const optim::TensorMemory memory{std::span<const float>(values), values, {}, std::span(mean[p]),
                                         {std::span(statistics[0][p]), std::span(statistics[1][p])}};
        optim::TensorStep step(rate, memory, {static_cast<std::int64_t>(epoch) + 1});
        step.run(0, step.size());
      }
      history.push_back(weights);
    }
    return history;
  }

  static double distance(const Weights& a, const Weights& b) {
    double largest = 0;
    for (std::size_t p = 0; p < a.size(); ++p)
      for (std::size_t i = 0; i < a[p].size(); ++i)
        largest = std::max(largest, std::abs(double{a[p][i]} - double{b[p][i]}));
    return largest;
  }

  optim::AdamOptions adam = [] {
    optim::AdamOptions options;
    options.lr = 0.02;
    options.weight_decay = 0.01;
    return options;
  }();
};

TEST(FourTrainers, TakeTheStepsOfOneProcess) {
  const Scenario scenario;
  constexpr std::uint64_t kEpochs = 50;
  const auto expected = scenario.one_process(kEpochs);
  const auto swarm = scenario.start();
  scenario.train(*swarm, kEpochs);
  for (std::size_t i = 0; i < kTrainers; ++i) {
    const auto& trainer = (*swarm)[i];
    EXPECT_EQ(trainer.groups, std::vector<std::size_t>(kEpochs, kTrainers));
    ASSERT_EQ(trainer.history.size(), kEpochs);
    for (std::uint64_t epoch = 0; epoch < kEpochs; ++epoch)
      ASSERT_LT(scenario.distance(trainer.history[epoch], expected[epoch]), 1e-5) << "trainer " << i << ", epoch " << epoch + 1;
  }
  EXPECT_GT(scenario.distance(expected.front(), expected.back()), 0.1) << "they have moved";
}

struct Compressed {
  const char* name;
  std::function<void(RunOptions&)> set;
  const char* owed;    ///< how names of what is not delivered yet end in checkpoints
  bool repeats = true; ///< steps do not depend on which member averages which part
};
std::map<std::string, Bytes> tensors_in(const std::filesystem::path& file) {
  std::map<std::string, Bytes> tensors;
  for (const auto& [name, tensor] : checkpoint::read_file(file).value().tensors)
    tensors.emplace(name, Bytes(tensor.data.view().begin(), tensor.data.view().end()));
  return tensors;
}
class FourTrainersThatCompress : public ::testing::TestWithParam<Compressed> {};

/// All are stopped at once and begin anew from their checkpoints; nothing else is left of the swarm. What compression has
/// not delivered yet would be missing in the steps that follow.
TEST_P(FourTrainersThatCompress, GoOnFromTheirCheckpointsAsIfNothingHadHappened) {
  constexpr std::uint64_t kPause = 4, kEpochs = 8;
  const Scenario scenario;
  const TemporaryFolder files;
  const auto tune = [&](RunOptions& options, std::size_t number) {
    GetParam().set(options);
    options.checkpoints.directory = files / std::to_string(number);
    options.checkpoints.resume = true;
  };
  auto swarm = scenario.start([](RunOptions& options, std::size_t) { GetParam().set(options); });
  if (GetParam().repeats) scenario.train(*swarm, kEpochs);
  const Weights undisturbed = GetParam().repeats ? (*swarm)[0].history.back() : Weights();

  swarm = scenario.start(tune);
  scenario.train(*swarm, kPause);
  std::vector<std::map<std::string, Bytes>> before;
  for (auto& trainer : swarm->trainers) {
    const auto written = swarm->net.run(trainer->run->checkpoint_now());
    ASSERT_TRUE(written) << written.error();
    before.push_back(tensors_in(*written));
    EXPECT_TRUE(std::ranges::any_of(before.back(), [](const auto& one) { return one.first.ends_with(GetParam().owed); }));
  }
  swarm = nullptr;
  swarm = scenario.start(tune);
  for (std::size_t i = 0; i < kTrainers; ++i) {
    EXPECT_EQ((*swarm)[i].run->epoch(), kPause);
    ASSERT_TRUE(swarm->net.run((*swarm)[i].run->save_checkpoint(files / "again")));
    EXPECT_EQ(tensors_in(files / "again"), before[i]);
  }
  if (!GetParam().repeats) return;
  scenario.train(*swarm, kEpochs);
  for (auto& trainer : swarm->trainers) EXPECT_LT(scenario.distance(trainer->history.back(), undisturbed), 1e-5);
}

INSTANTIATE_TEST_SUITE_P(
    Schemes, FourTrainersThatCompress,
    ::testing::Values(Compressed{"PowerSgd",
                                 [](RunOptions& options) {
                                   options.grad_averager_factory =
                                       power_sgd_averager({.averager_rank = 2, .min_compression_ratio = 0.2});
                                 },
                                 ".residual"},
                      Compressed{"TopK",
                                 [](RunOptions& options) {
                                   options.agreed_grad_compression = codec::CodecSpec{codec::Codec::top_k, 0.1};
                                 },
                                 ".owed", false}),
    [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace cohive::train
