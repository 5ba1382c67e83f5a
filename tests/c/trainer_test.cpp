// Trainers by the C interface: over the caller's memory, with steps of the library or of the caller.
#include <gmock/gmock.h>

#include <cmath>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "trainers.hpp"

namespace {

using namespace c_tests;
using testing::AllOf;
using testing::Each;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Lt;

/// A model whose batches add up where it is.
struct AddingModel : Model {
  explicit AddingModel(bool native) : Model(1, native) { calls.sums = hand_over; }
  /// The mean gradient of a batch.
  void add(float gradient, double of) {
    for (auto& value : sum) value += gradient * static_cast<float>(of);
    samples += of;
  }
  static std::int32_t hand_over(void* context, const float** gradients, double* samples, double* scale) {
    auto& self = static_cast<AddingModel&>(*static_cast<Model*>(context));
    ++self.asked;
    self.handed_over = std::exchange(self.sum, std::vector<float>(4));
    gradients[0] = self.handed_over.data();
    *scale = *samples = std::exchange(self.samples, 0);
    return self.is_lost ? 1 : 0;
  }
  std::vector<float> sum = std::vector<float>(4), handed_over;
  double samples = 0;
  int asked = 0;
  bool is_lost = false;
};

/// A model whose state is described anew in each step, as that of an optimizer that replaces its tensors.
struct DescribingModel : Model {
  DescribingModel() : Model(1) { calls.step = describe_and_step; }
  static std::int32_t describe_and_step(void* context, float* const* gradients, std::uint64_t epoch) {
    auto& self = static_cast<DescribingModel&>(*static_cast<Model*>(context));
    EXPECT_EQ(self.trainer->describe(), COHIVE_OK) << cohive_last_error();
    return step(context, gradients, epoch);
  }
  TrainerOwner* trainer = nullptr;
};

class CTrainer : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Steps, CTrainer, testing::Bool(),
                         [](const auto& native) { return native.param ? "OfTheLibrary" : "OfTheCaller"; });

TEST_P(CTrainer, StepsWithTheMeanOverTheSamplesOfAnEpoch) {
  SwarmOwner swarm(kAlone);
  Model model(1, GetParam());
  TrainerOwner trainer(swarm.handle, model);
  EXPECT_EQ(trainer.step(1, 4).epoch_changed, 0);
  EXPECT_THAT(model.values, Each(1.0f)) << "the epoch goes on";
  const auto report = trainer.step(2, 12);
  EXPECT_EQ(report.epoch_changed, 1);
  EXPECT_EQ(report.epoch, 1u);
  EXPECT_THAT(model.values, Each(FloatNear(1 - kRate * (4 * 1 + 12 * 2) / 16.0f, 1e-6f)));
  EXPECT_EQ(model.steps, GetParam() ? 0 : 1);
}

TEST_P(CTrainer, TakesSumsOfTheCallerAtTheEndOfAnEpochAlone) {
  SwarmOwner swarm(kAlone);
  AddingModel model(GetParam());
  TrainerOwner trainer(swarm.handle, model);
  for (const float first : {1.0f, 3.0f}) {
    const int asked = std::exchange(model.asked, 0);
    EXPECT_EQ(asked, first == 1 ? 0 : 1);
    const float before = model.values[0];
    model.add(first, 4);
    EXPECT_EQ(trainer.step(100, 4).epoch_changed, 0) << "what the call is given is not looked at";
    EXPECT_EQ(model.asked, 0);
    model.add(2, 12);
    EXPECT_EQ(trainer.step(100, 12).epoch_changed, 1);
    EXPECT_THAT(model.values, Each(FloatNear(before - kRate * (4 * first + 12 * 2) / 16.0f, 1e-6f)));
  }
}

TEST_P(CTrainer, GoesOnAfterSumsThatWereNotHandedOver) {
  SwarmOwner swarm(kAlone);
  AddingModel model(GetParam());
  TrainerOwner trainer(swarm.handle, model);
  model.is_lost = true;
  model.add(1, 16);
  const float* none[] = {nullptr};
  EXPECT_EQ(cohive_trainer_step(trainer.handle, none, 16, 1, nullptr), COHIVE_CANCELLED);
  EXPECT_THAT(cohive_last_error(), HasSubstr("hand over"));
  model.is_lost = false;
  model.add(1, 16);
  EXPECT_EQ(trainer.step(0, 16).epoch_changed, 1);
  EXPECT_THAT(model.values, Each(FloatNear(1 - kRate, 1e-6f)));
}

