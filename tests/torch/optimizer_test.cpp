// Trainers of one process that meet over loopback: what they hold afterwards is what the mathematics says.
#include "cohive/torch/optimizer.hpp"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <barrier>
#include <future>
#include <limits>

#include "cohive/torch/strategy.hpp"
#include "cohive/train/progress_tracker.hpp"
#include "torch/model_state.hpp"
#include "torch/training.hpp"
#include "train/detail/membership.hpp"

namespace cohive {
namespace {

/// y = x w, with the mean square error as loss: its gradient is known in closed form.
struct Linear {
  torch::Tensor weight = torch::full({4, 2}, 0.5f).requires_grad_();
  void backward(const torch::Tensor& x, const torch::Tensor& y) { (x.matmul(weight) - y).pow(2).mean().backward(); }
};

torch::Tensor data(std::int64_t seed, std::int64_t columns) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
  return torch::randn({kBatch, columns}, generator);
}

OptimizerOptions epoch_of(std::int64_t samples) {
  OptimizerOptions options;
  options.run_id = "test";
  options.delay_state_averaging = false;
  options.target_batch_size = samples;
  options.matchmaking_time = 1s;
  options.averaging_timeout = 20s;
  return options;
}

/// A trainer with a model of its own.
struct Trainer {
  Trainer(const std::vector<std::string>& peers, std::int64_t target) : Trainer(peers, epoch_of(target)) {}
  Trainer(const std::vector<std::string>& peers, const OptimizerOptions& options)
      : swarm(joining(peers)), sgd({model.weight}, torch::optim::SGDOptions(kRate)), optimizer(swarm, sgd, options) {}
  StepReport step(std::int64_t seed) {
    model.backward(data(seed, 4), data(seed + 1000, 2));
    return optimizer.step(kBatch);
  }
  Linear model;
  Swarm swarm;
  torch::optim::SGD sgd;
  Optimizer optimizer;
};

TEST(Training, AloneItIsTheLocalOptimizerOverTheWholeEpoch) {
  Trainer trainer({}, 3 * kBatch);
  EXPECT_FALSE(trainer.step(1).epoch_changed);
  EXPECT_FALSE(trainer.step(2).epoch_changed);
  EXPECT_TRUE(trainer.step(3).epoch_changed);
  EXPECT_EQ(trainer.optimizer.local_epoch(), 1u);

  Linear expected;
  for (int seed : {1, 2, 3}) expected.backward(data(seed, 4), data(seed + 1000, 2));
  torch::NoGradGuard no_grad;
  expected.weight.sub_(expected.weight.grad() / 3, kRate);
  EXPECT_TRUE(torch::allclose(trainer.model.weight, expected.weight, 1e-6, 1e-7));
}

TEST(Training, TwoTrainersTakeTheStepOfOneThatHasSeenAllTheirData) {
  Trainer first({}, 100 * kBatch);
  Trainer second(first.swarm.visible_addresses(), 100 * kBatch);
  for (Trainer* const trainer : {&first, &second}) trainer->optimizer.load_state_from_peers();  // members from now on
  std::barrier both(2);
  // The same batch again and again: the average over the epoch does not depend on how often each was used, nor on who
  // was faster, only on the samples' weights, which the trainers know.
  const auto run = [&both](Trainer& trainer, std::int64_t seed) {
    for (std::uint64_t batches = 0;; ++batches) {
      if (batches == 1) meet(trainer.optimizer, both);  // before one of them ends the epoch
      const auto report = trainer.step(seed);
      if (report.epoch_changed) return std::pair(batches + 1, report.grad_group);
    }
  };
  auto beside = std::async(std::launch::async, [&] { return run(second, 2); });
  const auto [batches, group] = run(first, 1);
  const auto [other_batches, other_group] = beside.get();
  ASSERT_EQ(group, 2u);
  ASSERT_EQ(other_group, 2u);

  Linear one, two;
  one.backward(data(1, 4), data(1001, 2));
  two.backward(data(2, 4), data(1002, 2));
  const double share = static_cast<double>(batches) / static_cast<double>(batches + other_batches);
  torch::NoGradGuard no_grad;
  const auto expected = 0.5 - kRate * (one.weight.grad() * share + two.weight.grad() * (1 - share));
  EXPECT_TRUE(torch::allclose(first.model.weight, expected, 1e-5, 1e-6));
  EXPECT_TRUE(torch::equal(first.model.weight, second.model.weight));
}

TEST(Training, ANewcomerTakesParametersOptimizerStateAndEpochFromTheSwarm) {
  const auto adam_options = torch::optim::AdamOptions(0.01);
  Linear model, late_model;
  Swarm swarm(joining({}));
  torch::optim::Adam adam({model.weight}, adam_options);
  Optimizer optimizer(swarm, adam, epoch_of(kBatch));
  for (int i = 0; i < 3; ++i) {
    model.backward(data(i, 4), data(i + 1000, 2));
    optimizer.step(kBatch);
  }
  ASSERT_EQ(optimizer.local_epoch(), 3u);

  Swarm late_swarm(joining(swarm.visible_addresses()));
  torch::optim::Adam late_adam({late_model.weight}, adam_options);
  std::uint64_t done = 0, total = 0;  // on the loop's thread, before catch_up returns
  auto late_options = epoch_of(kBatch);
  late_options.on_download = [&](const averaging::DownloadProgress& progress) {
    done = progress.bytes_done;
    total = progress.bytes_total;
  };
  Optimizer late(late_swarm, late_adam, late_options);
  while (!late.load_state_from_peers()) {
  }
  EXPECT_EQ(done, 3u * 4 * 2 * sizeof(float) + sizeof(float)) << "weight, two moments and the number of steps";
  EXPECT_EQ(total, done);
  EXPECT_EQ(late.local_epoch(), 3u);
  EXPECT_TRUE(torch::equal(model.weight, late_model.weight));
  const auto moment = [](torch::optim::Adam& from) {
    return static_cast<torch::optim::AdamParamState&>(*from.state().begin()->second).exp_avg_sq();
  };
  EXPECT_TRUE(torch::equal(moment(adam), moment(late_adam)));
}

TEST(Training, EveryFloatingTypeTrainsAndIsHandedToNewcomers) {
  for (const auto type : {torch::kFloat64, torch::kFloat16, torch::kBFloat16}) {
    const auto make = [type] { return torch::zeros({5}, type).requires_grad_(); };
    auto weight = make(), late_weight = make();
    Swarm swarm(joining({}));
    torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(0.25).momentum(0.5));
    Optimizer optimizer(swarm, sgd, epoch_of(2 * kBatch));
    for (int i = 0; i < 4; ++i) {
      (weight * (i % 2 + 1)).sum().backward();
      optimizer.step(kBatch);
    }
    // Two epochs, each with the mean gradient 1.5, which every type holds exactly.
    EXPECT_TRUE(torch::equal(weight.detach(), torch::full({5}, -0.25 * (1.5 + 2.25), type))) << weight;

    Swarm late_swarm(joining(swarm.visible_addresses()));
    torch::optim::SGD late_sgd({late_weight}, torch::optim::SGDOptions(0.25).momentum(0.5));
    Optimizer late(late_swarm, late_sgd, epoch_of(2 * kBatch));
    while (!late.load_state_from_peers()) {
    }
    EXPECT_TRUE(torch::equal(weight, late_weight));
  }
}

