// Parameters that travel as differences from what their last round has averaged: RunOptions::full_state_every.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "cohive/core/log_output.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/offences.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/testing/train_scenario.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"
#include "train/exchanges/exchanges.hpp"
#include "train/exchanges/parameter_greeting.hpp"
#include "train/forwarding_exchange.hpp"

namespace cohive::train {
namespace {

using Values = std::vector<float>;

constexpr std::size_t kWeights = 65'536, kBias = 16;
constexpr std::int64_t kBatchSamples = 8;
constexpr double kFullBits = 32, kRelativeBits = 8.6;  // bits of a value each way

/// Says what a test says in place of what its members tell each other.
class OddGreeting final : public ForwardingExchange {
 public:
  OddGreeting(const ExchangeContext& context, const RunOptions& options, msgpack::Value greeting)
      : ForwardingExchange(parameter_exchange({context.dht, context.replica, options})),
        greeting_(std::move(greeting)) {}
  msgpack::Value greeting(std::uint64_t) const override { return greeting_; }

 private:
  const msgpack::Value greeting_;
};

/// Trainers that step by themselves, each to a place of its own, and average once in an epoch.
class FullStateEvery : public ::testing::Test {
 protected:
  struct Round {
    Values before, after;   ///< parameters
    std::size_t group = 0;  ///< members
    double got = 0;         ///< bytes; what is sent last is counted when the round is over
  };
  struct Trainer {
    std::size_t number = 0;
    std::unique_ptr<Dht> dht;
    std::unique_ptr<PlainReplica> replica;
    std::unique_ptr<train::Run> run;
    std::unique_ptr<TaskGroup> tasks;
    std::map<std::uint64_t, Round> rounds;  ///< by the epoch that they led to
    bool stops = false;
    Values parameters() const {
      Values all(replica->parameter(0).begin(), replica->parameter(0).end());
      all.insert(all.end(), replica->parameter(1).begin(), replica->parameter(1).end());
      return all;
    }
  };

  FullStateEvery() {
    options_.run_id = "differences";
    options_.target_batch_size = 48 * kBatchSamples;
    options_.matchmaking_time = 2s;
    options_.averaging_timeout = 20s;
    options_.use_local_updates = true;
    options_.delay_state_averaging = false;
    options_.full_state_every = 4;
    // Each trainer reduces one part, of which the code book is a sixteenth.
    options_.averager_options = [](averaging::AveragerOptions& how) { how.part_size_bytes = 1 << 14; };
    nodes_.push_back(std::make_unique<Dht>(net_.add_host()));
    EXPECT_TRUE(net_.run(nodes_.back()->start({})));
  }
  ~FullStateEvery() override {
    for (auto& trainer : trainers_) end(*trainer);
    nodes_.clear();
  }

  Trainer& add() {
    auto trainer = std::make_unique<Trainer>();
    trainer->number = trainers_.size();
    trainer->dht = std::make_unique<Dht>(net_.add_host());
    EXPECT_TRUE(net_.run(trainer->dht->start({net_.host(0).visible_addresses().front()})));
    trainer->replica = std::make_unique<PlainReplica>(net_.runtime(), std::vector<codec::Shape>{{kWeights}, {kBias}},
                                                      optim::SgdOptions{.lr = 1e-3});
    trainer->run = std::make_unique<train::Run>(
        *trainer->dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1 + trainer->number)),
        *trainer->replica, options_);
    trainer->run->start();
    trainer->tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
    trainer->tasks->spawn(train(net_.runtime(), *trainer), "trainer");
    trainers_.push_back(std::move(trainer));
    return *trainers_.back();
  }
  void end(Trainer& trainer) {
    trainer.tasks.reset();
    trainer.run.reset();
    trainer.replica.reset();
    trainer.dht.reset();
  }
  static void compute(Trainer& me, std::uint64_t batch) {
    Values large(kWeights), small(kBias);
    for (std::size_t k = 0; k < kWeights; ++k)
      large[k] = std::sin(static_cast<float>(k)) + 0.3f * std::cos(static_cast<float>((me.number + 2) * k + batch));
    small[me.number % kBias] = -1;
    me.replica->step_locally({large, small});
  }
  static Task<void> train(Runtime& runtime, Trainer& me) {
    (void)co_await me.run->catch_up();
    for (std::uint64_t batch = 0; !me.stops; ++batch) {
      co_await runtime.sleep_for(500ms);
      compute(me, batch);
      Round round{.before = me.parameters()};
      const auto stats = me.run->stats();
      const auto report = co_await me.run->step(kBatchSamples);
      if (report.state_group < 2) continue;
      round.after = me.parameters();
      round.group = report.state_group;
      round.got = static_cast<double>(me.run->stats().bytes_received - stats.bytes_received);
      me.rounds.emplace(report.epoch, std::move(round));
    }
    (void)co_await me.run->finish();
  }

