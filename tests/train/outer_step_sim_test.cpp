// Runs of local steps with an outer optimizer, and exchanges of the caller's.
#include "train/exchanges/outer_step.hpp"

#include <gtest/gtest.h>

#include <array>
#include <map>

#include "checkpoint/temporary_folder.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/testing/train_scenario.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/power_sgd_averager.hpp"
#include "cohive/train/run.hpp"

namespace cohive::train {
namespace {

using checkpoint::TemporaryFolder;
using Values = std::vector<float>;

Fragment whole_model(const ExchangeContext& context) {
  return fragments_of(context.replica.gradient_infos(), 1).front();
}

sim::TrainScenario outer_steps() {
  auto scenario = sim::small_training();
  scenario.learning_rate = 0.005;  // many steps an epoch
  scenario.tune = [](RunOptions& options) {
    options.use_local_updates = true;
    options.outer_optimizer.emplace();
  };
  return scenario;
}

TEST(OuterStep, TrainersWithLocalStepsLearnByIt) {
  const auto report = sim::run_training(outer_steps());
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.epochs, 5u);
  EXPECT_GT(report.mean_group, 4.5);
  EXPECT_LT(report.last_loss, report.first_loss / 10);
  EXPECT_EQ(report.offences, 0);
}

/// Half of the tensors in each of two epochs, which are half as long.
TEST(OuterStep, LearnsInFragments) {
  auto scenario = outer_steps();
  scenario.ballast = 1000;
  const auto tune = scenario.tune;
  scenario.tune = [&tune](RunOptions& options) {
    tune(options);
    options.outer_optimizer->fragments = 2;
    options.target_batch_size /= 2;
  };
  const auto report = sim::run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.epochs, 10u);
  EXPECT_GT(report.mean_group, 4.5);
  EXPECT_LT(report.last_loss, report.first_loss / 10);
  EXPECT_EQ(report.offences, 0);
}

TEST(OuterStep, LearnsWhileTrainersAreKilledAndReplaced) {
  auto scenario = outer_steps();
  scenario.duration = 5min;
  scenario.replaced_per_minute = 0.2;
  const auto report = sim::run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.newcomers, 2u);
  EXPECT_GE(report.downloads, report.newcomers);
  EXPECT_LT(report.last_loss, report.first_loss / 10);
}

/// SparseLoCo: a quarter of 64 values at a time, by both rules of its authors.
TEST(OuterStep, LearnsFromTheLargestDifferencesAlone) {
  for (const averaging::Aggregation& how :
       {averaging::Aggregation(), averaging::Aggregation(averaging::MeanOfSenders{1})}) {
    auto scenario = outer_steps();
    scenario.tune = [&how](RunOptions& options) {
      options.use_local_updates = true;
      options.outer_optimizer = OuterOptimizer{.momentum = 0};
      options.agreed_grad_compression = codec::Compression::per_tensor(
          std::vector<codec::Compression>{codec::CodecSpec(codec::Codec::sparse2, 0.25), codec::Codec::none});
      options.grad_aggregation = how;
    };
    const auto report = sim::run_training(scenario);
    SCOPED_TRACE(::testing::PrintToString(report));
    EXPECT_GE(report.epochs, 5u);
    EXPECT_LT(report.last_loss, report.first_loss / 5);
    EXPECT_EQ(report.offences, 0);
  }
}

TEST(OuterStep, SmallTensorsTravelAsTheyAreBesideSparseOnes) {
  auto scenario = outer_steps();
  scenario.ballast = 100'000;
  const auto tune = scenario.tune;
  std::array<sim::TrainScenarioReport, 2> reports;
  for (const bool sparse : {false, true}) {
    scenario.tune = [&](RunOptions& options) {
      tune(options);
      options.outer_optimizer->momentum = 0;
      if (sparse) options.agreed_grad_compression = codec::Codec::sparse2;
    };
    reports[sparse] = sim::run_training(scenario);
  }
  SCOPED_TRACE(::testing::PrintToString(reports));
  EXPECT_NEAR(reports[1].last_loss, reports[0].last_loss, 0.05 * reports[0].first_loss) << "nothing of it is left out";
  EXPECT_LT(reports[1].bytes_per_peer_second, reports[0].bytes_per_peer_second / 2) << "with downloads of the state";
}