TEST(Training, ParametersThatCannotBeAveragedAreRefused) {
  Swarm swarm(joining({}));
  auto complex = torch::zeros({2}, torch::kComplexFloat).requires_grad_();
  torch::optim::SGD sgd({complex}, torch::optim::SGDOptions(0.1));
  EXPECT_THROW(Optimizer(swarm, sgd), std::invalid_argument);
}

TEST(Training, ParametersAreAveragedAtTheEndOfARun) {
  Trainer first({}, 1000 * kBatch);
  Trainer second(first.swarm.visible_addresses(), 1000 * kBatch);
  {
    torch::NoGradGuard no_grad;
    first.model.weight.fill_(1);
    second.model.weight.fill_(3);
  }
  auto beside = std::async(std::launch::async, [&] { return second.optimizer.average_parameters(); });
  EXPECT_EQ(first.optimizer.average_parameters(), 2u);
  EXPECT_EQ(beside.get(), 2u);
  EXPECT_TRUE(torch::allclose(first.model.weight, torch::full({4, 2}, 2.0f)));
  EXPECT_TRUE(torch::equal(first.model.weight, second.model.weight));
}

/// A peer of the run that averages and shares what a test tells it to.
class Counterpart {
 public:
  /// \param shape  of the trainer's one parameter
  Counterpart(Swarm& swarm, const OptimizerOptions& trainer, codec::Shape shape,
              averaging::PeerMode mode = averaging::PeerMode::node)
      : values(*codec::element_count(shape)), membership_(swarm.membership()), shape_(std::move(shape)) {
    membership_.on_loop([&] {
      train::TrackerOptions tracking;
      tracking.run_id = trainer.run_id;
      tracking.target_batch_size = static_cast<double>(trainer.target_batch_size);
      tracker_ = std::make_unique<train::ProgressTracker>(*membership_.dht, membership_.key, tracking);
      tracker_->start();
      tracker_->report(0, 1);
      averaging::AveragerOptions options;
      options.mode = mode;
      options.min_matchmaking_time = trainer.matchmaking_time;
      options.request_timeout = trainer.matchmaking_time / 2;
      options.sender_timeout = 60s;
      options.reducer_timeout = 90s;
      options.prefix = tracking.run_id + "_state_averager";
      options.class_name = "TrainingStateAverager";
      state_ = make_averager(options);
      averaging::StateSharingOptions sharing;
      sharing.prefix = options.prefix;
      sharing.class_name = options.class_name;
      sharing_ = std::make_unique<averaging::StateSharing>(*membership_.dht, sharing);
      sharing_->start();
      options.prefix = tracking.run_id + "_grad_averager";
      options.class_name = "GradientAverager";
      options.agreed_codec = trainer.agreed_grad_compression;
      gradients_ = make_averager(options);
    });
  }
  ~Counterpart() {
    membership_.call([this] { return tracker_->close(membership_.runtime().after(5s)); });
    membership_.on_loop([this] {
      state_.reset();
      sharing_.reset();
      gradients_.reset();
      tracker_.reset();
    });
  }
  void report(std::uint64_t epoch, std::int64_t samples) {
    membership_.on_loop([&] { tracker_->report(epoch, static_cast<double>(samples)); });
  }
  void share(averaging::SharedState state, std::uint64_t epoch) {
    membership_.on_loop([&] {
      sharing_->set_provider([state]() -> std::optional<averaging::SharedState> { return state; });
      sharing_->set_priority(static_cast<double>(epoch));
    });
  }
  /// \param last  as at the end of a training
  std::future<Result<averaging::RoundReport>> average_parameters(std::uint64_t claimed = 1, bool last = false) {
    auto round = round_of(claimed);
    round.last = last;
    return membership_.runtime().submit([this, round] { return state_->step(round); });
  }
  /// Its parameters come only after it has heard that the epoch is over.
  std::future<Result<averaging::RoundReport>> average_parameters_after(std::uint64_t epoch) {
    return membership_.runtime().submit([this, epoch]() -> Task<Result<averaging::RoundReport>> {
      return [](Counterpart& self, std::uint64_t passed) -> Task<Result<averaging::RoundReport>> {
        auto round = self.state_->begin(round_of(1));
        co_await self.tracker_->epoch_passed(passed);
        round.trigger();
        co_return co_await round.result();
      }(*this, epoch);
    });
  }
  std::future<Result<averaging::RoundReport>> average_gradients() {
    return membership_.runtime().submit([this] { return gradients_->step(); });
  }
  std::vector<float> values;  ///< that it averages, either way

