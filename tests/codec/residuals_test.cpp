#include "cohive/codec/residuals.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "codec/normal_values.hpp"

namespace cohive::codec {
namespace {

/// What a sender does with one stretch: the bytes that travel.
Slice encode_corrected(const Residuals& residuals, CodecSpec codec, std::size_t first, std::span<const float> values) {
  std::vector<float> corrected(values.size());
  residuals.correct(first, values, corrected);
  return encode(codec, corrected);
}

class EveryLossyCodec : public ::testing::TestWithParam<CodecSpec> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryLossyCodec,
                         ::testing::Values(CodecSpec(Codec::block4), CodecSpec(Codec::top_k, 0.02),
                                           CodecSpec(Codec::sparse2, 0.02)),
                         [](const auto& test) { return std::string(name_of(test.param.codec)); });

TEST_P(EveryLossyCodec, DeliversInTheLongRunEverythingThatOneRoundLoses) {
  constexpr std::size_t kSize = 3000;
  constexpr int kRounds = 300;
  const CodecSpec codec = GetParam();
  const auto update = normal_values(kSize, 4);
  Residuals residuals(kSize);
  std::vector<float> delivered(kSize), without(kSize);
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>(0, 1000), {1000, kSize - 1000}}) {
      const auto values = std::span(update).subspan(first, count);
      const Slice buffer = encode_corrected(residuals, codec, first, values);
      const auto sum = std::span(delivered).subspan(first, count);
      ASSERT_TRUE(decode_and_accumulate(codec.codec, DType::float32, buffer, 1, sum));
      ASSERT_TRUE(residuals.commit(codec.codec, first, values, buffer));
    }
    ASSERT_TRUE(decode_and_accumulate(codec.codec, DType::float32, encode(codec, update), 1, without));
  }
  double lost = 0, lost_without = 0, all = 0;
  const auto owed = residuals.values();
  for (std::size_t i = 0; i < kSize; ++i) {
    const double sent = static_cast<double>(update[i]) * kRounds;
    ASSERT_NEAR(delivered[i] + owed[i], sent, 0.02 * kRounds / 10 + std::fabs(sent) * 1e-3);
    lost += std::fabs(delivered[i] - sent), lost_without += std::fabs(without[i] - sent), all += std::fabs(sent);
  }
  EXPECT_LT(lost, lost_without / 3);
  EXPECT_LT(lost, all * 0.25);
}

TEST(Residuals, FadeWhereOnlyAShareIsKept) {
  Residuals residuals(2, 0.5f);
  const std::vector<float> values = {1, 2}, none(2);
  const Slice nothing = encode(Codec::sparse2, none);
  ASSERT_TRUE(residuals.commit(Codec::sparse2, 0, values, nothing));
  ASSERT_TRUE(residuals.commit(Codec::sparse2, 0, values, nothing));
  EXPECT_EQ(residuals.values(), (std::vector<float>{1.5f, 3}));
  std::vector<float> out(2);
  residuals.correct(0, none, out);
  EXPECT_EQ(out, (std::vector<float>{0.75f, 1.5f}));
}

TEST_P(EveryLossyCodec, AValueThatIsNotFinitePoisonsOneRoundOnly) {
  const auto values = normal_values(500, 6);
  for (float bad : {NAN, std::numeric_limits<float>::infinity()}) {
    Residuals residuals(500);
    auto sick = values;
    sick[7] = bad;
    std::vector<float> out(500);
    const Slice refused = encode_corrected(residuals, GetParam(), 0, sick);
    EXPECT_FALSE(decode(GetParam().codec, DType::float32, refused, out));
    EXPECT_FALSE(residuals.commit(GetParam().codec, 0, sick, refused));
    for (float owed : residuals.values()) EXPECT_EQ(owed, 0);
    EXPECT_TRUE(decode(GetParam().codec, DType::float32, encode_corrected(residuals, GetParam(), 0, values), out));
  }
}

TEST(Residuals, ARoundThatFailedChangesNothing) {
  const auto values = normal_values(500, 5);
  const CodecSpec codec(Codec::top_k, 0.1);
  Residuals residuals(500);
  const Slice first = encode_corrected(residuals, codec, 0, values);
  EXPECT_EQ(to_hex(encode_corrected(residuals, codec, 0, values)), to_hex(first)) << "the first was never delivered";
  ASSERT_TRUE(residuals.commit(codec.codec, 0, values, first));
  EXPECT_NE(to_hex(encode_corrected(residuals, codec, 0, values)), to_hex(first));
  residuals.clear(0, 500);
  EXPECT_EQ(to_hex(encode_corrected(residuals, codec, 0, values)), to_hex(first)) << "nothing is owed";
}

/// A device's, to whom these are floats as any others.
struct OtherMemory final : ResidualsMemory {
  explicit OtherMemory(std::vector<float> values) : owed(std::move(values)) {}
  void read(std::size_t first, std::span<float> out) const override {
    std::ranges::copy(std::span(owed).subspan(first, out.size()), out.begin());
  }
  void write(std::size_t first, std::span<const float> values) override {
    std::ranges::copy(values, owed.begin() + static_cast<std::ptrdiff_t>(first));
  }
  std::vector<float> owed;
};

TEST(Residuals, MayBeKeptInOtherMemory) {
  const auto values = normal_values(500, 5);
  const CodecSpec codec(Codec::block4);
  Residuals here(500), there(500);
  const auto memory = std::make_shared<OtherMemory>(std::vector<float>(500, 0.0f));
  there.keep_in(memory);
  EXPECT_EQ(there.kept_in(), memory);
  for (int round = 0; round < 3; ++round) {
    const Slice encoded = encode_corrected(here, codec, 0, values);
    EXPECT_EQ(to_hex(encode_corrected(there, codec, 0, values)), to_hex(encoded));
    for (Residuals* one : {&here, &there}) ASSERT_TRUE(one->commit(codec.codec, 0, values, encoded));
    EXPECT_EQ(memory->owed, here.values());
  }
  for (Residuals* one : {&here, &there}) one->clear(100, 50);
  EXPECT_EQ(there.values(), here.values());
  there.replace(values);
  EXPECT_EQ(memory->owed, std::vector<float>(values.begin(), values.end()));
}

TEST(Residuals, OfATensorOfAnotherSizeAreADefect) {
  Residuals residuals(10);
  std::vector<float> values(6), out(6);
  EXPECT_THROW(residuals.correct(5, values, out), std::invalid_argument);
  EXPECT_THROW(residuals.clear(11, 0), std::invalid_argument);
  EXPECT_THROW((void)residuals.commit(Codec::none, 5, values, {}), std::invalid_argument);
  EXPECT_TRUE(residuals.values().empty()) << "memory is taken for what is owed only";
}

}  // namespace
}  // namespace cohive::codec
