#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codec/normal_values.hpp"
#include "cohive/codec/codec.hpp"

namespace cohive::codec {
namespace {

TEST(Block4, KeepsValuesWithinHalfALevelOfTheirBlock) {
  for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{63}, std::size_t{64},
                            std::size_t{65}, std::size_t{5001}}) {
    SCOPED_TRACE(count);
    const auto values = normal_values(count, 1);
    const Slice buffer = encode(Codec::block4, values);
    EXPECT_EQ(buffer.size(), (count + 63) / 64 * 2 + (count + 1) / 2);
    std::vector<float> back(count), sum(count, 1.0f);
    ASSERT_TRUE(decode(Codec::block4, DType::float32, buffer, back));
    ASSERT_TRUE(decode_and_accumulate(Codec::block4, DType::float32, buffer, 2.0f, sum));
    for (std::size_t first = 0; first < count; first += 64) {
      float largest = 0;
      const std::size_t end = std::min(count, first + 64);
      for (std::size_t i = first; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
      for (std::size_t i = first; i < end; ++i) {
        ASSERT_NEAR(back[i], values[i], largest * 1.01f / 14) << i;  // scales are rounded up by at most 1/128
        ASSERT_EQ(sum[i], 1.0f + 2.0f * back[i]);
      }
    }
  }
}

TEST(Block4, SurvivesBlocksOfNothingAndOfExtremes) {
  constexpr float kMost = std::numeric_limits<float>::max();
  for (float value : {0.0f, 1e-45f, -1e-40f, 1e-30f, kMost, -kMost}) {
    const std::vector<float> values(70, value);
    std::vector<float> back(70);
    ASSERT_TRUE(decode(Codec::block4, DType::float32, encode(Codec::block4, values), back)) << value;
    for (float result : back) EXPECT_NEAR(result, value, std::fabs(value) * 0.01f + 1e-37f);
  }
}

TEST(Block4, RefusesDamagedBuffersAndLeavesTheAccumulatorAlone) {
  const Bytes good = to_bytes(encode(Codec::block4, normal_values(1000, 3)).view());
  std::vector<float> sum(1000, 1.0f);
  for (std::size_t size = 0; size < good.size() + 8; ++size) {
    if (size == good.size()) continue;
    Bytes bad = good;
    bad.resize(size);
    ASSERT_FALSE(decode_and_accumulate(Codec::block4, DType::float32, bad, 1, sum)) << size;
  }
  for (std::uint8_t low : {std::uint8_t{0x80}, std::uint8_t{0xc0}}) {  // infinity and NaN
    Bytes scales = good;
    scales[2] = low, scales[3] = 0x7f;
    EXPECT_FALSE(decode_and_accumulate(Codec::block4, DType::float32, scales, 1, sum));
  }
  EXPECT_EQ(sum, std::vector<float>(1000, 1.0f));
}

}  // namespace
}  // namespace cohive::codec