TEST_P(CTrainer, TwoPeersStepTogether) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  Model ours(1, GetParam()), theirs(1, GetParam());
  TrainerOwner our_trainer(first.handle, ours), their_trainer(second.handle, theirs);
  train_together(our_trainer, 1, their_trainer, 3);
  EXPECT_EQ(ours.values, theirs.values);
  EXPECT_LT(ours.values[0], 1.0f);
}

TEST_P(CTrainer, ANewcomerTakesTheState) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  Model ours(1, GetParam()), theirs(9, GetParam());
  TrainerOwner our_trainer(first.handle, ours);
  EXPECT_EQ(our_trainer.step(1, 16).epoch_changed, 1);
  TrainerOwner their_trainer(second.handle, theirs);
  their_trainer.load();
  EXPECT_EQ(theirs.loaded, 1u);
  EXPECT_EQ(theirs.values, ours.values);
}

TEST(CTrainerSteps, TheStateIsDescribedInsideOfThem) {
  for (const auto* more : {"", R"(, "use_local_updates": true)"}) {
    SwarmOwner swarm(kAlone);
    DescribingModel model;
    TrainerOwner trainer(swarm.handle, model, more);
    model.trainer = &trainer;
    (void)trainer.step(1, 16);
    EXPECT_EQ(model.steps, 1);
  }
}

TEST(CTrainerFaults, AStepThatFailsIsTheErrorOfItsCall) {
  SwarmOwner swarm(kAlone);
  Model model(1);
  TrainerOwner trainer(swarm.handle, model);
  model.fails = true;
  const std::vector<float> gradients(4, 1.0f);
  const float* pointers[] = {gradients.data()};
  EXPECT_EQ(cohive_trainer_step(trainer.handle, pointers, 16, 1, nullptr), COHIVE_CANCELLED);
  EXPECT_THAT(cohive_last_error(), HasSubstr("optimizer has failed to step"));
  EXPECT_THAT(model.values, Each(1.0f));
  model.fails = false;
  (void)trainer.step(1, 16);
  EXPECT_GE(model.steps, 1) << "it trains on";
}

TEST(CTrainerFaults, TheEndOfASwarmIsThatOfItsTrainers) {
  SwarmOwner swarm(kAlone);
  Model model(1);
  TrainerOwner trainer(swarm.handle, model);
  TicketOwner closed;
  ASSERT_EQ(cohive_swarm_close(swarm.handle, &closed.handle), COHIVE_OK);
  ASSERT_EQ(cohive_ticket_wait(closed.handle, kLong), COHIVE_OK);
  const std::vector<float> gradients(4, 1.0f);
  const float* pointers[] = {gradients.data()};
  EXPECT_EQ(cohive_trainer_step(trainer.handle, pointers, 16, 1, nullptr), COHIVE_CLOSED);
  EXPECT_EQ(cohive_trainer_close(trainer.handle), COHIVE_OK) << "nothing is left to do";
}

TEST(CTrainerFaults, EndsOnceWhoeverEndsIt) {
  for (int round = 0; round < 5; ++round) {
    SwarmOwner swarm(kAlone);
    Model model(1);
    TrainerOwner trainer(swarm.handle, model);
    (void)trainer.step(1, 8);
    TicketOwner closed;
    ASSERT_EQ(cohive_swarm_close(swarm.handle, &closed.handle), COHIVE_OK);
    {
      std::vector<std::jthread> closers;
      for (int i = 0; i < 4; ++i)
        closers.emplace_back(
            [&] { EXPECT_EQ(cohive_trainer_close(trainer.handle), COHIVE_OK) << cohive_last_error(); });
    }
    model.values.assign(4, 7.0f);  // nothing uses the memory any more
    EXPECT_EQ(cohive_ticket_wait(closed.handle, kLong), COHIVE_OK);
    EXPECT_THAT(model.values, Each(7.0f));
  }
}

/// A trainer whose batches add up in one buffer.
struct AddingInPlace {
  explicit AddingInPlace(cohive_swarm* swarm) : trainer(swarm, model, R"(, "reuse_grad_buffers": true)") {}
  std::int32_t step(float gradient, double scale = 1, cohive_step_report* report = nullptr) {
    for (auto& value : sum) value += gradient * static_cast<float>(scale);
    const float* pointers[] = {sum.data()};
    return cohive_trainer_step(trainer.handle, pointers, 8, scale, report);
  }
  Model model{1};
  std::vector<float> sum = std::vector<float>(4);
  TrainerOwner trainer;
};

