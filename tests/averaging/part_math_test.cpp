#include "averaging/detail/part_math.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "averaging/wire.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// A part as it would arrive: with a byte in front, so that nothing is aligned.
EncodedPart part_of(std::vector<float> values, codec::Codec codec = codec::Codec::none) {
  const Slice encoded = codec::encode(codec, values);
  Slice record = Slice::uninitialised(encoded.size() + 1);
  std::memcpy(record.mutable_data() + 1, encoded.data(), encoded.size());
  EncodedPart part{codec, codec::DType::float32, record, {}};
  part.buffer = part.record.view().subspan(1);
  return part;
}

std::vector<float> decoded(codec::Codec codec, const Slice& buffer, std::size_t count) {
  std::vector<float> values(count);
  EXPECT_TRUE(codec::decode(codec, codec::DType::float32, buffer, values));
  return values;
}

class PartMath : public ::testing::TestWithParam<codec::Codec> {};
INSTANTIATE_TEST_SUITE_P(Codecs, PartMath, ::testing::Values(codec::Codec::none, codec::Codec::float16));

TEST_P(PartMath, TheDifferencesLeadEverySenderToTheWeightedMean) {
  const std::vector<float> a{1, -2, 3.5, 0}, b{5, 2, 0.5, 1};
  auto part_a = part_of(a, GetParam()), part_b = part_of(b, GetParam());
  std::vector<float> sum(4, 777);  // the first contribution replaces what is there
  ASSERT_TRUE(add_part(part_a, 1, sum, {.first = true}));
  ASSERT_TRUE(add_part(part_b, 3, sum, {.divisor = 4}).value());
  EXPECT_EQ(sum, (std::vector<float>{4, 1, 1.25, 0.75}));
  for (auto [values, part] : {std::pair(a, &part_a), std::pair(b, &part_b)}) {
    const auto delta = difference_to(sum, *part, 4);
    ASSERT_TRUE(delta);
    const auto back = part_of(decoded(GetParam(), *delta, 4), GetParam());
    const auto opened = open_finite(back, 4);
    ASSERT_TRUE(opened);
    add_difference(**opened, 1, {values, values});
    EXPECT_EQ(values, sum);
  }
}

TEST_P(PartMath, NoAverageMeansNoChange) {
  auto part = part_of({1, 2, 3}, GetParam());
  const auto delta = difference_to({}, part, 3);
  ASSERT_TRUE(delta);
  EXPECT_EQ(decoded(GetParam(), *delta, 3), (std::vector<float>{0, 0, 0}));
}

TEST(PartMathLimits, APartThatIsNotFiniteAddsNothing) {
  for (float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> sum{1, 2, 3};
    EXPECT_FALSE(add_part(part_of({1, 1, bad}), 1, sum, {.divisor = 2}));
    EXPECT_FALSE(add_values(std::vector<float>{bad, 1, 1}, 1, sum, {}));
    EXPECT_FALSE(open_finite(part_of({0, bad, 0}), 3));
    EXPECT_EQ(sum, (std::vector<float>{1, 2, 3}));
  }
}

class HostileBuffers : public ::testing::TestWithParam<codec::Codec> {};
INSTANTIATE_TEST_SUITE_P(AllCodecs, HostileBuffers,
                         ::testing::Values(codec::Codec::none, codec::Codec::float16, codec::Codec::meanstd16,
                                           codec::Codec::uniform8, codec::Codec::quantile8, codec::Codec::blockwise8));

TEST_P(HostileBuffers, BringNoInfinityIntoTheAverageWhereverItIsHidden) {
  constexpr std::size_t kLength = 4200;  // blockwise8: two scales
  std::vector<float> values(kLength);
  for (std::size_t i = 0; i < kLength; ++i) values[i] = std::sin(static_cast<float>(i));
  const EncodedPart good = part_of(values, GetParam());
  std::size_t refused = 0;
  const auto harmless = [&](const auto& pattern, std::size_t at) {
    EncodedPart part = good;
    part.record = Slice::copy_of(good.record.view());
    std::memcpy(part.record.mutable_data() + 1 + at, &pattern, sizeof pattern);
    part.buffer = part.record.view().subspan(1);
    std::vector<float> sum(kLength, 1.0f);
    const auto added = add_part(part, 1, sum, {.divisor = 2});
    const auto opened = open_part(std::make_shared<EncodedPart>(part), kLength);
    ASSERT_EQ(added.has_value(), opened.has_value()) << at;
    ASSERT_TRUE(all_finite(sum)) << at;
    if (added) return;
    ++refused;
    ASSERT_EQ(sum, std::vector<float>(kLength, 1.0f)) << at << ": nothing was added";
    ASSERT_TRUE(added.error().code() == Errc::not_finite || added.error().code() == cohive::Errc::malformed);
  };
  const float worst[] = {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
                         std::numeric_limits<float>::max()};
  const std::uint16_t halves[] = {0x7c00, 0xfc00, 0x7e00};
  for (std::size_t at = 0; at + 4 <= good.buffer.size(); at += at < 2200 ? 2 : 1022) {
    for (float pattern : worst) harmless(pattern, at);
    for (std::uint16_t pattern : halves) harmless(pattern, at);
  }
  EXPECT_GT(refused, 0u);
}