/// Trainers whose local steps go to a place of their own: number n adds to its parameters.
class OuterSteps : public ::testing::Test {
 protected:
  struct Trainer {
    std::size_t number = 0;
    Duration pause = 500ms;  // what a batch takes
    std::unique_ptr<Dht> dht;
    std::unique_ptr<PlainReplica> replica;
    OuterStep* outer = nullptr;
    std::unique_ptr<train::Run> run;
    std::unique_ptr<TaskGroup> tasks;
    Values before;          ///< parameters before the last outer step
    std::size_t steps = 0;  ///< outer ones, with others
    double samples = 0;
    const std::vector<Values>& anchor() const { return outer->memory()->anchor; }
    const std::vector<Values>& momentum() const { return outer->memory()->momentum; }
    Values parameters() const { return {replica->parameter(0).begin(), replica->parameter(0).end()}; }
  };

  OuterSteps() {
    options_.run_id = "outer";
    options_.target_batch_size = 48;
    options_.matchmaking_time = 2s;
    options_.averaging_timeout = 20s;
    options_.use_local_updates = true;
    options_.delay_state_averaging = false;
    options_.checkpoints.every = 0s;
    nodes_.push_back(std::make_unique<Dht>(net_.add_host()));
    EXPECT_TRUE(net_.run(nodes_.back()->start({})));
  }
  ~OuterSteps() override {
    for (auto& trainer : trainers_) end(*trainer);
    nodes_.clear();
  }

  Trainer& make(ExchangeFactory factory = nullptr) {
    auto trainer = std::make_unique<Trainer>();
    trainer->number = trainers_.size();
    trainer->dht = std::make_unique<Dht>(net_.add_host());
    EXPECT_TRUE(net_.run(trainer->dht->start({net_.host(0).visible_addresses().front()})));
    trainer->replica = std::make_unique<PlainReplica>(net_.runtime(), shapes_, optim::SgdOptions{.lr = 0.01});
    auto options = options_;
    const auto with_outer_step = [&made_for = *trainer](const ExchangeContext& context) {
      auto made = std::make_unique<OuterStep>(context, OuterOptimizer(), whole_model(context));
      made_for.outer = made.get();
      return made;
    };
    if (!options.outer_optimizer)
      options.parameter_exchange = factory ? std::move(factory) : ExchangeFactory(with_outer_step);
    trainer->run = std::make_unique<train::Run>(
        *trainer->dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1 + trainer->number)),
        *trainer->replica, options);
    trainers_.push_back(std::move(trainer));
    return *trainers_.back();
  }
  Trainer& add() {
    auto& trainer = make();
    trainer.run->start();
    trainer.tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
    trainer.tasks->spawn(train(net_.runtime(), trainer), "trainer");
    return trainer;
  }
  void end(Trainer& trainer) {
    trainer.tasks.reset();
    trainer.run.reset();
    trainer.replica.reset();
    trainer.dht.reset();
  }
  template <class F>
  bool wait_for(Duration limit, F condition) {
    for (Duration passed = 0s; passed < limit && !condition(); passed += 100ms) net_.runtime().run_for(100ms);
    return condition();
  }
  static Task<void> train(Runtime& runtime, Trainer& me) {
    (void)co_await me.run->catch_up();
    for (;;) {
      co_await runtime.sleep_for(me.pause);
      Values gradient(4, -1.0f);
      gradient[me.number % 4] = -5;
      const std::vector<std::span<const float>> gradients(me.replica->gradient_infos().size(), gradient);
      me.replica->step_locally(gradients);
      me.samples += 8;
      const Values before = me.parameters();
      const auto report = co_await me.run->step(8);
      if (report.state_group < 2) continue;
      me.before = before;
      ++me.steps;
    }
  }
  void expect_same_state(const Trainer& one, const Trainer& other) {
    EXPECT_EQ(one.anchor(), other.anchor());
    EXPECT_EQ(one.momentum(), other.momentum());
  }

  sim::Swarm net_{sim::SwarmOptions{.seed = 1}};
  RunOptions options_;
  std::vector<codec::Shape> shapes_{{4}};
  std::vector<std::unique_ptr<Dht>> nodes_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

