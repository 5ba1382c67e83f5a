// Trainers by the C interface: over the caller's memory, with steps of the library or of the caller.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "handles.hpp"

namespace {

using namespace c_tests;
using testing::AllOf;
using testing::Each;
using testing::FloatNear;
using testing::HasSubstr;
using testing::Lt;

constexpr float kRate = 0.5f;

/// A model of one parameter, with the gradient descent of the caller, or that of the library.
struct Model {
  explicit Model(float value, bool native = false) : values(4, value), is_native(native) {
    calls = {this, step, load, interrupted, nullptr};
  }
  static std::int32_t interrupted(void* context) { return static_cast<Model*>(context)->gives_up ? 1 : 0; }
  static std::int32_t step(void* context, float* const* gradients, std::uint64_t) {
    auto& self = *static_cast<Model*>(context);
    if (self.fails) return 1;
    ++self.steps;
    for (std::size_t i = 0; gradients && gradients[0] && i < self.values.size(); ++i)
      self.values[i] -= kRate * gradients[0][i];
    return 0;
  }
  static std::int32_t load(void* context, const std::uint8_t*, std::size_t, const cohive_tensor* tensors,
                           std::size_t count, std::uint64_t epoch) {
    auto& self = *static_cast<Model*>(context);
    if (count != 1 || tensors[0].size != 4 * sizeof(float)) return 1;
    std::copy_n(static_cast<const float*>(tensors[0].data), 4, self.values.begin());
    self.loaded = epoch;
    return 0;
  }
  cohive_tensor tensor() { return {values.data(), shape.data(), "float32", nullptr, 4 * sizeof(float), 1, 0, 0}; }

  std::vector<float> values;
  const std::vector<std::uint32_t> shape{4};
  bool is_native, fails = false;
  std::atomic<bool> gives_up = false;  // calls end where they wait
  std::atomic<int> steps = 0;
  std::atomic<std::uint64_t> loaded = 0;
  cohive_trainer_calls calls;
};

std::string options_of(const std::string& more = "") {
  return R"({"run_id": "run", "target_batch_size": 16, "matchmaking_time": 1.0, "averaging_timeout": 10,
             "request_timeout": 0.8, "delay_state_averaging": false)" +
         more + "}";
}

struct TrainerOwner {
  TrainerOwner(cohive_swarm* swarm, Model& of, const std::string& more = "") : model(of) {
    const auto tensor = of.tensor();
    const auto options = options_of(more + (of.is_native ? R"(, "native_steps": true)" : ""));
    EXPECT_EQ(cohive_trainer_open(swarm, options.c_str(), &tensor, 1, nullptr, 0, &of.calls, &handle), COHIVE_OK)
        << cohive_last_error();
    EXPECT_EQ(describe(), COHIVE_OK) << cohive_last_error();
  }
  ~TrainerOwner() { cohive_trainer_free(handle); }
  std::int32_t describe() {
    const auto tensor = model.tensor();
    const char* name = "parameter.0";
    float* statistics[4] = {};
    return cohive_trainer_describe(handle, raw("\x81\xa1x\x01"), 4, &tensor, &name, 1,
                                   model.is_native ? R"([{"name": "sgd", "lr": 0.5, "parameters": 1}])" : nullptr,
                                   model.is_native ? statistics : nullptr);
  }
  cohive_step_report step(float gradient, std::int64_t samples = 8) {
    const std::vector<float> gradients(4, gradient);
    const float* pointers[] = {gradients.data()};
    cohive_step_report report{};
    EXPECT_EQ(cohive_trainer_step(handle, pointers, samples, 1, &report), COHIVE_OK) << cohive_last_error();
    return report;
  }
  Model& model;
  cohive_trainer* handle = nullptr;
};

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
  std::int32_t loaded = 0;
  for (int tries = 0; tries < 50 && loaded == 0; ++tries)
    ASSERT_EQ(cohive_trainer_load(their_trainer.handle, &loaded), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(theirs.loaded, 1u);
  EXPECT_EQ(theirs.values, ours.values);
}

