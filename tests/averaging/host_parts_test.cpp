// What becomes of host memory in a round: who is written to, when, and how often.
#include "cohive/averaging/host_parts.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "averaging/detail/part_math.hpp"
#include "averaging/detail/stretch_set.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/sim_runtime.hpp"

namespace cohive::averaging {
namespace {

using ::testing::ElementsAre;

constexpr std::size_t kSize = 300'000;  // of tensor 0: finishing it takes several portions
const std::vector<TensorInfo> kInfos{{{kSize}}, {{4}}, {{0}}};
constexpr Terms kTerms;

std::vector<float> ramp(std::size_t size, float step = 1) {
  std::vector<float> values(size);
  for (std::size_t i = 0; i < size; ++i) values[i] = step * static_cast<float>(i);
  return values;
}

Answer answer_of(Answer::Form form, std::vector<float> values, codec::Codec codec = codec::Codec::none) {
  auto part = std::make_shared<EncodedPart>();
  part->codec = codec;
  part->record = codec::encode(codec, values);
  part->buffer = part->record.view();
  return {form, part, std::nullopt};
}

class HostMemoryOfARound : public ::testing::Test {
 protected:
  HostParts& make(HostPartsOptions options, bool separate) {
    options.on_result = [this](const StretchResult& result) {
      results.push_back(result);
      const auto& from = written(result.stretch.tensor);
      const auto begin = from.begin() + static_cast<std::ptrdiff_t>(result.stretch.offset);
      seen[result.stretch.tensor].emplace_back(begin, begin + static_cast<std::ptrdiff_t>(result.stretch.length));
    };
    std::vector<TensorSpan> memory;
    for (std::size_t i = 0; i < 3; ++i)
      separate ? memory.emplace_back(read[i], write[i]) : memory.emplace_back(std::span(read[i]));
    separate_ = separate;
    parts = std::make_unique<HostParts>(runtime, kInfos, memory, std::move(options));
    return *parts;
  }
  const std::vector<float>& written(std::size_t tensor) const { return separate_ ? write[tensor] : read[tensor]; }
  Result<> apply(Stretch stretch, Answer answer, Terms terms = kTerms) {
    return runtime.run(parts->apply(stretch, std::move(answer), terms));
  }
  void finish() { runtime.run(parts->finish()); }
  /// Every value of every tensor was reported once, and had its final value then.
  void expect_each_value_reported_once() {
    for (std::size_t tensor = 0; tensor < 3; ++tensor) {
      std::vector<int> times(read[tensor].size());
      std::size_t at = 0;
      for (const StretchResult& result : results) {
        if (result.stretch.tensor != tensor) continue;
        const auto& values = seen[tensor][at++];
        ASSERT_GT(result.stretch.length, 0u);
        for (std::size_t i = 0; i < result.stretch.length; ++i) {
          ++times[result.stretch.offset + i];
          ASSERT_EQ(values[i], written(tensor)[result.stretch.offset + i]) << "final when it was reported";
        }
      }
      for (int count : times) ASSERT_EQ(count, 1) << "tensor " << tensor;
    }
  }

