#include "train/shared_model.hpp"

#include <gtest/gtest.h>

#include "cohive/averaging/errors.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/plain_replica.hpp"

namespace cohive::train {
namespace {

constexpr std::size_t kValues = 300;

class SharedModelCopies : public ::testing::Test {
 protected:
  void fill(float value) {
    auto change = swarm.run(model.change());
    set(value);
  }
  void set(float value) { std::ranges::fill(replica.parameter(0), value); }
  averaging::SharedState copy() { return swarm.run(model.copy(swarm.runtime().after(10s))).value(); }
  static float first_value(const averaging::SharedState& state) {
    float value = 0;
    std::memcpy(&value, state.tensors[0].data.data(), sizeof value);
    return value;
  }

  sim::Swarm swarm{{.seed = 3}};
  PlainReplica replica{swarm.runtime(), {{kValues}}, optim::SgdOptions{.lr = 0.1}};
  SharedModel model{swarm.runtime(), replica};
};

TEST_F(SharedModelCopies, OneCopyServesAllThatAskUntilTheNextChange) {
  fill(1);
  const auto first = copy(), second = copy();
  EXPECT_EQ(first_value(first), 1.0f);
  EXPECT_EQ(first.tensors[0].data.data(), second.tensors[0].data.data());
  EXPECT_EQ(first.version, second.version);

  fill(2);
  EXPECT_EQ(first_value(first), 1.0f) << "a download in progress keeps what it began with";
  const auto third = copy();
  EXPECT_EQ(first_value(third), 2.0f);
  EXPECT_NE(third.version, first.version);
}

TEST_F(SharedModelCopies, ANewcomerThatAsksDuringAChangeGetsTheStateAfterIt) {
  fill(1);
  auto change = std::optional(swarm.run(model.change()));
  set(2);
  std::optional<averaging::SharedState> got;
  TaskGroup asking(swarm.runtime(), "asking");
  asking.spawn([](SharedModel& of, Runtime& runtime, std::optional<averaging::SharedState>& out) -> Task<void> {
    out = co_await of.copy(runtime.after(60s));
  }(model, swarm.runtime(), got));
  swarm.pass(5s);
  EXPECT_FALSE(got) << "half a change is no state";
  set(3);
  change.reset();
  swarm.pass(1s);
  ASSERT_TRUE(got);
  EXPECT_EQ(first_value(*got), 3.0f);
}

TEST_F(SharedModelCopies, AChangeThatTakesTooLongIsNotWaitedFor) {
  fill(1);
  const auto change = swarm.run(model.change());
  EXPECT_FALSE(swarm.run(model.copy(swarm.runtime().after(10s))));
}

TEST_F(SharedModelCopies, ACopyIsKeptOnlyAsLongAsADownloadUsesIt) {
  TaskGroup upkeep(swarm.runtime(), "upkeep");
  upkeep.spawn(SharedModel::give_up_idle_copies(model, 30s));
  fill(1);
  auto download = std::optional(copy());
  set(2);  // what nothing should do without a change shows which copy is given out
  swarm.pass(300s);
  EXPECT_EQ(first_value(copy()), 1.0f) << "a download goes on";
  download.reset();
  swarm.pass(29s);
  EXPECT_EQ(first_value(copy()), 1.0f) << "the next one may come soon";
  swarm.pass(76s);
  EXPECT_EQ(first_value(copy()), 2.0f);
}

/// Each step afterwards would fail.
TEST_F(SharedModelCopies, AStateWhoseStepsAreNoCountIsRefused) {
  fill(1);
  for (const float steps : {-5.0f, 1e30f, 7.0f}) {
    auto state = copy();
    averaging::DownloadedState offered{.donor = PeerId(), .metadata = state.metadata, .tensors = state.tensors};
    offered.tensors.back().data = Slice::copy_of({reinterpret_cast<const std::uint8_t*>(&steps), sizeof steps});
    const auto loaded = swarm.run(replica.load(std::move(offered), 0));
    EXPECT_EQ(loaded.has_value(), steps == 7.0f) << steps;
    if (!loaded) {
      EXPECT_EQ(loaded.error(), averaging::Errc::bad_state);
    }
  }
}

}  // namespace
}  // namespace cohive::train
