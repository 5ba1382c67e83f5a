// What the tests of the codecs share: values of all kinds, and a round trip over the device.
#pragma once

#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "cohive/codec/decoder.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/cuda/codec.hpp"
#include "gpu.hpp"
#include "support/sanitizers.hpp"

namespace cohive::cuda {

using codec::CodecSpec;
using codec::DType;

// Beside the ends of blocks of threads, of scales and of what a top_k buffer counts from one place.
inline const std::vector<std::size_t> kSizes = {0,   1,    2,    31,   63,   64,     65,     255,    256,
                                                257, 4095, 4096, 4097, 8192, 65'535, 65'536, 65'539, 100'003};
// A sanitizer takes a minute for an emulated grid of the largest size.
inline const std::size_t kLargestSize = kSanitized ? 8193 : (1 << 20) + 3;
inline const std::vector<CodecSpec> kAllCodecs = {Codec::none,      Codec::meanstd16, Codec::float16,
                                                  Codec::quantile8, Codec::uniform8,  Codec::blockwise8,
                                                  Codec::block4,    Codec::top_k,     {Codec::top_k, 0.5}};
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Magnitudes from the smallest denormal to the largest float, both signs, ties of rounding among them.
inline std::vector<float> finite_values(std::size_t count) {
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

inline std::vector<float> normal_values(std::size_t count, unsigned seed = 1) {
  std::mt19937 random(static_cast<unsigned>(count) + seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

/// Few values, many times each, zeros of both signs among them.
inline std::vector<float> repeated_values(std::size_t count) {
  const float few[] = {0.0f, -0.0f, 1.5f, -1.5f, 0x1p-149f, -0x1p-140f, 1e-30f, 0.1f};
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = few[i * i % 61 % 8];
  return values;
}

/// The same bits; where arithmetic made a NaN, any NaN.
inline void expect_same(const std::vector<float>& gpu, const std::vector<float>& cpu) {
  ASSERT_EQ(gpu.size(), cpu.size());
  for (std::size_t i = 0; i < gpu.size(); ++i) {
    if (std::isnan(gpu[i]) && std::isnan(cpu[i])) continue;
    ASSERT_EQ(std::bit_cast<std::uint32_t>(gpu[i]), std::bit_cast<std::uint32_t>(cpu[i]))
        << "value " << i << ": " << gpu[i] << " and " << cpu[i];
  }
}

/// A tensor of a dtype.
struct Typed {
  DType dtype;
  Bytes bytes;
  std::size_t size() const { return bytes.size() / codec::size_of(dtype); }
};
inline Typed typed(const std::vector<float>& values) {
  Bytes bytes(values.size() * sizeof(float));
  if (!values.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return {DType::float32, std::move(bytes)};
}
/// Every 16 bits are a value of these dtypes; those that are not finite are made so.
inline Typed random_typed(DType dtype, std::size_t count) {
  std::mt19937 random(static_cast<unsigned>(count));
  std::vector<std::uint16_t> values(count);
  const std::uint16_t exponent = dtype == DType::float16 ? 0x7c00 : 0x7f80;
  for (auto& value : values) {
    value = static_cast<std::uint16_t>(random());
    if ((value & exponent) == exponent) value &= 0xbfff;
  }
  Bytes bytes(count * 2);
  if (count > 0) std::memcpy(bytes.data(), values.data(), bytes.size());
  return {dtype, std::move(bytes)};
}

inline Bytes on_cpu(CodecSpec spec, const Typed& values) {
  const codec::Tensor tensor{
      values.dtype, {static_cast<std::uint32_t>(values.size())}, false, Slice::copy_of(values.bytes)};
  return to_bytes(codec::encode_tensor(spec, tensor).value().view());
}
inline Bytes on_cpu(CodecSpec spec, const std::vector<float>& values) {
  return to_bytes(codec::encode(spec, values).view());
}

/// Buffers alike but for the bits of a NaN in a code book that was computed.
inline void expect_same_buffer(Codec codec, Bytes gpu, Bytes cpu) {
  ASSERT_EQ(gpu.size(), cpu.size());
  if (codec == Codec::uniform8 || codec == Codec::quantile8)
    for (std::size_t at = 8; at < 8 + 1024; at += 4) {
      float one, other;
      std::memcpy(&one, gpu.data() + at, 4);
      std::memcpy(&other, cpu.data() + at, 4);
      if (std::isnan(one) && std::isnan(other)) std::memcpy(gpu.data() + at, cpu.data() + at, 4);
    }
  const auto apart = std::ranges::mismatch(gpu, cpu);
  ASSERT_EQ(apart.in1, gpu.end()) << "byte " << apart.in1 - gpu.begin() << " of " << gpu.size();
}

class CodecsOnDevice : public Gpu {
 protected:
  Bytes on_gpu(CodecSpec spec, const Typed& values) {
    const auto in = to_device(std::vector<std::uint8_t>(values.bytes.begin(), values.bytes.end()));
    const DeviceValues given(values.dtype, in.bytes().data(), values.size());
    const auto scratch = DeviceBuffer::create(scratch_size(spec.codec, values.size())).value();
    const auto out = DeviceBuffer::create(*encoded_size(spec, values.size(), values.dtype)).value();
    const auto queued = encode_async(stream(), spec, given, out.bytes(), {.scratch = scratch.bytes()});
    EXPECT_TRUE(queued) << queued.error();
    return to_host<std::uint8_t>(out);
  }
  Bytes on_gpu(CodecSpec spec, const std::vector<float>& values) { return on_gpu(spec, typed(values)); }

  /// Whether the encoder has seen something that is not finite.
  bool found_in(CodecSpec spec, const std::vector<float>& values) {
    const auto in = to_device(values), found = to_device(std::vector<float>{0});
    const auto scratch = DeviceBuffer::create(scratch_size(spec.codec, values.size())).value();
    const auto out = DeviceBuffer::create(*encoded_size(spec, values.size())).value();
    auto* const flag = reinterpret_cast<std::uint32_t*>(found.bytes().data());
    const auto queued =
        encode_async(stream(), spec, in.floats(), out.bytes(), {.scratch = scratch.bytes(), .found = flag});
    EXPECT_TRUE(queued) << queued.error();
    return to_host<std::uint32_t>(found).front() == 1;
  }

  void expect_decodes_alike(Codec codec, const Bytes& bytes, std::size_t count, DType dtype = DType::float32) {
    std::vector<float> decoded(count), sum = normal_values(count);
    const auto buffer = to_device(bytes), out = to_device(decoded), total = to_device(sum);
    ASSERT_TRUE(check_encoded(codec, count, bytes, dtype)) << check_encoded(codec, count, bytes, dtype).error();
    ASSERT_TRUE(decode_async(stream(), codec, buffer.bytes(), out.floats(), dtype));
    ASSERT_TRUE(accumulate_async(stream(), codec, buffer.bytes(), 0.37f, total.floats(), dtype));
    ASSERT_TRUE(codec::decode(codec, dtype, bytes, decoded));
    ASSERT_TRUE(codec::decode_and_accumulate(codec, dtype, bytes, 0.37f, sum));
    expect_same(to_host<float>(out), decoded);
    expect_same(to_host<float>(total), sum);
  }
};

}  // namespace cohive::cuda
