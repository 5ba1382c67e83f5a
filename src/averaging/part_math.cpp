#include "part_math.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::averaging {
namespace {

/// float32 values at any address: buffers of the network are not aligned.
class RawFloats {
 public:
  explicit RawFloats(const std::uint8_t* bytes) : bytes_(bytes) {}
  float operator[](std::size_t i) const {
    float value;
    std::memcpy(&value, bytes_ + i * sizeof value, sizeof value);
    return value;
  }

 private:
  const std::uint8_t* bytes_;
};

Error not_finite() {
  return Error(cohive::Errc::malformed, "not a finite number in a part");
}

/// Without a branch per value, so that it runs at the speed of the cache.
template <class Values>
bool finite(Values values, std::size_t count) {
  constexpr std::uint32_t kExponent = 0x7f800000;
  std::uint32_t bad = 0;
  for (std::size_t i = 0; i < count; ++i)
    bad |= (std::bit_cast<std::uint32_t>(values[i]) & kExponent) == kExponent ? 1u : 0u;
  return bad == 0;
}

template <class Values>
Result<> add(Values part, float weight, std::span<float> sum, bool first) {
  if (!finite(part, sum.size())) return not_finite();
  float* to = sum.data();
  if (first) {
    for (std::size_t i = 0; i < sum.size(); ++i) to[i] = weight * part[i];
  } else {
    for (std::size_t i = 0; i < sum.size(); ++i) to[i] += weight * part[i];
  }
  return ok();
}

bool is_raw(const EncodedPart& part, std::size_t length) {
  return part.codec == codec::Codec::none && part.dtype == codec::DType::float32 &&
         part.buffer.size() == length * sizeof(float);
}

/// The part's values, decoded into memory that this thread keeps for the next part.
Result<std::span<const float>> decoded(const EncodedPart& part, std::size_t length) {
  static thread_local std::vector<float> scratch;
  if (scratch.size() < length) scratch.resize(length);
  const std::span<float> values(scratch.data(), length);
  if (auto done = codec::decode(part.codec, part.dtype, part.buffer, values); !done) return done.error();
  return std::span<const float>(values);
}

}  // namespace

Result<EncodedPart> encoded_part(const PartMessage& message, Slice record, std::size_t length) {
  if (!message.tensor) return Error(Errc::bad_partition, "a message without a part");
  const auto count = codec::element_count(message.tensor->shape);
  if (!count || *count != length)
    return Error(Errc::bad_partition, "part of " + std::to_string(count.value_or(0)) + " values where " +
                                          std::to_string(length) + " belong");
  const auto codec = codec::codec_from_wire(message.tensor->compression);
  const auto dtype = codec::dtype_from_name(message.tensor->dtype);
  if (!codec || !dtype) return Error(Errc::bad_partition, "unknown codec or dtype of a part");
  return EncodedPart{*codec, *dtype, std::move(record), message.tensor->buffer};
}

bool all_finite(std::span<const float> values) {
  return finite(values.data(), values.size());
}

Result<> add_values(std::span<const float> part, float weight, std::span<float> sum, bool first) {
  return add(part.data(), weight, sum, first);
}

Result<> add_part(const EncodedPart& part, float weight, std::span<float> sum, bool first) {
  if (is_raw(part, sum.size())) return add(RawFloats(part.buffer.data()), weight, sum, first);
  const auto values = decoded(part, sum.size());
  if (!values) return values.error();
  return add(values->data(), weight, sum, first);
}

bool divide_by_weight(std::span<float> sum, double weight) {
  const auto divisor = static_cast<float>(weight);
  for (float& value : sum) value /= divisor;
  return finite(sum.data(), sum.size());
}

Result<Slice> difference_to(std::span<const float> average, EncodedPart& encoded, std::size_t length) {
  EncodedPart part = std::exchange(encoded, {});
  if (average.empty()) return codec::encode(part.codec, std::vector<float>(length));
  if (!is_raw(part, length)) {
    const auto base = decoded(part, length);
    if (!base) return base.error();
    return codec::encode_difference(part.codec, average, *base);
  }
  if (!part.record.unique()) part.record = Slice::copy_of(part.buffer), part.buffer = part.record.view();
  const auto offset = static_cast<std::size_t>(part.buffer.data() - part.record.data());
  Slice out = part.record.sub(offset, part.buffer.size());
  std::uint8_t* bytes = out.mutable_data();
  const RawFloats base(bytes);
  for (std::size_t i = 0; i < length; ++i) {
    const float difference = average[i] - base[i];
    std::memcpy(bytes + i * sizeof difference, &difference, sizeof difference);
  }
  return out;
}

void move_towards(std::span<const float> average, float alpha, std::span<float> values) {
  const float* from = average.data();
  float* to = values.data();
  for (std::size_t i = 0; i < values.size(); ++i) to[i] += alpha * (from[i] - to[i]);
}

Result<> add_difference(const EncodedPart& delta, float alpha, std::span<float> values) {
  if (is_raw(delta, values.size())) return add(RawFloats(delta.buffer.data()), alpha, values, false);
  const auto decoded_delta = decoded(delta, values.size());
  if (!decoded_delta) return decoded_delta.error();
  return add(decoded_delta->data(), alpha, values, false);
}

}  // namespace cohive::averaging
