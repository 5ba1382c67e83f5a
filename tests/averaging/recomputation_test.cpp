// Averages that are made again: what counts as the same, and what members sign.
#include "averaging/verification/recomputation.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kLength = 1000;

EncodedPart encoded(codec::Codec codec, std::span<const float> values) {
  EncodedPart part;
  part.codec = codec;
  part.record = codec::encode(codec, values);
  part.buffer = part.record.view();
  return part;
}

std::vector<float> wave(float phase) {
  std::vector<float> values(kLength);
  for (std::size_t i = 0; i < kLength; ++i) values[i] = std::sin(0.1f * static_cast<float>(i) + phase);
  return values;
}

/// Three members; this one is the first, the last one reduces.
class Recomputations : public ::testing::TestWithParam<codec::Codec> {
 protected:
  void SetUp() override {
    for (std::size_t i = 0; i < 3; ++i) {
      parts.push_back(encoded(i == 2 ? codec::Codec::none : GetParam(), wave(static_cast<float>(i))));
      transcript.push_back({i, 1.0 + static_cast<double>(i), static_cast<int>(parts[i].codec), {}});
      transcript[i].digest = crypto::sha256(parts[i].buffer);
    }
  }
  /// What an honest reducer answers, moved by `shift`.
  AnsweredPart answered(float shift) {
    std::vector<float> average(kLength);
    double weight = 0;
    for (std::size_t i = 0; i < 3; ++i) {
      weight += transcript[i].weight;
      EXPECT_TRUE(add_part(parts[i], transcript[i].weight, average, {i == 0, i == 2 ? weight : 0}));
    }
    for (float& value : average) value += shift;
    EncodedPart sent = parts[0];
    const auto difference = difference_to(average, sent, kLength);
    EncodedPart answer;
    answer.codec = GetParam();
    answer.record = difference.value();
    answer.buffer = answer.record.view();
    return {{parts[0].buffer}, GetParam(), kLength, std::make_shared<EncodedPart>(answer), Answer::Form::difference};
  }
  Result<bool> check(const AnsweredPart& part) {
    Recomputation again(Mean(), transcript, kLength);
    for (const EncodedPart& one : parts)
      if (auto added = again.add(one); !added) return added.error();
    return again.agrees_with(part);
  }

  std::vector<EncodedPart> parts;
  Transcript transcript;
};

TEST_P(Recomputations, AgreeWithAnHonestAnswer) {
  EXPECT_EQ(check(answered(0)).value(), true);
}

TEST_P(Recomputations, DisagreeWithWhatIsOffByMoreThanTheCodecLoses) {
  EXPECT_EQ(check(answered(0.2f)).value(), false);
  EXPECT_EQ(check(answered(1e10f)).value(), false);
}

TEST_P(Recomputations, RefuseOtherBytesThanTheTranscriptHas) {
  parts[1] = encoded(GetParam(), wave(7));
  EXPECT_EQ(check(answered(0)).error(), cohive::Errc::malformed);
}

TEST_P(Recomputations, RefuseContributionsThatAreMissing) {
  const AnsweredPart part = answered(0);
  parts.pop_back();
  EXPECT_EQ(check(part).error(), cohive::Errc::malformed);
}

INSTANTIATE_TEST_SUITE_P(OfEveryCodec, Recomputations,
                         ::testing::Values(codec::Codec::none, codec::Codec::float16, codec::Codec::meanstd16,
                                           codec::Codec::uniform8, codec::Codec::quantile8, codec::Codec::blockwise8),
                         [](const auto& test) { return std::string(codec::name_of(test.param)); });

TEST(Recomputation, AllowsForProcessorsThatRoundInAnotherWayAndNoMore) {
  const std::vector<float> ones(kLength, 1.0f);
  Transcript transcript;
  for (std::size_t i = 0; i < 2; ++i) transcript.push_back({i, 1.0, 0, crypto::sha256(raw_bytes(ones))});
  const auto agrees = [&](float difference) {
    Recomputation again(Mean(), transcript, kLength);
    for (int i = 0; i < 2; ++i) EXPECT_TRUE(again.add(encoded(codec::Codec::none, ones)));
    const std::vector<float> differences(kLength, difference);
    const auto answer = std::make_shared<EncodedPart>(encoded(codec::Codec::none, differences));
    const AnsweredPart part{{raw_bytes(ones)}, codec::Codec::none, kLength, answer, Answer::Form::difference};
    return again.agrees_with(part).value();
  };
  EXPECT_TRUE(agrees(0));
  EXPECT_TRUE(agrees(1.2e-7f));
  EXPECT_FALSE(agrees(1e-5f));
}

