// A process with several GPUs: whatever is done with one leaves the thread's current device as it was, and each one's
// memory is used by its own work only. The emulated driver takes kernels and events as a real one does: on the device
// of their stream.
#include <algorithm>
#include <bit>

#include "cohive/core/combine.hpp"
#include "cohive/cuda/backend.hpp"
#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/device_parts.hpp"
#include "cohive/cuda/errors.hpp"
#include "gpu.hpp"
#ifdef COHIVE_CUDA_EMULATED
#include <cuda_runtime_api.h>

#include "cuda/emulator/driver.hpp"

namespace cohive::cuda {
namespace {

using testing::Contains;
using testing::HasSubstr;
using train::Backend;
using train::Buffer;

constexpr std::size_t kCount = 5000;

class SeveralDevices : public Gpu {
 protected:
  void SetUp() override {
    emulated::set_devices(2);
    Gpu::SetUp();
    for (int device : {0, 1}) streams.push_back(Stream::create(device).value());
  }
  void TearDown() override {
    int current = -1;
    EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
    EXPECT_EQ(current, 0) << "the thread's other users of CUDA have their own idea of it";
    emulated::set_devices(1);
    Gpu::TearDown();
  }
  Buffer put(Backend& backend, int device, float value) {
    Buffer buffer = backend.allocate(kCount);
    const std::vector<float> values(kCount, value);
    streams[static_cast<std::size_t>(device)]
        .upload_async({reinterpret_cast<const std::uint8_t*>(values.data()), kCount * sizeof(float)},
                      buffer.values.data())
        .value();
    streams[static_cast<std::size_t>(device)].synchronize().value();
    return buffer;
  }
  std::vector<float> get(int device, std::span<const float> from) {
    std::vector<float> values(from.size());
    auto& queue = streams[static_cast<std::size_t>(device)];
    queue.download_async(from.data(), {reinterpret_cast<std::uint8_t*>(values.data()), from.size_bytes()}).value();
    queue.synchronize().value();
    return values;
  }

