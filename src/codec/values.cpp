#include "codec/detail/values.hpp"

#include <cstring>

#include "cohive/codec/decoder.hpp"
#include "core/detail/wide.hpp"
#include "half.hpp"
#include "kernels.hpp"

namespace cohive::codec {
namespace {

COHIVE_WIDE void from_bfloats(const std::uint8_t* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t bits;
    std::memcpy(&bits, in + i * 2, 2);
    out[i] = float_from_bfloat(bits);
  }
}

COHIVE_WIDE void to_bfloats(const float* in, std::uint8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint16_t bits = bfloat_from_float(in[i]);
    std::memcpy(out + i * 2, &bits, 2);
  }
}

COHIVE_WIDE void from_doubles(const std::uint8_t* in, float* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    double value;
    std::memcpy(&value, in + i * 8, 8);
    out[i] = static_cast<float>(value);
  }
}

COHIVE_WIDE void to_doubles(const float* in, std::uint8_t* out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double value = in[i];
    std::memcpy(out + i * 8, &value, 8);
  }
}

}  // namespace

Values::Values(std::span<const float> values)
    : Values(DType::float32, reinterpret_cast<const std::uint8_t*>(values.data()), values.size()) {}

Values Values::of(DType dtype, ByteView bytes) {
  return {dtype, bytes.data(), bytes.size() / size_of(dtype)};
}

Values Values::difference(std::span<const float> average, std::span<const float> base) {
  Values values(average);
  values.minus_ = base.data();
  return values;
}

Values Values::difference(std::span<const float> average, const Decoder& base) {
  Values values(average);
  values.minus_decoded_ = &base;
  return values;
}

std::optional<Values::HalfDifference> Values::half_difference(std::size_t first) const {
  const std::uint8_t* halves = minus_decoded_ ? minus_decoded_->halves() : nullptr;
  if (!halves) return std::nullopt;
  return HalfDifference{reinterpret_cast<const float*>(data_) + first, halves + first * 2};
}

const float* Values::block(std::size_t first, std::size_t count, float* scratch) const {
  const std::uint8_t* from = data_ + first * size_of(dtype_);
  if (minus_ || minus_decoded_) {
    if (minus_decoded_) minus_decoded_->decode(first, {scratch, count});
    kernels().difference(reinterpret_cast<const float*>(from), minus_ ? minus_ + first : scratch,
                         reinterpret_cast<std::uint8_t*>(scratch), count);
    return scratch;
  }
  // Bytes of a received tensor may lie anywhere.
  if (dtype_ == DType::float32 && reinterpret_cast<std::uintptr_t>(from) % alignof(float) == 0)
    return reinterpret_cast<const float*>(from);
  widen(dtype_, from, scratch, count);
  return scratch;
}

void widen(DType from, const std::uint8_t* in, float* out, std::size_t count) {
  if (count == 0) return;  // memcpy takes no null pointers, not even for nothing
  switch (from) {
    case DType::float32:
      std::memcpy(out, in, count * 4);
      return;
    case DType::float16:
      return kernels().from_half(in, out, count);
    case DType::float64:
      return from_doubles(in, out, count);
    default:
      from_bfloats(in, out, count);
  }
}

void narrow(DType to, const float* in, std::uint8_t* out, std::size_t count) {
  if (count == 0) return;
  switch (to) {
    case DType::float32:
      std::memcpy(out, in, count * 4);
      return;
    case DType::float16:
      return kernels().to_half_unclamped(in, out, count);
    case DType::float64:
      return to_doubles(in, out, count);
    default:
      to_bfloats(in, out, count);
  }
}

float rounded_to(DType dtype, double value) {
  const auto single = static_cast<float>(value);
  if (dtype == DType::float16) return float_from_half(half_from_float(single));
  if (dtype == DType::bfloat16) return float_from_bfloat(bfloat_from_float(single));
  return single;
}

}  // namespace cohive::codec