 private:
  static averaging::RoundOptions round_of(std::uint64_t epoch) {
    averaging::RoundOptions round;
    round.gather = msgpack::Value(epoch);
    return round;
  }
  std::unique_ptr<averaging::Averager> make_averager(const averaging::AveragerOptions& options) {
    auto made = std::make_unique<averaging::Averager>(
        *membership_.dht, std::vector<averaging::AveragedTensor>{{values, shape_}}, options);
    made->start();
    return made;
  }

  train::Membership& membership_;
  codec::Shape shape_;
  std::unique_ptr<train::ProgressTracker> tracker_;
  std::unique_ptr<averaging::Averager> state_, gradients_;
  std::unique_ptr<averaging::StateSharing> sharing_;
};

/// Steps until the round is over.
template <class Step>
averaging::RoundReport finish(std::future<Result<averaging::RoundReport>> round, Step step) {
  while (round.wait_for(std::chrono::seconds(0)) != std::future_status::ready) step();
  auto result = round.get();
  EXPECT_TRUE(result) << result.error();
  return result ? *result : averaging::RoundReport();
}

TEST(Training, WhoMissesTheGradientsDoesNotKeepOthersWaitingForItsParameters) {
  const auto options = epoch_of(1'000'000 * kBatch);
  Swarm swarm(joining({}));
  auto weight = torch::zeros({400, 1000}).requires_grad_();  // several parts: each of the two owns some
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(kRate));
  Optimizer optimizer(swarm, sgd, options);
  Swarm other_swarm(joining(swarm.visible_addresses()));
  Counterpart other(other_swarm, options, {400, 1000});
  const auto step = [&] {
    weight.sum().backward();
    return optimizer.step(kBatch);
  };
  step();
  while (optimizer.stats().peers < 2) std::this_thread::yield();
  // They have averaged before: of a stranger it would not know whether there is anybody to wait for.
  auto parameters = other.average_parameters_after(0);
  auto gradients = other.average_gradients();
  other.report(0, options.target_batch_size);
  while (!step().epoch_changed) {
  }
  ASSERT_TRUE(gradients.get());
  ASSERT_TRUE(parameters.get());
  auto round = other.average_parameters();
  other.report(1, options.target_batch_size);
  const auto result = finish(
      std::move(round), [&] { EXPECT_FALSE(step().epoch_changed) << "the others have ended the epoch without it"; });
  EXPECT_EQ(result.group.size(), 2u);
  EXPECT_TRUE(result.lost_senders.empty());
  EXPECT_EQ(result.parts_failed, 0u);
  EXPECT_EQ(optimizer.stats().grad_rounds_failed, 0u) << "it did not wait for a group until the last moment";
}