TEST_F(OuterSteps, StepFromTheAnchorAsPyTorchsSgd) {
  auto& one = add();
  auto& two = add();
  Values anchor(4), momentum(4);
  for (std::size_t step = 1; step <= 3; ++step) {
    ASSERT_TRUE(wait_for(2min, [&] { return one.steps == step && two.steps == step; }));
    for (std::size_t i = 0; i < anchor.size(); ++i) {
      const float gradient = anchor[i] - (one.before[i] + two.before[i]) / 2;
      momentum[i] = 0.9f * momentum[i] + gradient;
      anchor[i] -= 0.7f * (gradient + 0.9f * momentum[i]);
      EXPECT_NEAR(one.anchor()[0][i], anchor[i], 1e-5) << "step " << step;
      EXPECT_NEAR(one.momentum()[0][i], momentum[i], 1e-5) << "step " << step;
    }
    expect_same_state(one, two);
  }
}

/// One trainer becomes fast, so that the epoch ends long before the other one expects it to, and looks again.
TEST_F(OuterSteps, WaitForATrainerThatLooksAtTheRunAsSeldomAsHivemindMay) {
  options_.target_batch_size = 480;
  options_.next_chunk_timeout = 12s;  // longer than a step and a look
  auto& one = add();
  options_.tracker_options.min_refresh_period = options_.tracker_options.default_refresh_period = 10s;
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps > 0 && two.steps > 0; }));
  two.pause = 2s;
  for (const Duration phase : {7s, 9s, 11s, 13s, 15s}) {
    one.pause = 2s;
    net_.runtime().run_for(phase);
    const auto epoch = one.run->epoch();
    const auto steps = one.steps;
    one.pause = 20ms;
    ASSERT_TRUE(wait_for(1min, [&] { return one.run->epoch() > epoch; }));
    one.pause = 2s;
    EXPECT_TRUE(wait_for(15s, [&] { return one.steps > steps; })) << to_seconds(phase);
  }
  EXPECT_EQ(two.run->stats().state_downloads, 0u);
}

/// Steps as they are computed from what each trainer sent.
TEST_F(OuterSteps, AreAddedToWhatATrainerHasMadeMeanwhile) {
  options_.delay_state_averaging = true;
  auto& one = add();
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.run->epoch() >= 6 && two.run->epoch() >= 6; }));
  for (auto* trainer : {&one, &two}) trainer->tasks.reset();
  for (auto* trainer : {&one, &two}) (void)net_.run(trainer->run->settle());
  for (auto* trainer : {&one, &two}) (void)trainer->run->publish();
  expect_same_state(one, two);
  // Each has made local steps of its own since: at most those of an epoch and of a round.
  for (auto* trainer : {&one, &two})
    for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(trainer->parameters()[i], trainer->anchor()[0][i], 0.05 * 12) << i;
  EXPECT_GT(one.anchor()[0][0], 0.5);
}

TEST_F(OuterSteps, AMissedRoundCostsNothingOfWhatWasLearned) {
  auto& one = add();
  auto& two = add();
  auto& three = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 2 && two.steps >= 2 && three.steps >= 2; }));
  // Its parameters are far ahead in one direction when the others end a round without it.
  three.tasks.reset();
  const double samples = three.samples;
  three.replica->step_locally({Values{0, 0, 0, -1000}});
  const auto reached = one.run->epoch();
  ASSERT_TRUE(wait_for(1min, [&] { return one.run->epoch() >= reached + 2; }));
  const float before = one.anchor()[0][3];
  three.tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
  three.tasks->spawn(train(net_.runtime(), three), "trainer");
  const auto steps = three.steps;
  ASSERT_TRUE(wait_for(2min, [&] { return three.steps >= steps + 2; }));
  EXPECT_GT(one.anchor()[0][3] - before, 1) << "a third of 10, times the outer rate";
  EXPECT_GE(three.run->stats().samples_averaged, samples) << "those of the missed round weigh in the next one";
  // Members round a mean differently where their own values differ much.
  const auto are_near = [&] {
    return std::ranges::equal(one.anchor()[0], three.anchor()[0],
                              [](float a, float b) { return std::abs(a - b) < 1e-4f; });
  };
  EXPECT_TRUE(wait_for(1min, are_near));
}

