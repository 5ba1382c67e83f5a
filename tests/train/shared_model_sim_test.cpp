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
    const auto bytes = state.reader ? state.reader->read(0, 0, sizeof(float)) : state.tensors[0].data;
    float value = 0;
    std::memcpy(&value, bytes.value().data(), sizeof value);
    return value;
  }
  static std::uint64_t copied_for(const averaging::SharedState& state) {
    return state.reader->tensors()->copied_bytes();
  }

  sim::Swarm swarm{{.seed = 3}};
  PlainReplica replica{swarm.runtime(), {{kValues}}, optim::AdamOptions{.lr = 0.1}};
  SharedModel model{swarm.runtime(), replica};
};

TEST_F(SharedModelCopies, AllThatAskReadTheStateWhereItIsUntilTheNextChange) {
  fill(1);
  auto first = copy();
  const auto second = copy();
  EXPECT_EQ(first_value(first), 1.0f);
  EXPECT_EQ(first.reader->tensors(), second.reader->tensors());
  EXPECT_EQ(first.version, second.version);
  EXPECT_TRUE(first.tensors[0].data.empty());
  EXPECT_EQ(copied_for(first), 0u) << "nothing is copied before the model changes";

  fill(2);
  EXPECT_EQ(first_value(first), 1.0f) << "a download in progress keeps what it began with";
  EXPECT_GE(copied_for(first), 3 * kValues * sizeof(float));
  const auto third = copy();
  EXPECT_EQ(first_value(third), 2.0f);
  EXPECT_NE(third.version, first.version);
}

TEST_F(SharedModelCopies, WhatWasReadIsNotCopied) {
  fill(1);
  const auto state = copy();
  for (std::size_t i = 0; i < state.reader->tensors()->count(); ++i)
    state.reader->done(i, 0, state.reader->tensors()->size(i));
  fill(2);
  EXPECT_EQ(copied_for(state), 0u);
  EXPECT_FALSE(state.reader->read(0, 0, sizeof(float)));
}

TEST_F(SharedModelCopies, WhoOnlyLooksAtTheStateIsKeptNothing) {
  fill(1);
  const auto state = copy();
  state.reader->keep_from(swarm.runtime().now() + 1s);
  fill(2);
  EXPECT_EQ(copied_for(state), 0u);
  EXPECT_FALSE(state.reader->read(0, 0, sizeof(float)));

  const auto patient = copy(), reading = copy();
  patient.reader->keep_from(swarm.runtime().now() + 1s);
  reading.reader->keep_from(TimePoint::max());
  reading.reader->done(0, 0, kValues * sizeof(float));
  swarm.pass(1s);
  fill(3);
  EXPECT_EQ(first_value(patient), 2.0f);
  EXPECT_TRUE(reading.reader->read(1, 0, sizeof(float))) << "it has begun";
}

TEST_F(SharedModelCopies, ParametersThatARoundHasReplacedBesideTheTrainerAreReadUntilTheyAreGone) {
  fill(1);
  const auto before = copy();
  swarm.run([](Replica& of) -> Task<void> {
    const auto parts = co_await of.state_parts({.to = Place::next});
    co_await parts->finish();
    (void)co_await of.finish_state(true);
  }(replica));
  (void)swarm.run(model.change_beside());
  const auto after = copy();
  replica.publish();
  fill(7);
  EXPECT_EQ(first_value(before), 1.0f);
  EXPECT_EQ(first_value(after), 1.0f) << "the average of one peer";
}

/// As LibTorch's models, whose publish() leaves what was live in its memory.
struct ExchangingReplica : BufferReplica {
  using BufferReplica::BufferReplica;
  bool publishes_by_exchange() const override { return true; }
};

TEST_F(SharedModelCopies, ParametersThatWillBeExchangedAreReadUntilTheNextStep) {
  std::vector<float> values(kValues);
  const std::vector<BufferTensor> parameters{{.data = values.data(), .shape = {kValues}}};
  ExchangingReplica exchanging(swarm.runtime(), parameters, optim::Options(optim::AdamOptions{.lr = 0.1}));
  SharedModel shared(swarm.runtime(), exchanging);
  const auto state = swarm.run(shared.copy(swarm.runtime().after(10s))).value();
  (void)swarm.run(shared.change_beside());
  EXPECT_EQ(copied_for(state), 0u);
  EXPECT_NE(swarm.run(shared.copy(swarm.runtime().after(10s))).value().version, state.version);
  {
    const auto change = swarm.run(shared.change());
  }
  EXPECT_GT(copied_for(state), 0u);
  EXPECT_EQ(first_value(state), 0.0f);
}

