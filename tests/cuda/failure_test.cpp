// What an error of a device says: which kernel or copy, and on which GPU.
#include "../../cuda/failure.hpp"

#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/errors.hpp"
#include "gpu.hpp"
#ifdef COHIVE_CUDA_EMULATED
#include "cuda/emulator/driver.hpp"
#endif

namespace cohive::cuda {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST(WorkLogs, NameEachKernelOnceAndHowOften) {
  WorkLog log;
  EXPECT_THAT(log.list(), IsEmpty());
  for (const char* name : {"copy to the device", "adam", "adam", "copy to the host", "adam"}) log.note(name);
  EXPECT_EQ(log.list(), "copy to the device, adam (3 times), copy to the host");
  log.clear();
  EXPECT_THAT(log.list(), IsEmpty());
}

#ifdef COHIVE_CUDA_EMULATED
class FailingDevice : public Gpu {
 protected:
  void TearDown() override {
    emulated::fail_after(0, 0);
    emulated::refuse(0);
    emulated::set_devices(1);
    Gpu::TearDown();
  }
  /// Queues two kernels between two copies. The first error.
  Result<> queue(Stream& on, const DeviceBuffer& there, const HostBuffer& here) {
    if (auto up = on.upload_async(here.bytes(), there.bytes().data()); !up) return up;
    for (int i = 0; i < 2; ++i)
      if (auto scaled = scale_async(on, there.floats(), 2); !scaled) return scaled;
    return on.download_async(there.bytes().data(), here.bytes());
  }
  Result<> awaited(Stream& on) {
    const auto wait = [](Runtime& loop, Stream& of) -> Task<Result<>> { co_return co_await of.done(loop); };
    return runtime->run(wait(*runtime, on));
  }

  std::unique_ptr<Runtime> runtime = make_runtime();
  const HostBuffer here = HostBuffer::create(400).value();
  const DeviceBuffer there = DeviceBuffer::create(400).value();
};

TEST_F(FailingDevice, WhatIsQueuedIsNamedByWhoeverWaits) {
  emulated::set_devices(3);
  const std::string all = "waiting for copy to the device, scale (2 times), copy to the host on GPU 2: ";
  for (const bool blocking : {false, true}) {
    auto failing = Stream::create(2).value();
    const auto there = DeviceBuffer::create(400, 2).value();
    ASSERT_TRUE(queue(failing, there, here));
    ASSERT_TRUE(awaited(failing)) << "what is done is not named";
    emulated::fail_after(1, 700);
    ASSERT_TRUE(queue(failing, there, here));
    const auto waited = blocking ? failing.synchronize() : awaited(failing);
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error(), std::error_code(Errc::failed));
    EXPECT_THAT(waited.error().detail(), HasSubstr(all));
    emulated::fail_after(0, 0);
  }
}

TEST_F(FailingDevice, WhatCannotBeStartedIsNamed) {
  emulated::refuse(1);
  const auto copied = stream().upload_async(here.bytes(), there.bytes().data());
  ASSERT_FALSE(copied);
  EXPECT_THAT(copied.error().detail(), HasSubstr("starting copy to the device on GPU 0: "));
  const auto scaled = scale_async(stream(), there.floats(), 2);
  ASSERT_FALSE(scaled);
  EXPECT_THAT(scaled.error().detail(), HasSubstr("starting scale on GPU 0: "));
  const auto cleared = clear_async(stream(), there.floats());
  ASSERT_FALSE(cleared);
  EXPECT_THAT(cleared.error().detail(), HasSubstr("starting clear on GPU 0: "));
}

/// A codec may be several kernels.
TEST_F(FailingDevice, EveryKernelOfACodecIsNamed) {
  const auto out = DeviceBuffer::create(*encoded_size(Codec::meanstd16, 100)).value();
  const auto scratch = DeviceBuffer::create(scratch_size(Codec::meanstd16, 100)).value();
  ASSERT_TRUE(clear_async(stream(), there.floats()));
  emulated::fail_after(0, 700);
  ASSERT_TRUE(encode_async(stream(), Codec::meanstd16, there.floats(), out.bytes(), {.scratch = scratch.bytes()}));
  const auto waited = stream().synchronize();
  ASSERT_FALSE(waited);
  EXPECT_THAT(waited.error().detail(), HasSubstr("sum_tiles"));
  EXPECT_THAT(waited.error().detail(), HasSubstr("find_scale"));
}

TEST_F(FailingDevice, MemoryThatThereIsNotNamesTheDevice) {
  emulated::set_devices(2);
  const auto none = DeviceBuffer::create(std::size_t{1} << 50, 1);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().detail(), HasSubstr("on GPU 1: "));
  EXPECT_THAT(Stream::create(5).error().detail(), HasSubstr("on GPU 5: "));
}
#endif

}  // namespace
}  // namespace cohive::cuda
