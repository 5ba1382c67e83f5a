// Trainers by the C interface whose models are on a GPU: the emulated one.
#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "c/handles.hpp"
#include "cuda/gpu.hpp"

namespace {

using namespace c_tests;
using cohive::cuda::DeviceBuffer;
using testing::Each;
using testing::FloatNear;
using testing::HasSubstr;

constexpr float kRate = 0.5f, kMomentum = 0.5f;
constexpr std::size_t kValues = 3000;

/// Parameters, statistics and sums in memory of the device, and a stream on which the trainer works.
class GpuModel {
 public:
  explicit GpuModel(float value)
      : values(filled(value)), momentum(filled(0)), sum(filled(0)), stream_(cohive::cuda::Stream::create().value()) {}

  static DeviceBuffer filled(float value) {
    auto made = DeviceBuffer::create(kValues * sizeof(float)).value();
    auto stream = cohive::cuda::Stream::create().value();
    put(stream, std::vector<float>(kValues, value), made);
    return made;
  }
  static void put(cohive::cuda::Stream& stream, const std::vector<float>& from, DeviceBuffer& to) {
    stream.upload_async({reinterpret_cast<const std::uint8_t*>(from.data()), to.size()}, to.bytes().data()).value();
    stream.synchronize().value();
  }
  std::vector<float> get(const DeviceBuffer& from) {
    std::vector<float> values(kValues);
    stream_
        .download_async(from.bytes().data(), {reinterpret_cast<std::uint8_t*>(values.data()), kValues * sizeof(float)})
        .value();
    stream_.synchronize().value();
    return values;
  }
  /// The mean gradient of a batch, added on the trainer's stream.
  void add(float gradient, double of) {
    total_ += gradient * static_cast<float>(of);
    samples_ += of;
    put(stream_, std::vector<float>(kValues, total_), sum);
  }

  static std::int32_t step(void*, float* const*, std::uint64_t) { return 1; }  // the library steps
  static std::int32_t load(void* context, const std::uint8_t*, std::size_t, const cohive_tensor* tensors,
                           std::size_t count, std::uint64_t epoch) {
    auto& self = *static_cast<GpuModel*>(context);
    DeviceBuffer* const to[] = {&self.values, &self.momentum};
    for (std::size_t k = 0; k < count && k < std::size(to); ++k) {
      const auto* from = static_cast<const float*>(tensors[k].data);
      put(self.stream_, {from, from + kValues}, *to[k]);
    }
    self.loaded = epoch;
    return 0;
  }
  static std::int32_t hand_over(void* context, const float** gradients, double* samples, double* scale) {
    auto& self = *static_cast<GpuModel*>(context);
    gradients[0] = self.sum.floats().data();
    *scale = *samples = std::exchange(self.samples_, 0);
    self.total_ = 0;
    return 0;
  }
  void* stream() const { return stream_.native(); }

  DeviceBuffer values, momentum, sum;
  std::atomic<std::uint64_t> loaded = 0;

 private:
  float total_ = 0;
  double samples_ = 0;
  cohive::cuda::Stream stream_;
};

const std::vector<std::uint32_t> kShape{kValues};

cohive_tensor tensor_on(const DeviceBuffer& memory) {
  return {memory.bytes().data(), kShape.data(), "float32", nullptr, kValues * sizeof(float), 1, 0, 1};
}

struct GpuTrainer {
  GpuTrainer(cohive_swarm* swarm, GpuModel& of, const std::string& more = "") : model(of) {
    const auto tensor = tensor_on(of.values);
    const std::string options =
        R"({"run_id": "run", "target_batch_size": 16, "matchmaking_time": 1.0, "averaging_timeout": 10,
            "request_timeout": 0.8, "native_steps": true, "device": 0)" +
        more + "}";
    const cohive_trainer_calls calls{&of, GpuModel::step, GpuModel::load, nullptr, GpuModel::hand_over};
    EXPECT_EQ(cohive_trainer_open(swarm, options.c_str(), &tensor, 1, nullptr, 0, &calls, &handle), COHIVE_OK)
        << cohive_last_error();
    EXPECT_EQ(cohive_trainer_stream(handle, of.stream()), COHIVE_OK) << cohive_last_error();
    const cohive_tensor state[] = {tensor, tensor_on(of.momentum)};
    const char* const names[] = {"parameter.0", "optimizer.0.momentum_buffer"};
    float* const statistics[] = {of.momentum.floats().data(), nullptr, nullptr, nullptr};
    EXPECT_EQ(cohive_trainer_describe(handle, raw("\x81\xa1x\x01"), 4, state, names, 2,
                                      R"([{"name": "sgd", "lr": 0.5, "momentum": 0.5, "parameters": 1}])", statistics),
              COHIVE_OK)
        << cohive_last_error();
  }
  ~GpuTrainer() { cohive_trainer_free(handle); }
  cohive_step_report step(float gradient, std::int64_t samples = 16) {
    model.add(gradient, static_cast<double>(samples));
    const float* none[] = {nullptr};
    cohive_step_report report{};
    EXPECT_EQ(cohive_trainer_step(handle, none, samples, 1, &report), COHIVE_OK) << cohive_last_error();
    return report;
  }
  GpuModel& model;
  cohive_trainer* handle = nullptr;
};

