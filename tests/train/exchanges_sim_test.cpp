// Exchanges of a run: which options contradict each other, and what becomes of exceptions.
#include "outer_steps.hpp"

#include <stdexcept>

#include "cohive/train/power_sgd_averager.hpp"
#include "train/exchanges/exchanges.hpp"
#include "train/forwarding_exchange.hpp"

namespace cohive::train {
namespace {

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

// ---- Exchanges of parameters

class ParametersOfATrainer : public OuterSteps {};

/// A peer that gives a round up is behind, more often than not.
TEST_F(ParametersOfATrainer, WeighNothingInARoundThatIsGivenUp) {
  Dht dht(net_.add_host());
  PlainReplica replica(net_.runtime(), {{4}}, optim::SgdOptions{});
  const auto parameters = parameter_exchange({dht, replica, options_});
  for (const Occasion occasion : {Occasion::epoch_end, Occasion::given_up, Occasion::following, Occasion::extra}) {
    const Moment moment{.occasion = occasion};
    const auto offer = net_.run(parameters->offer(moment));
    EXPECT_EQ(offer.weight, occasion == Occasion::epoch_end || occasion == Occasion::extra ? 1 : 0);
    (void)net_.run(parameters->take(moment, nullptr));
  }
}

/// Takes an answer over slowly, beside a trainer that goes on, and tells whether it was saved meanwhile.
class SlowToTake final : public ForwardingExchange {
 public:
  explicit SlowToTake(const ExchangeContext& context)
      : ForwardingExchange(parameter_exchange(context)), runtime_(context.dht.runtime()) {}
  Task<Effect> take(const Moment& moment, const averaging::RoundReport* round) override {
    taking = true;
    co_await runtime_.sleep_for(2s);
    taking = false;
    co_return co_await ForwardingExchange::take(moment, round);
  }
  Task<std::vector<checkpoint::NamedTensor>> save() override {
    saved_meanwhile = saved_meanwhile || taking;
    return ForwardingExchange::save();
  }
  bool taking = false, saved_meanwhile = false;

 private:
  Runtime& runtime_;
};

/// Half of what it keeps could be that of before, as an anchor that is being written.
TEST_F(ParametersOfATrainer, AreNotCopiedWhileAnAnswerIsTakenOver) {
  options_.delay_state_averaging = true;
  SlowToTake* slow = nullptr;
  const auto factory = [&slow](const ExchangeContext& context) {
    auto made = std::make_unique<SlowToTake>(context);
    slow = made.get();
    return made;
  };
  add(factory);
  auto& last = add(factory);
  ASSERT_TRUE(wait_for(2min, [&] { return slow->taking; }));
  EXPECT_TRUE(saved(last).contains("parameter.0"));
  EXPECT_FALSE(slow->saved_meanwhile);
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