/// A model whose optimizer keeps a mean of gradients and one of their squares.
struct ModelWithMoments {
  explicit ModelWithMoments(float value) : model(value) {
    model.calls.context = this;
    model.calls.step = [](void* self, float* const* gradients, std::uint64_t epoch) {
      return Model::step(&static_cast<ModelWithMoments*>(self)->model, gradients, epoch);
    };
    model.calls.load = load;
    model.calls.interrupted = nullptr;
  }
  static std::int32_t load(void* context, const std::uint8_t*, std::size_t, const cohive_tensor* tensors,
                           std::size_t count, std::uint64_t epoch) {
    auto& self = *static_cast<ModelWithMoments*>(context);
    if (count != 3) return 1;
    std::copy_n(static_cast<const float*>(tensors[1].data), 4, self.mean.begin());
    std::copy_n(static_cast<const float*>(tensors[2].data), 4, self.squares.begin());
    self.model.loaded = epoch;
    return 0;
  }
  std::int32_t describe(cohive_trainer* trainer, const char* codec_of_statistics = "NONE") {
    cohive_tensor state[] = {model.tensor(), model.tensor(), model.tensor()};
    state[0].codec = "FLOAT16";
    state[1].data = mean.data();
    state[2].data = squares.data();
    state[1].codec = state[2].codec = codec_of_statistics;
    const char* const names[] = {"parameter.0", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"};
    return cohive_trainer_describe(trainer, raw("\x81\xa1x\x01"), 4, state, names, 3, nullptr, nullptr);
  }
  Model model;
  std::vector<float> mean = std::vector<float>(4), squares = std::vector<float>(4);
};

TEST(CTrainerSteps, GoOnFromStatisticsThatArriveInTheirCodecAndThatStepsCanUse) {
  for (const auto& [codec, small_mean, small_square] : {std::tuple("NONE", 1e-5f, 1e-9f), {"FLOAT16", 0.0f, 0.0f}}) {
    SCOPED_TRACE(codec);
    SwarmOwner first(kAlone), second(joining(first.address()));
    ModelWithMoments ours(1), theirs(9);
    ours.mean = {1, 1, 1e-5f, 1};
    ours.squares = {-1e-9f, 0, 1e-9f, 4};
    TrainerOwner our_trainer(first.handle, ours.model);
    ASSERT_EQ(ours.describe(our_trainer.handle, codec), COHIVE_OK) << cohive_last_error();
    EXPECT_EQ(our_trainer.step(1, 16).epoch_changed, 1);
    TrainerOwner their_trainer(second.handle, theirs.model);
    ASSERT_EQ(theirs.describe(their_trainer.handle), COHIVE_OK) << cohive_last_error();
    std::int32_t loaded = 0;
    for (int tries = 0; tries < 50 && loaded == 0; ++tries)
      ASSERT_EQ(cohive_trainer_load(their_trainer.handle, &loaded), COHIVE_OK) << cohive_last_error();
    ASSERT_EQ(theirs.model.loaded, 1u);
    EXPECT_EQ(theirs.squares, (std::vector<float>{0, 0, small_square, 4}));
    EXPECT_EQ(theirs.mean, (std::vector<float>{0, 0, small_mean, 1})) << "a step divides it by the root of its square";
  }
}

/// A trainer that averages the squares with the parameters.
struct TrainerOfMoments {
  TrainerOfMoments(cohive_swarm* swarm, ModelWithMoments& of, const std::string& more) {
    const auto parameter = of.model.tensor();
    auto squares = parameter;
    squares.data = of.squares.data();
    squares.codec = "optimizer.0.exp_avg_sq";
    const auto options = options_of(more);
    EXPECT_EQ(cohive_trainer_open(swarm, options.c_str(), &parameter, 1, &squares, 1, &of.model.calls, &handle),
              COHIVE_OK)
        << cohive_last_error();
    EXPECT_EQ(of.describe(handle), COHIVE_OK) << cohive_last_error();
  }
  ~TrainerOfMoments() { cohive_trainer_free(handle); }
  cohive_step_report step(float gradient, std::int64_t samples) {
    const std::vector<float> gradients(4, gradient);
    const float* pointers[] = {gradients.data()};
    cohive_step_report report{};
    EXPECT_EQ(cohive_trainer_step(handle, pointers, samples, 1, &report), COHIVE_OK) << cohive_last_error();
    return report;
  }
  cohive_trainer* handle = nullptr;
};

TEST(CTrainerSteps, AveragesOfStatisticsTakeTheirPlaceWhereStepsCanUseThem) {
  for (const char* delayed : {"", R"(, "delay_state_averaging": true)"}) {
    SCOPED_TRACE(delayed);
    SwarmOwner first(kAlone), second(joining(first.address()));
    ModelWithMoments ours(1), theirs(1);
    ours.mean = {1, 1, 1, 1};
    ours.squares = {4, 4, 1e-12f, 4};
    theirs.squares = {-100, 2, 0, 4};
    TrainerOfMoments our_trainer(first.handle, ours, delayed), their_trainer(second.handle, theirs, delayed);
    train_together(our_trainer, 1, their_trainer, 3);
    EXPECT_GT(ours.squares[0], 0) << "an average below zero";
    EXPECT_EQ(ours.squares[1], 3);
    EXPECT_EQ(ours.mean, (std::vector<float>{1, 1, 0, 1})) << "no gradients of that mean have such squares";
    EXPECT_THAT(theirs.squares, Each(testing::Ge(0.0f)));
  }
}

TEST(CStatistics, AreMadeUsable) {
  std::vector<float> mean{1, 1, 1}, squares{-1, 1e-9f, 4};
  const std::uint32_t shape[] = {3};
  const auto described = [&shape](std::vector<float>& values) {
    return cohive_tensor{values.data(), shape, "float32", nullptr, 3 * sizeof(float), 1, 0, 0};
  };
  cohive_tensor tensors[] = {described(mean), described(squares)};
  const char* const names[] = {"optimizer.7.exp_avg", "optimizer.7.exp_avg_sq"};
  ASSERT_EQ(cohive_statistics_make_usable(tensors, names, 2), COHIVE_OK) << cohive_last_error();
  EXPECT_EQ(squares, (std::vector<float>{0, 1e-9f, 4}));
  EXPECT_EQ(mean, (std::vector<float>{0, 0, 1}));
  EXPECT_EQ(cohive_statistics_make_usable(nullptr, nullptr, 0), COHIVE_OK);
  EXPECT_EQ(cohive_statistics_make_usable(tensors, nullptr, 2), COHIVE_INVALID_ARGUMENT);
  tensors[0].size = 4;
  EXPECT_EQ(cohive_statistics_make_usable(tensors, names, 2), COHIVE_INVALID_ARGUMENT);
  tensors[0] = described(mean);
  tensors[0].dtype = "int32";
  EXPECT_EQ(cohive_statistics_make_usable(tensors, names, 2), COHIVE_INVALID_ARGUMENT);
}

/// Floats in pages of their own: whoever reads them after the end ends the program.
class Pages {
 public:
  Pages(std::size_t size, float value) : size_(size) {
    void* const memory =
        ::mmap(nullptr, size * sizeof(float), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    values_ = static_cast<float*>(memory);
    fill(value);
  }
  ~Pages() { ::munmap(values_, size_ * sizeof(float)); }
  Pages(const Pages&) = delete;
  void fill(float value) { std::fill_n(values_, size_, value); }
  std::span<float> values() { return {values_, size_}; }

 private:
  const std::size_t size_;
  float* values_ = nullptr;
};

/// A model whose optimizer has a statistic that takes a while to download, in memory that may change.
class LargeStates : public testing::Test {
 protected:
  static constexpr std::size_t kSize = std::size_t{6} << 20;