  template <class F>
  bool wait_for(Duration limit, F condition) {
    for (Duration passed = 0s; passed < limit && !condition(); passed += 100ms) net_.runtime().run_for(100ms);
    return condition();
  }
  /// Waits until each of these has so many rounds of so many members behind it.
  bool wait_for_rounds(std::size_t rounds, std::size_t members) {
    return wait_for(10min, [&] {
      return std::ranges::all_of(trainers_, [&](const auto& trainer) {
        return !trainer->run || std::ranges::count_if(trainer->rounds, [&](const auto& one) {
                                  return one.second.group == members;
                                }) >= static_cast<std::ptrdiff_t>(rounds);
      });
    });
  }
  /// The trainers that were in the round that led to an epoch.
  std::vector<const Round*> members_of(std::uint64_t epoch) const {
    std::vector<const Round*> members;
    for (const auto& trainer : trainers_)
      if (const auto at = trainer->rounds.find(epoch); at != trainer->rounds.end()) members.push_back(&at->second);
    return members;
  }
  std::set<std::uint64_t> epochs() const {
    std::set<std::uint64_t> all;
    for (const auto& trainer : trainers_)
      for (const auto& [epoch, round] : trainer->rounds) all.insert(epoch);
    return all;
  }
  /// Bits of a value each way, of the rounds that all members have told of.
  std::map<std::uint64_t, double> bits(std::size_t group) const {
    std::map<std::uint64_t, double> bits;
    for (const std::uint64_t epoch : epochs()) {
      const auto members = members_of(epoch);
      if (members.size() != group || members[0]->group != group) continue;
      double got = 0;
      for (const Round* member : members) got += member->got;
      bits[epoch] = 8 * got / (2.0 * static_cast<double>((group - 1) * (kWeights + kBias)));
    }
    return bits;
  }
  std::size_t relative_rounds(std::size_t group) const {
    const auto all = bits(group);
    return static_cast<std::size_t>(
        std::ranges::count_if(all, [](const auto& one) { return one.second < kRelativeBits; }));
  }
  void expect_equal_members() const {
    for (const std::uint64_t epoch : epochs()) {
      const auto members = members_of(epoch);
      for (const Round* member : members)
        if (member->group == members[0]->group) ASSERT_EQ(member->after, members[0]->after) << "epoch " << epoch;
    }
  }

  sim::Swarm net_{sim::SwarmOptions{.seed = 1}};
  RunOptions options_;
  std::vector<std::unique_ptr<Dht>> nodes_;
  std::vector<std::unique_ptr<Trainer>> trainers_;
};

TEST_F(FullStateEvery, FourthRoundMostRoundsTakeAQuarterOfTheBytesAndEndInTheSameBitsForAll) {
  for (int i = 0; i < 4; ++i) add();
  ASSERT_TRUE(wait_for_rounds(10, 4));
  expect_equal_members();
  const auto all = bits(4);
  ASSERT_GE(all.size(), 9u);
  std::size_t relative = 0;  // in a row
  const Values* last = nullptr;
  for (const auto& [epoch, each_way] : all) {
    const bool full = !last || relative == 3;
    if (full)
      EXPECT_NEAR(each_way, kFullBits, 0.1) << epoch;
    else
      EXPECT_LE(each_way, kRelativeBits) << epoch;
    relative = full ? 0 : relative + 1;
    // The mean in float32, and what the codec loses of how far a value has moved.
    const auto members = members_of(epoch);
    double moved = 0, off = 0;
    for (std::size_t k = 0; k < kWeights; ++k) {
      double mean = 0;
      for (const Round* member : members) {
        mean += static_cast<double>(member->before[k]) / 4;
        if (last) moved = std::max(moved, std::abs(static_cast<double>(member->before[k] - (*last)[k])));
      }
      off = std::max(off, std::abs(static_cast<double>(members[0]->after[k]) - mean));
    }
    EXPECT_LE(off, full ? 1e-6 : 0.018 * moved) << epoch;
    last = &members[0]->after;
  }
  EXPECT_EQ(sim::offences(net_.runtime()), 0);
}

