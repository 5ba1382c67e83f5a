// A run as a program uses it: calls that wait, on threads of the program; arrays and an optimizer that are its own.
// Each trainer is alone in its swarm, so that an epoch ends with its own batches.
#include "cohive/train/trainer.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>
#include <stdexcept>
#include <thread>

#include "cohive/core/errors.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/train/buffer_replica.hpp"

namespace cohive::train {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kBatchOfOne = 8;  // samples: an epoch is two batches

RunOptions options_alone() {
  RunOptions options;
  options.run_id = "alone";
  options.target_batch_size = 2 * kBatchOfOne;
  options.matchmaking_time = 200ms;
  options.averaging_timeout = 5s;
  options.tracker_options.default_refresh_period = 200ms;
  return options;
}

/// A model of three numbers that the caller's SGD steps, and its trainer.
struct Alone {
  explicit Alone(StepThread where = StepThread::trainer, RunOptions options = options_alone()) {
    trainer = std::make_unique<Trainer>(swarm, std::move(options), [this, where](Runtime& loop, TrainerThread& thread) {
      CallersOptimizer optimizer;
      optimizer.step = [this](const std::vector<std::span<float>>& gradients, std::uint64_t) {
        stepped_on = std::this_thread::get_id();
        if (before_step) before_step();
        for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= gradients[0][i];
      };
      optimizer.where = where;
      optimizer.thread = &thread;
      auto made = std::make_shared<BufferReplica>(
          loop, std::vector<BufferTensor>{{.name = "w", .data = weights.data(), .shape = {3}}}, std::move(optimizer));
      model = made.get();
      return made;
    });
  }
  StepReport batch(std::vector<float> gradient, std::int64_t samples = kBatchOfOne) {
    model->add_gradients({gradient}, static_cast<double>(samples));
    return trainer->step(samples);
  }
  /// Batches without gradients until an epoch ends.
  void end_epoch() {
    while (!batch({0, 0, 0}).epoch_changed) {
    }
  }

