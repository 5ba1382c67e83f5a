// The emulated device finds what is wrong with a kernel, and its streams do what awaiters have to live with.
#include <gmock/gmock.h>

#include "cohive/core/combine.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/device_parts.hpp"
#include "cohive/cuda/errors.hpp"
#include "cuda/emulator/driver.hpp"
#include "cuda/emulator/planted.hpp"
#include "cuda/gpu.hpp"

namespace cohive::cuda {
namespace {

using emulated::Order;
using Planted = planted::Error;
using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class Emulated : public Gpu {
 protected:
  void TearDown() override {
    emulated::release_streams();
    emulated::fail_after(0, 0);
    emulated::set_delay(std::chrono::microseconds(0));
    emulated::set_order(Order::forward);
    emulated::set_devices(1);
    Gpu::TearDown();
  }
  /// What is found in the sum with that error, in any order of threads.
  std::vector<std::string> found(Planted error, std::size_t count = 1024) {
    const auto in = to_device(std::vector<float>(count, 1));
    const auto out = to_device(std::vector<float>(count / 256, 0));
    planted::sum_blocks(stream().native(), error, in.floats().data(), out.floats().data(), count);
    EXPECT_TRUE(stream().synchronize());
    if (error == Planted::none) EXPECT_THAT(to_host<float>(out), Each(256));
    return emulated::take_findings();
  }
};

TEST_F(Emulated, FindsNothingInAKernelThatIsRight) {
  for (const Order order : {Order::forward, Order::reverse, Order::random}) {
    emulated::set_order(order);
    EXPECT_THAT(found(Planted::none), IsEmpty());
  }
}

TEST_F(Emulated, FindsEachPlantedErrorInAnyOrder) {
  const std::string race = "with no barrier between them";
  const std::string sentences[planted::kErrors] = {
      "",
      race,
      "threads of the block never come to",
      "4 behind it",
      "4 behind it",
      "4 before it",
      "outside of shared variables",
      race,
      race,
      "an address that is no multiple",
      race,
      "writes 4 bytes outside of shared variables",
      "writes 4 bytes outside of shared variables",
  };
  for (const Order order : {Order::forward, Order::reverse, Order::random})
    for (int i = 1; i < planted::kErrors; ++i) {
      emulated::set_order(order);
      EXPECT_THAT(found(static_cast<Planted>(i)), Contains(AllOf(HasSubstr(sentences[i]), HasSubstr("sum: thread"))))
          << "error " << i << " in order " << static_cast<int>(order);
    }
}

TEST_F(Emulated, TheResultDependsOnTheOrderWhereABarrierIsMissing) {
  const auto in = to_device(std::vector<float>(256, 1));
  const auto out = to_device(std::vector<float>(1, 0));
  std::vector<float> sums;
  for (const Order order : {Order::forward, Order::reverse}) {
    emulated::set_order(order);
    planted::sum_blocks(stream().native(), Planted::missing_barrier, in.floats().data(), out.floats().data(), 256);
    EXPECT_TRUE(stream().synchronize());
    sums.push_back(to_host<float>(out)[0]);
  }
  EXPECT_NE(sums[0], sums[1]);
  EXPECT_THAT(emulated::take_findings(), Not(IsEmpty()));
}

// ---- Streams

Task<Result<>> copy_and_wait(Runtime& runtime, Stream& stream, HostBuffer& from, DeviceBuffer& to) {
  if (auto queued = stream.upload_async(from.bytes(), to.bytes().data()); !queued) co_return queued;
  co_return co_await stream.done(runtime);
}

TEST_F(Emulated, TheLoopGoesOnWhileADeviceWorks) {
  auto from = HostBuffer::create(1024).value();
  auto to = DeviceBuffer::create(1024).value();
  auto runtime = make_runtime();
  emulated::hold_streams();
  const auto let_go = [](Runtime& loop) -> Task<Result<>> {
    for (int i = 0; i < 100; ++i) co_await loop.yield();
    emulated::release_streams();
    co_return ok();
  };
  std::vector<Task<Result<>>> both;
  both.push_back(copy_and_wait(*runtime, stream(), from, to));
  both.push_back(let_go(*runtime));
  for (const auto& done : runtime->run(when_all(*runtime, std::move(both)))) EXPECT_TRUE(done) << done.error();
}

TEST_F(Emulated, EveryAwaiterHearsOfAFailureAndOfThoseBehindIt) {
  auto from = HostBuffer::create(1024).value();
  auto to = DeviceBuffer::create(1024).value();
  auto runtime = make_runtime();
  emulated::fail_after(1, 719);  // the copy works, the callback behind it does not
  for (int i = 0; i < 3; ++i) {
    const auto done = runtime->run(copy_and_wait(*runtime, stream(), from, to));
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error(), std::error_code(Errc::failed));
    EXPECT_THAT(done.error().message(), HasSubstr("on GPU 0: an error that a test asked for"));
  }
}

TEST_F(Emulated, StreamsThatEndInAnyOrderWakeTheirOwnAwaiters) {
  emulated::set_delay(std::chrono::microseconds(300));
  auto runtime = make_runtime();
  constexpr std::size_t kStreams = 8;
  std::vector<Stream> streams;
  std::vector<HostBuffer> from, back;
  std::vector<DeviceBuffer> on_device;
  for (std::size_t i = 0; i < kStreams; ++i) {
    streams.push_back(Stream::create().value());
    from.push_back(HostBuffer::create(64).value());
    back.push_back(HostBuffer::create(64).value());
    on_device.push_back(DeviceBuffer::create(64).value());
  }
  const auto there_and_back = [&](std::size_t i) -> Task<Result<>> {
    for (int round = 0; round < 10; ++round) {
      const auto value = static_cast<std::uint8_t>(16 * round + static_cast<int>(i));
      std::ranges::fill(from[i].bytes(), value);
      if (auto queued = streams[i].upload_async(from[i].bytes(), on_device[i].bytes().data()); !queued)
        co_return queued;
      if (auto queued = streams[i].download_async(on_device[i].bytes().data(), back[i].bytes()); !queued)
        co_return queued;
      if (auto done = co_await streams[i].done(*runtime); !done) co_return done;
      EXPECT_THAT(back[i].bytes(), Each(value));
    }
    co_return ok();
  };
  std::vector<Task<Result<>>> all;
  for (std::size_t i = 0; i < kStreams; ++i) all.push_back(there_and_back(i));
  for (const auto& done : runtime->run(when_all(*runtime, std::move(all)))) EXPECT_TRUE(done) << done.error();
}

TEST_F(Emulated, AMachineWithoutADeviceSaysSo) {
  emulated::set_devices(0);
  EXPECT_EQ(Stream::create().error(), std::error_code(Errc::no_device));
  EXPECT_EQ(DeviceBuffer::create(10).error(), std::error_code(Errc::no_device));
}

// ---- Tensors on a device

TEST_F(Emulated, ADeviceThatFailsInARoundFailsItsPart) {
  const auto memory = to_device(std::vector<float>(10'000, 1));
  auto runtime = make_runtime();
  const auto parts = DeviceParts::create(*runtime, {{.shape = {10'000}}}, {memory.floats()}).value();
  ASSERT_TRUE(runtime->run(parts->encode({0, 0, 10'000}, codec::Codec::float16)));
  emulated::fail_after(3, 719);
  const auto encoded = runtime->run(parts->encode({0, 0, 10'000}, codec::Codec::float16));
  ASSERT_FALSE(encoded);
  EXPECT_EQ(encoded.error(), std::error_code(Errc::failed));
  const auto contributed = runtime->run(parts->contribute({0, 0, 10'000}, codec::Codec::none, {}));
  ASSERT_FALSE(contributed);
  EXPECT_EQ(contributed.error(), std::error_code(Errc::failed));
}

TEST_F(Emulated, StretchesAreUnderWayAtOnceAndWaitForAStream) {
  emulated::set_delay(std::chrono::microseconds(200));
  std::vector<float> values(100'000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 2048);
  const auto memory = to_device(values);
  auto runtime = make_runtime();
  const auto parts = DeviceParts::create(*runtime, {{.shape = {100'000}}}, {memory.floats()}, {.streams = 3}).value();
  std::vector<Task<Result<averaging::EncodedStretch>>> all;
  for (std::size_t offset = 0; offset < values.size(); offset += 5'000)
    all.push_back(parts->encode({0, offset, 5'000}, codec::Codec::float16));
  std::size_t offset = 0;
  for (const auto& one : runtime->run(when_all(*runtime, std::move(all)))) {
    ASSERT_TRUE(one) << one.error();
    EXPECT_EQ(to_bytes(one->bytes),
              to_bytes(codec::encode(codec::Codec::float16, std::span(values).subspan(offset, 5'000)).view()));
    offset += 5'000;
  }
}

// ---- The kernels of the codecs

TEST_F(Emulated, KernelsOfTheCodecsAreRightInAnyOrder) {
  std::vector<float> values(4096 + 4096 / 2 + 1);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 97) / 7 - 5;
  for (const Order order : {Order::forward, Order::reverse, Order::random})
    for (const auto& one : codec::all_codecs()) {
      if (!can_encode(one.codec)) continue;
      SCOPED_TRACE(one.name);
      emulated::set_order(order);
      const auto in = to_device(values), sum = to_device(values), left = to_device(values);
      const auto encoded = DeviceBuffer::create(*encoded_size(one.codec, values.size())).value();
      const auto scratch = DeviceBuffer::create(scratch_size(one.codec, values.size())).value();
      const auto decoded = DeviceBuffer::create(values.size() * sizeof(float)).value();
      EncodeMemory memory{.scratch = scratch.bytes()};
      ASSERT_TRUE(encode_async(stream(), one.codec, in.floats(), encoded.bytes(), memory));
      ASSERT_TRUE(decode_async(stream(), one.codec, encoded.bytes(), decoded.floats()));
      ASSERT_TRUE(accumulate_async(stream(), one.codec, encoded.bytes(), 0.5f, sum.floats()));
      EXPECT_EQ(to_host<std::uint8_t>(encoded), to_bytes(codec::encode(one.codec, values).view()));
      if (one.error_feedback) {
        memory.owed = memory.left = left.floats();
        ASSERT_TRUE(encode_async(stream(), one.codec, in.floats(), encoded.bytes(), memory));
        ASSERT_TRUE(stream().synchronize());
      }
      EXPECT_THAT(emulated::take_findings(), IsEmpty());
    }
}

}  // namespace
}  // namespace cohive::cuda
