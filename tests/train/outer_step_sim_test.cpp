// Runs that exchange steps of an outer optimizer in place of parameters: the seam of exchanges with something on it
// that hivemind does not have.
#include "train/outer_step.hpp"

#include <gtest/gtest.h>

#include "checkpoint/temporary_folder.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/testing/train_scenario.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"

namespace cohive::train {
namespace {

using checkpoint::TemporaryFolder;
using Values = std::vector<float>;

sim::TrainScenario outer_steps() {
  auto scenario = sim::small_training();
  scenario.learning_rate = 0.005;  // many steps an epoch
  scenario.tune = [](RunOptions& options) {
    options.use_local_updates = true;
    options.parameter_exchange = outer_step();
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

/// Trainers whose local steps go to a place of their own: number n adds to its parameters.
class OuterSteps : public ::testing::Test {
 protected:
  struct Trainer {
    std::size_t number = 0;
    std::unique_ptr<Dht> dht;
    std::unique_ptr<PlainReplica> replica;
    OuterStep* outer = nullptr;
    std::unique_ptr<train::Run> run;
    std::unique_ptr<TaskGroup> tasks;
    Values before;          ///< parameters before the last outer step
    std::size_t steps = 0;  ///< outer ones, with others
    Values parameters() const { return {replica->parameter(0).begin(), replica->parameter(0).end()}; }
  };

  OuterSteps() {
    options_.run_id = "outer";
    options_.target_batch_size = 48;
    options_.matchmaking_time = 2s;
    options_.averaging_timeout = 20s;
    options_.use_local_updates = true;
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
    trainer->replica =
        std::make_unique<PlainReplica>(net_.runtime(), std::vector<codec::Shape>{{4}}, optim::SgdOptions{.lr = 0.01});
    auto options = options_;
    const auto with_outer_step = [&made_for = *trainer](const ExchangeContext& context) {
      auto made = std::make_unique<OuterStep>(context, kOuterSgd, 1);
      made_for.outer = made.get();
      return made;
    };
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
      co_await runtime.sleep_for(500ms);
      Values gradient(4, -1.0f);
      gradient[me.number % 4] = -5;
      me.replica->step_locally({gradient});
      const Values before = me.parameters();
      const auto report = co_await me.run->step(8);
      if (report.state_group < 2) continue;
      me.before = before;
      ++me.steps;
    }
  }
  void expect_same_state(const Trainer& one, const Trainer& other) {
    EXPECT_EQ(one.outer->anchor(), other.outer->anchor());
    EXPECT_EQ(one.outer->momentum(), other.outer->momentum());
  }

  sim::Swarm net_{sim::SwarmOptions{.seed = 1}};
  RunOptions options_;
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
      EXPECT_NEAR(one.outer->anchor()[0][i], anchor[i], 1e-5) << "step " << step;
      EXPECT_NEAR(one.outer->momentum()[0][i], momentum[i], 1e-5) << "step " << step;
    }
    expect_same_state(one, two);
  }
}

TEST_F(OuterSteps, ANewcomerGetsAnchorAndMomentumOfThoseThatAreLeft) {
  auto& one = add();
  auto& two = add();
  auto& three = add();
  ASSERT_TRUE(wait_for(2min, [&] { return one.steps >= 2 && two.steps >= 2 && three.steps >= 2; }));
  end(three);
  auto& newcomer = add();
  ASSERT_TRUE(wait_for(3min, [&] { return newcomer.steps >= 2; }));
  ASSERT_TRUE(wait_for(1min, [&] { return one.steps > 3 && one.run->epoch() == newcomer.run->epoch(); }));
  EXPECT_EQ(newcomer.run->stats().state_downloads, 1u);
  expect_same_state(one, newcomer);
  expect_same_state(two, newcomer);
  EXPECT_NE(newcomer.outer->momentum(), std::vector<Values>{Values(4)});
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
  EXPECT_EQ(again.outer->anchor()[0], again.parameters());
  EXPECT_EQ(again.outer->momentum()[0], Values(4));
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
  options_.parameter_exchange = outer_step();
  EXPECT_EQ(refusal(options_), "");
  options_.use_local_updates = false;
  EXPECT_TRUE(contains(refusal(options_), "set use_local_updates"));
  options_.parameter_exchange = [](const ExchangeContext&) { return nullptr; };
  EXPECT_TRUE(contains(refusal(options_), "parameter_exchange has made no exchange"));
  options_.parameter_exchange = outer_step();
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