TEST(CTrainerReuse, OneScaleIsThatOfAllBatchesOfAnEpoch) {
  SwarmOwner swarm(kAlone);
  AddingInPlace adding(swarm.handle);
  ASSERT_EQ(adding.step(1, 4), COHIVE_OK) << cohive_last_error();
  const auto before = adding.sum;
  EXPECT_EQ(adding.step(1, 2), COHIVE_INVALID_ARGUMENT);
  EXPECT_THAT(cohive_last_error(), HasSubstr("one loss scale"));
  adding.sum = before;
  cohive_step_report report{};
  ASSERT_EQ(adding.step(3, 4, &report), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(report.epoch_changed, 1);
  EXPECT_EQ(report.cleared, 1);
  EXPECT_THAT(adding.model.values, Each(FloatNear(1 - kRate * 2, 1e-6f)));
  EXPECT_EQ(adding.step(1, 2), COHIVE_OK) << "another epoch, another scale";
}

TEST(CTrainerReuse, ABatchWithoutAGradientLeavesTheSumOfThoseBefore) {
  SwarmOwner swarm(kAlone);
  AddingInPlace adding(swarm.handle);
  ASSERT_EQ(adding.step(4), COHIVE_OK) << cohive_last_error();
  const float* none[] = {nullptr};
  cohive_step_report report{};
  ASSERT_EQ(cohive_trainer_step(adding.trainer.handle, none, 8, 1, &report), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(report.epoch_changed, 1);
  EXPECT_EQ(report.cleared, 1);
  EXPECT_THAT(adding.sum, Each(0.0f));
  EXPECT_THAT(adding.model.values, Each(FloatNear(1 - kRate * 2, 1e-6f))) << "the mean of 4 and nothing";
}

TEST(CTrainerReuse, ABatchThatDoesNotCountLeavesTheSumOfThoseBefore) {
  SwarmOwner swarm(kAlone);
  AddingInPlace adding(swarm.handle);
  ASSERT_EQ(adding.step(1), COHIVE_OK) << cohive_last_error();
  cohive_step_report report{};
  ASSERT_EQ(cohive_trainer_step(adding.trainer.handle, nullptr, 0, 1, &report), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(report.cleared, 0);
  ASSERT_EQ(adding.step(3, 1, &report), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(report.epoch_changed, 1);
  EXPECT_THAT(adding.model.values, Each(FloatNear(1 - kRate * 2, 1e-6f)));
}

TEST(CTrainerReuse, SumsThatWereLostBeginAnew) {
  SwarmOwner swarm(kAlone);
  AddingInPlace adding(swarm.handle);
  ASSERT_EQ(adding.step(100), COHIVE_OK) << cohive_last_error();
  ASSERT_EQ(cohive_trainer_forget(adding.trainer.handle), COHIVE_OK) << cohive_last_error();
  adding.sum.assign(4, 0.0f);
  cohive_step_report report{};
  ASSERT_EQ(adding.step(1, 2, &report), COHIVE_OK) << "a scale of their own";
  EXPECT_EQ(report.epoch_changed, 0);
  ASSERT_EQ(adding.step(3, 2, &report), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(report.epoch_changed, 1);
  EXPECT_THAT(adding.model.values, Each(FloatNear(1 - kRate * 2, 1e-6f)));
}

TEST(CTrainerReuse, AStateThatIsTakenOverInTheMiddleOfAnEpochClearsTheBuffers) {
  SwarmOwner swarm(kAlone);
  AddingInPlace adding(swarm.handle);
  ASSERT_EQ(adding.step(100), COHIVE_OK) << cohive_last_error();
  ASSERT_EQ(cohive_trainer_restore(adding.trainer.handle, 5), COHIVE_OK) << cohive_last_error();
  EXPECT_THAT(adding.sum, Each(0.0f));
  ASSERT_EQ(adding.step(1), COHIVE_OK) << cohive_last_error();
  EXPECT_THAT(adding.sum, Each(1.0f)) << "the epoch goes on";
  ASSERT_EQ(adding.step(3), COHIVE_OK) << cohive_last_error();
  EXPECT_THAT(adding.model.values, Each(FloatNear(1 - kRate * 2, 1e-6f)));
}

TEST(CTrainerReuse, ACallThatIsInterruptedLeavesNothingInTheBuffersAndLosesNoSum) {
  SwarmOwner swarm(kAlone);
  AddingInPlace adding(swarm.handle);
  ASSERT_EQ(adding.step(1), COHIVE_OK) << cohive_last_error();
  adding.model.gives_up = true;
  EXPECT_EQ(cohive_trainer_average(adding.trainer.handle, nullptr), COHIVE_CANCELLED);
  EXPECT_THAT(adding.sum, Each(0.0f));
  EXPECT_EQ(adding.step(100), COHIVE_CANCELLED) << "which waits for the call before";
  EXPECT_THAT(adding.sum, Each(0.0f)) << "it does not count";
  adding.model.gives_up = false;
  cohive_step_report report{};
  ASSERT_EQ(adding.step(3, 1, &report), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(report.epoch_changed, 1);
  EXPECT_THAT(adding.model.values, Each(FloatNear(1 - kRate * 2, 1e-6f))) << "the mean of 1 and 3";
}

TEST_P(CTrainer, AStateThatAnInterruptedCallHasLoadedIsToldAndTheBatchBesideItDoesNotCount) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  Model ours(1, GetParam()), theirs(9, GetParam());
  TrainerOwner our_trainer(first.handle, ours);
  EXPECT_EQ(our_trainer.step(1, 16).epoch_changed, 1);
  TrainerOwner their_trainer(second.handle, theirs);
  cohive_step_report report{};
  for (int tries = 0; tries < 15 && report.loaded_state == 0; ++tries) {
    theirs.gives_up = true;
    std::int32_t loaded = 0;
    if (cohive_trainer_load(their_trainer.handle, &loaded) == COHIVE_OK) EXPECT_EQ(loaded, 0);
    theirs.gives_up = false;
    report = their_trainer.step(100, 1);
  }
  EXPECT_EQ(report.loaded_state, 1);
  EXPECT_EQ(theirs.values, ours.values);
  EXPECT_EQ(report.epoch, 1u);
}

TEST(CTrainerFaults, ACallThatWaitsEndsWhenItIsInterrupted) {
  SwarmOwner swarm(kAlone);
  Model model(1);
  model.calls.interrupted = [](void*) { return 1; };
  TrainerOwner trainer(swarm.handle, model, R"(, "averaging_timeout": 60, "matchmaking_time": 50)");
  std::uint64_t group = 0;
  EXPECT_EQ(cohive_trainer_average(trainer.handle, &group), COHIVE_CANCELLED);
}

TEST(CTrainerFaults, WhatCannotBeMeantGetsASentence) {
  SwarmOwner swarm(kAlone);
  Model model(1);
  const auto opened = [&](const std::string& options, std::function<void(cohive_tensor&)> change = nullptr) {
    auto tensor = model.tensor();
    if (change) change(tensor);
    cohive_trainer* handle = nullptr;
    const auto code = cohive_trainer_open(swarm.handle, options.c_str(), &tensor, 1, nullptr, 0, &model.calls, &handle);
    EXPECT_EQ(handle, nullptr);
    EXPECT_EQ(code, COHIVE_INVALID_ARGUMENT);
    return std::string(cohive_last_error());
  };
  EXPECT_THAT(opened("{}"), HasSubstr("run_id is missing"));
  EXPECT_THAT(opened(R"({"run_id": "run"})"), HasSubstr("target_batch_size is missing"));
  EXPECT_THAT(opened(options_of(R"(, "delay_grad_averagin": true)")), HasSubstr("did you mean delay_grad_averaging?"));
  EXPECT_THAT(opened(options_of(R"(, "delay_optimizer_step": true)")), HasSubstr("native_steps"));
  EXPECT_THAT(opened(options_of(R"(, "grad_codecs": ["FLOAT16", "NONE"])")), HasSubstr("one for each tensor"));
  EXPECT_THAT(opened(options_of(R"(, "grad_codecs": ["FLOAT17"])")), HasSubstr("FLOAT17 is no codec"));
  EXPECT_THAT(opened(options_of(R"(, "auxiliary": true, "use_local_updates": true)")), HasSubstr("auxiliary"));
  EXPECT_THAT(opened(options_of(R"(, "averager_rank": 0)")), HasSubstr("averager_rank"));
  EXPECT_THAT(opened(options_of(R"(, "min_compression_ratio": 0.5)")), HasSubstr("averager_rank"));
  EXPECT_THAT(opened(options_of(R"(, "use_local_updates": true, "averager_rank": 4)")), HasSubstr("averager_rank"));
  EXPECT_THAT(opened(options_of(R"(, "use_local_updates": true, "clip_grad_norm": 1.0)")),
              HasSubstr("clip those of each batch"));
  EXPECT_THAT(opened(options_of(R"(, "outer_lr": 0.7)")), HasSubstr("set use_local_updates"));
  EXPECT_THAT(opened(options_of(R"(, "use_local_updates": true, "outer_momentum": 0.5)")), HasSubstr("with outer_lr"));
  EXPECT_THAT(opened(options_of(R"(, "use_local_updates": true, "outer_lr": 0.7, "outer_fragments": 65)")),
              HasSubstr("fragments must be from 1 to 64"));
  const auto sparse = [&](const char* more) {
    return opened(
        options_of(R"(, "use_local_updates": true, "outer_lr": 0.7, "outer_codec": "sparse2")" + std::string(more)));
  };
  EXPECT_THAT(sparse(R"(, "outer_momentum": 0.5)"), HasSubstr("set outer_optimizer.momentum to 0"));
  EXPECT_THAT(sparse(R"(, "outer_aggregation": "mean", "outer_clip_factor": 2)"),
              HasSubstr("outer_aggregation that clips"));
  EXPECT_THAT(sparse(R"(, "outer_aggregation": "median")"), HasSubstr("outer_aggregation is"));
  EXPECT_THAT(opened(options_of(R"(, "outer_codec": "sparse2")")), HasSubstr("go with outer_lr"));
  const auto good = options_of();
  EXPECT_THAT(opened(good, [](auto& tensor) { tensor.size = 12; }), HasSubstr("another size than its shape"));
  EXPECT_THAT(opened(good, [](auto& tensor) { tensor.dtype = "int32"; }), HasSubstr("float32"));
  EXPECT_THAT(opened(good, [](auto& tensor) { tensor.data = nullptr; }), HasSubstr("no memory"));
  EXPECT_THAT(opened(good, [](auto& tensor) { tensor.data = static_cast<const char*>(tensor.data) + 1; }),
              HasSubstr("aligned"));
  TrainerOwner trainer(swarm.handle, model);
  const std::vector<float> gradients(4, 1.0f);
  const float* pointers[] = {gradients.data()};
  for (const auto& [samples, scale] : {std::pair(0, 1.0), {-1, 1.0}, {4, 0.0}, {4, std::nan("")}})
    EXPECT_EQ(cohive_trainer_step(trainer.handle, pointers, samples, scale, nullptr), COHIVE_INVALID_ARGUMENT);
  const auto tensor = model.tensor();
  const char* name = "parameter.0";
  EXPECT_EQ(cohive_trainer_describe(trainer.handle, raw("\x80"), 1, &tensor, &name, 1, nullptr, nullptr),
            COHIVE_INVALID_ARGUMENT);
  EXPECT_EQ(cohive_trainer_describe(trainer.handle, raw("\x91"), 1, &tensor, &name, 1, nullptr, nullptr),
            COHIVE_INVALID_ARGUMENT);
  EXPECT_EQ(cohive_trainer_describe(trainer.handle, raw("\x81\xa1x\x01"), 4, &tensor, nullptr, 1, nullptr, nullptr),
            COHIVE_INVALID_ARGUMENT);
  EXPECT_THAT(model.values, Each(1.0f));
}

TEST(CTrainerFaults, StepsOfTheLibraryThatCannotBeMeant) {
  SwarmOwner swarm(kAlone);
  Model model(1, true);
  TrainerOwner trainer(swarm.handle, model);
  const auto tensor = model.tensor();
  const char* name = "parameter.0";
  float* statistics[4] = {};
  for (const char* steps :
       {"", "{}", "[]", R"([{"name": "adan", "parameters": 1}])", R"([{"name": "sgd"}])",
        R"([{"name": "sgd", "parameters": 2}])", R"([{"name": "sgd", "lr": "x", "parameters": 1}])",
        R"([{"name": "sgd", "lr": -1, "parameters": 1}])", R"([{"name": "adam", "betas": [0.9], "parameters": 1}])",
        R"([{"name": "adam", "parameters": 1}])" /* without statistics */}) {
    SCOPED_TRACE(steps);
    EXPECT_EQ(cohive_trainer_describe(trainer.handle, raw("\x81\xa1x\x01"), 4, &tensor, &name, 1, steps, statistics),
              COHIVE_INVALID_ARGUMENT);
  }
  (void)trainer.step(1, 16);
  EXPECT_THAT(model.values, Each(FloatNear(0.5f, 1e-6f))) << "as described before";
}

}  // namespace
