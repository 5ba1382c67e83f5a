#include "cohive/codec/parallel.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cohive/core/task_group.hpp"

namespace cohive::codec {
namespace {

constexpr Codec kAll[] = {Codec::none,      Codec::meanstd16, Codec::float16,
                          Codec::quantile8, Codec::uniform8,  Codec::blockwise8};

std::shared_ptr<std::vector<float>> wave(std::size_t count, float phase) {
  auto values = std::make_shared<std::vector<float>>(count);
  for (std::size_t i = 0; i < count; ++i) (*values)[i] = std::sin(static_cast<float>(i) * 0.37f + phase) * 3;
  return values;
}

class OnThePool : public testing::Test {
 protected:
  std::unique_ptr<Runtime> runtime_ = make_runtime({.seed = 1, .pool_threads = 3});
};

TEST_F(OnThePool, ThreadsGiveTheBytesThatOneThreadGives) {
  for (std::size_t count : {std::size_t{0}, std::size_t{100}, std::size_t{300'000}, std::size_t{1'500'001}}) {
    const auto values = wave(count, 0), base = wave(count, 1);
    for (Codec codec : kAll) {
      SCOPED_TRACE(std::string(name_of(codec)) + " " + std::to_string(count));
      const Slice alone = encode(codec, *values);
      EXPECT_TRUE(std::ranges::equal(runtime_->run(encode(*runtime_, codec, {values, *values})).view(), alone.view()));
      const Slice difference = runtime_->run(encode_difference(*runtime_, codec, {values, *values}, {base, *base}));
      EXPECT_TRUE(std::ranges::equal(difference.view(), encode_difference(codec, *values, *base).view()));

      std::vector<float> expected(count), sum(count, 2.0f);
      ASSERT_TRUE(decode(codec, DType::float32, alone, expected));
      ASSERT_TRUE(decode_and_accumulate(codec, DType::float32, alone, 0.5f, sum));
      auto out = std::make_shared<std::vector<float>>(count), total = std::make_shared<std::vector<float>>(count, 2.0f);
      ASSERT_TRUE(runtime_->run(decode(*runtime_, codec, DType::float32, alone, {out, *out})));
      ASSERT_TRUE(runtime_->run(decode_and_accumulate(*runtime_, codec, DType::float32, alone, 0.5f, {total, *total})));
      EXPECT_EQ(*out, expected);
      EXPECT_EQ(*total, sum);
    }
  }
}

TEST_F(OnThePool, WholeTensorsOfManyRowsComeBackInTheirDtype) {
  for (const Shape& shape : {Shape{2, 400'000}, Shape{5'000, 80}, Shape{4}}) {
    const auto count = element_count(shape).value();
    const auto values = wave(count, 0);
    for (DType dtype : {DType::float32, DType::float16, DType::float64}) {
      // Any values of the dtype will do: an encoder of "none" for float32, its halves for float16.
      Tensor tensor{dtype, shape, true, Slice::uninitialised(count * size_of(dtype))};
      if (dtype == DType::float16) tensor.data = encode(Codec::float16, *values);
      if (dtype == DType::float32) tensor.data = encode(Codec::none, *values);
      if (dtype == DType::float64) {
        const std::vector<double> wide(values->begin(), values->end());
        tensor.data = Slice::copy_of({reinterpret_cast<const std::uint8_t*>(wide.data()), count * 8});
      }
      for (Codec codec : kAll) {
        SCOPED_TRACE(std::string(name_of(codec)) + " " + std::string(name_of(dtype)));
        const auto alone = encode_tensor(codec, tensor);
        const auto shared = runtime_->run(encode_tensor(*runtime_, codec, tensor));
        ASSERT_TRUE(alone && shared);
        EXPECT_TRUE(std::ranges::equal(alone->view(), shared->view()));
        const auto back = decode_tensor(codec, dtype, shape, true, *alone);
        const auto back_shared = runtime_->run(decode_tensor(*runtime_, codec, dtype, shape, true, *alone));
        ASSERT_TRUE(back && back_shared);
        EXPECT_TRUE(std::ranges::equal(back->data.view(), back_shared->data.view()));
        EXPECT_TRUE(back_shared->requires_grad);
      }
    }
  }
}

TEST_F(OnThePool, BadBuffersAreTheSameErrors) {
  const auto out = std::make_shared<std::vector<float>>(100'000, 1.0f);
  const Slice bad = Slice::copy_of(Bytes(99'999));
  const auto result = runtime_->run(decode(*runtime_, Codec::float16, DType::float32, bad, {out, *out}));
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message(), decode(Codec::float16, DType::float32, bad, *out).error().message());
  EXPECT_FALSE(runtime_->run(decode_tensor(*runtime_, Codec::uniform8, DType::float32, {100'000}, false, bad)));
  EXPECT_EQ((*out)[0], 1.0f);
}

TEST_F(OnThePool, AbandonedWorkLetsGoOfItsMemory) {
  auto values = wave(4'000'000, 0);
  const std::weak_ptr<std::vector<float>> alive = values;
  auto abandon = [](Runtime& runtime, std::shared_ptr<std::vector<float>> owned) -> Task<void> {
    TaskGroup group(runtime, "encoding");
    auto work = [](Runtime& loop, std::shared_ptr<std::vector<float>> what) -> Task<void> {
      (void)co_await encode(loop, Codec::quantile8, {what, *what});
    };
    group.spawn(work(runtime, std::move(owned)), "encoding");
    co_await runtime.yield();
    co_await runtime.yield();
    group.cancel();
  };
  runtime_->run(abandon(*runtime_, std::move(values)));
  runtime_.reset();  // waits for the pool
  EXPECT_TRUE(alive.expired());
}

}  // namespace
}  // namespace cohive::codec
