// What outer steps go by, in the states of newcomers and in checkpoints.
#include <algorithm>

#include "cohive/core/log.hpp"
#include "outer_steps.hpp"

namespace cohive::train {
namespace {

using checkpoint::TemporaryFolder;

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

TEST_F(OuterSteps, ACheckpointHasTheLocalStepsSinceTheOneBefore) {
  auto& one = make();
  for (int step = 0; step < 2; ++step) {
    one.replica->step_locally({Values(4, -1)});
    EXPECT_EQ(saved(one)["parameter.0"], one.parameters()) << step;
  }
}

/// A codec that is good enough for parameters would lose a count of steps, and have anchors differ.
TEST_F(OuterSteps, ANewcomerGetsWhatStepsGoByToTheBitInWhateverParametersTravel) {
  options_.load_state_compression = codec::Codec::float16;
  auto& one = add();
  net_.pass(10s);
  one.pause = 1h;
  net_.pass(1s);
  one.outer->memory()->steps = 2049;  // no float16
  std::ranges::fill(one.outer->memory()->momentum[0], 0.3f);
  auto& newcomer = add();
  ASSERT_TRUE(wait_for(1min, [&] { return newcomer.run->stats().state_downloads == 1; }));
  EXPECT_EQ(newcomer.outer->memory()->steps, 2049);
  expect_same_state(one, newcomer);
  EXPECT_NE(newcomer.anchor()[0], Values(4));
}

/// What a codec has not delivered, by place in the file.
std::map<std::string, Values> owed_in(const std::filesystem::path& file) {
  auto owed = values_in(file);
  std::erase_if(owed, [](const auto& one) { return !one.first.ends_with(".owed"); });
  return owed;
}

TEST_F(OuterSteps, ACheckpointHoldsWhatIsOwedOfTheDifferences) {
  TemporaryFolder folder;
  const auto file = folder.path() / "outer.safetensors", again = folder.path() / "again.safetensors";
  shapes_ = {{4096}, {4096}};
  options_.agreed_grad_compression = codec::CodecSpec{codec::Codec::top_k, 0.1};
  options_.checkpoints.directory = folder / "rounds in the background";  // of which nobody opens one here
  for (const bool delayed : {false, true})
    for (const int fragments : {1, 2}) {
      SCOPED_TRACE(::testing::Message() << "delayed " << delayed << ", fragments " << fragments);
      options_.run_id = "owing" + std::to_string(delayed) + std::to_string(fragments);
      options_.delay_state_averaging = delayed;
      options_.outer_optimizer = OuterOptimizer{.fragments = fragments};
      auto& one = add();
      auto& two = add();
      ASSERT_TRUE(wait_for(4min, [&] { return one.run->epoch() >= 9 && two.run->epoch() >= 9; }));
      bool owes = false;  // nothing of what it reduces itself, which may be all
      std::map<std::string, Values> owed;
      for (auto* trainer : {&one, &two}) {
        trainer->tasks.reset();
        if (owes) continue;
        ASSERT_TRUE(net_.run(trainer->run->save_checkpoint(file)));
        owed = owed_in(file);
        ASSERT_EQ(owed.size(), 2u);
        for (const char* tensor : {"0", "1"}) {
          const std::string name = fragments == 1     ? log::format("averager.outer_step.{}.owed", tensor)
                                   : tensor[0] == '0' ? "averager.outer_step_1_of_2.0.owed"
                                                      : "averager.outer_step_2_of_2.0.owed";
          ASSERT_TRUE(owed.contains(name)) << name;
          owes |= std::ranges::any_of(owed.at(name), [](float value) { return value != 0; });
        }
      }
      EXPECT_TRUE(owes);
      auto& other = make();
      ASSERT_TRUE(net_.run(other.run->load_checkpoint(file)));
      ASSERT_TRUE(net_.run(other.run->save_checkpoint(again)));
      EXPECT_EQ(owed_in(again), owed);
      // A file of an older version has none of it.
      auto without = *checkpoint::read_file(file);
      std::erase_if(without.tensors, [](const auto& saved) { return saved.name.ends_with(".owed"); });
      ASSERT_TRUE(checkpoint::write_file(file, without));
      ASSERT_TRUE(net_.run(other.run->load_checkpoint(file)));
      ASSERT_TRUE(net_.run(other.run->save_checkpoint(again)));
      EXPECT_TRUE(owed_in(again).empty());
      for (auto* trainer : {&one, &two, &other}) end(*trainer);
    }
}

/// The anchor is new as soon as the step has been made, and the parameters are with the next step of the trainer.
TEST_F(OuterSteps, ACheckpointBeforeTheStepIsPublishedHasItInTheParameters) {
  options_.delay_state_averaging = true;
  TemporaryFolder folder;
  auto& one = add();
  auto& two = add();
  const auto steps_of = [](const Trainer& trainer) { return trainer.outer->memory()->steps; };
  ASSERT_TRUE(wait_for(2min, [&] { return steps_of(one) >= 2 && steps_of(two) >= 2; }));
  one.pause = 2s;
  net_.runtime().run_for(1s);
  const float steps = steps_of(one);
  ASSERT_TRUE(wait_for(2min, [&] { return steps_of(one) > steps; }));
  one.tasks.reset();
  net_.runtime().run_for(100ms);  // the end of the round, of which the trainer is to hear in its next step
  const auto file = folder.path() / "outer.safetensors";
  const auto written = net_.run(one.run->save_checkpoint(file));
  ASSERT_TRUE(written) << written.error();
  const Values before = one.parameters();
  ASSERT_TRUE(one.run->publish()) << "the trainer has made no step since";
  EXPECT_NE(one.parameters(), before);
  auto& again = make();
  const auto epoch = net_.run(again.run->load_checkpoint(file));
  ASSERT_TRUE(epoch) << epoch.error();
  expect_same_state(one, again);
  EXPECT_EQ(again.parameters(), one.parameters());
}

/// The caller has put a state of its own into the memory, of an earlier epoch.
TEST_F(OuterSteps, CheckpointsAreDueAgainAfterTheCallerHasGoneBack) {
  const TemporaryFolder folder;
  options_.checkpoints.directory = folder / "checkpoints";
  options_.checkpoints.every_epochs = 2;
  auto& one = make();
  const auto opened = net_.run(one.run->open_checkpoints());
  ASSERT_TRUE(opened) << opened.error();
  one.run->start();
  const auto train_to = [&](std::uint64_t epoch) {
    one.tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
    one.tasks->spawn(train(net_.runtime(), one), "trainer");
    const bool there = wait_for(5min, [&] { return one.run->epoch() >= epoch; });
    one.tasks.reset();
    (void)net_.run(one.run->settle());
    return there;
  };
  ASSERT_TRUE(train_to(10));
  EXPECT_GE(one.run->stats().checkpoints, 4u);
  net_.run(one.run->restore(0, [] {}));
  const auto before = one.run->stats().checkpoints;
  ASSERT_TRUE(train_to(6));
  EXPECT_LT(one.run->epoch(), 10u);
  EXPECT_GE(one.run->stats().checkpoints, before + 2);
  end(one);
}

}  // namespace
}  // namespace cohive::train
