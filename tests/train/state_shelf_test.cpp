#include "train/state_shelf.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "support/swarm.hpp"

namespace cohive::train {
namespace {

class Shelf : public ::testing::Test {
 protected:
  std::optional<StateDescription> offered() { return StateDescription{msgpack::Map{{{"epoch", 1}}}, {weight, moment}}; }
  void fill(float value) {
    shelf->change([&] {
      torch::NoGradGuard no_grad;
      weight.fill_(value);
      moment.fill_(value);
      return offered();
    });
  }
  static float first_value(const averaging::SharedState& state) {
    float value = 0;
    std::memcpy(&value, state.tensors[0].data.data(), sizeof value);
    return value;
  }

  torch::Tensor weight = torch::zeros({300, 7}).requires_grad_(), moment = torch::zeros({5000});
  std::shared_ptr<StateShelf> shelf = std::make_shared<StateShelf>();
};

TEST_F(Shelf, GivesTheStateOfTheLastChangeOneCopyForAllWhoAsk) {
  EXPECT_FALSE(shelf->copy()) << "nothing was offered yet";
  fill(1);
  const auto first = shelf->copy(), second = shelf->copy();
  ASSERT_TRUE(first && second);
  EXPECT_EQ(first_value(*first), 1.0f);
  EXPECT_EQ(first->tensors[0].shape, (codec::Shape{300, 7}));
  EXPECT_EQ(first->tensors[0].data.data(), second->tensors[0].data.data());
  EXPECT_EQ(first->version, second->version);

  fill(2);
  EXPECT_EQ(first_value(*first), 1.0f) << "a download in progress keeps what it began with";
  const auto third = shelf->copy();
  EXPECT_EQ(first_value(*third), 2.0f);
  EXPECT_NE(third->version, first->version);
}

TEST_F(Shelf, AChangeAfterWhichNothingIsSharedTakesTheOldStateBack) {
  fill(1);
  ASSERT_TRUE(shelf->copy());
  shelf->change([]() -> std::optional<StateDescription> { return std::nullopt; });
  EXPECT_FALSE(shelf->copy());
}

TEST_F(Shelf, KeepsACopyOnlyAsLongAsSomebodyUsesIt) {
  sim::Swarm swarm({.seed = 3});
  TaskGroup upkeep(swarm.runtime(), "upkeep");
  upkeep.spawn(StateShelf::give_up_idle_copies(shelf, swarm.runtime(), 30s));
  fill(1);
  auto download = shelf->copy();
  {
    torch::NoGradGuard no_grad;
    weight.fill_(2);  // what the trainer should not do shows which copy is given out
  }
  swarm.pass(300s);
  EXPECT_EQ(first_value(*shelf->copy()), 1.0f) << "a download goes on";
  const auto version = download->version;
  download.reset();
  swarm.pass(29s);
  EXPECT_EQ(first_value(*shelf->copy()), 1.0f) << "the next one may come soon";
  swarm.pass(46s);
  const auto later = shelf->copy();
  EXPECT_EQ(first_value(*later), 2.0f);
  EXPECT_NE(later->version, version) << "another state";
}

TEST_F(Shelf, NoCopyMixesTwoStatesWhileTheTrainerGoesOn) {
  fill(0);
  std::atomic<bool> stop = false;
  std::thread trainer([&] {
    for (float value = 1; !stop; value = value < 1000 ? value + 1 : 1) fill(value);
  });
  for (int i = 0; i < 300; ++i) {
    const auto state = shelf->copy();
    ASSERT_TRUE(state);
    const float wanted = first_value(*state);
    for (const auto& tensor : state->tensors) {
      std::vector<float> values(tensor.data.size() / 4);
      std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
      for (float value : values) ASSERT_EQ(value, wanted);
    }
  }
  stop = true;
  trainer.join();
}

}  // namespace
}  // namespace cohive::train