TEST_F(FullStateEvery, NewcomersFirstRoundIsFullAndTheNextOnesAreNot) {
  for (int i = 0; i < 3; ++i) add();
  ASSERT_TRUE(wait_for_rounds(3, 3));
  EXPECT_GE(relative_rounds(3), 2u);
  const Trainer& newcomer = add();
  ASSERT_TRUE(wait_for(10min, [&] { return newcomer.rounds.size() >= 4; }));
  expect_equal_members();
  const auto all = bits(4);
  ASSERT_GE(all.size(), 3u);
  EXPECT_NEAR(all.begin()->second, kFullBits, 0.1);
  EXPECT_GE(relative_rounds(4), 2u);
}

TEST_F(FullStateEvery, TrainerThatDiesInARoundLeavesTheOthersWithOneStateAfterTheNext) {
  for (int i = 0; i < 4; ++i) add();
  ASSERT_TRUE(wait_for_rounds(2, 4));
  const auto last = *epochs().rbegin();
  // A round of differences, of 400 kB in all, takes a second or two on such lines.
  net_.fabric().set_default_link({.latency = 10ms, .bandwidth = 2e4});
  std::size_t bytes = 0;
  net_.fabric().set_tap([&](const std::string&, const std::string&, ByteView sent) {
    if (sent.size() > 8000) bytes += sent.size();
    return true;
  });
  ASSERT_TRUE(wait_for(2min, [&] { return bytes > 50'000; }));
  net_.fabric().set_tap(nullptr);
  net_.fabric().crash(sim::Swarm::ip(5));
  end(*trainers_[3]);
  net_.fabric().set_default_link({.latency = 10ms});
  ASSERT_TRUE(wait_for_rounds(6, 3));
  const auto lines = log::recent();
  EXPECT_TRUE(std::ranges::any_of(lines, [](const auto& line) { return line.find("keep local values") != line.npos; }));
  for (const std::uint64_t epoch : epochs()) {
    const auto members = members_of(epoch);
    if (epoch > last && members[0]->group == 3)
      for (const Round* member : members) ASSERT_EQ(member->after, members[0]->after) << epoch;
  }
  EXPECT_GE(relative_rounds(3), 3u);
  EXPECT_EQ(sim::offences(net_.runtime()), 0);
}

TEST_F(FullStateEvery, BesideATrainerThatTellsTheEpochAloneAllRoundsAreFull) {
  add();
  add();
  options_.full_state_every = 0;
  add();
  ASSERT_TRUE(wait_for_rounds(5, 3));
  for (const auto& [epoch, each_way] : bits(3)) EXPECT_NEAR(each_way, kFullBits, 0.1) << epoch;
  for (const std::uint64_t epoch : epochs()) {
    const auto members = members_of(epoch);
    for (const Round* member : members)
      for (std::size_t k = 0; k < kWeights; ++k) ASSERT_NEAR(member->after[k], members[0]->after[k], 1e-6);
  }
  EXPECT_EQ(sim::offences(net_.runtime()), 0);
}

TEST_F(FullStateEvery, BesideAnyGreetingThatMakesNoSenseAllRoundsAreFull) {
  using namespace msgpack;
  const std::vector<Value> greetings = {Value(), Array{{3, "checksum"}}, Array{std::vector<Value>(1000, Value(7))},
                                        Map{{{Value("common"), Value(1)}}}};
  for (const auto& greeting : greetings) {
    SCOPED_TRACE(encode(greeting).size());
    options_.run_id = "differences" + std::to_string(trainers_.size());
    add();
    add();
    auto usual = options_;
    options_.full_state_every = 0;
    options_.parameter_exchange = [&usual, &greeting](const ExchangeContext& context) {
      return std::make_unique<OddGreeting>(context, usual, greeting);
    };
    add();
    options_ = usual;
    ASSERT_TRUE(wait_for_rounds(3, 3));
    const auto all = bits(3);
    EXPECT_GE(all.size(), 2u);
    for (const auto& [epoch, each_way] : all) EXPECT_NEAR(each_way, kFullBits, 0.1) << epoch;
    expect_equal_members();
    for (auto& trainer : trainers_) end(*trainer);
    trainers_.clear();
  }
  EXPECT_EQ(sim::offences(net_.runtime()), 0);
}

TEST_F(FullStateEvery, WhereTheTrainerGoesOnMeanwhileAllEndInTheSameBits) {
  options_.delay_state_averaging = true;
  for (int i = 0; i < 3; ++i) add();
  ASSERT_TRUE(wait_for(10min, [&] {
    return std::ranges::all_of(trainers_, [](const auto& trainer) { return trainer->run->stats().state_rounds >= 8; });
  }));
  // Of what 8 full rounds would take, six are a quarter.
  for (const auto& trainer : trainers_) {
    const auto stats = trainer->run->stats();
    const double full =
        4 * 2.0 * 2 / 3 * static_cast<double>(kWeights + kBias) * static_cast<double>(stats.state_rounds);
    EXPECT_LT(static_cast<double>(stats.bytes_sent), 0.6 * full);
    trainer->stops = true;
  }
  net_.pass(1min);
  for (const auto& trainer : trainers_) EXPECT_EQ(trainer->parameters(), trainers_[0]->parameters());
}

/// A model of 4,096 parameters, which are enough for 8 bits.
TEST(FullStates, AreSentWhereTrainersAreKilledReplacedAndAsleepAndTheyLearnOn) {
  auto scenario = sim::small_training();
  scenario.features = scenario.columns = 64;
  scenario.duration = 6min;
  scenario.replaced_per_minute = scenario.asleep_per_minute = 0.3;
  scenario.tune = [](RunOptions& options) {
    options.use_local_updates = true;
    options.full_state_every = 10;
  };
  const auto report = sim::run_training(scenario);
  SCOPED_TRACE(::testing::PrintToString(report));
  EXPECT_GE(report.newcomers, 2u);
  EXPECT_EQ(report.offences, 0);
  EXPECT_LT(report.last_loss, report.first_loss / 1000);
}

ParameterGreeting read(msgpack::Value value) {
  averaging::Member member;
  member.data = std::move(value);
  return ParameterGreeting::of(member);
}

TEST(ParameterGreeting, IsReadAsItWasTold) {
  const auto both = read(ParameterGreeting{7, 0xfedcba9876543210}.value());
  EXPECT_EQ(both.epoch, 7u);
  EXPECT_EQ(both.common, 0xfedcba9876543210);
  const auto plain = read(msgpack::Value(std::uint64_t{7}));
  EXPECT_EQ(plain.epoch, 7u);
  EXPECT_EQ(plain.common, 0u);
}

TEST(ParameterGreeting, TellsNothingWhereItMakesNoSense) {
  using namespace msgpack;
  for (const Value& odd : {Value(), Value("3"), Value(-3), Value(Array{}), Value(Map{}), Value(Tuple{{3, 7}})}) {
    EXPECT_EQ(read(odd).epoch, std::nullopt);
    EXPECT_EQ(read(odd).common, 0u);
  }
  for (const Value& odd : {Value(), Value("7"), Value(-7), Value(7.5), Value(1e300), Value(Array{{7}})}) {
    EXPECT_EQ(read(Array{{3, odd}}).epoch, 3u);
    EXPECT_EQ(read(Array{{3, odd}}).common, 0u);
    EXPECT_EQ(read(Array{{odd, 7}}).epoch, std::nullopt);
    EXPECT_EQ(read(Array{{odd, 7}}).common, 7u);
  }
}

}  // namespace
}  // namespace cohive::train