TEST(Training, TheWordOfOneMemberOfTheLastRoundMakesNobodysEpoch) {
  const auto options = epoch_of(1'000'000 * kBatch);
  Swarm swarm(joining({}));
  Linear model;
  torch::optim::SGD sgd({model.weight}, torch::optim::SGDOptions(kRate));
  Optimizer optimizer(swarm, sgd, options);
  Swarm other_swarm(joining(swarm.visible_addresses()));
  Counterpart other(other_swarm, options, {4, 2});
  model.backward(data(1, 4), data(2, 2));
  optimizer.step(kBatch);
  other.report(0, 1);
  while (optimizer.stats().peers < 2) std::this_thread::yield();
  auto parameters = other.average_parameters(std::uint64_t{1} << 40, true);
  EXPECT_EQ(optimizer.finish(), 2u);
  EXPECT_TRUE(parameters.get());
  EXPECT_EQ(optimizer.stats().epoch, 0u);
}

// A client owns no part: nobody sends it anything by which it would notice that it is waited for.
TEST(Training, TheEpochIsReportedBeforeTheRoundOfItsParameters) {
  auto options = epoch_of(1'000'000 * kBatch);
  options.matchmaking_time = 10s;  // how long a silent member is waited for: a busy machine takes its time to speak
  Swarm swarm(joining({}));
  Linear model;
  torch::optim::SGD sgd({model.weight}, torch::optim::SGDOptions(kRate));
  Optimizer optimizer(swarm, sgd, options);
  auto as_client = joining(swarm.visible_addresses());
  as_client.client_mode = true;
  Swarm other_swarm(as_client);
  Counterpart other(other_swarm, options, {4, 2}, averaging::PeerMode::client);
  const auto step = [&] {
    model.backward(data(1, 4), data(2, 2));
    return optimizer.step(kBatch);
  };
  step();
  while (optimizer.stats().peers < 2) std::this_thread::yield();
  auto parameters = other.average_parameters_after(0);
  auto gradients = other.average_gradients();
  other.report(0, options.target_batch_size);
  StepReport report;
  while (!report.epoch_changed) report = step();
  EXPECT_EQ(report.grad_group, 2u);
  EXPECT_EQ(report.state_group, 2u);
  EXPECT_TRUE(gradients.get());
  const auto result = parameters.get();
  ASSERT_TRUE(result) << result.error();
  EXPECT_EQ(result->parts_failed, 0u);
  EXPECT_TRUE(torch::allclose(torch::tensor(other.values).view({4, 2}), model.weight))
      << "its parameters were not given up for lost";
}

