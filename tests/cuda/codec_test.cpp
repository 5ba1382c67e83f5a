#include "cohive/cuda/codec.hpp"

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cohive/core/errors.hpp"
#include "gpu.hpp"
#include "support/sanitizers.hpp"

namespace cohive::cuda {
namespace {

// A sanitizer takes a minute for an emulated grid of the largest size.
const std::vector<std::size_t> kSizes = {0,    1,    2,    31,   255,     256,
                                         257,  4095, 4096, 4097, 8192, 100'003, kSanitized ? 8193 : (1 << 21) + 5};
constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Magnitudes from the smallest denormal to the largest float, both signs, ties of rounding among them.
std::vector<float> finite_values(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    auto bits = static_cast<std::uint32_t>(random());
    if (i % 3 == 0) bits &= 0xfffff000;                                     // halfway between two halves, often
    if (i % 3 == 1) bits = (bits & 0x80ffffff) | (0x32 + bits % 16) << 24;  // what a half can hold
    if ((bits & 0x7f800000) == 0x7f800000) bits &= 0xff7fffff;
    values[i] = std::bit_cast<float>(bits);
  }
  return values;
}

std::vector<float> normal_values(std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count) + 1);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

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

Bytes on_cpu(Codec codec, const std::vector<float>& values) {
  return to_bytes(codec::encode(codec, values).view());
}

/// The same bits; where arithmetic made a NaN, any NaN.
void expect_same(const std::vector<float>& gpu, const std::vector<float>& cpu) {
  ASSERT_EQ(gpu.size(), cpu.size());
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    if (std::isnan(gpu[i]) && std::isnan(cpu[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(gpu[i]), std::bit_cast<std::uint32_t>(cpu[i]))
        << "value " << i << ": " << gpu[i] << " and " << cpu[i];
  }
}

class Codecs : public Gpu {
 protected:
  Bytes on_gpu(Codec codec, const std::vector<float>& values) {
    const auto in = to_device(values);
    auto out = DeviceBuffer::create(*encoded_size(codec, values.size())).value();
    const auto queued = encode_async(stream(), codec, in.floats(), out.bytes());
    EXPECT_TRUE(queued) << queued.error();
    return to_host<std::uint8_t>(out);
  }

  void expect_decodes_alike(Codec codec, const Bytes& bytes, std::size_t count) {
    std::vector<float> decoded(count), sum = normal_values(count);
    const auto buffer = to_device(bytes), out = to_device(decoded), total = to_device(sum);
    ASSERT_TRUE(check_encoded(codec, count, bytes));
    ASSERT_TRUE(decode_async(stream(), codec, buffer.bytes(), out.floats()));
    ASSERT_TRUE(accumulate_async(stream(), codec, buffer.bytes(), 0.37f, total.floats()));
    ASSERT_TRUE(codec::decode(codec, codec::DType::float32, bytes, decoded));
    ASSERT_TRUE(codec::decode_and_accumulate(codec, codec::DType::float32, bytes, 0.37f, sum));
    expect_same(to_host<float>(out), decoded);
    expect_same(to_host<float>(total), sum);
  }
};

TEST_F(Codecs, EncodeToTheBytesOfTheCpu) {
  for (const Codec codec : {Codec::none, Codec::float16, Codec::blockwise8})
    for (const std::size_t size : kSizes)
      for (const auto& values : {finite_values(size), normal_values(size), std::vector<float>(size, 0.0f)})
        ASSERT_EQ(on_gpu(codec, values), on_cpu(codec, values)) << name_of(codec) << " of " << size;
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

TEST_F(Codecs, DecodeToTheValuesOfTheCpu) {
  for (const Codec codec : {Codec::none, Codec::float16, Codec::uniform8, Codec::quantile8, Codec::blockwise8})
    for (const std::size_t size : kSizes) {
      if (size == 0 && (codec == Codec::uniform8 || codec == Codec::quantile8)) continue;
      SCOPED_TRACE(std::string(name_of(codec)) + " of " + std::to_string(size));
      expect_decodes_alike(codec, on_cpu(codec, normal_values(size)), size);
    }
}

TEST_F(Codecs, DecodeEveryHalf) {
  std::vector<std::uint16_t> halves(65536);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint16_t>(i);
  Bytes bytes(halves.size() * 2);
  std::memcpy(bytes.data(), halves.data(), bytes.size());
  expect_decodes_alike(Codec::float16, bytes, halves.size());
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

TEST_F(Codecs, ReduceAsTheCpuDoes) {
  for (const std::size_t size : kSizes) {
    const auto part = normal_values(size);
    auto sum = finite_values(size);
    const auto in = to_device(part), total = to_device(sum), own = to_device(part);
    ASSERT_TRUE(add_async(stream(), in.floats(), 1.7f, total.floats()));
    ASSERT_TRUE(divide_async(stream(), total.floats(), 2.9f));
    ASSERT_TRUE(move_towards_async(stream(), total.floats(), 0.3f, own.floats()));
    ASSERT_TRUE(subtract_from_async(stream(), total.floats(), in.floats()));
    std::vector<float> moved(size), difference(size);
    for (std::size_t i = 0; i < size; ++i) {
      sum[i] = rounded(sum[i] + rounded(1.7f * part[i])) / 2.9f;
      difference[i] = sum[i] - part[i];
      moved[i] = part[i] + rounded(0.3f * difference[i]);
    }
    expect_same(to_host<float>(total), sum);
    expect_same(to_host<float>(own), moved);
    expect_same(to_host<float>(in), difference);
  }
}

TEST_F(Codecs, RefuseMemoryThatDoesNotFit) {
  const auto values = to_device(normal_values(100));
  const auto bytes = to_device(Bytes(4096));
  const std::error_code invalid = cohive::Errc::invalid_argument;
  EXPECT_EQ(encode_async(stream(), Codec::float16, values.floats(), bytes.bytes().first(199)).error(), invalid);
  EXPECT_EQ(encode_async(stream(), Codec::float16, values.floats(), bytes.bytes().subspan(1, 200)).error(), invalid);
  EXPECT_EQ(decode_async(stream(), Codec::float16, bytes.bytes().first(202), values.floats()).error(), invalid);
  EXPECT_EQ(add_async(stream(), values.floats().first(99), 1, values.floats()).error(), invalid);
  EXPECT_EQ(encode_async(stream(), Codec::uniform8, values.floats(), bytes.bytes()).error(), invalid);
}

TEST(CodecsWithoutGpu, SayWhatAnEncodedTensorTakes) {
  const auto values = normal_values(10'000);
  for (const Codec codec : {Codec::none, Codec::float16, Codec::uniform8, Codec::quantile8, Codec::blockwise8}) {
    const Bytes bytes = on_cpu(codec, values);
    EXPECT_EQ(encoded_size(codec, values.size()), bytes.size()) << name_of(codec);
    EXPECT_TRUE(check_encoded(codec, values.size(), bytes)) << name_of(codec);
    EXPECT_FALSE(check_encoded(codec, values.size() + 1, bytes)) << name_of(codec);
  }
  EXPECT_EQ(encoded_size(Codec::meanstd16, 10), std::nullopt);
}

TEST(CodecsWithoutGpu, LeaveShortCodeBooksToTheCpu) {
  Bytes bytes(8 + 2 * 4 + 3);
  bytes[0] = 2;
  std::vector<float> out(3);
  ASSERT_TRUE(codec::decode(Codec::uniform8, codec::DType::float32, bytes, out));
  EXPECT_EQ(check_encoded(Codec::uniform8, 3, bytes).error(), std::error_code(cohive::Errc::malformed));
}

}  // namespace
}  // namespace cohive::cuda
