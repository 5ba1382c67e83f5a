#include "cohive/cuda/device.hpp"

#include "cohive/core/task_group.hpp"
#include "cohive/cuda/errors.hpp"
#include "gpu.hpp"

namespace cohive::cuda {
namespace {

constexpr std::size_t kLarge = std::size_t{64} << 20;

TEST(WithoutGpu, EveryWayToBeginIsAnErrorThatSaysWhy) {
  if (device_count()) GTEST_SKIP() << "there is a GPU";
  const std::error_code expected = Errc::no_device;
  const auto stream = Stream::create();
  ASSERT_FALSE(stream);
  EXPECT_EQ(stream.error(), expected);
  EXPECT_FALSE(stream.error().detail().empty());
  const auto device = DeviceBuffer::create(1024);
  ASSERT_FALSE(device);
  EXPECT_EQ(device.error(), expected);
  const auto host = HostBuffer::create(1024);
  ASSERT_FALSE(host);
  EXPECT_EQ(host.error(), expected);
}

using Device = Gpu;

TEST_F(Device, ThatDoesNotExistIsAnError) {
  EXPECT_EQ(Stream::create(device_count().value()).error(), std::error_code(Errc::no_device));
  EXPECT_EQ(Stream::create(-1).error(), std::error_code(Errc::no_device));
}

TEST_F(Device, WithoutEnoughMemorySaysSoAndGoesOnWorking) {
  EXPECT_EQ(DeviceBuffer::create(std::size_t{1} << 50).error(), std::error_code(Errc::out_of_memory));
  EXPECT_EQ(to_host<int>(to_device(std::vector<int>{1, 2, 3})), (std::vector<int>{1, 2, 3}));
}

Task<Result<>> there_and_back(Runtime& runtime, Stream& stream, HostBuffer& from, DeviceBuffer& device,
                              HostBuffer& to) {
  if (auto queued = stream.upload_async(from.bytes(), device.bytes().data()); !queued) co_return queued;
  if (auto queued = stream.download_async(device.bytes().data(), to.bytes()); !queued) co_return queued;
  co_return co_await stream.done(runtime);
}

TEST_F(Device, IsDoneWhenAllThatWasQueuedHasRun) {
  auto from = HostBuffer::create(kLarge).value(), to = HostBuffer::create(kLarge).value();
  auto device = DeviceBuffer::create(kLarge).value();
  for (std::size_t i = 0; i < kLarge; ++i) from.bytes()[i] = static_cast<std::uint8_t>(i * 7 >> 3);
  std::memset(to.bytes().data(), 0, kLarge);
  auto runtime = make_runtime();
  const auto done = runtime->run(there_and_back(*runtime, stream(), from, device, to));
  ASSERT_TRUE(done) << done.error();
  EXPECT_EQ(std::memcmp(from.bytes().data(), to.bytes().data(), kLarge), 0);
}

Task<Result<>> only_wait(Runtime& runtime, Stream& stream) {
  co_return co_await stream.done(runtime);
}

TEST_F(Device, WithNothingToDoIsDone) {
  auto runtime = make_runtime();
  EXPECT_TRUE(runtime->run(only_wait(*runtime, stream())));
}

Task<void> wait_and_note(Runtime& runtime, Stream& stream, bool& noted) {
  auto done = co_await stream.done(runtime);
  noted = done.has_value();
}

/// Starts a waiting task, drops it while it waits, and lets the driver's report arrive.
Task<Result<>> drop_a_waiting_task(Runtime& runtime, Stream& stream, HostBuffer& from, DeviceBuffer& device,
                                   bool& noted) {
  {
    TaskGroup group(runtime, "dropped");
    if (auto queued = stream.upload_async(from.bytes(), device.bytes().data()); !queued) co_return queued;
    group.spawn(wait_and_note(runtime, stream, noted), "waiting for the device");
    co_await runtime.yield();
  }
  co_return co_await stream.done(runtime);  // reported after the one before
}

TEST_F(Device, ReportsToNobodyWhenTheWaitingTaskIsGone) {
  auto from = HostBuffer::create(kLarge).value();
  auto device = DeviceBuffer::create(kLarge).value();
  auto runtime = make_runtime();
  ASSERT_TRUE(runtime->run(only_wait(*runtime, stream())));
  const std::size_t tasks_before = runtime->task_count();
  for (int i = 0; i < 20; ++i) {
    bool noted = false;
    const auto done = runtime->run(drop_a_waiting_task(*runtime, stream(), from, device, noted));
    ASSERT_TRUE(done) << done.error();
  }
  EXPECT_EQ(runtime->task_count(), tasks_before);
}

}  // namespace
}  // namespace cohive::cuda