  Swarm swarm{{.peers_from_environment = false, .host_maddrs = {"/ip4/127.0.0.1/tcp/0"}, .nat_port_map = false}};
  std::vector<float> weights{1, 2, 3};
  std::thread::id stepped_on;
  std::function<void()> before_step;
  BufferReplica* model = nullptr;
  std::unique_ptr<Trainer> trainer;
};

TEST(Trainer, StepsInTheCallersArraysByTheMeanOverSamples) {
  Alone alone;
  EXPECT_FALSE(alone.batch({1, 0, 0}, 12).epoch_changed);
  const StepReport report = alone.batch({0, 1, 0}, 4);
  EXPECT_TRUE(report.epoch_changed);
  EXPECT_EQ(report.epoch, 1u);
  EXPECT_THAT(alone.weights, ::testing::ElementsAre(0.25f, 1.75f, 3));
  EXPECT_EQ(alone.stepped_on, std::this_thread::get_id()) << "inside step()";
  EXPECT_EQ(alone.trainer->epoch(), 1u);
}

TEST(Trainer, StepsOnAWorkerWhereTheCallerWantsIt) {
  Alone alone(StepThread::worker);
  alone.end_epoch();
  EXPECT_NE(alone.stepped_on, std::thread::id());
  EXPECT_NE(alone.stepped_on, std::this_thread::get_id());
}

TEST(Trainer, AnExceptionOfAStepComesThroughAndTrainingGoesOn) {
  for (const auto where : {StepThread::trainer, StepThread::worker}) {
    Alone alone(where);
    alone.before_step = [&] {
      alone.before_step = nullptr;
      throw std::domain_error("the optimizer has had enough");
    };
    EXPECT_THROW(alone.end_epoch(), std::domain_error);
    EXPECT_THAT(alone.weights, ::testing::ElementsAre(1, 2, 3));
    alone.end_epoch();
    EXPECT_GE(alone.trainer->epoch(), 1u);
  }
}

TEST(Trainer, ACallInsideOfAStepIsRefusedInsteadOfWaitingForItself) {
  Alone alone;
  alone.before_step = [&] { alone.trainer->settle(); };
  EXPECT_THROW(alone.end_epoch(), std::logic_error);
}

TEST(Trainer, ACancelledWaitGoesOnBehindTheNextCall) {
  std::latch begun(1), free(1);  // outlive the worker
  Alone alone(StepThread::worker);
  alone.before_step = [&] {
    begun.count_down();
    free.wait();
  };
  (void)alone.batch({1, 0, 0});
  std::jthread impatient([&] {
    begun.wait();
    alone.trainer->cancel_wait();
  });
  try {
    (void)alone.batch({1, 0, 0});
    FAIL() << "nobody has ended the step";
  } catch (const ErrorException& error) {
    EXPECT_EQ(error.error(), Errc::cancelled);
  }
  impatient.join();
  alone.before_step = nullptr;
  free.count_down();
  const StepReport report = alone.batch({0, 0, 0}, 1);
  EXPECT_TRUE(report.epoch_changed) << "the epoch whose end was not waited for";
  EXPECT_EQ(report.epoch, 1u);
  EXPECT_EQ(alone.weights[0], 0);
}

/// A program that was not told that the state was replaced would go on with copies of the parameters before.
TEST(StepReports, IncludeAllThatACallHasDoneWhichWasGivenUp) {
  const StepReport earlier{.epoch_changed = true, .loaded_state = true, .updated = true, .state_group = 3};
  StepReport report{.epoch = 4, .grad_group = 2};
  report.include(earlier);
  EXPECT_TRUE(report.epoch_changed && report.loaded_state && report.updated);
  EXPECT_EQ(report.epoch, 4u);
  EXPECT_EQ(report.grad_group, 2u);
  EXPECT_EQ(report.state_group, 3u);
}

TEST(Trainer, AsksAWaitingThreadWhetherToGiveUp) {
  std::latch free(1);  // outlives the worker
  Alone alone(StepThread::worker);
  alone.before_step = [&] { free.wait(); };
  alone.trainer->give_up_when([asked = 0]() mutable { return ++asked > 2; });
  try {
    alone.end_epoch();
    FAIL();
  } catch (const ErrorException& error) {
    EXPECT_EQ(error.error(), Errc::cancelled);
  }
  free.count_down();
}

TEST(Trainer, ClosesWhileAnotherThreadWaitsInIt) {
  std::latch begun(1), free(1);  // outlive the worker
  Alone alone(StepThread::worker);
  alone.before_step = [&] {
    begun.count_down();
    free.wait();
  };
  std::jthread closing([&] {
    begun.wait();
    alone.trainer->close();
  });
  try {
    alone.end_epoch();
    FAIL();
  } catch (const ErrorException& error) {
    EXPECT_EQ(error.error(), Errc::closed);
  }
  free.count_down();
  closing.join();
  EXPECT_THROW((void)alone.trainer->step(1), ErrorException);
  EXPECT_NO_THROW((void)alone.trainer->stats());
  alone.trainer->close();
}

TEST(Trainer, ThreadsTakeTurns) {
  Alone alone;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 3; ++i)
      threads.emplace_back([&] {
        for (int batch = 0; batch < 20; ++batch) (void)alone.batch({0, 0, 0}, 2);
      });
  }
  EXPECT_GE(alone.trainer->epoch(), 5u) << "120 samples, 16 of which are an epoch at most with those of a batch beside";
}

TEST(Trainer, OptionsThatTheModelDoesNotGoWithAreRefused) {
  RunOptions options = options_alone();
  options.delay_optimizer_step = true;
  try {
    const Alone alone(StepThread::trainer, options);
    FAIL();
  } catch (const std::invalid_argument& refused) {
    EXPECT_THAT(refused.what(), HasSubstr("delay_optimizer_step"));
  }
  Alone alone;
  EXPECT_THROW((void)alone.trainer->step(-1), std::invalid_argument);
}

/// A batch that the model refuses does not count, and none is lost by it.
TEST(Trainer, ABatchThatIsRefusedDoesNotCount) {
  Alone alone;
  (void)alone.batch({1, 1, 1});
  EXPECT_THROW((void)alone.trainer->step([]() -> std::int64_t { throw std::invalid_argument("no batch"); }),
               std::invalid_argument);
  EXPECT_THROW(alone.model->add_gradients({std::vector<float>(2)}, 1), std::invalid_argument);
  EXPECT_TRUE(alone.batch({1, 1, 1}).epoch_changed);
  EXPECT_THAT(alone.weights, ::testing::ElementsAre(0, 1, 2));
}