TEST(PartMathLimits, ASumThatOverflowsIsNoAverage) {
  const float huge = std::numeric_limits<float>::max();
  std::vector<float> sum(1);
  ASSERT_TRUE(add_values(std::vector<float>{huge}, 1, sum, {.first = true}));
  const auto added = add_values(std::vector<float>{huge}, 1, sum, {.divisor = 2});
  ASSERT_TRUE(added);
  EXPECT_FALSE(*added);
}

/// What is written for a stretch of own values 1 and 7, in place, elsewhere, and as differences.
TEST(PartMath, ResultsGoWhereTheyBelong) {
  const auto sent_delta = part_of({2, -4}), sent_average = part_of({3, 3});
  const auto delta = open_finite(sent_delta, 2).value(), average = open_finite(sent_average, 2).value();
  for (const bool differences : {false, true}) {
    std::vector<float> own{1, 7}, out{99, 99};
    const auto base = differences ? std::vector<float>{0, 0} : own;
    add_difference(*delta, 0.5f, {own, out, differences});
    EXPECT_EQ(out, (std::vector<float>{base[0] + 1, base[1] - 2}));
    move_to(*average, 0.5f, {own, out, differences});
    EXPECT_EQ(out, (std::vector<float>{base[0] + 1, base[1] - 2}));
    move_to(*average, 1, {own, out, differences});
    EXPECT_EQ(out, (std::vector<float>{base[0] + 2, base[1] - 4}));
    move_towards(std::vector<float>{3, 3}, 1, {own, out, differences});
    EXPECT_EQ(out, (std::vector<float>{base[0] + 2, base[1] - 4}));
    EXPECT_EQ(own, (std::vector<float>{1, 7}));
    add_difference(*delta, 0.5f, {own, own, differences});
    EXPECT_EQ(own, (std::vector<float>{base[0] + 1, base[1] - 2})) << "in place";
  }
}

TEST(PartMathLimits, SharedMemoryIsNotOverwritten) {
  auto part = part_of({1, 2});
  const Slice other = part.record;
  const Bytes before = to_bytes(other.view());
  ASSERT_TRUE(difference_to(std::vector<float>{5, 5}, part, 2));
  EXPECT_EQ(to_bytes(other.view()), before);
}

TEST(PartMathLimits, ADifferenceThatItsCodecCannotHoldIsNoChange) {
  const float huge = std::numeric_limits<float>::max();
  const std::vector<float> average{huge, huge, huge};
  for (const codec::Codec codec : {codec::Codec::none, codec::Codec::meanstd16}) {
    auto part = part_of({-huge, -huge, -huge}, codec);
    const auto delta = difference_to(average, part, 3);
    ASSERT_TRUE(delta) << codec::name_of(codec);
    EXPECT_EQ(decoded(codec, *delta, 3), (std::vector<float>{0, 0, 0})) << codec::name_of(codec);
  }
}

TEST(PartMathLimits, PartsOfAnotherSizeAreRefused) {
  std::vector<float> sum(3);
  EXPECT_FALSE(add_part(part_of({1, 2}), 1, sum, {.first = true}));
  PartMessage message;
  message.tensor = TensorView{{}, {4}, "float32", 0};
  EXPECT_EQ(encoded_part(message, {}, 5).error().code(), make_error_code(Errc::bad_partition));
  EXPECT_FALSE(encoded_part(PartMessage(), {}, 0)) << "no tensor";
  message.tensor = TensorView{{}, {5}, "float33", 0};
  EXPECT_FALSE(encoded_part(message, {}, 5)) << "no such dtype";
  message.tensor = TensorView{{}, {5}, "float32", 77};
  EXPECT_FALSE(encoded_part(message, {}, 5)) << "no such codec";
}

/// Whatever is in a record stays in memory with the values.
TEST(PartMathLimits, RecordsThatAreLargerThanTheirValuesNeedAreRefused) {
  const auto taken = [](std::size_t buffer, std::size_t around) {
    const Slice record = Slice::copy_of(Bytes(buffer + around));
    PartMessage message;
    message.tensor = TensorView{record.view().first(buffer), {1000}, "float32", 0};
    return encoded_part(message, record, 1000);
  };
  EXPECT_TRUE(taken(4000, 8000)) << "keys of RSA sign with that much";
  EXPECT_TRUE(taken(8000, 100)) << "of float64";
  EXPECT_EQ(taken(4000, 10'000).error(), Errc::bad_partition);
  EXPECT_EQ(taken(1 << 20, 100).error(), Errc::bad_partition);
}

}  // namespace
}  // namespace cohive::averaging
