#include "cohive/codec/codec.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "codec/half.hpp"

namespace cohive::codec {
namespace {

TEST(Half, BulkAndScalarConversionsGiveTheSameBitsForEveryHalf) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  std::vector<float> bulk(halves.size());
  from_half(halves.data(), bulk.data(), halves.size());
  std::vector<std::uint16_t> back(halves.size());
  to_half(bulk.data(), back.data(), bulk.size());
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const float scalar = from_half_scalar(halves[i]);
    if (std::isnan(scalar)) {
      EXPECT_TRUE(std::isnan(bulk[i]));
      continue;
    }
    ASSERT_EQ(bulk[i], scalar) << i;
    ASSERT_EQ(to_half_scalar(scalar), back[i]) << i;
    if (std::isfinite(scalar)) ASSERT_EQ(back[i], halves[i]);
  }
}

TEST(Half, RandomFloatsRoundAlikeInBothVersions) {
  std::mt19937 random(3);
  std::vector<float> values(10'000);
  for (auto& value : values) value = std::ldexp(static_cast<float>(random()) / 4e9f - 0.5f, static_cast<int>(random() % 60) - 35);
  std::vector<std::uint16_t> bulk(values.size());
  to_half(values.data(), bulk.data(), values.size());
  for (std::size_t i = 0; i < values.size(); ++i) ASSERT_EQ(bulk[i], to_half_scalar(values[i])) << values[i];
}

TEST(Codec, Float16ClampsAsHivemindDoes) {
  const std::vector<float> values{0, 1, -2, 3.5f, 0.001f, 70000, -1e6f, 0.5f};
  EXPECT_EQ(to_hex(encode(Codec::float16, values)), "0000003c00c000431914ff7bfffb0038");
  EXPECT_EQ(to_hex(encode(Codec::none, values)), "000000000000803f000000c0000060406f12833a00b88847002474c90000003f");
}

TEST(Codec, DecodingChecksSizesAndKinds) {
  std::vector<float> out(3);
  EXPECT_FALSE(decode(Codec::none, DType::float32, Bytes(11), out));
  EXPECT_FALSE(decode(Codec::float16, DType::float32, Bytes(12), out));
  EXPECT_FALSE(decode(Codec::none, DType::int64, Bytes(24), out));
  EXPECT_TRUE(decode(Codec::none, DType::float32, Bytes(12), out));
  EXPECT_FALSE(decode_tensor(Codec::none, DType::float32, {1u << 31, 1u << 31}, false, Bytes(4)));
}

TEST(Codec, AccumulatesWithWeightsAndEncodesDifferences) {
  const std::vector<float> values(2500, 3.0f);
  std::vector<float> accumulator(2500, 1.0f);
  ASSERT_TRUE(decode_and_accumulate(Codec::float16, DType::float32, encode(Codec::float16, values), 2.0f, accumulator));
  EXPECT_EQ(accumulator[2499], 7.0f);
  std::vector<float> delta(2500);
  ASSERT_TRUE(decode(Codec::none, DType::float32, encode_difference(Codec::none, accumulator, values), delta));
  EXPECT_EQ(delta[0], 4.0f);
}

TEST(Codec, TensorsOfEveryDtypeSurviveAStateTransfer) {
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int64, DType::int32, DType::uint8, DType::boolean}) {
    Tensor tensor{dtype, {2, 3}, true, Slice::uninitialised(6 * size_of(dtype))};
    std::fill_n(tensor.data.mutable_data(), tensor.data.size(), std::uint8_t{1});
    const auto buffer = encode_tensor(Codec::none, tensor);
    ASSERT_TRUE(buffer) << name_of(dtype);
    const auto back = decode_tensor(Codec::none, dtype, tensor.shape, true, *buffer);
    ASSERT_TRUE(back) << name_of(dtype);
    EXPECT_EQ(to_hex(back->data), to_hex(tensor.data)) << name_of(dtype);
  }
}

}  // namespace
}  // namespace cohive::codec
