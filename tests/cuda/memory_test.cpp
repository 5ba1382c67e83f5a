// Memory in the order of a stream, pinned memory that is used again, and rounds that make the loop wait for neither.
#include <thread>

#include "../../cuda/pinned_pool.hpp"
#include "cohive/cuda/backend.hpp"
#include "cohive/cuda/codec.hpp"
#include "cohive/cuda/device_parts.hpp"
#include "cohive/cuda/errors.hpp"
#include "gpu.hpp"
#ifdef COHIVE_CUDA_EMULATED
#include "cuda/emulator/driver.hpp"
#include "cuda/emulator/planted.hpp"
#endif

namespace cohive::cuda {
namespace {

using testing::IsEmpty;
using train::Buffer;

using Memory = Gpu;

TEST_F(Memory, OfAStreamIsUsedByWhatIsQueuedOnIt) {
  const std::vector<float> values(1000, 3);
  const auto in = to_device(values), out = to_device(std::vector<float>(1000, 0));
  for (int i = 0; i < 20; ++i) {
    const auto between = DeviceBuffer::create_on(stream(), in.size()).value();
    ASSERT_TRUE(copy_async(stream(), in.floats(), between.floats()));
    ASSERT_TRUE(scale_async(stream(), between.floats(), 2));
    ASSERT_TRUE(copy_async(stream(), between.floats(), out.floats()));
  }  // freed behind the work
  EXPECT_EQ(to_host<float>(out), std::vector<float>(1000, 6));
}

TEST_F(Memory, OfAStreamMayBeNothingAndMayBeTooMuch) {
  EXPECT_EQ(DeviceBuffer::create_on(stream(), 0).value().size(), 0u);
  EXPECT_EQ(DeviceBuffer::create_on(stream(), std::size_t{1} << 50).error(), std::error_code(Errc::out_of_memory));
  EXPECT_TRUE(DeviceBuffer::create_on(stream(), 100));
}

TEST_F(Memory, PinnedIsUsedAgain) {
  PinnedPool pool;
  EXPECT_EQ(pool.reuse(1000), nullptr);
  const auto* first = pool.take(1000).value()->bytes().data();
  EXPECT_EQ(pool.reuse(2000), nullptr) << "too small";
  EXPECT_EQ(pool.reuse(499), nullptr) << "too large: it would be missing elsewhere";
  const auto again = pool.take(600).value();
  EXPECT_EQ(again->bytes().data(), first);
  EXPECT_NE(pool.take(600).value()->bytes().data(), first) << "in use";
}

TEST_F(Memory, PinnedOutlivesItsPool) {
  auto pool = std::make_unique<PinnedPool>();
  const auto taken = pool->take(1000).value();
  pool.reset();
  std::ranges::fill(taken->bytes(), std::uint8_t{7});
  EXPECT_EQ(taken->bytes()[999], 7);
}

/// What is asked for changes from run to run: memory of sizes that are not asked for any more makes room.
TEST_F(Memory, PinnedThatNobodyAsksForGoes) {
  PinnedPool pool;
  const auto take = [&](std::size_t bytes) {
    std::vector<Pinned> all;
    for (int i = 0; i < 64; ++i) all.push_back(pool.take(bytes).value());
  };
  take(100);
  take(1000);
  EXPECT_NE(pool.reuse(1000), nullptr);
  EXPECT_EQ(pool.reuse(100), nullptr);
}

TEST_F(Memory, PinnedIsTakenByAnyThread) {
  PinnedPool pool;
  std::vector<std::thread> threads;
  for (std::uint8_t number = 0; number < 4; ++number)
    threads.emplace_back([&pool, number] {
      for (int i = 0; i < 200; ++i) {
        const auto taken = pool.take(100).value();
        std::ranges::fill(taken->bytes(), number);
        EXPECT_THAT(taken->bytes(), testing::Each(number));
      }
    });
  for (auto& thread : threads) thread.join();
}

#ifdef COHIVE_CUDA_EMULATED
class EmulatedMemory : public Gpu {
 protected:
  void TearDown() override {
    emulated::release_streams();
    emulated::set_memory_pools(true);
    Gpu::TearDown();
  }
};

TEST_F(EmulatedMemory, OfAStreamGoesAfterTheWorkThatUsesIt) {
  const auto out = to_device(std::vector<float>(1000, 0));
  emulated::hold_streams();
  {
    const auto between = DeviceBuffer::create_on(stream(), 4000).value();
    ASSERT_TRUE(clear_async(stream(), between.floats()));
    ASSERT_TRUE(scale_async(stream(), between.floats(), 2));
  }
  emulated::release_streams();
  EXPECT_TRUE(stream().synchronize());
  EXPECT_THAT(emulated::take_findings(), IsEmpty());
}

TEST_F(EmulatedMemory, ThatIsUsedAfterItsEndIsFound) {
  const auto out = to_device(std::vector<float>(1, 0));
  std::span<float> gone;
  {
    const auto memory = DeviceBuffer::create_on(stream(), 1024).value();
    gone = memory.floats();
  }
  ASSERT_TRUE(stream().synchronize());
  ASSERT_EQ(planted::sum_blocks(stream().native(), planted::Error::none, gone.data(), out.floats().data(), 256), 0);
  ASSERT_TRUE(stream().synchronize());
  EXPECT_THAT(emulated::take_findings(), testing::Contains(testing::HasSubstr("of a buffer that was freed")));
}

TEST_F(EmulatedMemory, WithoutPoolsIsTakenFromTheDevice) {
  emulated::set_memory_pools(false);
  emulated::take_waits();
  const auto memory = DeviceBuffer::create_on(stream(), 4000).value();
  EXPECT_THAT(emulated::take_waits(), testing::ElementsAre("cudaMalloc"));
  EXPECT_TRUE(clear_async(stream(), memory.floats()));
  EXPECT_TRUE(stream().synchronize());
}

TEST_F(EmulatedMemory, PinnedIsGivenBackWithoutAWait) {
  PinnedPool pool;
  std::vector<Pinned> all;
  for (int i = 0; i < 200; ++i) all.push_back(pool.take(100).value());
  emulated::take_waits();
  all.clear();
  EXPECT_THAT(emulated::take_waits(), IsEmpty());
  const auto of_another_size = pool.take(1000).value();
  EXPECT_THAT(emulated::take_waits(), testing::Contains("cudaFreeHost").Times(200 - 63)) << "64 are kept";
}

/// From the first round on, with codecs that owe something, bounds of norms and norms of parameters.
TEST_F(EmulatedMemory, TheLoopWaitsForNoDevice) {
  constexpr std::size_t kCount = 20'000;
  const auto runtime = make_runtime({.seed = 1, .pool_threads = 2});
  const auto backend = make_backend(*runtime).value();
  std::vector<Buffer> moments{backend->allocate(kCount), backend->allocate(kCount)};
  const auto live = backend->allocate(kCount), sum = backend->allocate(kCount), gradient = backend->allocate(kCount);
  const std::vector<averaging::TensorInfo> infos{{.shape = {kCount}}};
  const auto epoch = [&](std::optional<double> max_norm) -> Task<void> {
    co_await backend->clear({live, gradient, moments[0], moments[1]});
    EXPECT_TRUE(co_await backend->accumulate({{gradient.values, sum.values}}, {.first = true}, nullptr));
    train::GradientWork work;
    work.infos = infos;
    work.sums = {sum};
    work.residuals = averaging::make_residuals(infos);  // forgotten with the round
    work.max_norm = max_norm;
    optim::TensorMemory memory{std::span<const float>(live.values), live.values, {}, sum.values, {}};
    for (std::size_t k = 0; k < moments.size(); ++k) memory.state[k] = moments[k].values;
    work.steps.push_back({optim::LambOptions{}, memory, {1}});
    const auto round = backend->gradient_round(std::move(work));
    for (std::size_t at = 0; at < kCount; at += 5000) {
      const averaging::Stretch stretch{0, at, 5000};
      const auto sent = (co_await round->parts()->encode(stretch, codec::Codec::block4)).value();
      auto part = std::make_shared<averaging::EncodedPart>();
      part->codec = codec::Codec::block4;
      part->record = Slice::copy_of(sent.bytes);
      part->buffer = part->record.view();
      averaging::Answer answer{averaging::Answer::Form::average, std::move(part), std::nullopt};
      answer.sent = averaging::Answer::Sent{codec::Codec::block4, sent};
      (co_await round->parts()->apply(stretch, std::move(answer), {})).value();
      (co_await round->parts()->contribute(stretch, codec::Codec::block4, {})).value();
    }
    co_await round->parts()->finish();
    co_await round->finish_step();
  };
  emulated::take_waits();
  for (const auto max_norm : {std::optional<double>(), std::optional(0.1)}) {
    runtime->run(epoch(max_norm));
    EXPECT_THAT(emulated::take_waits(), IsEmpty());
  }
}
#endif

}  // namespace
}  // namespace cohive::cuda