/// What two senders take back from each other leaves its rounding, which differs where a processor fuses operations.
TEST(Recomputation, AllowsForTheRoundingOfContributionsThatCancelOutAndNoMore) {
  constexpr float kWeight = 0.3f;
  std::vector<std::vector<float>> contributions{wave(0), wave(0), wave(2)};
  for (float& value : contributions[0]) value *= 1e6f;
  for (float& value : contributions[1]) value *= -1e6f;
  Transcript transcript;
  for (std::size_t i = 0; i < 3; ++i)
    transcript.push_back({i, static_cast<double>(kWeight), 0, crypto::sha256(raw_bytes(contributions[i]))});
  const auto agrees = [&](bool fused, float shift) {
    std::vector<float> differences(kLength);
    for (std::size_t k = 0; k < kLength; ++k) {
      float sum = kWeight * contributions[0][k];
      for (std::size_t i = 1; i < 3; ++i) {
        const volatile float product = kWeight * contributions[i][k];  // no compiler fuses what it reads
        sum = fused ? std::fma(kWeight, contributions[i][k], sum) : sum + product;
      }
      differences[k] = sum / (3 * kWeight) - contributions[2][k] + shift;
    }
    Recomputation again(Mean(), transcript, kLength);
    for (const auto& values : contributions) EXPECT_TRUE(again.add(encoded(codec::Codec::none, values)));
    const auto answer = std::make_shared<EncodedPart>(encoded(codec::Codec::none, differences));
    const AnsweredPart part{
        {raw_bytes(contributions[2])}, codec::Codec::none, kLength, answer, Answer::Form::difference};
    return again.agrees_with(part).value();
  };
  for (const bool fused : {false, true}) {
    EXPECT_TRUE(agrees(fused, 0)) << fused;
    EXPECT_FALSE(agrees(fused, 2)) << fused << ": more than rounding of what was put in";
  }
}

TEST(Transcripts, AreReadAsTheyWereWritten) {
  const Transcript transcript{{3, 2.5, 1, crypto::sha256(as_bytes("a"))}, {0, 0, 0, crypto::sha256(as_bytes("b"))}};
  const auto read = parse_transcript(as_bytes(encode_transcript(transcript)), 4).value();
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(read[0].sender, 3u);
  EXPECT_EQ(read[0].weight, 2.5);
  EXPECT_EQ(read[0].codec, 1);
  EXPECT_EQ(read[1].digest, crypto::sha256(as_bytes("b")));
}

TEST(Transcripts, NameMembersOfTheGroupOnceEach) {
  const TranscriptEntry first{0, 1, 0, {}}, stranger{4, 1, 0, {}};
  EXPECT_FALSE(parse_transcript(as_bytes(encode_transcript({first, first})), 4));
  EXPECT_FALSE(parse_transcript(as_bytes(encode_transcript({stranger})), 4));
  EXPECT_FALSE(parse_transcript(as_bytes(encode_transcript({first}).substr(1)), 4));
  const std::string many = encode_transcript(Transcript(1000, first));
  EXPECT_FALSE(parse_transcript(as_bytes(many), 4)) << "bounded before it is parsed";
}

TEST(Commitments, HoldForOnePartOfOneSenderInOneRound) {
  const KeyPair key = KeyPair::generate_ed25519(), reducer = KeyPair::generate_ed25519();
  const Commitment sent{"round", reducer.peer_id(), 3, 2.0, 1, crypto::sha256(as_bytes("values"))};
  const std::string seal = seal_commitment(key, sent);
  const auto holds = [&](const PeerId& sender, const Commitment& expected) {
    return check_commitment(as_bytes(seal), sender, expected).has_value();
  };
  EXPECT_TRUE(holds(key.peer_id(), sent));
  EXPECT_FALSE(holds(reducer.peer_id(), sent));
  for (auto change : {+[](Commitment& c) { c.round = "other"; }, +[](Commitment& c) { c.part = 4; },
                      +[](Commitment& c) { c.weight = 1e9; }, +[](Commitment& c) { c.codec = 0; },
                      +[](Commitment& c) { c.digest[5] ^= 1; }, +[](Commitment& c) { c.reducer = PeerId(); }}) {
    Commitment other = sent;
    change(other);
    EXPECT_FALSE(holds(key.peer_id(), other));
  }
}

}  // namespace
}  // namespace cohive::averaging
