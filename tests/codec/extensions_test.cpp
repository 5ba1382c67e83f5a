#include "cohive/codec/extensions.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

namespace cohive::codec {
namespace {

std::vector<float> normal(std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> distribution;
  std::vector<float> values(count);
  for (float& value : values) value = distribution(random);
  return values;
}

TEST(Extensions, AreUsedOnlyWhereEveryMemberOffersThem) {
  const Extensions both{Extension::block4, Extension::top_k}, one{Extension::block4}, none;
  EXPECT_EQ(agree_on(Extension::block4, std::vector{both, one}), Extension::block4);
  EXPECT_EQ(agree_on(Extension::top_k, std::vector{both, one}), std::nullopt);
  EXPECT_EQ(agree_on(Extension::block4, std::vector{both, none, one}), std::nullopt);  // a Python peer, say
  EXPECT_EQ(agree_on(Extension::block4, {}), std::nullopt);
}

TEST(Extensions, OffersTravelAsNamesAndUnknownOnesAreLeftOut) {
  for (const Extensions& offer :
       {Extensions{}, Extensions{Extension::top_k}, Extensions{Extension::block4, Extension::top_k}})
    EXPECT_EQ(Extensions::from_text(offer.text()), offer);
  EXPECT_EQ((Extensions{Extension::block4, Extension::top_k}.text()), "block4,top_k");
  EXPECT_EQ(Extensions::from_text("sketch,,top_k,block44"), Extensions{Extension::top_k});
  EXPECT_EQ(Extensions::from_text(std::string(1'000'000, ',') + "top_k"), Extensions{});
}

TEST(Extensions, HaveNumbersThatNoHivemindCodecHas) {
  for (Extension extension : {Extension::block4, Extension::top_k}) {
    EXPECT_FALSE(codec_from_wire(static_cast<int>(extension)));
    EXPECT_EQ(extension_from_wire(static_cast<int>(extension)), extension);
  }
  for (int codec = 0; codec < 6; ++codec) EXPECT_FALSE(extension_from_wire(codec));
}

TEST(Block4, KeepsValuesWithinHalfALevelOfTheirBlock) {
  for (std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{2}, std::size_t{63}, std::size_t{64},
                            std::size_t{65}, std::size_t{5001}}) {
    SCOPED_TRACE(count);
    const auto values = normal(count, 1);
    const Slice buffer = encode_extension({Extension::block4}, values);
    EXPECT_EQ(buffer.size(), (count + 63) / 64 * 2 + (count + 1) / 2);
    std::vector<float> back(count), sum(count, 1.0f);
    ASSERT_TRUE(decode_extension(Extension::block4, buffer, back));
    ASSERT_TRUE(accumulate_extension(Extension::block4, buffer, 2.0f, sum));
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
    ASSERT_TRUE(decode_extension(Extension::block4, encode_extension({Extension::block4}, values), back)) << value;
    for (float result : back) EXPECT_NEAR(result, value, std::fabs(value) * 0.01f + 1e-37f);
  }
}

TEST(TopK, SendsTheLargestValuesAndNothingElse) {
  auto values = normal(200'000, 2);
  values[70'000] = 50;
  values[199'999] = -60;
  const ExtensionOptions options{Extension::top_k, 0.01};
  const Slice buffer = encode_extension(options, values);
  EXPECT_EQ(buffer.size(), 4 * 4 + 2000 * 4u);
  std::vector<float> back(values.size()), sum(values.size(), 1.0f);
  ASSERT_TRUE(decode_extension(Extension::top_k, buffer, back));
  ASSERT_TRUE(accumulate_extension(Extension::top_k, buffer, 0.5f, sum));
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
  ASSERT_TRUE(decode_extension(Extension::top_k, encode_extension({Extension::top_k, 0.3}, equal), back));
  EXPECT_EQ(back, (std::vector<float>{-2, -2, -2, 0, 0, 0, 0, 0, 0, 0}));
  ASSERT_TRUE(decode_extension(Extension::top_k, encode_extension({Extension::top_k, 0.0}, equal), back));
  EXPECT_EQ(back[0], -2);
  ASSERT_TRUE(decode_extension(Extension::top_k, encode_extension({Extension::top_k, 7.0}, equal), back));
  EXPECT_EQ(back, equal);
  EXPECT_TRUE(decode_extension(Extension::top_k, encode_extension({Extension::top_k}, {}), {}));
}

TEST(Extensions, RefuseDamagedBuffersAndLeaveTheAccumulatorAlone) {
  const auto values = normal(1000, 3);
  for (const ExtensionOptions& options :
       {ExtensionOptions{Extension::block4}, ExtensionOptions{Extension::top_k, 0.05}}) {
    const Bytes good = to_bytes(encode_extension(options, values).view());
    const std::vector<float> before(1000, 1.0f);
    auto sum = before;
    for (std::size_t size = 0; size < good.size() + 8; ++size) {
      if (size == good.size()) continue;
      Bytes bad = good;
      bad.resize(size);
      ASSERT_FALSE(accumulate_extension(options.kind, bad, 1, sum)) << size;
    }
    EXPECT_EQ(sum, before);
  }
  const auto refused = [&](Extension kind, Bytes bytes) {
    std::vector<float> sum(1000);
    return !accumulate_extension(kind, bytes, 1, sum) && sum == std::vector<float>(1000);
  };
  Bytes scales = to_bytes(encode_extension({Extension::block4}, values).view());
  scales[0] = 0x80, scales[1] = 0x7f;  // infinity
  EXPECT_TRUE(refused(Extension::block4, scales));
  const Bytes good = to_bytes(encode_extension({Extension::top_k, 0.05}, values).view());
  Bytes twice = good, beyond = good, infinite = good, many = good;
  std::copy_n(good.begin() + 4, 2, twice.begin() + 6);  // one place twice
  beyond[4 + 49 * 2] = 0xff, beyond[4 + 49 * 2 + 1] = 0xff;
  infinite[infinite.size() - 1] = 0x7c, infinite[infinite.size() - 2] = 0;
  std::fill_n(many.begin(), 4, std::uint8_t{0xff});
  for (const Bytes& bad : {twice, beyond, infinite, many}) EXPECT_TRUE(refused(Extension::top_k, bad));
}

TEST(ErrorFeedback, DeliversInTheLongRunEverythingThatOneRoundLoses) {
  constexpr std::size_t kSize = 3000;
  constexpr int kRounds = 300;
  for (const ExtensionOptions& options :
       {ExtensionOptions{Extension::block4}, ExtensionOptions{Extension::top_k, 0.02}}) {
    SCOPED_TRACE(name_of(options.kind));
    const auto update = normal(kSize, 4);
    ErrorFeedback feedback(options, kSize);
    std::vector<float> delivered(kSize), without(kSize);
    for (int round = 0; round < kRounds; ++round) {
      for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>(0, 1000), {1000, kSize - 1000}}) {
        const auto values = std::span(update).subspan(first, count);
        const Slice buffer = feedback.encode(first, values);
        ASSERT_TRUE(accumulate_extension(options.kind, buffer, 1, std::span(delivered).subspan(first, count)));
        ASSERT_TRUE(feedback.commit(first, values, buffer));
      }
      ASSERT_TRUE(accumulate_extension(options.kind, encode_extension(options, update), 1, without));
    }
    double lost = 0, lost_without = 0, all = 0;
    for (std::size_t i = 0; i < kSize; ++i) {
      const double sent = static_cast<double>(update[i]) * kRounds;
      ASSERT_NEAR(delivered[i] + feedback.owed()[i], sent, 0.02 * kRounds / 10 + std::fabs(sent) * 1e-3);
      lost += std::fabs(delivered[i] - sent), lost_without += std::fabs(without[i] - sent), all += std::fabs(sent);
    }
    EXPECT_LT(lost, lost_without / 3);
    EXPECT_LT(lost, all * 0.25);
  }
}

TEST(ErrorFeedback, ARoundThatFailedChangesNoDebt) {
  const auto values = normal(500, 5);
  ErrorFeedback feedback({Extension::top_k, 0.1}, 500);
  const Slice first = feedback.encode(0, values);
  EXPECT_EQ(to_hex(feedback.encode(0, values)), to_hex(first)) << "the first was never delivered";
  ASSERT_TRUE(feedback.commit(0, values, first));
  EXPECT_NE(to_hex(feedback.encode(0, values)), to_hex(first));
  feedback.settle(0, 500);
  EXPECT_EQ(to_hex(feedback.encode(0, values)), to_hex(first)) << "nothing is owed";
}

TEST(ErrorFeedback, AValueThatIsNotFinitePoisonsOneRoundOnly) {
  auto values = normal(500, 6);
  for (Extension kind : {Extension::block4, Extension::top_k}) {
    for (float bad : {NAN, std::numeric_limits<float>::infinity()}) {
      ErrorFeedback feedback({kind, 0.1}, 500);
      auto sick = values;
      sick[7] = bad;
      std::vector<float> out(500);
      const Slice refused = feedback.encode(0, sick);
      EXPECT_FALSE(decode_extension(kind, refused, out));
      EXPECT_FALSE(feedback.commit(0, sick, refused));
      for (float owed : feedback.owed()) EXPECT_EQ(owed, 0);
      EXPECT_TRUE(decode_extension(kind, feedback.encode(0, values), out));
    }
  }
}

}  // namespace
}  // namespace cohive::codec
