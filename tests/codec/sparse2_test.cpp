#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "codec/normal_values.hpp"
#include "cohive/codec/codec.hpp"
#include "cohive/codec/decoder.hpp"

namespace cohive::codec {
namespace {

constexpr std::size_t kReach = 4096;

double bits_per_value(const CodecSpec& spec, std::span<const float> values) {
  return static_cast<double>(encode(spec, values).size()) * 8 / static_cast<double>(values.size());
}

std::vector<float> there_and_back(const CodecSpec& spec, std::span<const float> values) {
  std::vector<float> back(values.size(), 7.0f);
  EXPECT_TRUE(decode(spec.codec, DType::float32, encode(spec, values), back));
  return back;
}

CodecSpec sparse(std::size_t of_each_block, bool fixed = false) {
  CodecSpec spec(Codec::sparse2, static_cast<double>(of_each_block) / kReach);
  spec.fixed_places = fixed;
  return spec;
}

/// The places that a plain search of each block finds: by magnitude, of equals the first.
std::vector<bool> largest_of_each_block(std::span<const float> values, std::size_t k) {
  std::vector<bool> chosen(values.size());
  for (std::size_t first = 0; first < values.size(); first += kReach) {
    const std::size_t length = std::min(kReach, values.size() - first);
    std::vector<std::size_t> order(length);
    for (std::size_t i = 0; i < length; ++i) order[i] = first + i;
    std::ranges::sort(order, std::less<>(), [&](std::size_t i) { return std::pair(-std::fabs(values[i]), i); });
    for (std::size_t i = 0; i < (k * length + kReach - 1) / kReach; ++i)
      if (values[order[i]] != 0) chosen[order[i]] = true;
  }
  return chosen;
}

TEST(Sparse2, CostsAboutAThirteenthOfFourBits) {
  const auto values = normal_values(1 << 20, 1);
  EXPECT_LE(bits_per_value(Codec::sparse2, values), 0.158);
  EXPECT_LE(bits_per_value(sparse(64, true), values), 0.227);
  EXPECT_LE(bits_per_value(sparse(256), values), 0.485) << "of answers";
  auto crowded = values;  // where all large values lie together
  for (std::size_t i = 0; i < crowded.size(); ++i) crowded[i] *= i % kReach < 100 ? 50.0f : 1.0f;
  EXPECT_LE(bits_per_value(Codec::sparse2, crowded), 0.158);
}

TEST(Sparse2, SendsTheLargestValuesOfEachBlockAndOfEqualsTheFirst) {
  std::mt19937 random(3);
  for (const std::size_t count : {std::size_t{1}, std::size_t{63}, std::size_t{4095}, std::size_t{4096},
                                  std::size_t{4097}, std::size_t{50'000}}) {
    for (const std::size_t k : {1, 64, 256, 4096}) {
      SCOPED_TRACE(testing::Message() << k << " of " << count);
      auto values = normal_values(count, 5);
      for (std::size_t i = 0; i < count; ++i) {
        const auto block = i / kReach;
        if (block % 4 == 1) values[i] = std::round(values[i]);  // many equals
        if (block % 4 == 2) values[i] = std::ldexp(values[i], static_cast<int>(random() % 200) - 100);
        if (block % 4 == 3) values[i] = random() % 100 == 0 ? 1e-40f * values[i] : 0.0f;  // little but zeros
      }
      const auto wanted = largest_of_each_block(values, k);
      for (const bool fixed : {false, true}) {
        const auto back = there_and_back(sparse(k, fixed), values);
        for (std::size_t i = 0; i < count; ++i) {
          if (!wanted[i]) ASSERT_EQ(back[i], 0.0f) << i;
          // A level that is hardly more than nothing may be sent as nothing.
          if (wanted[i] && std::fabs(values[i]) > 1e-30f) {
            ASSERT_NE(back[i], 0.0f) << i;
            ASSERT_EQ(std::signbit(back[i]), std::signbit(values[i])) << i;
          }
        }
      }
    }
  }
}

TEST(Sparse2, TwoBitsLoseLittleOfWhatIsSent) {
  const auto values = normal_values(40'960, 6);
  const auto back = there_and_back(Codec::sparse2, values);
  double sent = 0, lost = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (back[i] == 0) continue;
    sent += std::pow(static_cast<double>(values[i]), 2);
    lost += std::pow(static_cast<double>(values[i]) - static_cast<double>(back[i]), 2);
  }
  EXPECT_LT(lost, 0.01 * sent) << "levels for the whole part and buckets of 1.5 deviations lose 0.015";
}

TEST(Sparse2, BlocksOfUnlikeSizeDoNotDisturbEachOther) {
  auto values = normal_values(3 * kReach, 7);
  for (std::size_t i = 0; i < kReach; ++i) values[i] *= 1e-6f, values[i + kReach] = 0;
  const auto back = there_and_back(Codec::sparse2, values);
  for (std::size_t i = 0; i < kReach; ++i) {
    ASSERT_LT(std::fabs(back[i]), 1e-5f);
    ASSERT_EQ(back[i + kReach], 0.0f);
  }
  EXPECT_EQ(there_and_back(Codec::sparse2, std::vector<float>(10'000)), std::vector<float>(10'000));
  EXPECT_TRUE(decode(Codec::sparse2, DType::float32, encode(Codec::sparse2, {}), {}));
}

TEST(Sparse2, AnyStretchCanBeDecodedAndAdded) {
  const auto values = normal_values(3 * kReach + 77, 8);
  const Slice buffer = encode(sparse(256), values);
  const auto decoder = Decoder::open(Codec::sparse2, DType::float32, values.size(), buffer);
  ASSERT_TRUE(decoder);
  const auto whole = there_and_back(sparse(256), values);
  for (std::size_t first = 0; first < values.size(); first += 997) {
    const std::size_t count = std::min<std::size_t>(5003, values.size() - first);
    std::vector<float> part(count), sum(count, 1.0f);
    (*decoder)->decode(first, part);
    (*decoder)->accumulate(first, 0.5f, sum);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(part[i], whole[first + i]);
      ASSERT_EQ(sum[i], 1.0f + 0.5f * whole[first + i]);
    }
  }
}

/// So that a gradient's outlier of the largest exponent, or a model that has hardly any, cannot end a round.
TEST(Sparse2, TakesTheLargestAndTheSmallestFloats) {
  std::vector<float> values(kReach);
  constexpr float kMost = std::numeric_limits<float>::max(), kLeast = std::numeric_limits<float>::denorm_min();
  values[5] = kMost, values[9] = -kMost, values[11] = 1;
  const auto back = there_and_back(Codec::sparse2, values);
  EXPECT_GT(back[5], 0.99f * kMost);
  EXPECT_LT(back[9], -0.99f * kMost);
  std::ranges::fill(values, -kLeast);
  EXPECT_EQ(there_and_back(Codec::sparse2, values), std::vector<float>(kReach));
}

// ---- Bytes that no honest peer sends

class HostileSparse2 : public ::testing::Test {
 protected:
  std::string refusal(const Bytes& bytes, std::size_t count = 5000) {
    std::vector<float> sum(count, 1.0f);
    const auto added = decode_and_accumulate(Codec::sparse2, DType::float32, bytes, 1, sum);
    if (!added) EXPECT_EQ(sum, std::vector<float>(count, 1.0f));
    return added ? "" : added.error().message();
  }
  const Bytes good = to_bytes(encode(Codec::sparse2, normal_values(5000, 9)).view());
};

TEST_F(HostileSparse2, OtherLengthsAreRefused) {
  EXPECT_EQ(refusal(good), "");
  for (std::size_t size = 0; size < good.size() + 20; ++size) {
    if (size == good.size()) continue;
    Bytes bad = good;
    bad.resize(size);
    ASSERT_NE(refusal(bad), "") << size;
  }
  EXPECT_NE(refusal(good, 4096), "");
  EXPECT_NE(refusal(good, 9000), "");
}

TEST_F(HostileSparse2, HeadersThatNoEncoderWritesAreRefused) {
  for (const auto& [at, byte] : {std::pair<std::size_t, int>(0, 0), {1, 0x11}, {1, 0xff}, {2, 13}, {2, 255}, {3, 1}}) {
    Bytes bad = good;
    bad[at] = static_cast<std::uint8_t>(byte);
    EXPECT_NE(refusal(bad), "") << at << " " << byte;
  }
  for (const auto& [low, high] : {std::pair<int, int>(0x7f, 0x80), {0x7f, 0xc0}, {0xbf, 0x80}, {0xff, 0xff}}) {
    Bytes bad = good;  // infinite, not a number, negative
    bad[7] = static_cast<std::uint8_t>(low), bad[6] = static_cast<std::uint8_t>(high);
    EXPECT_NE(refusal(bad).find("level"), std::string::npos);
  }
}

TEST_F(HostileSparse2, PlacesOutOfRangeAreRefused) {
  const auto refused = [&](std::size_t k, int coding, std::initializer_list<int> rest) {
    Bytes bytes = {static_cast<std::uint8_t>(k),
                   static_cast<std::uint8_t>(k >> 8),
                   static_cast<std::uint8_t>(coding),
                   0,
                   0x80,
                   0x3f,
                   0x80,
                   0x3f};
    for (int byte : rest) bytes.push_back(static_cast<std::uint8_t>(byte));
    return refusal(bytes, 10);
  };
  EXPECT_EQ(refused(1, 12, {9, 0}), "") << "the last of ten values";
  EXPECT_NE(refused(1, 12, {10, 0}).find("out of range"), std::string::npos) << "an end that nothing came before";
  EXPECT_NE(refused(1, 12, {11, 0}).find("out of range"), std::string::npos);
  EXPECT_NE(refused(1, 12, {9, 0x40}), "") << "bits behind the end";
  EXPECT_NE(refused(1, 0, {255, 255}).find("ends within a block"), std::string::npos);
  EXPECT_EQ(refused(1, 0, {255, 1}), "") << "nine ones, a zero and two bits";
  // A string of ones is not read for longer than a gap can be.
  Bytes ones(1 << 20, std::uint8_t{255});
  std::copy_n(good.begin(), 12, ones.begin());
  ones[2] = 0;
  EXPECT_NE(refusal(ones).find("out of range"), std::string::npos);
}

TEST_F(HostileSparse2, DamagedBitsNeverDoMoreThanFail) {
  std::mt19937 random(10);
  for (int round = 0; round < 5000; ++round) {
    Bytes bad = good;
    for (unsigned i = 0; i < 1 + random() % 4; ++i) bad[random() % bad.size()] ^= std::uint8_t(1u << random() % 8);
    (void)refusal(bad);
  }
}

}  // namespace
}  // namespace cohive::codec
