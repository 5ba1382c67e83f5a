// Buffers that no honest peer sends: each is an error that says what is wrong, before memory is taken for it.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "codec/every_codec.hpp"
#include "cohive/codec/codec.hpp"
#include "cohive/codec/decoder.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::codec {
namespace {

std::vector<float> ramp(std::size_t count) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - static_cast<float>(count) / 3;
  return values;
}

/// An encoded buffer of 100 values that a test may spoil.
Bytes honest(Codec codec) {
  return to_bytes(encode(codec, ramp(100)).view());
}

template <class T>
void put(Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

std::string refusal(Codec codec, ByteView buffer, DType dtype = DType::float32, Shape shape = {100}) {
  const auto tensor = decode_tensor(codec, dtype, std::move(shape), false, buffer);
  return tensor ? "" : tensor.error().message();
}

TEST(HostileBuffers, AnyOtherLengthThanTheRightOneIsRefused) {
  for (Codec codec : kEveryCodec) {
    SCOPED_TRACE(name_of(codec));
    const Bytes good = honest(codec);
    ASSERT_EQ(refusal(codec, good), "");
    for (std::size_t size = 0; size < good.size() + 20; ++size) {
      if (size == good.size()) continue;
      Bytes bad = good;
      bad.resize(size);
      ASSERT_NE(refusal(codec, bad), "") << size;
      std::vector<float> out(100);
      const bool other_rows = codec == Codec::meanstd16 && size == good.size() + 8;  // 2 rows of 50 need no shape
      ASSERT_EQ(static_cast<bool>(decode(codec, DType::float32, bad, out)), other_rows) << size;
    }
  }
}

TEST(HostileBuffers, SizesThatDoNotFitTheShapeAreNamed) {
  EXPECT_NE(refusal(Codec::float16, Bytes(7)).find("7 bytes where 200 belong"), std::string::npos);
  EXPECT_NE(
      refusal(Codec::uniform8, honest(Codec::uniform8), DType::float32, {101}).find("101 values with 100 indices"),
      std::string::npos);
}

TEST(HostileBuffers, ShapesThatOverflowOrExhaustMemoryAreRefusedBeforeAnyIsTaken) {
  const Shape vast = {1u << 31, 1u << 9}, beyond = {0xffffffff, 0xffffffff, 0xffffffff};
  for (Codec codec : kEveryCodec) {
    for (DType dtype : {DType::float32, DType::float64, DType::int64}) {
      EXPECT_NE(refusal(codec, honest(codec), dtype, vast), "");
      EXPECT_NE(refusal(codec, honest(codec), dtype, beyond), "");
    }
  }
  EXPECT_NE(refusal(Codec::meanstd16, Bytes(), DType::float32, {0xffffffff, 0}), "");
}

TEST(HostileBuffers, CodeBooksMustHoldEveryIndexAndNoMoreThan256Entries) {
  for (Codec codec : {Codec::uniform8, Codec::quantile8}) {
    for (std::int64_t entries :
         {std::int64_t{-1}, std::int64_t{0}, std::int64_t{255}, std::int64_t{257},
          std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(), std::int64_t{1} << 62}) {
      Bytes bad = honest(codec);
      put(bad, 0, entries);
      EXPECT_NE(refusal(codec, bad), "") << entries;
    }
    Bytes small(8 + 4 * 4 + 100);
    put(small, 0, std::int64_t{4});
    std::fill(small.begin() + 24, small.end(), std::uint8_t{3});
    EXPECT_EQ(refusal(codec, small), "");
    small.back() = 4;
    EXPECT_NE(refusal(codec, small).find("index 4 into a code book of 4"), std::string::npos);
  }
}

TEST(HostileBuffers, BlockwiseHeadersMustAgreeWithTheShape) {
  for (std::int64_t blocks : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{2}, std::int64_t{1} << 62}) {
    Bytes bad = honest(Codec::blockwise8);
    put(bad, 0, blocks);
    EXPECT_NE(refusal(Codec::blockwise8, bad), "") << blocks;
  }
  for (std::int64_t entries : {std::int64_t{-1}, std::int64_t{0}, std::int64_t{255}, std::int64_t{1} << 61}) {
    Bytes bad = honest(Codec::blockwise8);
    put(bad, 8, entries);
    EXPECT_NE(refusal(Codec::blockwise8, bad), "") << entries;
  }
}

