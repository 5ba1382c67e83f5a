// Auxiliary peers that come to a run which others have begun, or come back to it.
#include <gtest/gtest.h>

#include <algorithm>

#include "train/training_swarm.hpp"

namespace cohive::train {
namespace {

class AuxiliaryPeers : public TrainingSwarm, public ::testing::Test {
 protected:
  /// Two trainers come to epoch 5.
  void begin(bool clients) {
    options.client_mode = clients;
    for (int i = 0; i < 2; ++i) add({.value = 5});
    ASSERT_TRUE(wait_for(10min, [this] { return std::min(trainers[0]->epoch(), trainers[1]->epoch()) >= 5; }));
  }
  Trainer& add_helper() {
    options.client_mode = false;
    options.auxiliary = true;
    return add({.batch = 100ms, .samples = 0});
  }
  bool all_have(std::size_t rounds) const {
    return std::ranges::all_of(trainers, [rounds](const auto& one) { return one->rounds >= rounds; });
  }
};

TEST_F(AuxiliaryPeers, OneThatComesLateIsInTheGroups) {
  begin(false);
  auto& helper = add_helper();
  EXPECT_TRUE(wait_for(2min, [&] { return helper.rounds >= 3 && trainers[0]->largest == 3; }))
      << helper.rounds << " rounds, in epoch " << helper.epoch() << " of " << trainers[0]->epoch();
  EXPECT_GE(helper.epoch() + 2, trainers[0]->epoch());
  EXPECT_EQ(trainers[0]->value(), 5) << "it has no say";
  EXPECT_EQ(offences(), 0);
}

TEST_F(AuxiliaryPeers, OneThatComesToClientsMakesGroupsOfThem) {
  begin(true);
  auto& helper = add_helper();
  EXPECT_TRUE(wait_for(5min, [&] { return all_have(3); }))
      << helper.rounds << " rounds, in epoch " << helper.epoch() << " of " << trainers[0]->epoch();
  EXPECT_EQ(offences(), 0);
}

TEST_F(AuxiliaryPeers, OneThatHasSleptMakesGroupsOfClientsAgain) {
  begin(true);
  auto& helper = add_helper();
  ASSERT_TRUE(wait_for(5min, [&] { return all_have(3); }));
  const std::uint64_t before = trainers[0]->epoch();
  net.fabric().partition({sim::Swarm::ip(4)}, {sim::Swarm::ip(1), sim::Swarm::ip(2), sim::Swarm::ip(3)});
  pass(2min);
  net.fabric().heal();
  ASSERT_GE(trainers[0]->epoch(), before + 2) << "it is behind";
  const std::size_t rounds = std::max({helper.rounds, trainers[0]->rounds, trainers[1]->rounds});
  EXPECT_TRUE(wait_for(5min, [&] { return all_have(rounds + 3); }))
      << helper.rounds << " rounds, in epoch " << helper.epoch() << " of " << trainers[0]->epoch();
  EXPECT_EQ(offences(), 0);
}

}  // namespace
}  // namespace cohive::train
