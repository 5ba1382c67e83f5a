#include "cohive/codec/codec.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/core/errors.hpp"
#include "kernels.hpp"
#include "table.hpp"

namespace cohive::codec {
namespace {

/// What is not floating point travels as it is.
Result<Tensor> decode_raw(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer,
                          std::uint64_t count) {
  if (codec != Codec::none) return wrong_dtype(codec, dtype);
  if (buffer.size() != count * size_of(dtype)) return wrong_size(buffer.size(), count * size_of(dtype));
  Tensor tensor{dtype, std::move(shape), requires_grad, Slice::copy_of(buffer)};
  // Any other byte in a bool is undefined behaviour wherever it is looked at.
  if (dtype == DType::boolean)
    std::transform(buffer.begin(), buffer.end(), tensor.data.mutable_data(),
                   [](std::uint8_t value) { return std::uint8_t{value != 0}; });
  return tensor;
}

Slice encode_values(const CodecSpec& spec, const Values& values) {
  return entry_of(spec.codec).encode(spec, values, {1, values.size()});
}

}  // namespace

std::size_t CodecSpec::sent_of(std::size_t count) const {
  const double share = std::clamp(density, 0.0, 1.0) * static_cast<double>(count);
  return std::clamp(static_cast<std::size_t>(std::llround(share)), std::min<std::size_t>(1, count), count);
}

Slice encode(CodecSpec spec, std::span<const float> values) {
  return encode_values(spec, Values(values));
}

std::optional<Slice> encode_finite(CodecSpec spec, std::span<const float> values) {
  const TableEntry& entry = entry_of(spec.codec);
  if (entry.encode_finite) return entry.encode_finite(values);
  if (!kernels().all_finite(values.data(), values.size())) return std::nullopt;
  return encode(spec, values);
}

Slice encode_difference(CodecSpec spec, std::span<const float> average, std::span<const float> base) {
  return encode_values(spec, Values::difference(average, base));
}

Slice encode_difference(CodecSpec spec, std::span<const float> average, const Decoder& base) {
  return encode_values(spec, Values::difference(average, base));
}

Result<> decode(Codec codec, DType dtype, ByteView buffer, std::span<float> out) {
  const auto decoder = Decoder::open(codec, dtype, out.size(), buffer);
  if (!decoder) return decoder.error();
  (*decoder)->decode(0, out);
  return ok();
}

Result<> decode_and_accumulate(Codec codec, DType dtype, ByteView buffer, float weight, std::span<float> accumulator) {
  const auto decoder = Decoder::open(codec, dtype, accumulator.size(), buffer);
  if (!decoder) return decoder.error();
  (*decoder)->accumulate(0, weight, accumulator);
  return ok();
}

Result<Slice> encode_tensor(CodecSpec spec, const Tensor& tensor) {
  const auto count = element_count(tensor.shape);
  if (!count || tensor.data.size() != *count * size_of(tensor.dtype))
    return Error(Errc::invalid_argument, "tensor data of " + std::to_string(tensor.data.size()) + " bytes where " +
                                             std::to_string(count.value_or(0) * size_of(tensor.dtype)) + " belong");
  spec.codec = codec_for(spec.codec, tensor.dtype, tensor.shape);
  if (travels_as_it_is(spec.codec, tensor.dtype)) return tensor.data;
  Rows rows{1, tensor.shape.empty() ? 1 : tensor.shape.back()};
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) rows.rows *= tensor.shape[i];
  return entry_of(spec.codec).encode(spec, Values::of(tensor.dtype, tensor.data), rows);
}

Result<Tensor> decode_tensor(Codec codec, DType dtype, Shape shape, bool requires_grad, ByteView buffer) {
  const auto count = element_count(shape);
  if (!count) return Error(Errc::limit_exceeded, "tensor shape");
  if (!is_floating(dtype)) return decode_raw(codec, dtype, std::move(shape), requires_grad, buffer, *count);
  const auto decoder = Decoder::open(codec, dtype, *count, buffer, &shape);
  if (!decoder) return decoder.error();
  Tensor tensor{dtype, std::move(shape), requires_grad, Slice::uninitialised(*count * size_of(dtype))};
  (*decoder)->decode_bytes(0, *count, tensor.data.mutable_data());
  return tensor;
}

}  // namespace cohive::codec