  struct Large {
    explicit Large(float value) : model(value), statistic(std::make_unique<Pages>(kSize, value)) {
      model.calls.context = this;
      model.calls.step = [](void* self, float* const* gradients, std::uint64_t epoch) {
        return Model::step(&static_cast<Large*>(self)->model, gradients, epoch);
      };
      model.calls.load = load;
    }
    static std::int32_t load(void* context, const std::uint8_t*, std::size_t, const cohive_tensor* tensors,
                             std::size_t count, std::uint64_t epoch) {
      auto& self = *static_cast<Large*>(context);
      if (count != 2 || tensors[1].size != kSize * sizeof(float)) return 1;
      std::copy_n(static_cast<const float*>(tensors[1].data), kSize, self.statistic->values().begin());
      self.model.loaded = epoch;
      return 0;
    }
    std::int32_t describe(cohive_trainer* trainer) {
      const std::uint32_t shape[] = {kSize};
      const cohive_tensor state[] = {
          model.tensor(), {statistic->values().data(), shape, "float32", nullptr, kSize * sizeof(float), 1, 0, 0}};
      const char* const names[] = {"parameter.0", "optimizer.0.average"};
      return cohive_trainer_describe(trainer, raw("\x81\xa1x\x01"), 4, state, names, 2, nullptr, nullptr);
    }
    Model model;
    std::unique_ptr<Pages> statistic;
  };