  std::vector<Stream> streams;
  std::unique_ptr<Runtime> runtime = make_runtime({.seed = 1, .pool_threads = 2});
};

/// Gradients, a step with a bound of the norm, LAMB's norms, and parameters, on both at the same time.
TEST_F(SeveralDevices, TrainSideBySide) {
  const auto train_on = [this](int device) -> Task<void> {
    const auto backend = make_backend(*runtime, {.device = device}).value();
    const auto start = static_cast<float>(device + 1);
    const auto live = put(*backend, device, start), gradient = put(*backend, device, 2 * start);
    const auto next = backend->allocate(kCount), sum = backend->allocate(kCount);
    EXPECT_TRUE(co_await backend->accumulate({{gradient.values, sum.values}}, {.factor = 0.5, .first = true}, nullptr));
    std::vector<Buffer> moments{put(*backend, device, 0), put(*backend, device, 0)};
    train::GradientWork work;
    work.infos = {{.shape = {kCount}}};
    work.sums = {sum};
    optim::TensorMemory memory{std::span<const float>(live.values), live.values, {}, sum.values, {}};
    for (std::size_t k = 0; k < moments.size(); ++k) memory.state[k] = moments[k].values;
    work.steps.push_back({optim::LambOptions{.lr = 0.1}, memory, {1}});
    work.max_norm = 1e9;
    const auto round = backend->gradient_round(std::move(work));
    co_await round->parts()->finish();
    co_await round->finish_step();
    co_await backend->state_parts({{.shape = {kCount}}}, {{live.values, next.values}}, false)->finish();
    backend->add_to_live(next.values, live.values);
    backend->follow_caller();
    co_await backend->copy({{live.values, next.values}}, nullptr);
    const auto values = get(device, next.values);
    EXPECT_NE(values.front(), 2 * start) << "there was a step";
    EXPECT_THAT(values, testing::Each(values.front()));
    EXPECT_NEAR(values.front(), 2 * start, 0.5 * start);
  };
  std::vector<Task<void>> both;
  for (int device : {1, 0}) both.push_back(train_on(device));
  runtime->run(when_all(*runtime, std::move(both)));
}

TEST_F(SeveralDevices, EncodeAndDecodeOnTheSecond) {
  std::vector<float> values(10'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 113) / 16 - 3;
  const auto memory = DeviceBuffer::create(values.size() * sizeof(float), 1).value();
  streams[1]
      .upload_async({reinterpret_cast<const std::uint8_t*>(values.data()), memory.size()}, memory.bytes().data())
      .value();
  streams[1].synchronize().value();
  const std::vector<averaging::TensorInfo> infos{{.shape = {10'001}}};
  const auto residuals = averaging::make_residuals(infos);
  const auto parts =
      DeviceParts::create(*runtime, infos, {memory.floats()}, {.device = 1, .residuals = residuals}).value();
  for (const auto& one : codec::all_codecs()) {
    const auto encoded = runtime->run(parts->encode({0, 0, 10'001}, one.codec));
    ASSERT_TRUE(encoded) << encoded.error();
    EXPECT_EQ(to_bytes(encoded->bytes), to_bytes(codec::encode(one.codec, values).view())) << one.name;
    auto part = std::make_shared<averaging::EncodedPart>();
    part->codec = one.codec;
    part->record = Slice::copy_of(encoded->bytes);
    part->buffer = part->record.view();
    averaging::Answer answer{averaging::Answer::Form::average, part, std::nullopt};
    if (one.error_feedback) answer.sent = averaging::Answer::Sent{one.codec, *encoded};
    ASSERT_TRUE(runtime->run(parts->apply({0, 0, 10'001}, answer, {})));
    ASSERT_TRUE(codec::decode(one.codec, codec::DType::float32, part->buffer, values));
    EXPECT_EQ(get(1, memory.floats()), values) << one.name;
    residuals->front().replace(std::vector<float>(10'001, 0));
  }
}

/// The trainer's work on one device holds back the copies from it.
TEST_F(SeveralDevices, AreLinkedToTheHostEachByItself) {
  for (int device : {1, 0}) {
    auto trainer = Stream::create(device).value();
    const auto link =
        make_link(*runtime, {.device = device, .trainer_stream = [&] { return trainer.native(); }}).value();
    const auto gradient = DeviceBuffer::create(4000, device).value();
    const auto transfer = link->open(4000);
    emulated::hold_streams();
    clear_async(trainer, gradient.floats()).value();
    link->sync_with_caller_stream();
    transfer->follow_trainer();
    transfer->download(gradient.bytes().data(), transfer->memory());
    emulated::release_streams();
    transfer->wait();
    EXPECT_THAT(transfer->memory(), testing::Each(0));
    transfer->upload(transfer->memory(), gradient.bytes().data());
    transfer->hold_back_trainer();
    EXPECT_TRUE(trainer.synchronize());
  }
}

// ---- What the emulated driver finds

TEST_F(SeveralDevices, WorkWithoutTheDeviceOfItsStreamIsRefused) {
  const auto memory = DeviceBuffer::create(400, 1).value();
  cudaEvent_t event = nullptr;
  ASSERT_EQ(cudaEventCreateWithFlags(&event, 0), cudaSuccess);  // of device 0
  EXPECT_EQ(cudaMemsetAsync(memory.bytes().data(), 0, 400, streams[1].native()), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, streams[1].native()), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_TRUE(clear_async(streams[1], memory.floats())) << "ours choose it";
  EXPECT_TRUE(streams[1].synchronize());
}

TEST_F(SeveralDevices, MemoryOfAnotherDeviceIsFound) {
  const auto memory = DeviceBuffer::create(400, 1).value();
  EXPECT_TRUE(scale_async(streams[0], memory.floats(), 2));
  EXPECT_TRUE(streams[0].synchronize());
  EXPECT_THAT(emulated::take_findings(), Contains(HasSubstr("bytes of GPU 1 on GPU 0")));
}

TEST_F(SeveralDevices, FreeingOnAnotherDeviceIsFound) {
  for (const bool of_stream : {false, true}) {
    void* memory = nullptr;
    ASSERT_EQ(cudaMallocAsync(&memory, 400, streams[1].native()), cudaSuccess);
    ASSERT_EQ(of_stream ? cudaFreeAsync(memory, streams[1].native()) : cudaFree(memory), cudaSuccess);
    EXPECT_THAT(emulated::take_findings(), testing::ElementsAre("memory of GPU 1 is freed on GPU 0"));
  }
  (void)DeviceBuffer::create(400, 1).value();
  (void)DeviceBuffer::create_on(streams[1], 400).value();
  EXPECT_TRUE(streams[1].synchronize()) << "ours choose it";
}

}  // namespace
}  // namespace cohive::cuda
#endif