TEST(HostileBuffers, ScalesThatAreNotFiniteAreRefused) {
  for (float scale : {NAN, -NAN, std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity()}) {
    Bytes blockwise = honest(Codec::blockwise8);
    put(blockwise, 16, scale);
    EXPECT_NE(refusal(Codec::blockwise8, blockwise).find("scale 0 of a tensor is not a finite number"),
              std::string::npos);
    for (std::size_t back : {4, 8}) {
      Bytes scaled = honest(Codec::meanstd16);
      put(scaled, scaled.size() - back, scale);
      EXPECT_NE(refusal(Codec::meanstd16, scaled), "");
      std::vector<float> sum(100, 1.0f);
      EXPECT_FALSE(decode_and_accumulate(Codec::meanstd16, DType::float32, scaled, 1, sum));
      EXPECT_EQ(sum, std::vector<float>(100, 1.0f));  // nothing was added
    }
  }
}

TEST(HostileBuffers, ValuesThatAreNotFiniteAreSeenInEveryCodec) {
  for (Codec codec : {Codec::none, Codec::float16, Codec::uniform8}) {
    SCOPED_TRACE(name_of(codec));
    Bytes bytes = honest(codec);
    EXPECT_TRUE(Decoder::open(codec, DType::float32, 100, bytes).value()->finite());
    if (codec == Codec::none) put(bytes, 4 * 63, std::numeric_limits<float>::infinity());
    if (codec == Codec::float16) put(bytes, 2 * 63, std::uint16_t{0x7c01});
    if (codec == Codec::uniform8) put(bytes, 8 + 4 * bytes[8 + 1024 + 63], NAN);
    EXPECT_FALSE(Decoder::open(codec, DType::float32, 100, bytes).value()->finite());
  }
  Bytes unused = honest(Codec::uniform8);
  put(unused, 8, NAN);  // bin 0 holds none of these values
  EXPECT_TRUE(Decoder::open(Codec::uniform8, DType::float32, 100, unused).value()->finite());
  Bytes large = honest(Codec::meanstd16);
  put(large, large.size() - 4, 3e38f);  // finite, but not what it makes of the values
  EXPECT_FALSE(Decoder::open(Codec::meanstd16, DType::float32, 100, large).value()->finite());
}

TEST(HostileBuffers, CombinationsThatNoHivemindPeerSendsAreRefused) {
  for (int wire : {-1, 6, 255, 1 << 20}) EXPECT_FALSE(codec_from_wire(wire));
  EXPECT_FALSE(dtype_from_name("float8"));
  EXPECT_FALSE(dtype_from_name(""));
  for (Codec codec : kEveryCodec) {
    if (codec == Codec::none) continue;
    for (DType dtype : {DType::int64, DType::uint8, DType::boolean, DType::complex64})
      EXPECT_NE(refusal(codec, honest(codec), dtype), "") << name_of(codec) << " " << name_of(dtype);
  }
  EXPECT_NE(refusal(Codec::float16, Bytes(200), DType::bfloat16), "");
  EXPECT_NE(refusal(Codec::meanstd16, Bytes(208), DType::bfloat16), "");
  EXPECT_NE(refusal(Codec::meanstd16, Bytes(10), DType::float32, {}), "");
  std::vector<float> out(4);
  EXPECT_FALSE(decode(static_cast<Codec>(77), DType::float32, Bytes(16), out));
}

TEST(HostileBuffers, BytesThatAreNoBooleanBecomeOne) {
  const auto tensor = decode_tensor(Codec::none, DType::boolean, {3}, false, Bytes{0, 1, 200});
  ASSERT_TRUE(tensor);
  EXPECT_EQ(to_hex(tensor->data), "000101");
}

TEST(HostileBuffers, RandomDamageNeverDoesMoreThanFail) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    const Codec codec = kEveryCodec[random() % std::size(kEveryCodec)];
    Bytes bytes = honest(codec);
    for (unsigned i = 0; i < 1 + random() % 8; ++i)
      bytes[random() % std::min<std::size_t>(bytes.size(), 64)] = static_cast<std::uint8_t>(random());
    if (random() % 2) bytes.resize(random() % (bytes.size() + 100));
    const DType dtype = static_cast<DType>(random() % 12);
    const Shape shape = {static_cast<std::uint32_t>(random() % 200), static_cast<std::uint32_t>(random() % 3)};
    const auto tensor = decode_tensor(codec, dtype, shape, false, bytes);
    if (tensor) EXPECT_EQ(tensor->data.size(), *element_count(shape) * size_of(dtype));
    std::vector<float> sum(100);
    (void)decode_and_accumulate(codec, DType::float32, bytes, 1, sum);
  }
}

}  // namespace
}  // namespace cohive::codec