TEST_F(OuterSteps, AnchorsThatDifferAreRepaired) {
  TemporaryFolder folder;
  const auto file = folder.path() / "state.safetensors";
  const auto state_of = [&](Trainer& trainer) {
    EXPECT_TRUE(net_.run(trainer.run->save_checkpoint(file)));
    return *checkpoint::read_file(file);
  };
  const auto anchor_in = [](checkpoint::TensorFile& state) {
    const auto found = std::ranges::find(state.tensors, "exchange.outer_step.anchor.0", &checkpoint::NamedTensor::name);
    return reinterpret_cast<float*>(const_cast<std::uint8_t*>(found->tensor.data.data()));
  };
  for (const int every : {1000, 3}) {
    SCOPED_TRACE(every);
    options_.run_id = "repaired" + std::to_string(every);
    options_.outer_optimizer = OuterOptimizer{.repair_every = every};
    auto& one = add();
    auto& two = add();
    ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 1 && two.steps >= 1; }));
    auto state = state_of(one);
    anchor_in(state)[0] += 1;
    ASSERT_TRUE(checkpoint::write_file(file, state));
    ASSERT_TRUE(net_.run(one.run->load_checkpoint(file)));
    const auto reached = one.run->epoch();
    ASSERT_TRUE(wait_for(3min, [&] { return one.run->epoch() >= reached + 8 && two.run->epoch() >= reached + 8; }));
    for (auto* trainer : {&one, &two}) trainer->tasks.reset();
    auto of_one = state_of(one), of_two = state_of(two);
    const float apart = std::abs(anchor_in(of_one)[0] - anchor_in(of_two)[0]);
    if (every == 3)
      EXPECT_EQ(apart, 0);
    else
      EXPECT_GT(apart, 0.1);
    end(one);
    end(two);
  }
}

TEST_F(OuterSteps, ANewcomerGetsAnchorAndMomentumOfThoseThatAreLeft) {
  auto& one = add();
  net_.runtime().run_for(2s);  // or else all three would begin the run, and two of them may step without the third
  auto& two = add();
  auto& three = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 2 && two.steps >= 2 && three.steps >= 2; }));
  end(three);
  auto& newcomer = add();
  ASSERT_TRUE(wait_for(3min, [&] { return newcomer.steps >= 2; }));
  const auto steps_of = [](const Trainer& trainer) { return trainer.outer->memory()->steps; };
  ASSERT_TRUE(wait_for(1min, [&] {
    return one.steps > 3 && steps_of(one) == steps_of(newcomer) && steps_of(two) == steps_of(newcomer);
  }));
  EXPECT_EQ(newcomer.run->stats().state_downloads, 1u);
  expect_same_state(one, newcomer);
  expect_same_state(two, newcomer);
  EXPECT_NE(newcomer.momentum(), std::vector<Values>{Values(4)});
}

