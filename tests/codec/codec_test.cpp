#include "cohive/codec/codec.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "codec/every_codec.hpp"
#include "cohive/codec/decoder.hpp"

namespace cohive::codec {
namespace {

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
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int64, DType::int32,
                      DType::uint8, DType::boolean}) {
    Tensor tensor{dtype, {2, 3}, true, Slice::uninitialised(6 * size_of(dtype))};
    std::fill_n(tensor.data.mutable_data(), tensor.data.size(), std::uint8_t{1});
    const auto buffer = encode_tensor(Codec::none, tensor);
    ASSERT_TRUE(buffer) << name_of(dtype);
    const auto back = decode_tensor(Codec::none, dtype, tensor.shape, true, *buffer);
    ASSERT_TRUE(back) << name_of(dtype);
    EXPECT_EQ(to_hex(back->data), to_hex(tensor.data)) << name_of(dtype);
  }
}

TEST(Codec, BytesOfTensorsMayLieAnywhere) {
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  const ByteView raw(reinterpret_cast<const std::uint8_t*>(values.data()), values.size() * 4);
  Bytes shifted(raw.size() + 1);
  std::copy(raw.begin(), raw.end(), shifted.begin() + 1);
  Slice odd = Slice::copy_of(shifted);
  odd.remove_prefix(1);
  for (Codec codec : kEveryCodec) {
    SCOPED_TRACE(name_of(codec));
    const auto straight = encode_tensor(codec, {DType::float32, {5000}, false, Slice::copy_of(raw)}).value();
    EXPECT_EQ(to_hex(encode_tensor(codec, {DType::float32, {5000}, false, odd}).value()), to_hex(straight));
    Bytes moved(straight.size() + 1);
    std::copy_n(straight.data(), straight.size(), moved.begin() + 1);
    std::vector<float> there(5000), here(5000);
    ASSERT_TRUE(decode(codec, DType::float32, straight, there));
    ASSERT_TRUE(decode(codec, DType::float32, ByteView(moved).subspan(1), here));
    EXPECT_EQ(there, here);
  }
}

TEST(Codec, DifferencesEncodeAsTheValuesTheyAre) {
  std::vector<float> average(10'000), base(10'000), delta(10'000);
  for (std::size_t i = 0; i < delta.size(); ++i) {
    average[i] = std::sin(static_cast<float>(i));
    base[i] = std::cos(static_cast<float>(3 * i));
    delta[i] = average[i] - base[i];
  }
  for (Codec codec : kEveryCodec)
    EXPECT_EQ(to_hex(encode_difference(codec, average, base)), to_hex(encode(codec, delta))) << name_of(codec);
}

TEST(Codec, DifferencesToEncodedValuesEncodeAsThoseToDecodedOnes) {
  std::vector<float> average(300'001), base(average.size()), decoded(average.size());
  for (std::size_t i = 0; i < average.size(); ++i) {
    average[i] = 1e5f * std::sin(static_cast<float>(i));  // some differences are too large for a half
    base[i] = std::cos(static_cast<float>(3 * i));
  }
  for (Codec codec : kEveryCodec) {
    const Slice encoded = encode(codec, base);
    ASSERT_TRUE(decode(codec, DType::float32, encoded, decoded));
    const auto decoder = Decoder::open(codec, DType::float32, base.size(), encoded);
    ASSERT_TRUE(decoder);
    const Slice ours = encode_difference(codec, average, **decoder),
                theirs = encode_difference(codec, average, decoded);
    EXPECT_TRUE(std::ranges::equal(ours.view(), theirs.view())) << name_of(codec);
  }
}

TEST(Codec, ValuesThatAreNotFiniteAreFoundWhileTheyAreEncoded) {
  std::vector<float> values(20'001);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 1e5f * std::sin(static_cast<float>(i));
  for (Codec codec : kEveryCodec) {
    SCOPED_TRACE(name_of(codec));
    const auto encoded = encode_finite(codec, values);
    ASSERT_TRUE(encoded);
    EXPECT_TRUE(std::ranges::equal(encoded->view(), encode(codec, values).view()));
    for (const float bad : {INFINITY, -INFINITY, NAN}) {
      for (const std::size_t at : {std::size_t{0}, std::size_t{4'444}, values.size() - 1}) {
        auto damaged = values;
        damaged[at] = bad;
        EXPECT_FALSE(encode_finite(codec, damaged)) << bad << " at " << at;
      }
    }
  }
}

TEST(Codec, ScaledHalvesHoldValuesWhoseNormNoFloatHolds) {
  std::vector<float> values(262'144), out(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 1e36f : -1e36f;
  ASSERT_TRUE(decode(Codec::meanstd16, DType::float32, encode(Codec::meanstd16, values), out));
  EXPECT_TRUE(out == values) << out[0] << " and " << out[1];
}

TEST(Codec, WhatHivemindRefusesToEncodeTravelsAsItIs) {
  for (Codec codec : {Codec::float16, Codec::meanstd16, Codec::uniform8, Codec::quantile8, Codec::blockwise8}) {
    EXPECT_EQ(codec_for(codec, DType::int64, {3}), Codec::none);
    EXPECT_EQ(codec_for(codec, DType::boolean, {}), Codec::none);
    EXPECT_EQ(codec_for(codec, DType::float32, {3}), codec);
  }
  EXPECT_EQ(codec_for(Codec::float16, DType::bfloat16, {3}), Codec::none);
  EXPECT_EQ(codec_for(Codec::uniform8, DType::bfloat16, {3}), Codec::uniform8);
  EXPECT_EQ(codec_for(Codec::meanstd16, DType::float32, {}), Codec::none);
  EXPECT_EQ(codec_for(Codec::quantile8, DType::float32, {3, 0}), Codec::none);
  const Tensor empty{DType::float32, {3, 0}, false, {}};
  const auto buffer = encode_tensor(Codec::uniform8, empty);
  ASSERT_TRUE(buffer);
  EXPECT_TRUE(buffer->empty());
}

TEST(Codec, EmptyPartsTravelInEveryCodec) {
  for (Codec codec : kEveryCodec) {
    const Slice buffer = encode(codec, {});
    EXPECT_TRUE(decode(codec, DType::float32, buffer, {})) << name_of(codec);
  }
}

TEST(Codec, LargeTensorsKeepTheErrorOfSmallOnes) {
  // Several runs, whose sums are added to each other.
  std::mt19937 random(7);
  std::normal_distribution<float> normal(3.0f, 1.0f);
  std::vector<float> values(700'001), out(values.size());
  for (float& value : values) value = normal(random);
  const auto error = [&](Codec codec) {
    EXPECT_TRUE(decode(codec, DType::float32, encode(codec, values), out));
    double sum = 0;
    for (std::size_t i = 0; i < out.size(); ++i)
      sum += std::pow(static_cast<double>(out[i]) - static_cast<double>(values[i]), 2);
    return sum / static_cast<double>(out.size());
  };
  EXPECT_EQ(error(Codec::none), 0);
  EXPECT_LT(error(Codec::meanstd16), 5e-8);
  EXPECT_LT(error(Codec::uniform8), 8e-4);
  EXPECT_LT(error(Codec::quantile8), 8e-4);
  EXPECT_LT(error(Codec::blockwise8), 8e-4);
}

}  // namespace
}  // namespace cohive::codec
