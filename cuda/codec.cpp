#include "cohive/cuda/codec.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "codec/dynamic_map.hpp"
#include "cohive/codec/decoder.hpp"
#include "cohive/core/errors.hpp"
#include "failure.hpp"
#include "kernels.hpp"
#include "model_kernels.hpp"

namespace cohive::cuda {
namespace {

using kernels::kEntries;
constexpr std::size_t kBook = kEntries * sizeof(float);
static_assert(kernels::kScaleBlock == codec::kScaleBlock);

/// What a codec has on the GPU.
struct KernelInfo {
  Codec codec;
  bool encodes;  ///< as well as decodes
  std::size_t (*size)(std::size_t count);
};

std::size_t scales_of(std::size_t count) {
  return (count + kernels::kScaleBlock - 1) / kernels::kScaleBlock;
}

std::size_t size_of_indexed(std::size_t count) {
  return 8 + kBook + count;
}

// Codecs that are not here stay on the CPU.
constexpr KernelInfo kKernels[] = {
    {Codec::none, true, [](std::size_t count) { return count * sizeof(float); }},
    {Codec::float16, true, [](std::size_t count) { return count * sizeof(std::uint16_t); }},
    {Codec::quantile8, false, size_of_indexed},
    {Codec::uniform8, false, size_of_indexed},
    {Codec::blockwise8, true, [](std::size_t count) { return 16 + scales_of(count) * sizeof(float) + kBook + count; }},
};

const KernelInfo* find_kernel(Codec codec) {
  const auto* at = std::ranges::find(kKernels, codec, &KernelInfo::codec);
  return at == std::end(kKernels) ? nullptr : at;
}

Error invalid(std::string what) {
  return Error(cohive::Errc::invalid_argument, std::move(what));
}

Result<> check_sizes(std::size_t have, std::size_t want) {
  if (have == want) return ok();
  return invalid("memory for " + std::to_string(have) + " where " + std::to_string(want) + " belong");
}

Result<> check_buffer(bool supported, Codec codec, ByteView buffer, std::size_t count) {
  if (!supported) return invalid("codec " + std::string(name_of(codec)) + " stays on the CPU");
  if (reinterpret_cast<std::uintptr_t>(buffer.data()) % alignof(float) != 0) return invalid("a misaligned buffer");
  return check_sizes(buffer.size(), *encoded_size(codec, count));
}

const float* floats(const std::uint8_t* bytes) {
  return reinterpret_cast<const float*>(bytes);
}

const std::uint16_t* halves(const std::uint8_t* bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes);
}

/// Source: docs/wire/hivemind.md, sections 5.5 to 5.7.
kernels::Indexed parts_of(Codec codec, const std::uint8_t* buffer, std::size_t count) {
  if (codec != Codec::blockwise8) return {floats(buffer + 8), buffer + 8 + kBook, nullptr};
  const std::uint8_t* book = buffer + 16 + scales_of(count) * sizeof(float);
  return {floats(book), book + kBook, floats(buffer + 16)};
}

const kernels::BlockwiseTables& blockwise_tables() {
  static const kernels::BlockwiseTables tables = [] {
    kernels::BlockwiseTables made;
    std::copy_n(codec::dynamic_map().begin(), kEntries, made.book);
    std::copy_n(codec::dynamic_borders().tree().begin(), kEntries, made.tree);
    return made;
  }();
  return tables;
}

}  // namespace

bool can_encode(Codec codec) {
  const auto* kernel = find_kernel(codec);
  return kernel && kernel->encodes;
}

bool can_decode(Codec codec) {
  return find_kernel(codec) != nullptr;
}

std::optional<std::size_t> encoded_size(Codec codec, std::size_t count) {
  const auto* kernel = find_kernel(codec);
  return kernel ? std::optional(kernel->size(count)) : std::nullopt;
}

Result<> encode_async(Stream& stream, Codec codec, std::span<const float> values, std::span<std::uint8_t> out) {
  const std::size_t count = values.size();
  if (auto fits = check_buffer(can_encode(codec), codec, out, count); !fits) return fits;
  return on(stream, [&](CUstream_st* queue) -> int {
    if (codec == Codec::float16)
      return kernels::to_half(queue, values.data(), reinterpret_cast<std::uint16_t*>(out.data()), count);
    if (codec == Codec::blockwise8)
      return kernels::to_blockwise(queue, blockwise_tables(), values.data(), out.data(), count);
    if (count == 0) return cudaSuccess;
    return cudaMemcpyAsync(out.data(), values.data(), out.size(), cudaMemcpyDeviceToDevice, queue);
  });
}