TEST_F(OuterSteps, ACheckpointHoldsAnchorAndMomentum) {
  TemporaryFolder folder;
  auto& one = add();
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 2 && two.steps >= 2; }));
  one.tasks.reset();
  const auto file = folder.path() / "outer.safetensors";
  const auto written = net_.run(one.run->save_checkpoint(file));
  ASSERT_TRUE(written) << written.error();
  auto& again = make();
  const auto epoch = net_.run(again.run->load_checkpoint(file));
  ASSERT_TRUE(epoch) << epoch.error();
  EXPECT_EQ(*epoch, one.run->epoch());
  expect_same_state(one, again);
  EXPECT_EQ(again.parameters(), one.parameters());

  // One without them is a model as any other: the outer steps begin at it.
  auto without = *checkpoint::read_file(file);
  std::erase_if(without.tensors, [](const auto& one) { return one.name.starts_with("exchange."); });
  ASSERT_TRUE(checkpoint::write_file(folder.path() / "without.safetensors", without));
  ASSERT_TRUE(net_.run(again.run->load_checkpoint(folder.path() / "without.safetensors")));
  EXPECT_EQ(again.anchor()[0], again.parameters());
  EXPECT_EQ(again.momentum()[0], Values(4));
}

/// Three tensors in two fragments, which are averaged in turn.
class OuterStepsInFragments : public OuterSteps {
 protected:
  OuterStepsInFragments() {
    shapes_ = {{4}, {4}, {4}};
    options_.outer_optimizer = OuterOptimizer{.fragments = 2};
  }
  /// What the exchanges keep, and the parameters behind it.
  std::map<std::string, Values> state_of(Trainer& trainer) {
    const auto file = folder_.path() / "state.safetensors";
    EXPECT_TRUE(net_.run(trainer.run->save_checkpoint(file)));
    std::map<std::string, Values> state;
    const auto read = checkpoint::read_file(file);
    if (!read) return state;
    for (const auto& [name, tensor] : read->tensors) {
      if (!name.starts_with("exchange.")) continue;
      const auto* values = reinterpret_cast<const float*>(tensor.data.data());
      state[name] = {values, values + tensor.data.size() / sizeof(float)};
    }
    return state;
  }
  bool train_to(std::uint64_t epoch, std::vector<Trainer*> trainers) {
    const bool there = wait_for(5min, [&] {
      return std::ranges::all_of(trainers, [epoch](Trainer* one) { return one->run->epoch() >= epoch; });
    });
    for (auto* trainer : trainers) trainer->tasks.reset();
    for (auto* trainer : trainers) (void)net_.run(trainer->run->settle());
    for (auto* trainer : trainers) (void)trainer->run->publish();
    return there;
  }
  TemporaryFolder folder_;
};

TEST_F(OuterStepsInFragments, AverageOneOfThemInEachEpochAndAllInTurn) {
  for (const bool delayed : {false, true}) {
    SCOPED_TRACE(delayed);
    options_.run_id = delayed ? "behind" : "waiting";
    options_.delay_state_averaging = delayed;
    auto& one = add();
    auto& two = add();
    ASSERT_TRUE(train_to(9, {&one, &two}));
    auto states = std::array{state_of(one), state_of(two)};
    EXPECT_EQ(states[0], states[1]);
    const float first = states[0]["exchange.outer_step_1_of_2.steps"][0],
                second = states[0]["exchange.outer_step_2_of_2.steps"][0];
    EXPECT_GE(first + second, 7) << "one in each epoch";
    EXPECT_LE(std::abs(first - second), 1);
    for (const char* anchor : {"1_of_2.anchor.0", "1_of_2.anchor.1", "2_of_2.anchor.0"})
      EXPECT_GT(states[0][std::string("exchange.outer_step_") + anchor][3], 0.3) << anchor;
    // Between two rounds a tensor is as far from its anchor as local steps have led it.
    for (std::size_t tensor = 0; tensor < 3; ++tensor)
      EXPECT_NEAR(one.replica->parameter(tensor)[3], two.replica->parameter(tensor)[3], 0.05 * 24) << tensor;
    end(one);
    end(two);
  }
}

TEST_F(OuterStepsInFragments, ANewcomerGetsTheAnchorsOfAll) {
  options_.target_batch_size = 192;  // three times the time for a search
  auto& one = add();
  auto& two = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 3 && two.steps >= 3; }));
  auto& newcomer = add();
  ASSERT_TRUE(wait_for(3min, [&] { return newcomer.steps >= 3; }));
  EXPECT_EQ(newcomer.run->stats().state_downloads, 1u);
  ASSERT_TRUE(train_to(newcomer.run->epoch() + 2, {&one, &two, &newcomer}));
  EXPECT_EQ(state_of(one), state_of(newcomer));
}

