// States of trainers by the C interface: statistics of the optimizer, how they travel, and what steps can use of them.
#include <gmock/gmock.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "trainers.hpp"

namespace {

using namespace c_tests;
using testing::Each;
using testing::FloatNear;
using testing::Lt;

/// A model whose optimizer keeps a mean of gradients and one of their squares.
struct ModelWithMoments : Model {
  explicit ModelWithMoments(float value) : Model(value) { calls.load = load_moments; }
  static std::int32_t load_moments(void* context, const std::uint8_t*, std::size_t, const cohive_tensor* tensors,
                                   std::size_t count, std::uint64_t epoch) {
    auto& self = static_cast<ModelWithMoments&>(*static_cast<Model*>(context));
    if (count != 3) return 1;
    std::copy_n(static_cast<const float*>(tensors[1].data), 4, self.mean.begin());
    std::copy_n(static_cast<const float*>(tensors[2].data), 4, self.squares.begin());
    self.loaded = epoch;
    return 0;
  }
  std::int32_t describe(cohive_trainer* trainer, const char* codec_of_statistics = "NONE") {
    cohive_tensor state[] = {tensor(), tensor(), tensor()};
    state[0].codec = "FLOAT16";
    state[1].data = mean.data();
    state[2].data = squares.data();
    state[1].codec = state[2].codec = codec_of_statistics;
    const char* const names[] = {"parameter.0", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"};
    return cohive_trainer_describe(trainer, raw("\x81\xa1x\x01"), 4, state, names, 3, nullptr, nullptr);
  }
  /// The squares, as they are averaged with the parameters.
  cohive_tensor averaged() {
    auto described = tensor();
    described.data = squares.data();
    described.codec = "optimizer.0.exp_avg_sq";
    return described;
  }
  std::vector<float> mean = std::vector<float>(4), squares = std::vector<float>(4);
};

TEST(CTrainerSteps, GoOnFromStatisticsThatArriveInTheirCodecAndThatStepsCanUse) {
  for (const auto& [codec, small_mean, small_square] : {std::tuple("NONE", 1e-5f, 1e-9f), {"FLOAT16", 0.0f, 0.0f}}) {
    SCOPED_TRACE(codec);
    SwarmOwner first(kAlone), second(joining(first.address()));
    ModelWithMoments ours(1), theirs(9);
    ours.mean = {1, 1, 1e-5f, 1};
    ours.squares = {-1e-9f, 0, 1e-9f, 4};
    TrainerOwner our_trainer(first.handle, ours);
    ASSERT_EQ(ours.describe(our_trainer.handle, codec), COHIVE_OK) << cohive_last_error();
    EXPECT_EQ(our_trainer.step(1, 16).epoch_changed, 1);
    TrainerOwner their_trainer(second.handle, theirs);
    ASSERT_EQ(theirs.describe(their_trainer.handle), COHIVE_OK) << cohive_last_error();
    their_trainer.load();
    ASSERT_EQ(theirs.loaded, 1u);
    EXPECT_EQ(theirs.squares, (std::vector<float>{0, 0, small_square, 4}));
    EXPECT_EQ(theirs.mean, (std::vector<float>{0, 0, small_mean, 1})) << "a step divides it by the root of its square";
  }
}

TEST(CTrainerSteps, AveragesOfStatisticsTakeTheirPlaceWhereStepsCanUseThem) {
  for (const char* delayed : {"", R"(, "delay_state_averaging": true)"}) {
    SCOPED_TRACE(delayed);
    SwarmOwner first(kAlone), second(joining(first.address()));
    ModelWithMoments ours(1), theirs(1);
    ours.mean = {1, 1, 1, 1};
    ours.squares = {4, 4, 1e-12f, 4};
    theirs.squares = {-100, 2, 0, 4};
    const auto our_squares = ours.averaged(), their_squares = theirs.averaged();
    TrainerOwner our_trainer(first.handle, ours, delayed, &our_squares);
    TrainerOwner their_trainer(second.handle, theirs, delayed, &their_squares);
    ASSERT_EQ(ours.describe(our_trainer.handle), COHIVE_OK) << cohive_last_error();
    ASSERT_EQ(theirs.describe(their_trainer.handle), COHIVE_OK) << cohive_last_error();
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

  struct Large : Model {
    explicit Large(float value) : Model(value), statistic(std::make_unique<Pages>(kSize, value)) {
      calls.load = load_statistic;
    }
    static std::int32_t load_statistic(void* context, const std::uint8_t*, std::size_t, const cohive_tensor* tensors,
                                       std::size_t count, std::uint64_t epoch) {
      auto& self = static_cast<Large&>(*static_cast<Model*>(context));
      if (count != 2 || tensors[1].size != kSize * sizeof(float)) return 1;
      std::copy_n(static_cast<const float*>(tensors[1].data), kSize, self.statistic->values().begin());
      self.loaded = epoch;
      return 0;
    }
    std::int32_t describe(cohive_trainer* trainer) {
      const std::uint32_t shape[] = {kSize};
      const cohive_tensor state[] = {
          tensor(), {statistic->values().data(), shape, "float32", nullptr, kSize * sizeof(float), 1, 0, 0}};
      const char* const names[] = {"parameter.0", "optimizer.0.average"};
      return cohive_trainer_describe(trainer, raw("\x81\xa1x\x01"), 4, state, names, 2, nullptr, nullptr);
    }
    std::unique_ptr<Pages> statistic;
  };

  /// Has a newcomer load the state while `meanwhile` is called again and again, and once more when that has ended.
  void download(const std::function<void(int)>& meanwhile) {
    ASSERT_EQ(ours.describe(our_trainer.handle), COHIVE_OK) << cohive_last_error();
    EXPECT_EQ(our_trainer.step(1, 16).epoch_changed, 1);
    TrainerOwner their_trainer(second.handle, theirs);
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
    EXPECT_EQ(theirs.loaded, 1u);
  }

  SwarmOwner first{kAlone}, second{joining(first.address())};
  Large ours{1}, theirs{9};
  TrainerOwner our_trainer{first.handle, ours};
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

}  // namespace