TEST(Swarm, CallsRunOnItsLoop) {
  Alone alone;
  EXPECT_EQ(alone.swarm.call([&]() -> Task<std::string> { co_return alone.swarm.dht().host().id().text(); }),
            alone.swarm.peer_id());
  EXPECT_THROW(alone.swarm.call([]() -> Task<void> {
    throw std::domain_error("on the loop");
    co_return;
  }),
               std::domain_error);
}

// ---- Arrays

struct BadArray {
  const char* name;
  BufferTensor array;
  const char* sentence;
};
float numbers[12];

class ArraysOfOthers : public ::testing::TestWithParam<BadArray> {};
TEST_P(ArraysOfOthers, AreRefusedWithOneSentence) {
  try {
    (void)values_of(GetParam().array, "parameter \"w\"");
    FAIL();
  } catch (const std::invalid_argument& refused) {
    EXPECT_THAT(refused.what(), HasSubstr(GetParam().sentence));
    EXPECT_THAT(refused.what(), HasSubstr("parameter \"w\""));
  }
}
INSTANTIATE_TEST_SUITE_P(
    All, ArraysOfOthers,
    ::testing::Values(
        BadArray{"Doubles", {.data = numbers, .dtype = codec::DType::float64, .shape = {3}}, "not of float32"},
        BadArray{"Negative", {.data = numbers, .shape = {3, -1}}, "negative size"},
        BadArray{"Huge", {.data = numbers, .shape = {1LL << 32}}, "larger than any memory"},
        BadArray{"HugeTogether", {.data = numbers, .shape = {1LL << 31, 1LL << 31}}, "larger than any memory"},
        BadArray{"Transposed", {.data = numbers, .shape = {3, 4}, .strides = {1, 3}}, "row-major"},
        BadArray{"Reversed", {.data = numbers, .shape = {12}, .strides = {-1}}, "row-major"},
        BadArray{"Sliced", {.data = numbers, .shape = {3, 2}, .strides = {4, 1}}, "row-major"},
        BadArray{"OneStride", {.data = numbers, .shape = {3, 4}, .strides = {1}}, "another number of strides"},
        BadArray{"Nothing", {.data = nullptr, .shape = {}}, "has no memory"},
        BadArray{"Unaligned", {.data = reinterpret_cast<char*>(numbers) + 1, .shape = {2}}, "not aligned"}),
    [](const auto& test) { return test.param.name; });

TEST(ArraysOfOthers, AreTakenWhereTheirValuesAreInOrder) {
  EXPECT_EQ(values_of({.data = numbers, .shape = {}}, "").size(), 1u) << "a scalar";
  EXPECT_EQ(values_of({.data = numbers, .shape = {3, 4}, .strides = {4, 1}}, "").size(), 12u);
  EXPECT_EQ(values_of({.data = numbers, .shape = {3, 1, 4}, .strides = {4, 77, 1}}, "").size(), 12u)
      << "the stride of a single element says nothing";
  EXPECT_EQ(values_of({.data = nullptr, .shape = {0, 4}, .strides = {4, 1}}, "").size(), 0u) << "numpy has such arrays";
}

TEST(ArraysOfOthers, NeedAThreadForAStepOnThatOfTheTrainer) {
  SimRuntime runtime;
  CallersOptimizer optimizer;
  optimizer.step = [](const auto&, std::uint64_t) {};
  const std::vector<BufferTensor> parameters{{.data = numbers, .shape = {3}}};
  EXPECT_THROW(BufferReplica(runtime, parameters, optimizer), std::invalid_argument);
  EXPECT_THROW(BufferReplica(runtime, parameters, CallersOptimizer()), std::invalid_argument);
  EXPECT_THROW(BufferReplica(runtime, {}, optim::SgdOptions()), std::invalid_argument);
}

}  // namespace
}  // namespace cohive::train