using CTrainerOnGpu = cohive::cuda::Gpu;

TEST_F(CTrainerOnGpu, StepsWhereTheModelIs) {
  ASSERT_GE(cohive_gpu_count(), 1);
  SwarmOwner swarm(kAlone);
  GpuModel model(1);
  GpuTrainer trainer(swarm.handle, model, R"(, "delay_state_averaging": false)");
  float value = 1, momentum = 0;
  for (const float gradient : {1.0f, 3.0f, -1.0f}) {
    EXPECT_EQ(trainer.step(gradient, 4).epoch_changed, 0);
    EXPECT_EQ(trainer.step(2, 12).epoch_changed, 1);
    momentum = kMomentum * momentum + (4 * gradient + 12 * 2) / 16;
    value -= kRate * momentum;
    EXPECT_THAT(model.get(model.values), Each(FloatNear(value, 1e-5f)));
    EXPECT_THAT(model.get(model.momentum), Each(FloatNear(momentum, 1e-5f)));
  }
}

TEST_F(CTrainerOnGpu, StepsInTheBackground) {
  SwarmOwner swarm(kAlone);
  GpuModel model(1);
  GpuTrainer trainer(swarm.handle, model, R"(, "delay_optimizer_step": true, "delay_grad_averaging": true)");
  trainer.step(1);
  EXPECT_EQ(cohive_trainer_settle(trainer.handle), COHIVE_OK) << cohive_last_error();
  EXPECT_THAT(model.get(model.values), Each(FloatNear(1 - kRate, 1e-6f)));
}

TEST_F(CTrainerOnGpu, ANewcomerGetsTheState) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  GpuModel old(1), fresh(7);
  GpuTrainer trainer(first.handle, old), newcomer(second.handle, fresh);
  trainer.step(1);
  EXPECT_EQ(cohive_trainer_settle(trainer.handle), COHIVE_OK) << cohive_last_error();
  std::int32_t loaded = 0;
  const auto end = Clock::now() + std::chrono::milliseconds(kLong);
  while (!loaded && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until the state has been announced
    EXPECT_EQ(cohive_trainer_load(newcomer.handle, &loaded), COHIVE_OK) << cohive_last_error();
  }
  EXPECT_EQ(fresh.loaded, 1u);
  EXPECT_THAT(fresh.get(fresh.values), Each(FloatNear(1 - kRate, 1e-6f)));
  EXPECT_THAT(fresh.get(fresh.momentum), Each(FloatNear(1, 1e-6f)));
}

TEST_F(CTrainerOnGpu, TwoPeersStepTogether) {
  SwarmOwner first(kAlone), second(joining(first.address()));
  GpuModel ours(1), theirs(1);
  GpuTrainer our_trainer(first.handle, ours), their_trainer(second.handle, theirs);
  train_together(our_trainer, 1, their_trainer, 3);
  const auto values = ours.get(ours.values), others = theirs.get(theirs.values);
  EXPECT_EQ(values, others);
  EXPECT_LT(values[0], 1);
}

TEST_F(CTrainerOnGpu, AGpuThatIsNotThereGetsASentence) {
  SwarmOwner swarm(kAlone);
  GpuModel model(1);
  const auto tensor = tensor_on(model.values);
  const cohive_trainer_calls calls{&model, GpuModel::step, GpuModel::load, nullptr, GpuModel::hand_over};
  const auto opened = [&](const std::string& more) {
    cohive_trainer* trainer = nullptr;
    const std::string options = R"({"run_id": "run", "target_batch_size": 16)" + more + "}";
    EXPECT_NE(cohive_trainer_open(swarm.handle, options.c_str(), &tensor, 1, nullptr, 0, &calls, &trainer), COHIVE_OK);
    return std::string(cohive_last_error());
  };
  EXPECT_THAT(opened(R"(, "native_steps": true, "device": 77)"), HasSubstr("GPU"));
  EXPECT_THAT(opened(R"(, "device": 0)"), HasSubstr("native_steps"));
}

}  // namespace