  SimRuntime runtime{1};
  std::vector<std::vector<float>> read{ramp(kSize), {1, 2, 3, 4}, {}};
  std::vector<std::vector<float>> write{std::vector<float>(kSize, -7), std::vector<float>(4, -7), {}};
  std::unique_ptr<HostParts> parts;
  std::vector<StretchResult> results;
  std::map<std::size_t, std::vector<std::vector<float>>> seen;
  bool separate_ = false;
};

TEST_F(HostMemoryOfARound, ResultsGoInPlaceOrElsewhereOrAreDifferences) {
  struct Case {
    bool separate, differences;
    std::vector<float> expected, of_rest;
  };
  for (const Case& c : {Case{false, false, {2, 1, 3, 4}, {3, 4}}, Case{true, false, {2, 1, 3, 4}, {3, 4}},
                        Case{true, true, {1, -1, 0, 0}, {0, 0}}, Case{false, true, {1, -1, 0, 0}, {0, 0}}}) {
    SCOPED_TRACE(::testing::Message() << c.separate << c.differences);
    read[1] = {1, 2, 3, 4};
    results.clear(), seen.clear();
    make({.differences = c.differences}, c.separate);
    ASSERT_TRUE(apply({1, 0, 1}, answer_of(Answer::Form::difference, {1})));
    ASSERT_TRUE(apply({1, 1, 1}, answer_of(Answer::Form::average, {1})));
    EXPECT_EQ(parts->averaged(), 2u);
    finish();
    EXPECT_EQ(written(1), c.expected) << "the rest is this member's own, or no difference";
    if (c.separate) EXPECT_EQ(read[1], (std::vector<float>{1, 2, 3, 4})) << "a trainer reads it meanwhile";
    expect_each_value_reported_once();
    const auto averaged = std::ranges::count_if(results, [](const StretchResult& one) { return one.averaged; });
    EXPECT_EQ(averaged, 2);
  }
}

TEST_F(HostMemoryOfARound, AlphaIsHowFarValuesMove) {
  const Terms half{1, 0.5};
  make({}, true);
  ASSERT_TRUE(apply({1, 0, 2}, answer_of(Answer::Form::difference, {2, -4}), half));
  ASSERT_TRUE(apply({1, 2, 2}, answer_of(Answer::Form::average, {7, 0}, codec::Codec::float16), half));
  EXPECT_EQ(write[1], (std::vector<float>{2, 0, 5, 2}));
}

TEST_F(HostMemoryOfARound, TheFactorIsAppliedOncePerValueWhateverBecomesOfIt) {
  make({.factor = 0.5f}, true);
  // Encoded and answered; encoded and kept; contributed and averaged; contributed and kept; never touched.
  const auto encoded = runtime.run(parts->encode({1, 0, 2}, codec::Codec::none));
  ASSERT_TRUE(encoded);
  float sent[2];
  std::memcpy(sent, encoded->bytes.data(), sizeof sent);
  EXPECT_THAT(sent, ElementsAre(0.5f, 1.0f));
  ASSERT_TRUE(runtime.run(parts->encode({1, 0, 2}, codec::Codec::float16))) << "again";
  ASSERT_TRUE(apply({1, 0, 1}, answer_of(Answer::Form::difference, {10})));
  auto own = runtime.run(parts->contribute({1, 2, 1}, codec::Codec::none, kTerms)).value();
  std::vector<float> sum(1, 8.5f);
  ASSERT_TRUE(own->add(sum, {.divisor = 2}).value());
  EXPECT_TRUE(own->applied());
  EXPECT_EQ(sum[0], 5.0f) << "(8.5 + 3 / 2) / 2";
  auto kept = runtime.run(parts->contribute({1, 3, 1}, codec::Codec::none, kTerms)).value();
  ASSERT_TRUE(kept->add(sum, {.first = true}));
  EXPECT_FALSE(kept->applied()) << "no average yet";
  finish();
  EXPECT_EQ(read[1], (std::vector<float>{0.5f, 1, 1.5f, 2}));
  EXPECT_EQ(write[1], (std::vector<float>{10.5f, 1, 5, 2}));
  for (std::size_t i = 0; i < kSize; ++i) ASSERT_EQ(write[0][i], 0.5f * static_cast<float>(i));
  finish();
  EXPECT_EQ(read[1][0], 0.5f);
  expect_each_value_reported_once();
}

TEST_F(HostMemoryOfARound, WithoutARoundEverythingIsOwn) {
  make({.factor = 2}, false);
  finish();
  for (std::size_t i = 0; i < kSize; ++i) ASSERT_EQ(read[0][i], 2 * static_cast<float>(i));
  expect_each_value_reported_once();
  for (const auto& result : results) EXPECT_FALSE(result.averaged);
}

TEST_F(HostMemoryOfARound, AnAnswerThatCannotBeUsedChangesNothing) {
  make({}, false);
  auto cut = answer_of(Answer::Form::difference, {1, 1, 1, 1});
  std::const_pointer_cast<EncodedPart>(cut.part)->buffer = cut.part->buffer.first(8);
  EXPECT_EQ(apply({1, 0, 4}, cut).error(), cohive::Errc::malformed);
  EXPECT_EQ(apply({1, 0, 4}, answer_of(Answer::Form::difference, {1, 1, 1, INFINITY})).error(), Errc::not_finite);
  EXPECT_EQ(apply({1, 0, 4}, answer_of(Answer::Form::average, {1, NAN, 1, 1})).error(), Errc::not_finite);
  EXPECT_EQ(read[1], (std::vector<float>{1, 2, 3, 4}));
  EXPECT_TRUE(results.empty());
  finish();
  expect_each_value_reported_once();
}

TEST_F(HostMemoryOfARound, ValuesThatAreNotFiniteAreNeitherSentNorAdded) {
  read[1][2] = NAN;
  make({}, false);
  for (codec::Codec codec : {codec::Codec::none, codec::Codec::float16, codec::Codec::uniform8})
    EXPECT_EQ(runtime.run(parts->encode({1, 0, 4}, codec)).error(), Errc::not_finite);
  auto own = runtime.run(parts->contribute({1, 0, 4}, codec::Codec::none, kTerms)).value();
  std::vector<float> sum(4, 1);
  EXPECT_EQ(own->add(sum, {.divisor = 2}).error(), Errc::not_finite);
  EXPECT_EQ(own->open().error(), Errc::not_finite);
  EXPECT_EQ(sum, std::vector<float>(4, 1));
}

TEST_F(HostMemoryOfARound, OwnValuesDoNotMoveTowardsASumThatOverflows) {
  const float huge = std::numeric_limits<float>::max();
  read[1] = {3, huge, 3, 3};
  make({}, false);
  auto own = runtime.run(parts->contribute({1, 0, 2}, codec::Codec::none, kTerms)).value();
  std::vector<float> sum{1, huge};
  EXPECT_FALSE(own->add(sum, {.divisor = 2}).value());
  EXPECT_FALSE(own->applied());
  EXPECT_EQ(read[1], (std::vector<float>{3, huge, 3, 3})) << "no member's do, in none of the part's places";
}

TEST_F(HostMemoryOfARound, AContributionThatWasRevokedTouchesNothing) {
  make({}, false);
  auto own = runtime.run(parts->contribute({1, 0, 4}, codec::Codec::none, kTerms)).value();
  const auto values = own->open().value();
  own->revoke();
  std::vector<float> sum(4, 1);
  EXPECT_FALSE(own->add(sum, {.divisor = 2}));
  EXPECT_FALSE(own->open());
  EXPECT_FALSE(values(0, sum));
  EXPECT_EQ(sum, std::vector<float>(4, 1));
  EXPECT_EQ(read[1], (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(HostMemoryOfARound, WhatLossyCodecsLoseIsOwedOnceItWasDelivered) {
  const codec::CodecSpec largest(codec::Codec::top_k, 0.5);
  const auto residuals = make_residuals(kInfos);
  make({.residuals = residuals}, false);
  EXPECT_TRUE(parts->keeps_residuals());
  auto sent = runtime.run(parts->encode({1, 0, 4}, largest)).value();
  EXPECT_TRUE((*residuals)[1].values().empty()) << "not delivered yet";
  Answer average = answer_of(Answer::Form::average, {9, 9, 9, 9});
  average.sent = Answer::Sent{codec::Codec::top_k, sent};
  ASSERT_TRUE(apply({1, 0, 4}, average, {.weight = 0}));
  EXPECT_TRUE((*residuals)[1].values().empty()) << "it did not count";
  read[1] = {1, 2, 3, 4};
  ASSERT_TRUE(apply({1, 0, 4}, average));
  EXPECT_THAT((*residuals)[1].values(), ElementsAre(1, 2, 0, 0));
  EXPECT_EQ(read[1], (std::vector<float>{9, 9, 9, 9}));

  // The next round: what is owed of a stretch that is reduced here counts without any loss.
  read[1] = {0, 0, 0, 1};
  make({.residuals = residuals}, false);
  auto own = runtime.run(parts->contribute({1, 0, 2}, largest, kTerms)).value();
  std::vector<float> sum(2);
  ASSERT_TRUE(own->add(sum, {.first = true, .divisor = 1}).value());
  EXPECT_THAT(sum, ElementsAre(1, 2));
  EXPECT_FALSE(own->applied());
  Answer whole = answer_of(Answer::Form::average, sum);
  whole.sent = Answer::Sent{};
  ASSERT_TRUE(apply({1, 0, 2}, whole));
  EXPECT_THAT((*residuals)[1].values(), ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(read[1], (std::vector<float>{1, 2, 0, 1}));
}

TEST_F(HostMemoryOfARound, SchemesReadAndWriteThroughTheSameOperations) {
  make({.factor = 3}, true);
  EXPECT_THAT(runtime.run(read_values(*parts, {1, 1, 2})).value(), ElementsAre(6, 9));
  ASSERT_TRUE(runtime.run(apply_average(*parts, {1, 1, 2}, {5, 6}, kTerms)));
  finish();
  EXPECT_EQ(write[1], (std::vector<float>{3, 5, 6, 12}));
  expect_each_value_reported_once();
}

TEST_F(HostMemoryOfARound, MemoryThatDoesNotFitIsRefused) {
  const TensorSpan large(read[0]), small(read[1]), empty(read[2]);
  const auto transcript_digest = [this](std::vector<TensorInfo> infos, std::vector<TensorSpan> memory) {
    HostParts(runtime, std::move(infos), std::move(memory));
  };
  EXPECT_NO_THROW(transcript_digest(kInfos, {large, small, empty}));
  EXPECT_THROW(transcript_digest(kInfos, {large, small}), std::invalid_argument);
  EXPECT_THROW(transcript_digest(kInfos, {small, small, empty}), std::invalid_argument);
  EXPECT_THROW(transcript_digest({{{4}}}, {TensorSpan(read[1], read[2])}), std::invalid_argument);
}

TEST(StretchSets, CoverWhatWasClaimedInAnyOrder) {
  StretchSet set(2);
  const auto pieces = [](const std::vector<Stretch>& stretches) {
    std::vector<std::pair<std::size_t, std::size_t>> result;
    for (const Stretch& one : stretches) result.emplace_back(one.offset, one.length);
    return result;
  };
  using Pieces = std::vector<std::pair<std::size_t, std::size_t>>;
  EXPECT_EQ(pieces(set.claim({0, 10, 10})), (Pieces{{10, 10}}));
  EXPECT_EQ(pieces(set.claim({0, 30, 10})), (Pieces{{30, 10}}));
  EXPECT_EQ(pieces(set.missing({0, 0, 50})), (Pieces{{0, 10}, {20, 10}, {40, 10}}));
  EXPECT_EQ(pieces(set.claim({0, 15, 20})), (Pieces{{20, 10}}));
  EXPECT_EQ(pieces(set.claim({0, 12, 5})), Pieces{});
  EXPECT_EQ(pieces(set.claim({0, 0, 50})), (Pieces{{0, 10}, {40, 10}}));
  EXPECT_EQ(pieces(set.missing({0, 0, 50})), Pieces{});
  EXPECT_EQ(pieces(set.missing({1, 0, 5})), (Pieces{{0, 5}}));
  EXPECT_EQ(pieces(set.claim({1, 3, 0})), Pieces{});
  std::mt19937 random(3);
  StretchSet many(1);
  std::vector<int> times(1000);
  for (int i = 0; i < 500; ++i) {
    const std::size_t offset = random() % 1000, length = std::min<std::size_t>(random() % 40, 1000 - offset);
    for (const Stretch& one : many.claim({0, offset, length}))
      for (std::size_t k = 0; k < one.length; ++k) ++times[one.offset + k];
  }
  for (const Stretch& one : many.claim({0, 0, 1000}))
    for (std::size_t k = 0; k < one.length; ++k) ++times[one.offset + k];
  EXPECT_EQ(times, std::vector<int>(1000, 1));
}

}  // namespace
}  // namespace cohive::averaging