TEST_F(OuterStepsInFragments, TrainersThatStopTogetherEndWithTheSameParameters) {
  auto& one = add();
  auto& two = add();
  ASSERT_TRUE(train_to(5, {&one, &two}));
  std::vector<Task<std::size_t>> last;
  for (auto* trainer : {&one, &two}) last.push_back(trainer->run->finish());
  EXPECT_EQ(net_.run(when_all(net_.runtime(), std::move(last))), (std::vector<std::size_t>{2, 2}));
  for (std::size_t tensor = 0; tensor < 3; ++tensor)
    EXPECT_TRUE(std::ranges::equal(one.replica->parameter(tensor), two.replica->parameter(tensor))) << tensor;
}

/// What the constructor of a run says to options.
class RefusedExchanges : public OuterSteps {
 protected:
  std::string refusal(const RunOptions& options) {
    Dht dht(net_.add_host());
    PlainReplica replica(net_.runtime(), {{4}}, optim::SgdOptions{});
    try {
      train::Run(dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(9)), replica, options);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  }
  static bool contains(const std::string& text, const char* part) { return text.find(part) != text.npos; }
};

TEST_F(RefusedExchanges, ContradictionsAreOneSentence) {
  options_.outer_optimizer.emplace();
  EXPECT_EQ(refusal(options_), "");
  options_.outer_optimizer->lr = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(contains(refusal(options_), "outer_optimizer.lr must be"));
  options_.outer_optimizer = OuterOptimizer{.momentum = 1};
  EXPECT_TRUE(contains(refusal(options_), "outer_optimizer.momentum must be"));
  options_.outer_optimizer = OuterOptimizer{.repair_every = 0};
  EXPECT_TRUE(contains(refusal(options_), "outer_optimizer.repair_every must be"));
  options_.outer_optimizer = OuterOptimizer{.open_diloco = true};
  options_.fit_target_batch_size = true;
  EXPECT_TRUE(contains(refusal(options_), "OpenDiLoCo's trainers agree on nothing"));
  options_.fit_target_batch_size = false;
  EXPECT_EQ(refusal(options_), "");
  options_.outer_optimizer = OuterOptimizer{.fragments = 2, .open_diloco = true};
  EXPECT_TRUE(contains(refusal(options_), "leave outer_optimizer.fragments out"));
  options_.outer_optimizer = OuterOptimizer{.fragments = 0};
  EXPECT_TRUE(contains(refusal(options_), "outer_optimizer.fragments must be from 1 to 64"));
  options_.outer_optimizer = OuterOptimizer{.fragments = 2};
  EXPECT_TRUE(contains(refusal(options_), "fragments is 2, and the model has 1 parameters"));
  options_.outer_optimizer = OuterOptimizer();
  options_.grad_averager_factory = power_sgd_averager({});
  EXPECT_TRUE(contains(refusal(options_), "leave grad_averager_factory out"));
  options_.grad_averager_factory = nullptr;
  options_.average_state_every = 2;
  EXPECT_TRUE(contains(refusal(options_), "leave average_state_every out"));
  options_.average_state_every = 1;
  options_.use_local_updates = false;
  EXPECT_TRUE(contains(refusal(options_), "set use_local_updates"));
  options_.use_local_updates = true;
  const ExchangeFactory factory = [](const ExchangeContext& context) {
    return std::make_unique<OuterStep>(context, OuterOptimizer(), whole_model(context));
  };
  options_.parameter_exchange = factory;
  EXPECT_TRUE(contains(refusal(options_), "leave parameter_exchange out"));
  options_.outer_optimizer.reset();
  options_.parameter_exchange = [](const ExchangeContext&) { return nullptr; };
  EXPECT_TRUE(contains(refusal(options_), "parameter_exchange has made no exchange"));
  options_.parameter_exchange = factory;
  options_.use_local_updates = false;
  options_.auxiliary = true;
  EXPECT_TRUE(contains(refusal(options_), "leave parameter_exchange or auxiliary out"));
}

