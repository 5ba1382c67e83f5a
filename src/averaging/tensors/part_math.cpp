#include "averaging/detail/part_math.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <thread>
#include <utility>

#include "cohive/averaging/errors.hpp"
#include "cohive/codec/decoder.hpp"
#include "cohive/core/errors.hpp"
#include "core/detail/wide.hpp"

namespace cohive::averaging {
namespace {

constexpr std::uint32_t kExponent = 0x7f800000;  // all ones: NaN or infinite
constexpr std::size_t kMostOfAValue = 8;         // bytes; no codec has more, whatever the dtype
constexpr std::size_t kMostOfACodeBook = 4 << 10;
constexpr std::size_t kMostAround = 9 << 10;  // what a record has around its buffer; a commitment has 8 KiB at most

// float32 values at any address: buffers of the network are not aligned.
inline float load(const std::uint8_t* bytes, std::size_t i) {
  float value;
  std::memcpy(&value, bytes + i * sizeof value, sizeof value);
  return value;
}
inline std::uint32_t bad(float value) {
  return (std::bit_cast<std::uint32_t>(value) & kExponent) == kExponent ? 1u : 0u;
}

// The loops have no branch per value, so that they run at the speed of the cache. Those that return bool say whether
// all that they read (or, dividing and subtracting, wrote) is finite.

// Most often the first to look at values in memory, for which it asks two pages ahead.
COHIVE_WIDE bool finite(const std::uint8_t* in, std::size_t count) {
  constexpr std::size_t kStretch = 256, kAhead = 2048, kLine = 16;  // values
  std::uint32_t found = 0;
  for (std::size_t at = 0; at < count; at += kStretch) {
    const std::size_t end = std::min(at + kStretch, count), last = std::min(at + kAhead + kStretch, count);
    for (std::size_t line = at + kAhead; line < last; line += kLine) __builtin_prefetch(in + line * sizeof(float));
    for (std::size_t i = at; i < end; ++i) found |= bad(load(in, i));
  }
  return found == 0;
}

COHIVE_WIDE bool scale_into(const std::uint8_t* in, float weight, float* sum, std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = load(in, i);
    found |= bad(value);
    sum[i] = weight * value;
  }
  return found == 0;
}

COHIVE_WIDE void add_into(const std::uint8_t* in, float weight, float* sum, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sum[i] += weight * load(in, i);
}

COHIVE_WIDE bool add_and_divide(const std::uint8_t* in, float weight, float divisor, float* sum, std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float value = (sum[i] + weight * load(in, i)) / divisor;
    found |= bad(value);
    sum[i] = value;
  }
  return found == 0;
}

COHIVE_WIDE bool divide(float divisor, float* sum, std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    sum[i] /= divisor;
    found |= bad(sum[i]);
  }
  return found == 0;
}

COHIVE_WIDE bool subtract_in_place(const float* from, std::uint8_t* bytes, std::size_t count) {
  std::uint32_t found = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float difference = from[i] - load(bytes, i);
    found |= bad(difference);
    std::memcpy(bytes + i * sizeof difference, &difference, sizeof difference);
  }
  return found == 0;
}

// What is written may be what is read, or lie elsewhere: a compiler that must allow for both does neither fast.
COHIVE_WIDE void move(const float* __restrict own, const float* __restrict towards, float alpha, float* __restrict out,
                      std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = own[i] + alpha * (towards[i] - own[i]);
}
COHIVE_WIDE void move_in_place(float* __restrict values, const float* __restrict towards, float alpha,
                               std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] += alpha * (towards[i] - values[i]);
}

COHIVE_WIDE void change(const float* __restrict own, const float* __restrict towards, float alpha,
                        float* __restrict out, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) out[i] = alpha * (towards[i] - own[i]);
}
COHIVE_WIDE void change_in_place(float* __restrict values, const float* __restrict towards, float alpha,
                                 std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] = alpha * (towards[i] - values[i]);
}

COHIVE_WIDE void multiply(float factor, float* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) values[i] *= factor;
}

Error not_finite() {
  return Error(Errc::not_finite);
}

const std::uint8_t* bytes_of(std::span<const float> values) {
  return reinterpret_cast<const std::uint8_t*>(values.data());
}

Result<bool> add(const std::uint8_t* part, double exact_weight, std::span<float> sum, Adding how) {
  const auto weight = static_cast<float>(exact_weight);
  const auto divisor = static_cast<float>(how.divisor);
  if (how.first) {
    if (!scale_into(part, weight, sum.data(), sum.size())) return not_finite();
    return divisor == 0 || divide(divisor, sum.data(), sum.size());
  }
  if (!finite(part, sum.size())) return not_finite();
  if (divisor != 0) return add_and_divide(part, weight, divisor, sum.data(), sum.size());
  add_into(part, weight, sum.data(), sum.size());
  return true;
}

bool is_raw(const EncodedPart& part, std::size_t length) {
  return part.codec == codec::Codec::none && part.dtype == codec::DType::float32 &&
         part.buffer.size() == length * sizeof(float);
}

constexpr std::size_t kBlock = 4096;  // values that stay in the nearest cache from one loop to the next

}  // namespace

std::size_t inline_values() {
  static const std::size_t values = std::thread::hardware_concurrency() > 2 ? 16 * 1024 : 256 * 1024;
  return values;
}

