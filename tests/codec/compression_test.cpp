#include "cohive/codec/compression.hpp"

#include <gtest/gtest.h>

namespace cohive::codec {
namespace {

CompressionInfo info(Shape shape, Role role = Role::unspecified, TensorKey key = std::uint64_t{0}) {
  return {std::move(key), std::move(shape), DType::float32, role};
}

Codec chosen(const Compression& compression, const CompressionInfo& what) {
  return compression.choose(what).value().codec;
}

TEST(Compression, ACodecIsTheSimplestStrategyAndNothingIsTheDefault) {
  EXPECT_EQ(chosen({}, info({5})), Codec::none);
  EXPECT_EQ(chosen(Codec::float16, info({5})), Codec::float16);
  EXPECT_EQ(Compression(Codec::float16).fixed(), Codec::float16);
  EXPECT_FALSE(Compression::size_adaptive(1, Codec::none, Codec::float16).fixed());
}

TEST(Compression, SizeCountsTheValuesOfTheWholeTensorAndTheThresholdBelongsToTheLarge) {
  const auto compression = Compression::size_adaptive(1000, Codec::float16, Codec::uniform8);
  EXPECT_EQ(chosen(compression, info({999})), Codec::float16);
  EXPECT_EQ(chosen(compression, info({10, 10, 10})), Codec::uniform8);
  EXPECT_EQ(chosen(compression, info({})), Codec::float16);  // a scalar is one value
  EXPECT_EQ(chosen(compression, info({0, 70000})), Codec::float16);
  EXPECT_EQ(chosen(compression, info({1u << 31, 1u << 31})), Codec::uniform8);
}

TEST(Compression, RolesNotNamedGetTheDefaultAsGradientAveragersDo) {
  const auto compression = Compression::role_adaptive(
      {.parameter = Codec::float16, .gradient = Codec::uniform8, .optimizer = Codec::blockwise8}, Codec::meanstd16);
  EXPECT_EQ(chosen(compression, info({5}, Role::parameter)), Codec::float16);
  EXPECT_EQ(chosen(compression, info({5}, Role::gradient)), Codec::uniform8);
  EXPECT_EQ(chosen(compression, info({5}, Role::optimizer)), Codec::blockwise8);
  EXPECT_EQ(chosen(compression, info({5}, Role::activation)), Codec::meanstd16);
  EXPECT_EQ(chosen(compression, info({5}, Role::unspecified)), Codec::meanstd16);
}

TEST(Compression, KeysAreIndicesNamesOrStatistics) {
  const auto by_index = Compression::per_tensor({Codec::none, Codec::float16, Codec::uniform8});
  EXPECT_EQ(chosen(by_index, info({5}, {}, std::uint64_t{2})), Codec::uniform8);
  const auto missing = by_index.choose(info({5}, {}, std::uint64_t{3}));
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message().find("no compression for the tensor 3"), std::string::npos);

  const std::pair<std::string, std::string> momentum{"layer.weight", "exp_avg"};
  const auto by_name = Compression::per_tensor(
      std::map<TensorKey, Compression>{{std::string("layer.weight"), Codec::float16}, {momentum, Codec::uniform8}});
  EXPECT_EQ(chosen(by_name, info({5}, {}, std::string("layer.weight"))), Codec::float16);
  EXPECT_EQ(chosen(by_name, info({5}, {}, momentum)), Codec::uniform8);
  EXPECT_FALSE(by_name.choose(info({5}, {}, std::string("layer.bias"))));
}

TEST(Compression, StrategiesNest) {
  const auto compression = Compression::role_adaptive(
      {.parameter = Compression::size_adaptive(100, Codec::none, Codec::quantile8)}, Codec::float16);
  EXPECT_EQ(chosen(compression, info({99}, Role::parameter)), Codec::none);
  EXPECT_EQ(chosen(compression, info({100}, Role::parameter)), Codec::quantile8);
  EXPECT_EQ(chosen(compression, info({100}, Role::gradient)), Codec::float16);
}

TEST(Compression, KnowsWhetherARuleByRoleOrByKeyNamesACodec) {
  const auto names = [](const Compression& compression, const CompressionInfo& what) {
    return compression.names(what);
  };
  EXPECT_FALSE(names(Codec::float16, info({5}, Role::optimizer)));
  EXPECT_FALSE(names(Compression::size_adaptive(1, Codec::none, Codec::float16), info({5}, Role::optimizer)));
  const auto by_role = Compression::role_adaptive({.optimizer = Codec::none}, Codec::float16);
  EXPECT_TRUE(names(by_role, info({5}, Role::optimizer)));
  EXPECT_FALSE(names(by_role, info({5}, Role::parameter)));
  EXPECT_FALSE(names(by_role, info({5}, Role::unspecified)));
  const auto by_key = Compression::per_tensor({Codec::float16});
  EXPECT_TRUE(names(by_key, info({5})));
  EXPECT_TRUE(names(Compression::role_adaptive({.parameter = Codec::none}, by_key), info({5}, Role::optimizer)));
}

TEST(Compression, RatiosAreBitsOfTheCodecOverBitsOfTheDtypeInTheInfo) {
  const auto ratio = [](Codec codec, DType dtype) {
    return Compression(codec).ratio({std::uint64_t{0}, {5}, dtype, Role::unspecified}).value();
  };
  EXPECT_EQ(ratio(Codec::none, DType::float64), 1.0);
  EXPECT_EQ(ratio(Codec::float16, DType::float32), 0.5);
  EXPECT_EQ(ratio(Codec::float16, DType::float16), 1.0);
  EXPECT_EQ(ratio(Codec::meanstd16, DType::float64), 0.25);
  EXPECT_EQ(ratio(Codec::float16, DType::boolean), 2.0);
  for (Codec codec : {Codec::uniform8, Codec::quantile8, Codec::blockwise8}) {
    EXPECT_EQ(ratio(codec, DType::float32), 0.25);
    EXPECT_EQ(ratio(codec, DType::bfloat16), 0.5);
  }
}

}  // namespace
}  // namespace cohive::codec