  /// Has a newcomer load the state while `meanwhile` is called again and again, and once more when that has ended.
  void download(const std::function<void(int)>& meanwhile) {
    ASSERT_EQ(ours.describe(our_trainer.handle), COHIVE_OK) << cohive_last_error();
    EXPECT_EQ(our_trainer.step(1, 16).epoch_changed, 1);
    TrainerOwner their_trainer(second.handle, theirs.model);
    ASSERT_EQ(theirs.describe(their_trainer.handle), COHIVE_OK) << cohive_last_error();
    std::atomic<bool> ended = false;
    std::thread newcomer([&] {
      const auto end = Clock::now() + std::chrono::milliseconds(kLong);
      for (std::int32_t loaded = 0; loaded == 0 && Clock::now() < end;) {
        EXPECT_EQ(cohive_trainer_load(their_trainer.handle, &loaded), COHIVE_OK) << cohive_last_error();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      ended = true;
    });
    for (int times = 0; times < 60 && !ended; ++times) {
      meanwhile(times);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    newcomer.join();
    EXPECT_EQ(theirs.model.loaded, 1u);
  }

  SwarmOwner first{kAlone}, second{joining(first.address())};
  Large ours{1}, theirs{9};
  TrainerOwner our_trainer{first.handle, ours.model};
};

TEST_F(LargeStates, AreReadNoMoreWhereTheyWereBeforeTheyWereDescribedAnew) {
  download([this](int) {
    const auto before = std::exchange(ours.statistic, std::make_unique<Pages>(kSize, 1));
    ASSERT_EQ(ours.describe(our_trainer.handle), COHIVE_OK) << cohive_last_error();
    before->fill(5);  // and it is gone
  });
  EXPECT_THAT(theirs.statistic->values(), Each(1.0f));
}

TEST_F(LargeStates, ThatTheCallerChangesByItselfAreThoseOfOneMoment) {
  download([this](int times) {
    ASSERT_EQ(cohive_trainer_changes(our_trainer.handle, times == 30), COHIVE_OK) << cohive_last_error();
    if (times < 30) ours.statistic->fill(static_cast<float>(times));
  });
  EXPECT_THAT(theirs.statistic->values(), Each(theirs.statistic->values()[0]));
  EXPECT_NE(theirs.statistic->values()[0], 9.0f);
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

TEST(CTrainerSteps, GoOnWhereADonorOrAFileHasLeftACounterThatIsNone) {
  for (const float left : {-5.0f, std::nanf(""), 1e30f}) {
    SCOPED_TRACE(left);
    SwarmOwner swarm(kAlone);
    Model model(1, true);
    std::vector<float> mean(4), square(4);
    float counter = left;
    TrainerOwner trainer(swarm.handle, model);
    const auto tensor = model.tensor();
    const char* name = "parameter.0";
    float* statistics[] = {mean.data(), square.data(), nullptr, &counter};
    ASSERT_EQ(cohive_trainer_describe(trainer.handle, raw("\x81\xa1x\x01"), 4, &tensor, &name, 1,
                                      R"([{"name": "adam", "lr": 0.5, "parameters": 1}])", statistics),
              COHIVE_OK)
        << cohive_last_error();
    EXPECT_EQ(trainer.step(1, 16).epoch_changed, 1);
    EXPECT_THAT(model.values, Each(Lt(1.0f)));
    if (left > 0) continue;
    EXPECT_THAT(model.values, Each(FloatNear(1 - kRate, 1e-5f))) << "as the first step of all";
    EXPECT_EQ(counter, 1.0f);
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