Result<EncodedPart> encoded_part(const PartMessage& message, Slice record, std::size_t length,
                                 const codec::CodecSet& agreed) {
  if (!message.tensor) return Error(Errc::bad_partition, "a message without a part");
  const auto count = codec::element_count(message.tensor->shape);
  if (!count || *count != length)
    return Error(Errc::bad_partition, "part of " + std::to_string(count.value_or(0)) + " values where " +
                                          std::to_string(length) + " belong");
  // The whole record stays in memory as long as its values are needed: fields that nobody reads would as well.
  const std::size_t bytes = message.tensor->buffer.size();
  if (bytes > kMostOfAValue * length + kMostOfACodeBook || record.size() > bytes + kMostAround)
    return Error(Errc::bad_partition, "a record of " + std::to_string(record.size()) + " bytes for a part of " +
                                          std::to_string(length) + " values");
  const auto codec = codec::codec_from_wire(message.tensor->compression, agreed);
  const auto dtype = codec::dtype_from_name(message.tensor->dtype);
  if (!codec || !dtype) return Error(Errc::bad_partition, "unknown codec or dtype of a part");
  return EncodedPart{*codec, *dtype, std::move(record), message.tensor->buffer};
}

bool all_finite(std::span<const float> values) {
  return finite(bytes_of(values), values.size());
}

Result<bool> add_values(std::span<const float> part, double weight, std::span<float> sum, Adding how) {
  return add(bytes_of(part), weight, sum, how);
}

Result<bool> add_part(const EncodedPart& part, double weight, std::span<float> sum, Adding how) {
  if (is_raw(part, sum.size())) return add(part.buffer.data(), weight, sum, how);
  const auto decoder = codec::Decoder::open(part.codec, part.dtype, sum.size(), part.buffer);
  if (!decoder) return decoder.error();
  if (!(*decoder)->finite()) return not_finite();
  bool average_finite = true;
  for (std::size_t at = 0; at < sum.size(); at += kBlock) {
    const auto block = sum.subspan(at, std::min(kBlock, sum.size() - at));
    if (how.first && weight == 1) {
      (*decoder)->decode(at, block);
    } else {
      if (how.first) std::fill(block.begin(), block.end(), 0.0f);
      (*decoder)->accumulate(at, static_cast<float>(weight), block);
    }
    if (how.divisor != 0) average_finite &= divide_by_weight(block, how.divisor);
  }
  return average_finite;
}

Result<ReadValues> open_part(std::shared_ptr<const EncodedPart> part, std::size_t length) {
  auto opened = open_finite(*part, length);
  if (!opened) return opened.error();
  return [part, decoder = std::shared_ptr<const codec::Decoder>(std::move(*opened))](std::size_t first,
                                                                                     std::span<float> out) {
    decoder->decode(first, out);
    return true;
  };
}

bool divide_by_weight(std::span<float> sum, double weight) {
  return divide(static_cast<float>(weight), sum.data(), sum.size());
}

Result<Slice> difference_to(std::span<const float> average, EncodedPart& encoded, std::size_t length) {
  EncodedPart part = std::exchange(encoded, {});
  const auto no_change = [&part, length] { return codec::encode(part.codec, std::vector<float>(length)); };
  if (average.empty()) return no_change();
  if (!is_raw(part, length)) {
    const auto base = codec::Decoder::open(part.codec, part.dtype, length, part.buffer);
    if (!base) return base.error();
    EncodedPart answer;
    answer.codec = part.codec;
    answer.record = codec::encode_difference(part.codec, average, **base);
    answer.buffer = answer.record.view();
    if (!open_finite(answer, length)) return no_change();
    return answer.record;
  }
  if (!part.record.unique()) part.record = Slice::copy_of(part.buffer), part.buffer = part.record.view();
  const auto offset = static_cast<std::size_t>(part.buffer.data() - part.record.data());
  Slice out = part.record.sub(offset, part.buffer.size());
  if (!subtract_in_place(average.data(), out.mutable_data(), length)) return no_change();
  return out;
}

void scale(std::span<float> values, float factor) {
  multiply(factor, values.data(), values.size());
}

void move_towards(std::span<const float> average, float alpha, Destination to) {
  if (to.own.data() == to.out.data())
    (to.differences ? change_in_place : move_in_place)(to.out.data(), average.data(), alpha, to.out.size());
  else
    (to.differences ? change : move)(to.own.data(), average.data(), alpha, to.out.data(), to.out.size());
}

void move_to(const codec::Decoder& average, float alpha, Destination to) {
  std::array<float, kBlock> block;
  for (std::size_t at = 0; at < to.out.size(); at += kBlock) {
    const std::size_t here = std::min(kBlock, to.out.size() - at);
    const std::span<float> out = to.out.subspan(at, here);
    if (alpha == 1 && !to.differences) {
      average.decode(at, out);
      continue;
    }
    average.decode(at, std::span(block).first(here));
    move_towards(std::span(block).first(here), alpha, {to.own.subspan(at, here), out, to.differences});
  }
}

void add_difference(const codec::Decoder& delta, float alpha, Destination to) {
  const bool in_place = to.own.data() == to.out.data();
  for (std::size_t at = 0; at < to.out.size(); at += kBlock) {
    const auto out = to.out.subspan(at, std::min(kBlock, to.out.size() - at));
    if (to.differences)
      std::ranges::fill(out, 0.0f);
    else if (!in_place)
      std::ranges::copy(to.own.subspan(at, out.size()), out.begin());
    delta.accumulate(at, alpha, out);
  }
}

Result<codec::DecoderPtr> open_finite(const EncodedPart& part, std::size_t length) {
  auto decoder = codec::Decoder::open(part.codec, part.dtype, length, part.buffer);
  if (!decoder) return decoder.error();
  const bool usable = is_raw(part, length) ? finite(part.buffer.data(), length) : (*decoder)->finite();
  if (!usable) return not_finite();
  return decoder;
}

}  // namespace cohive::averaging
