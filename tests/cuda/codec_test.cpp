#include "cohive/cuda/codec.hpp"

#include "codec_fixture.hpp"

namespace cohive::cuda {
namespace {

const std::vector<float> kSpecial = {0.0f,
                                     -0.0f,
                                     kInfinity,
                                     -kInfinity,
                                     65504.0f,
                                     -65504.0f,
                                     65519.99f,
                                     65520.0f,
                                     3.4e38f,
                                     1.0f,
                                     2.0f,
                                     0x1p-24f,
                                     0x1p-25f,
                                     0x1.8p-25f,
                                     0x1p-149f,
                                     -0x1p-149f,
                                     0x1.ffep-15f,
                                     0x1p-14f,
                                     0x1.ffcp-15f,
                                     0x1.002p0f,
                                     0x1.006p0f,
                                     std::bit_cast<float>(0x7fc12345u),
                                     std::bit_cast<float>(0xff812345u)};

using Codecs = CodecsOnDevice;

TEST_F(Codecs, EncodeToTheBytesOfTheCpu) {
  for (const CodecSpec& spec : kAllCodecs)
    for (const std::size_t size : kSizes)
      for (const auto& values : {finite_values(size), normal_values(size), repeated_values(size)}) {
        SCOPED_TRACE(std::string(name_of(spec.codec)) + " of " + std::to_string(size));
        ASSERT_NO_FATAL_FAILURE(expect_same_buffer(spec.codec, on_gpu(spec, values), on_cpu(spec, values)));
      }
}

TEST_F(Codecs, EncodeManyValuesToTheBytesOfTheCpu) {
  const auto values = normal_values(kLargestSize);
  for (const CodecSpec& spec : kAllCodecs) {
    SCOPED_TRACE(name_of(spec.codec));
    ASSERT_NO_FATAL_FAILURE(expect_same_buffer(spec.codec, on_gpu(spec, values), on_cpu(spec, values)));
  }
}

TEST_F(Codecs, EncodeValuesThatDoNotDiffer) {
  for (const CodecSpec& spec : kAllCodecs)
    for (const float value : {0.0f, -0.0f, 1.0f, -3.7f, 0x1p-149f, 1e-38f, 3.4e38f})
      for (const std::size_t size : {1, 64, 5000}) {
        SCOPED_TRACE(std::string(name_of(spec.codec)) + " of " + std::to_string(size) + " times " +
                     std::to_string(value));
        const std::vector<float> values(size, value);
        ASSERT_NO_FATAL_FAILURE(expect_same_buffer(spec.codec, on_gpu(spec, values), on_cpu(spec, values)));
      }
}

TEST_F(Codecs, EncodeValuesWhoseNormNoFloatHolds) {
  std::vector<float> values(5000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = i % 2 == 0 ? 1e38f : -1e38f;
  const Bytes bytes = on_gpu(Codec::meanstd16, values);
  EXPECT_EQ(bytes, on_cpu(Codec::meanstd16, values));
  EXPECT_TRUE(check_encoded(Codec::meanstd16, values.size(), bytes));
}

TEST_F(Codecs, ClampHalvesAndKeepNaNs) {
  EXPECT_EQ(on_gpu(Codec::float16, kSpecial), on_cpu(Codec::float16, kSpecial));
}

TEST_F(Codecs, MarkABlockThatIsNotFinite) {
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    auto values = normal_values(3 * 4096);
    values[5000] = bad;
    const Bytes gpu = on_gpu(Codec::blockwise8, values);
    Bytes cpu = on_cpu(Codec::blockwise8, values);
    float scale;
    std::memcpy(&scale, gpu.data() + 16 + 4, 4);
    EXPECT_TRUE(std::isnan(scale));
    std::memcpy(cpu.data() + 16 + 4, &scale, 4);
    EXPECT_EQ(gpu, cpu);
    EXPECT_FALSE(check_encoded(Codec::blockwise8, values.size(), gpu));
  }
}

/// What is not finite never looks as if it were: decoders refuse it, or what they give is not finite either.
TEST_F(Codecs, HideNothingThatIsNotFinite) {
  for (const CodecSpec& spec : kAllCodecs)
    for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
      for (const std::size_t at : {0, 4999, 9999}) {
        SCOPED_TRACE(std::string(name_of(spec.codec)) + " with " + std::to_string(bad) + " at " + std::to_string(at));
        auto values = normal_values(10'000);
        values[at] = bad;
        const Bytes bytes = on_gpu(spec, values);
        const auto decoder = codec::Decoder::open(spec.codec, DType::float32, values.size(), bytes);
        // Halves are clamped: of these only a NaN is seen.
        const bool clamped = spec.codec == Codec::float16 && !std::isnan(bad);
        EXPECT_EQ(decoder && (*decoder)->finite(), clamped);
        const Bytes cpu = on_cpu(spec, values);
        if (spec.codec == Codec::block4 || spec.codec == Codec::top_k) EXPECT_EQ(bytes, cpu);
        if (spec.codec == Codec::uniform8 || spec.codec == Codec::quantile8) expect_same_buffer(spec.codec, bytes, cpu);
      }
}

TEST_F(Codecs, DecodeToTheValuesOfTheCpu) {
  for (const CodecSpec& spec : kAllCodecs)
    for (const std::size_t size : kSizes) {
      SCOPED_TRACE(std::string(name_of(spec.codec)) + " of " + std::to_string(size));
      expect_decodes_alike(spec.codec, on_cpu(spec, normal_values(size)), size);
    }
}

TEST_F(Codecs, DecodeEveryHalf) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  Bytes bytes(halves.size() * 2);
  std::memcpy(bytes.data(), halves.data(), bytes.size());
  expect_decodes_alike(Codec::float16, bytes, halves.size());
}

/// Levels that no encoder uses, too.
TEST_F(Codecs, DecodeEveryLevel) {
  Bytes bytes(2 + 32);
  bytes[1] = 0x3f;
  for (std::size_t i = 0; i < 32; ++i) bytes[2 + i] = static_cast<std::uint8_t>(i * 17);
  expect_decodes_alike(Codec::block4, bytes, 64);
}

/// Memory that allows no access to four values at once.
TEST_F(Codecs, TakeValuesAndResultsAtAnyFloat) {
  const auto values = normal_values(10'001);
  const auto in = to_device(values);
  for (const CodecSpec& spec : kAllCodecs)
    for (const std::size_t skip : {1, 2, 3}) {
      SCOPED_TRACE(name_of(spec.codec));
      const auto count = values.size() - skip;
      const std::vector<float> part(values.begin() + static_cast<std::ptrdiff_t>(skip), values.end());
      const std::size_t size = *encoded_size(spec, count);
      const auto scratch = DeviceBuffer::create(scratch_size(spec.codec, count)).value();
      const auto buffer = DeviceBuffer::create(4 * skip + size).value(), out = to_device(values);
      const auto encoded = buffer.bytes().subspan(4 * skip);
      ASSERT_TRUE(encode_async(stream(), spec, in.floats().subspan(skip), encoded, {.scratch = scratch.bytes()}));
      ASSERT_TRUE(decode_async(stream(), spec.codec, encoded, out.floats().subspan(skip)));
      const Bytes all = to_host<std::uint8_t>(buffer), cpu = on_cpu(spec, part);
      EXPECT_EQ(Bytes(all.begin() + static_cast<std::ptrdiff_t>(4 * skip), all.end()), cpu);
      std::vector<float> decoded(count);
      ASSERT_TRUE(codec::decode(spec.codec, DType::float32, cpu, decoded));
      auto here = to_host<float>(out);
      here.erase(here.begin(), here.begin() + static_cast<std::ptrdiff_t>(skip));
      expect_same(here, decoded);
    }
}

/// In the pass that encodes, wherever it is.
TEST_F(Codecs, SeeWhatIsNotFinite) {
  for (const CodecSpec& spec : kAllCodecs)
    for (const float bad : {0.0f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()})
      for (const std::size_t at : {0, 4099, 8192}) {
        SCOPED_TRACE(std::string(name_of(spec.codec)) + " with " + std::to_string(bad) + " at " + std::to_string(at));
        auto values = finite_values(8193);
        values[at] = bad;
        EXPECT_EQ(found_in(spec, values), bad != 0);
      }
}

TEST_F(Codecs, FindWhatIsNotFinite) {
  auto values = finite_values(100'000);
  for (const bool sick : {false, true}) {
    if (sick) values[77'777] = -kInfinity;
    const auto found = to_device(std::vector<std::uint32_t>{0});
    const auto in = to_device(values);
    ASSERT_TRUE(find_non_finite_async(stream(), in.floats(), reinterpret_cast<std::uint32_t*>(found.bytes().data())));
    EXPECT_EQ(to_host<std::uint32_t>(found).front(), sick ? 1u : 0u);
  }
}

// Each step through a volatile: no compiler may fuse it with the next.
float rounded(float value) {
  volatile float kept = value;
  return kept;
}

TEST_F(Codecs, AddAndScaleAsTheCpuDoes) {
  for (const std::size_t size : kSizes) {
    const auto part = normal_values(size);
    auto sum = finite_values(size);
    const auto in = to_device(part), total = to_device(sum);
    ASSERT_TRUE(add_async(stream(), in.floats(), 1.7f, total.floats()));
    ASSERT_TRUE(scale_async(stream(), total.floats(), 0.3f));
    for (std::size_t i = 0; i < size; ++i) sum[i] = rounded(sum[i] + rounded(1.7f * part[i])) * 0.3f;
    expect_same(to_host<float>(total), sum);
  }
}

TEST_F(Codecs, RefuseMemoryThatDoesNotFit) {
  const auto values = to_device(normal_values(100));
  const auto bytes = to_device(Bytes(8192));
  const std::error_code invalid = cohive::Errc::invalid_argument;
  EXPECT_EQ(encode_async(stream(), Codec::float16, values.floats(), bytes.bytes().first(199)).error(), invalid);
  EXPECT_EQ(encode_async(stream(), Codec::float16, values.floats(), bytes.bytes().subspan(1, 200)).error(), invalid);
  EXPECT_EQ(decode_async(stream(), Codec::float16, bytes.bytes().first(202), values.floats()).error(), invalid);
  EXPECT_EQ(decode_async(stream(), Codec::float16, bytes.bytes().subspan(2, 200), values.floats()).error(), invalid);
  EXPECT_EQ(decode_async(stream(), Codec::top_k, bytes.bytes().first(2), values.floats()).error(), invalid);
  EXPECT_EQ(decode_async(stream(), Codec::top_k, bytes.bytes().first(4 + 101 * 4), values.floats()).error(), invalid);
  EXPECT_EQ(add_async(stream(), values.floats().first(99), 1, values.floats()).error(), invalid);
  const auto out = bytes.bytes().first(8 + 1024 + 100), rest = bytes.bytes().subspan(2048);
  EXPECT_EQ(encode_async(stream(), Codec::uniform8, values.floats(), out).error(), invalid);
  EXPECT_EQ(encode_async(stream(), Codec::uniform8, values.floats(), out, {.scratch = rest.subspan(4)}).error(),
            invalid);
  EXPECT_EQ(encode_async(stream(), Codec::uniform8, values.floats(), out, {.scratch = rest.first(64)}).error(),
            invalid);
  const DeviceValues misaligned(DType::float16, bytes.bytes().data() + 1, 100);
  EXPECT_EQ(encode_async(stream(), Codec::float16, misaligned, rest.first(200)).error(), invalid);
}

TEST(CodecsWithoutGpu, SayWhatAnEncodedTensorTakes) {
  const auto values = normal_values(10'000);
  for (const CodecSpec& spec : kAllCodecs) {
    const Bytes bytes = on_cpu(spec, values);
    EXPECT_EQ(encoded_size(spec, values.size()), bytes.size()) << name_of(spec.codec);
    EXPECT_TRUE(check_encoded(spec.codec, values.size(), bytes)) << name_of(spec.codec);
    // top_k says nothing of values behind the last one that was sent.
    EXPECT_EQ(check_encoded(spec.codec, values.size() + 1, bytes).has_value(), spec.codec == Codec::top_k)
        << name_of(spec.codec);
    EXPECT_FALSE(check_encoded(spec.codec, values.size(), ByteView(bytes).first(bytes.size() - 1)))
        << name_of(spec.codec);
  }
}

TEST(CodecsWithoutGpu, LeaveToTheCpuWhatOnlyItDecodes) {
  Bytes bytes(8 + 2 * 4 + 3);
  bytes[0] = 2;
  std::vector<float> out(3);
  ASSERT_TRUE(codec::decode(Codec::uniform8, DType::float32, bytes, out));
  EXPECT_EQ(check_encoded(Codec::uniform8, 3, bytes).error(), std::error_code(cohive::Errc::malformed));
  const Bytes rows(4 * 2 + 2 * 8);
  std::vector<float> four(4);
  ASSERT_TRUE(codec::decode(Codec::meanstd16, DType::float32, rows, four));
  EXPECT_EQ(check_encoded(Codec::meanstd16, 4, rows).error(), std::error_code(cohive::Errc::malformed));
  EXPECT_EQ(check_encoded(Codec::none, 3, Bytes(24), DType::float64).error(),
            std::error_code(cohive::Errc::invalid_argument));
}

TEST(CodecsWithoutGpu, TakeWhatTheCpuTakes) {
  for (const codec::CodecInfo& one : codec::all_codecs())
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      const bool here = one.codec != Codec::sparse2 && codec::codec_for(one.codec, dtype, {1}) == one.codec;
      EXPECT_EQ(can_encode(one.codec, dtype), here) << one.name;
      EXPECT_EQ(can_decode(one.codec, dtype), can_encode(one.codec, dtype)) << one.name;
    }
  EXPECT_FALSE(can_encode(Codec::none, DType::float64));
  EXPECT_EQ(encoded_size(Codec::none, 10, DType::int64), std::nullopt);
}

}  // namespace
}  // namespace cohive::cuda