// ---- Exchanges that fail

/// Averages the parameters of a model by itself, and throws where a test says so.
class FailingExchange final : public Exchange {
 public:
  enum class Where { nowhere, hold, prepare, offer, take };

  FailingExchange(const ExchangeContext& context, const Where& where)
      : replica_(context.replica),
        where_(where),
        averager_(context.dht, context.replica.state_infos(),
                  averager_options(context.options, "_state_averager", "TrainingStateAverager")) {}
  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_; }
  bool due(std::uint64_t) const override { return true; }
  Task<void> hold() override {
    fail(Where::hold);
    co_return;
  }
  Task<void> prepare(const Moment&) override {
    fail(Where::prepare);
    co_return;
  }
  Task<Offer> offer(const Moment&) override {
    fail(Where::offer);
    co_return Offer{co_await replica_.state_parts({})};
  }
  Task<Effect> take(const Moment&, const averaging::RoundReport* round) override {
    (void)co_await replica_.finish_state(round != nullptr);
    fail(Where::take);
    co_return Effect::none;
  }

 private:
  void fail(Where here) const {
    if (here == where_) throw std::runtime_error("this exchange has failed");
  }
  const std::string name_ = "failing";
  Replica& replica_;
  const Where& where_;
  averaging::Averager averager_;
};

class FailingExchanges : public OuterSteps {
 protected:
  /// Counts the calls that have thrown, and trains on.
  static Task<void> train_on(Runtime& runtime, Trainer& me, std::size_t& thrown) {
    for (;;) {
      co_await runtime.sleep_for(500ms);
      const Values gradient(4, -1.0f);
      me.replica->add_gradients({gradient}, 8);
      try {
        (void)co_await me.run->step(8);
      } catch (const std::runtime_error&) {
        ++thrown;
      }
    }
  }
};

TEST_F(FailingExchanges, ThrowOnceForEachEpochAndLoseNothing) {
  using Where = FailingExchange::Where;
  for (const bool delayed : {false, true})
    for (const Where where : {Where::hold, Where::prepare, Where::offer, Where::take}) {
      SCOPED_TRACE(static_cast<int>(where) + (delayed ? 10 : 0));
      Where now = Where::nowhere;
      std::size_t thrown[2] = {0, 0};
      options_.run_id = "failing" + std::to_string(trainers_.size());
      options_.use_local_updates = false;
      options_.delay_optimizer_step = delayed;
      Trainer* both[2];
      for (std::size_t i = 0; i < 2; ++i) {
        both[i] =
            &make([&now](const ExchangeContext& context) { return std::make_unique<FailingExchange>(context, now); });
        auto& trainer = *both[i];
        trainer.run->start();
        trainer.tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
        trainer.tasks->spawn(train_on(net_.runtime(), trainer, thrown[i]), "trainer");
      }
      const auto epochs = [&](std::uint64_t least) {
        return [&both, least] { return both[0]->run->epoch() >= least && both[1]->run->epoch() >= least; };
      };
      ASSERT_TRUE(wait_for(2min, epochs(2)));
      now = where;
      ASSERT_TRUE(wait_for(2min, [&] { return thrown[0] > 0 && thrown[1] > 0; }));
      now = Where::nowhere;
      const std::uint64_t reached = both[0]->run->epoch();
      ASSERT_TRUE(wait_for(3min, epochs(reached + 2)));
      for (auto* trainer : both) trainer->tasks.reset();
      for (auto* trainer : both) (void)net_.run(trainer->run->settle());
      for (auto* trainer : both) {
        EXPECT_EQ(trainer->run->stats().state_downloads, 0u);
        // Each epoch is one step of 0.01, whatever has failed beside it.
        const double steps = trainer->parameters()[0] / 0.01;
        EXPECT_NEAR(steps, static_cast<double>(trainer->run->epoch()), 0.01);
      }
      for (auto* trainer : both) end(*trainer);
    }
}

}  // namespace
}  // namespace cohive::train
