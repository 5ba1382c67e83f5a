// The table of codecs, and what is decided by it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "codec/normal_values.hpp"
#include "cohive/codec/codec_set.hpp"
#include "cohive/codec/decoder.hpp"
#include "cohive/proto/runtime.pb.h"

namespace cohive::codec {
namespace {

TEST(CodecTable, HasEveryCodecOfHivemindUnderItsNumberAndName) {
  for (int number = 0; number < proto::CompressionType_ARRAYSIZE; ++number) {
    const std::string& name = proto::CompressionType_Name(number);
    const auto codec = codec_from_wire(number);
    ASSERT_TRUE(codec) << name;
    EXPECT_EQ(name_of(*codec), name);
    EXPECT_EQ(codec_from_name(name), codec);
    EXPECT_FALSE(info(*codec).needs_agreement) << "Python peers send it to anybody";
  }
}

TEST(CodecTable, CodecsThatNeedAgreementAreReadOnlyWhereTheyWereAgreedOn) {
  for (const CodecInfo& one : all_codecs()) {
    if (!one.needs_agreement) continue;
    const int number = static_cast<int>(one.codec);
    EXPECT_FALSE(proto::CompressionType_IsValid(number)) << "hivemind has this number";
    EXPECT_FALSE(codec_from_wire(number));
    EXPECT_EQ(codec_from_wire(number, {one.codec}), one.codec);
    EXPECT_EQ(codec_from_wire(0, {one.codec}), Codec::none);
  }
}

TEST(CodecTable, NumbersThatNoCodecHasAreRefused) {
  for (int wire : {-1, 6, 63, 67, 255, 256, 64 + 256})
    EXPECT_FALSE(codec_from_wire(wire, CodecSet::from_text("block4")));
  EXPECT_THROW(info(static_cast<Codec>(77)), std::logic_error);
}

TEST(CodecTable, ExactCodecsEncodeWhatTheyDecodedToTheSameBytes) {
  std::vector<float> values(5000), back(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = 3 * std::sin(static_cast<float>(i));
  for (const CodecInfo& one : all_codecs()) {
    const Slice first = encode(one.codec, values);
    ASSERT_TRUE(decode(one.codec, DType::float32, first, back));
    if (one.exact) EXPECT_TRUE(std::ranges::equal(first.view(), encode(one.codec, back).view())) << one.name;
  }
}

TEST(CodecTable, StreamingCodecsCanBeCutAnywhere) {
  std::vector<float> values(999);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::cos(static_cast<float>(i));
  for (const CodecInfo& one : all_codecs()) {
    const std::size_t width = streaming_width(one.codec, DType::float32);
    if (width == 0) continue;
    const Slice whole = encode(one.codec, values), part = encode(one.codec, std::span(values).subspan(100, 200));
    ASSERT_EQ(whole.size(), width * values.size()) << one.name;
    EXPECT_EQ(to_hex(whole.sub(100 * width, 200 * width)), to_hex(part)) << one.name;
  }
  EXPECT_EQ(streaming_width(Codec::none, DType::int64), 8u);
  EXPECT_EQ(streaming_width(Codec::none, DType::bfloat16), 4u) << "it travels as float32";
}

TEST(CodecTable, BitsAreWhatValuesCostOnTheWire) {
  const auto values = normal_values(1 << 20, 3);
  for (const CodecInfo& one : all_codecs()) {
    const double sent = one.codec == Codec::top_k ? 0.01 : 1;
    const double bits = one.bits > 0 ? one.bits : 32;
    EXPECT_NEAR(static_cast<double>(encode(one.codec, values).size()) * 8, bits * sent * (1 << 20), 0.02 * (1 << 20))
        << one.name;
  }
  EXPECT_EQ(compression_ratio(Codec::none, DType::float16), 1.0);
  EXPECT_EQ(compression_ratio(Codec::float16, DType::float16), 1.0);
  EXPECT_EQ(compression_ratio(Codec::uniform8, DType::float32), 0.25);
}

/// Every codec, also those to come.
class EveryCodec : public ::testing::TestWithParam<CodecInfo> {};
INSTANTIATE_TEST_SUITE_P(Codecs, EveryCodec, ::testing::ValuesIn(all_codecs().begin(), all_codecs().end()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(EveryCodec, DecodesAnyStretchAsItDecodesTheWhole) {
  constexpr std::size_t kCount = 140'001;
  std::vector<float> values(kCount), whole(kCount);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = std::sin(static_cast<float>(i) * 0.7f);
  const Slice buffer = encode(GetParam().codec, values);
  const auto decoder = Decoder::open(GetParam().codec, DType::float32, kCount, buffer);
  ASSERT_TRUE(decoder) << decoder.error();
  (*decoder)->decode(0, whole);
  const std::size_t firsts[] = {0, 1, 63, 64, 4095, 4097, 65'535, 65'536, 131'071, kCount - 1};
  for (const std::size_t first : firsts) {
    for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{130}, std::size_t{70'000}}) {
      const std::size_t count = std::min(length, kCount - first);
      std::vector<float> part(count, NAN), sum(count, 2.0f);
      (*decoder)->decode(first, part);
      (*decoder)->accumulate(first, 0.5f, sum);
      Bytes bytes(count * 4);
      (*decoder)->decode_bytes(first, count, bytes.data());
      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(part[i], whole[first + i]) << first << "+" << i;
        ASSERT_EQ(sum[i], 2.0f + 0.5f * whole[first + i]) << first << "+" << i;
      }
      EXPECT_TRUE(std::ranges::equal(bytes, ByteView(reinterpret_cast<const std::uint8_t*>(part.data()), count * 4)));
    }
  }
}

TEST_P(EveryCodec, RefusesDtypesThatAreNoNumbersAndTakesTheFloatingOnesItEncodes) {
  for (DType dtype : {DType::float64, DType::float32, DType::float16, DType::bfloat16, DType::int64, DType::boolean}) {
    const Tensor tensor{dtype, {10, 20}, false, Slice::copy_of(Bytes(200 * size_of(dtype)))};
    const Codec codec = codec_for(GetParam().codec, dtype, tensor.shape);
    EXPECT_EQ(codec == Codec::none, GetParam().codec == Codec::none || !is_floating(dtype) ||
                                        (dtype == DType::bfloat16 && info(codec).codec != GetParam().codec));
    const auto buffer = encode_tensor(GetParam().codec, tensor);
    ASSERT_TRUE(buffer) << name_of(dtype);
    const auto back = decode_tensor(codec, dtype, tensor.shape, false, *buffer);
    ASSERT_TRUE(back) << name_of(dtype) << ": " << back.error();
    EXPECT_TRUE(std::ranges::equal(back->data.view(), tensor.data.view())) << name_of(dtype);
    if (codec != GetParam().codec) EXPECT_FALSE(decode_tensor(GetParam().codec, dtype, tensor.shape, false, *buffer));
  }
}

TEST_P(EveryCodec, TellsWhatIsNotFinite) {
  std::vector<float> values(3000, 0.25f), out(3000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = std::sin(static_cast<float>(i));
  EXPECT_TRUE(encode_finite(GetParam().codec, values));
  values[777] = NAN;
  EXPECT_FALSE(encode_finite(GetParam().codec, values));
  const Slice sick = encode(GetParam().codec, values);
  const auto decoder = Decoder::open(GetParam().codec, DType::float32, values.size(), sick);
  EXPECT_TRUE(!decoder || !(*decoder)->finite()) << "a reducer would take it";
}

TEST(CodecSets, TravelAsNamesAndUnknownOnesAreLeftOut) {
  for (const CodecSet& set : {CodecSet{}, CodecSet{Codec::top_k}, CodecSet{Codec::block4, Codec::top_k}})
    EXPECT_EQ(CodecSet::from_text(set.text()), set);
  EXPECT_EQ((CodecSet{Codec::top_k, Codec::block4}.text()), "block4,top_k");
  EXPECT_EQ(CodecSet::from_text("sketch,,top_k,block44"), CodecSet{Codec::top_k});
  EXPECT_EQ(CodecSet::from_text(std::string(1'000'000, ',') + "top_k"), CodecSet{});
}

TEST(CodecSets, HaveInCommonWhatBothHave) {
  const CodecSet both{Codec::block4, Codec::top_k}, one{Codec::block4}, none;
  EXPECT_EQ(both & one, one);
  EXPECT_EQ(both & both, both);
  EXPECT_TRUE((one & CodecSet{Codec::top_k}).empty());
  EXPECT_TRUE((both & none).empty()) << "a Python peer, say";
}

}  // namespace
}  // namespace cohive::codec