TEST_F(SharedModelCopies, ATrainerThatWritesWithoutAWordIsGivenCopies) {
  fill(1);
  const auto first = copy();
  first.reader->tensors()->spoil();  // as the donor's side finds by a hash
  const auto second = copy();
  EXPECT_EQ(second.reader, nullptr);
  EXPECT_FALSE(second.tensors[0].data.empty());
  EXPECT_NE(second.version, first.version) << "it is hashed anew";
}

TEST_F(SharedModelCopies, OfARunThatEndsNobodyReadsTheModelAnyMore) {
  auto ending = std::make_unique<SharedModel>(swarm.runtime(), replica);
  const auto state = swarm.run(ending->copy(swarm.runtime().after(10s))).value();
  ending.reset();
  EXPECT_FALSE(state.reader->read(0, 0, sizeof(float)));
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
  SharedModel copied(swarm.runtime(), replica, true);
  const auto take = [&] { return swarm.run(copied.copy(swarm.runtime().after(10s))).value(); };
  TaskGroup upkeep(swarm.runtime(), "upkeep");
  upkeep.spawn(SharedModel::give_up_idle_copies(copied, 30s));
  fill(1);
  auto download = std::optional(take());
  set(2);  // what nothing should do without a change shows which copy is given out
  swarm.pass(300s);
  EXPECT_EQ(first_value(take()), 1.0f) << "a download goes on";
  download.reset();
  swarm.pass(29s);
  EXPECT_EQ(first_value(take()), 1.0f) << "the next one may come soon";
  const auto version = take().version;
  swarm.pass(76s);
  const auto again = take();
  EXPECT_EQ(first_value(again), 2.0f);
  EXPECT_NE(again.version, version) << "hashes of the copy before would make this peer a liar";
}

/// A checkpoint is to have the trainer's last steps, whatever others are downloading.
TEST_F(SharedModelCopies, WhatIsCopiedBesideSomethingIsTheModelOfNow) {
  SharedModel copied(swarm.runtime(), replica, true);
  const auto take = [&](SharedModel::Beside beside) {
    return swarm.run(copied.copy(swarm.runtime().after(10s), std::move(beside))).value();
  };
  set(1);
  const auto download = take(nullptr);
  set(2);
  EXPECT_EQ(first_value(take([]() -> Task<void> { co_return; })), 2.0f);
  EXPECT_EQ(first_value(take(nullptr)), 1.0f) << "all that ask have one copy";
  EXPECT_EQ(first_value(download), 1.0f);
}

/// Each step afterwards would fail.
TEST_F(SharedModelCopies, AStateWhoseStepsAreNoCountIsRefused) {
  fill(1);
  for (const float steps : {-5.0f, 1e30f, 7.0f}) {
    auto state = swarm.run(replica.snapshot(0)).value();
    averaging::DownloadedState offered{.donor = PeerId(), .metadata = state.metadata, .tensors = state.tensors};
    offered.tensors.back().data = Slice::copy_of({reinterpret_cast<const std::uint8_t*>(&steps), sizeof steps});
    const auto loaded = swarm.run(replica.load(std::move(offered), 0));
    EXPECT_EQ(loaded.has_value(), steps == 7.0f) << steps;
    if (!loaded) {
      EXPECT_EQ(loaded.error(), averaging::Errc::bad_state);
    }
  }
}

/// A download that fails leaves the model as it is, and with it what rounds have not delivered of its gradients.
TEST(FusedReplicas, OweWhatTheyOwedUntilTheModelWasReplaced) {
  sim::Swarm swarm{{.seed = 3}};
  PlainReplica replica{swarm.runtime(), {{2}}, optim::SgdOptions{.lr = 0.1}};
  const std::vector<float> owed{1, -2};
  replica.residuals()->front().replace(owed);
  replica.cut_gradients();
  swarm.run(replica.drop_gradients());
  EXPECT_EQ(replica.residuals()->front().values(), owed);
  replica.forget_residuals();
  EXPECT_TRUE(replica.residuals()->front().empty());
}

}  // namespace
}  // namespace cohive::train
