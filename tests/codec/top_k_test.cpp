#include <gtest/gtest.h>

#include <cmath>

#include "codec/normal_values.hpp"
#include "cohive/codec/codec.hpp"

namespace cohive::codec {
namespace {

TEST(TopK, SendsTheLargestValuesAndNothingElse) {
  auto values = normal_values(200'000, 2);
  values[70'000] = 50;
  values[199'999] = -60;
  const Slice buffer = encode({Codec::top_k, 0.01}, values);
  EXPECT_EQ(buffer.size(), 4 * 4 + 2000 * 4u);
  std::vector<float> back(values.size()), sum(values.size(), 1.0f);
  ASSERT_TRUE(decode(Codec::top_k, DType::float32, buffer, back));
  ASSERT_TRUE(decode_and_accumulate(Codec::top_k, DType::float32, buffer, 0.5f, sum));
  EXPECT_EQ(back[70'000], 50);
  EXPECT_EQ(back[199'999], -60);
  float least_sent = 100, largest_kept = 0;
  std::size_t sent = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sent += back[i] != 0;
    ASSERT_EQ(sum[i], 1.0f + 0.5f * back[i]);
    if (back[i] != 0)
      least_sent = std::min(least_sent, std::fabs(values[i]));
    else
      largest_kept = std::max(largest_kept, std::fabs(values[i]));
  }
  EXPECT_EQ(sent, 2000u);
  EXPECT_LE(largest_kept, least_sent);
}

TEST(TopK, SendsAtLeastOneValueAndOfEqualsTheFirst) {
  const std::vector<float> equal(10, -2.0f);
  std::vector<float> back(10);
  ASSERT_TRUE(decode(Codec::top_k, DType::float32, encode({Codec::top_k, 0.3}, equal), back));
  EXPECT_EQ(back, (std::vector<float>{-2, -2, -2, 0, 0, 0, 0, 0, 0, 0}));
  ASSERT_TRUE(decode(Codec::top_k, DType::float32, encode({Codec::top_k, 0.0}, equal), back));
  EXPECT_EQ(back[0], -2);
  ASSERT_TRUE(decode(Codec::top_k, DType::float32, encode({Codec::top_k, 7.0}, equal), back));
  EXPECT_EQ(back, equal);
  EXPECT_TRUE(decode(Codec::top_k, DType::float32, encode(Codec::top_k, {}), {}));
}

TEST(TopK, RefusesDamagedBuffersAndLeavesTheAccumulatorAlone) {
  const Bytes good = to_bytes(encode({Codec::top_k, 0.05}, normal_values(1000, 3)).view());
  std::vector<float> sum(1000, 1.0f);
  const auto refused = [&](const Bytes& bytes) {
    return !decode_and_accumulate(Codec::top_k, DType::float32, bytes, 1, sum) && sum == std::vector<float>(1000, 1.0f);
  };
  for (std::size_t size = 0; size < good.size() + 8; ++size) {
    if (size == good.size()) continue;
    Bytes bad = good;
    bad.resize(size);
    ASSERT_TRUE(refused(bad)) << size;
  }
  Bytes twice = good, beyond = good, infinite = good, many = good;
  std::copy_n(good.begin() + 4, 2, twice.begin() + 6);  // one place twice
  beyond[4 + 49 * 2] = 0xff, beyond[4 + 49 * 2 + 1] = 0xff;
  infinite[infinite.size() - 1] = 0x7c, infinite[infinite.size() - 2] = 0;
  std::fill_n(many.begin(), 4, std::uint8_t{0xff});
  for (const Bytes& bad : {twice, beyond, infinite, many}) EXPECT_TRUE(refused(bad));
}

}  // namespace
}  // namespace cohive::codec