TEST(Training, WhatAnOldModelsGradientsOwedIsForgottenWithTheModel) {
  constexpr std::int64_t kTarget = 1'000'000 * kBatch;
  auto options = epoch_of(kTarget);
  options.average_state_every = 1'000'000;
  options.agreed_grad_compression = codec::CodecSpec{codec::Codec::top_k, 0.25};
  Swarm swarm(joining({}));
  auto weight = torch::zeros({400, 1000}).requires_grad_();  // each of the two owns some parts
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(kRate));
  Optimizer optimizer(swarm, sgd, options);
  Swarm other_swarm(joining(swarm.visible_addresses()));
  Counterpart other(other_swarm, options, {400, 1000});
  const auto step_with = [&](float gradient) {
    (weight * (gradient * torch::arange(1, 400'001).reshape({400, 1000}) / 1e5)).sum().backward();
    return optimizer.step(kBatch);
  };
  step_with(1);
  while (optimizer.stats().peers < 2) std::this_thread::yield();
  other.report(0, kTarget);
  const auto first = finish(other.average_gradients(), [&] { step_with(1); });
  ASSERT_TRUE(first.agreed_codecs.contains(codec::Codec::top_k));
  const auto arrived = std::ranges::count_if(other.values, [](float value) { return value != 0; });
  ASSERT_TRUE(arrived > 0 && arrived < 400'000) << "some of it is owed";

  other.share(libtorch::copy_of(libtorch::describe_state(sgd, {weight}, 5)), 5);
  other.report(5, 0);
  while (optimizer.local_epoch() < 5) optimizer.load_state_from_peers();
  std::ranges::fill(other.values, 0.0f);
  step_with(0);
  other.report(5, kTarget);
  finish(other.average_gradients(), [&] { step_with(0); });
  EXPECT_TRUE(std::ranges::all_of(other.values, [](float value) { return value == 0; })) << "what it owed has come";
}

TEST(Training, ABatchWithoutSamplesIsRefused) {
  Trainer trainer({}, 3 * kBatch);
  EXPECT_THROW(trainer.optimizer.step(0), std::invalid_argument);
  EXPECT_THROW(trainer.optimizer.step(-kBatch), std::invalid_argument);
  for (int seed : {1, 2, 3}) trainer.step(seed);
  EXPECT_EQ(trainer.optimizer.local_epoch(), 1u);
  EXPECT_TRUE(torch::isfinite(trainer.model.weight).all().item<bool>());
}

TEST(Training, NumbersThatMakeNoEpochAreRefused) {
  Swarm swarm(joining({}));
  Linear model;
  torch::optim::SGD sgd({model.weight}, torch::optim::SGDOptions(kRate));
  auto options = epoch_of(0);
  EXPECT_THROW(Optimizer(swarm, sgd, options), std::invalid_argument);
  options = epoch_of(kBatch);
  options.average_state_every = 0;
  EXPECT_THROW(Optimizer(swarm, sgd, options), std::invalid_argument);
}

TEST(Training, GradientsThatAreNoNumbersCountForNothing) {
  auto options = epoch_of(1'000'000 * kBatch);
  options.average_state_every = 1'000'000;
  Swarm swarm(joining({}));
  auto weight = torch::zeros({4, 2}).requires_grad_();
  torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(kRate));
  Optimizer optimizer(swarm, sgd, options);
  Swarm other_swarm(joining(swarm.visible_addresses()));
  Counterpart other(other_swarm, options, {4, 2});
  const auto step_with = [&](float gradient) {
    (weight * gradient).sum().backward();
    return optimizer.step(kBatch);
  };
  step_with(1);
  while (optimizer.stats().peers < 2) std::this_thread::yield();
  step_with(std::numeric_limits<float>::quiet_NaN());
  std::ranges::fill(other.values, 3.0f);
  auto round = other.average_gradients();
  other.report(0, options.target_batch_size);
  finish(std::move(round), [&] { step_with(1); });
  while (optimizer.local_epoch() < 1) step_with(1);
  EXPECT_TRUE(torch::allclose(weight, torch::full({4, 2}, -3.0f * static_cast<float>(kRate))))
      << "the other's gradients alone: " << weight;
  EXPECT_EQ(other.values, std::vector<float>(8, 3.0f));
}

TEST(Training, ASwarmThatCannotBeReachedIsAnError) {
  EXPECT_THROW(Swarm(joining({"/ip4/127.0.0.1/tcp/1"})), std::exception);
}

}  // namespace
}  // namespace cohive