Result<> check_encoded(Codec codec, std::size_t count, ByteView host) {
  if (!can_decode(codec)) return invalid("codec " + std::string(name_of(codec)) + " stays on the CPU");
  const auto decoder = codec::Decoder::open(codec, codec::DType::float32, count, host);
  if (!decoder) return decoder.error();
  if (host.size() != *encoded_size(codec, count))
    return Error(cohive::Errc::malformed, "a code book of less than " + std::to_string(kEntries) + " entries");
  return ok();
}

Result<> decode_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, std::span<float> out) {
  const std::size_t count = out.size();
  if (auto fits = check_buffer(can_decode(codec), codec, buffer, count); !fits) return fits;
  return on(stream, [&](CUstream_st* queue) -> int {
    if (count == 0) return cudaSuccess;
    if (codec == Codec::none)
      return cudaMemcpyAsync(out.data(), buffer.data(), buffer.size(), cudaMemcpyDeviceToDevice, queue);
    if (codec == Codec::float16) return kernels::from_half(queue, halves(buffer.data()), out.data(), count);
    return kernels::from_indexed(queue, parts_of(codec, buffer.data(), count), out.data(), count);
  });
}

Result<> accumulate_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, float weight,
                          std::span<float> accumulator) {
  const std::size_t count = accumulator.size();
  if (auto fits = check_buffer(can_decode(codec), codec, buffer, count); !fits) return fits;
  float* sum = accumulator.data();
  return on(stream, [&](CUstream_st* queue) -> int {
    if (codec == Codec::none) return kernels::add(queue, floats(buffer.data()), weight, sum, count);
    if (codec == Codec::float16) return kernels::add_half(queue, halves(buffer.data()), weight, sum, count);
    return kernels::add_indexed(queue, parts_of(codec, buffer.data(), count), weight, sum, count);
  });
}

Result<> find_non_finite_async(Stream& stream, std::span<const float> values, std::uint32_t* found) {
  return on(stream,
            [&](CUstream_st* queue) { return kernels::find_non_finite(queue, values.data(), found, values.size()); });
}

Result<> add_async(Stream& stream, std::span<const float> values, float weight, std::span<float> sum) {
  if (auto fits = check_sizes(values.size(), sum.size()); !fits) return fits;
  return on(stream,
            [&](CUstream_st* queue) { return kernels::add(queue, values.data(), weight, sum.data(), sum.size()); });
}

Result<> divide_async(Stream& stream, std::span<float> values, float divisor) {
  return on(stream, [&](CUstream_st* queue) { return kernels::divide(queue, values.data(), divisor, values.size()); });
}

Result<> subtract_from_async(Stream& stream, std::span<const float> average, std::span<float> values) {
  if (auto fits = check_sizes(average.size(), values.size()); !fits) return fits;
  return on(stream, [&](CUstream_st* queue) {
    return kernels::subtract_from(queue, average.data(), values.data(), values.size());
  });
}

Result<> move_towards_async(Stream& stream, std::span<const float> average, float alpha, std::span<float> values) {
  if (auto fits = check_sizes(average.size(), values.size()); !fits) return fits;
  return on(stream, [&](CUstream_st* queue) {
    return kernels::apply_average(queue, average.data(), alpha, {values.data(), values.data(), false}, values.size());
  });
}

Result<> scale_async(Stream& stream, std::span<float> values, float factor) {
  return on(stream, [&](CUstream_st* queue) { return kernels::scale(queue, values.data(), factor, values.size()); });
}

Result<> copy_async(Stream& stream, std::span<const float> from, std::span<float> to) {
  if (auto fits = check_sizes(from.size(), to.size()); !fits) return fits;
  if (from.empty()) return ok();
  return on(stream, [&](CUstream_st* queue) {
    return cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyDeviceToDevice, queue);
  });
}

Result<> clear_async(Stream& stream, std::span<float> values) {
  if (values.empty()) return ok();
  return on(stream,
            [&](CUstream_st* queue) { return cudaMemsetAsync(values.data(), 0, values.size_bytes(), queue); });
}

}  // namespace cohive::cuda
