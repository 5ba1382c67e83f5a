#include "cohive/cuda/codec.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>

#include "codec/detail/dynamic_map.hpp"
#include "codec_kernels.hpp"
#include "cohive/codec/decoder.hpp"
#include "cohive/core/errors.hpp"
#include "failure.hpp"
#include "model_kernels.hpp"
#include "stored_as.hpp"

namespace cohive::cuda {
namespace {

using codec::CodecSpec;
using codec::DType;
using kernels::kEntries;
using kernels::Stored;
constexpr std::size_t kBook = kEntries * sizeof(float);
constexpr std::size_t kMost = std::size_t{1} << 32;  // values that are counted on the device
static_assert(kernels::kScaleBlock == codec::kScaleBlock);

std::size_t blocks_of(std::size_t count, std::size_t size) {
  return (count + size - 1) / size;
}

Error invalid(std::string what) {
  return Error(cohive::Errc::invalid_argument, std::move(what));
}

Result<> check_sizes(std::size_t have, std::size_t want) {
  if (have == want) return ok();
  return invalid("memory for " + std::to_string(have) + " where " + std::to_string(want) + " belong");
}

Result<> check_alignment(const void* memory, std::size_t bytes, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(memory) % bytes == 0) return ok();
  return invalid(std::string("misaligned ") + what);
}

/// Whether the device has kernels for this combination, which both directions use.
Result<Stored> check_codec(Codec codec, DType dtype) {
  const auto stored = stored_as(dtype);
  if (stored && codec != Codec::sparse2 && codec::codec_for(codec, dtype, {1}) == codec) return *stored;
  return invalid("tensors of " + std::string(codec::name_of(dtype)) + " with codec " + std::string(name_of(codec)) +
                 " stay on the CPU");
}

bool counts_values(Codec codec) {
  return codec == Codec::uniform8 || codec == Codec::quantile8 || codec == Codec::top_k;
}

/// Whether a buffer may have that size. Of top_k it says itself how many values it has; of bfloat16, too, travels as it
/// is from some peers.
bool may_be_size(Codec codec, DType dtype, std::size_t bytes, std::size_t count) {
  if (codec == Codec::top_k) {
    const std::size_t heads = blocks_of(count, kernels::kReach) * 4;
    return bytes >= heads && (bytes - heads) % 4 == 0 && (bytes - heads) / 4 <= count;
  }
  if (codec == Codec::none && dtype == DType::bfloat16 && bytes == count * 2) return true;
  return bytes == encoded_size(codec, count, dtype);
}

const float* floats(const std::uint8_t* bytes) {
  return reinterpret_cast<const float*>(bytes);
}

const std::uint16_t* halves(const std::uint8_t* bytes) {
  return reinterpret_cast<const std::uint16_t*>(bytes);
}

/// Source: docs/wire/hivemind.md, sections 5.5 to 5.7.
kernels::Indexed parts_of(Codec codec, Stored rounded, const std::uint8_t* buffer, std::size_t count) {
  if (codec != Codec::blockwise8) return {floats(buffer + 8), buffer + 8 + kBook, nullptr, rounded};
  const std::uint8_t* book = buffer + 16 + blocks_of(count, codec::kScaleBlock) * sizeof(float);
  return {floats(book), book + kBook, floats(buffer + 16), rounded};
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

/// Decodes, or adds what is decoded.
Result<> read_async(Stream& stream, Codec codec, ByteView buffer, DType dtype, const kernels::Output& to,
                    std::size_t count) {
  const auto stored = check_codec(codec, dtype);
  if (!stored) return stored.error();
  if (auto aligned = check_alignment(buffer.data(), 4, "buffer"); !aligned) return aligned;
  if (!may_be_size(codec, dtype, buffer.size(), count))
    return invalid("a buffer of " + std::to_string(buffer.size()) + " bytes for " + std::to_string(count) + " values");
  return on(stream, [&](CUstream_st* queue) -> int {
    switch (codec) {
      case Codec::none:
        return kernels::from_stored(queue, buffer.data(), buffer.size() == count * 4 ? Stored::floats : *stored, to,
                                    count);
      case Codec::float16:
        return kernels::from_stored(queue, buffer.data(), Stored::halves, to, count);
      case Codec::meanstd16:
        return kernels::from_scaled_half(queue, halves(buffer.data()), *stored, to, count);
      case Codec::block4:
        return kernels::from_block4(queue, buffer.data(), to, count);
      case Codec::top_k: {
        const std::size_t heads = blocks_of(count, kernels::kReach) * 4;
        return kernels::from_top_k(queue, buffer.data(), (buffer.size() - heads) / 4, to, count);
      }
      default:
        return kernels::from_indexed(queue, parts_of(codec, *stored, buffer.data(), count), to, count);
    }
  });
}

/// Errors: memory that does not fit the values.
Result<> check_memory(const CodecSpec& spec, const DeviceValues& values, std::span<std::uint8_t> out,
                      const EncodeMemory& memory) {
  const std::size_t count = values.size();
  if (count >= kMost && counts_values(spec.codec))
    return invalid("too many values for codec " + std::string(name_of(spec.codec)));
  if (auto fits = check_sizes(out.size(), *encoded_size(spec, count, values.dtype())); !fits) return fits;
  if (auto aligned = check_alignment(out.data(), 4, "buffer"); !aligned) return aligned;
  if (auto aligned = check_alignment(values.data(), codec::size_of(values.dtype()), "values"); !aligned) return aligned;
  if (memory.scratch.size() < scratch_size(spec.codec, count)) return invalid("too little scratch memory");
  if (auto aligned = check_alignment(memory.scratch.data(), 16, "scratch memory"); !aligned) return aligned;
  const bool feedback = !memory.owed.empty() || !memory.left.empty();
  if (feedback && !codec::info(spec.codec).error_feedback)
    return invalid("codec " + std::string(name_of(spec.codec)) + " feeds no errors back");
  if (!memory.owed.empty())
    if (auto fits = check_sizes(memory.owed.size(), count); !fits) return fits;
  return memory.left.empty() ? ok() : check_sizes(memory.left.size(), count);
}

int start_encoder(CUstream_st* queue, const CodecSpec& spec, const kernels::Input& in, std::size_t count,
                  std::uint8_t* out, const EncodeMemory& memory) {
  std::uint8_t* const scratch = memory.scratch.data();
  float* const left = memory.left.empty() ? nullptr : memory.left.data();
  switch (spec.codec) {
    case Codec::none:
      if (count == 0) return cudaSuccess;
      if (in.stored != Stored::halves) return kernels::to_floats(queue, in, reinterpret_cast<float*>(out), count);
      if (in.found)
        if (const int status = kernels::find_non_finite(queue, in, count)) return status;
      note_start("copy");
      return cudaMemcpyAsync(out, in.values, count * 2, cudaMemcpyDeviceToDevice, queue);
    case Codec::float16:
      return kernels::to_half(queue, in, reinterpret_cast<std::uint16_t*>(out), count);
    case Codec::meanstd16:
      return kernels::to_scaled_half(queue, in, scratch, out, count);
    case Codec::uniform8:
      return kernels::to_uniform(queue, in, scratch, out, count);
    case Codec::quantile8:
      return kernels::to_quantile(queue, in, scratch, out, count);
    case Codec::blockwise8:
      return kernels::to_blockwise(queue, blockwise_tables(), in, out, count);
    case Codec::block4:
      return kernels::to_block4(queue, in, left, out, count);
    case Codec::top_k:
      return count == 0 ? cudaSuccess : kernels::to_top_k(queue, in, left, spec.sent_of(count), scratch, out, count);
    case Codec::sparse2:
      break;  // see check_codec
  }
  return cudaErrorInvalidValue;
}

}  // namespace

bool can_encode(Codec codec, DType dtype) {
  return check_codec(codec, dtype).has_value();
}

bool can_decode(Codec codec, DType dtype) {
  return check_codec(codec, dtype).has_value();
}

std::optional<std::size_t> encoded_size(CodecSpec spec, std::size_t count, DType dtype) {
  if (!can_encode(spec.codec, dtype)) return std::nullopt;
  switch (spec.codec) {
    case Codec::none:
      return count * (dtype == DType::float16 ? 2 : 4);
    case Codec::float16:
      return count * 2;
    case Codec::meanstd16:
      return count * 2 + 8;
    case Codec::blockwise8:
      return 16 + blocks_of(count, codec::kScaleBlock) * 4 + kBook + count;
    case Codec::block4:
      return blocks_of(count, kernels::kScaled4) * 2 + (count + 1) / 2;
    case Codec::top_k:
      return blocks_of(count, kernels::kReach) * 4 + spec.sent_of(count) * 4;
    default:
      return 8 + kBook + count;
  }
}

std::size_t scratch_size(Codec codec, std::size_t count) {
  if (codec == Codec::meanstd16) return kernels::spread_scratch(count);
  if (codec == Codec::uniform8) return kernels::uniform_scratch(count);
  if (codec == Codec::quantile8) return kernels::quantile_scratch(count);
  return codec == Codec::top_k ? kernels::top_k_scratch(count) : 0;
}

Result<> encode_async(Stream& stream, CodecSpec spec, const DeviceValues& values, std::span<std::uint8_t> out,
                      const EncodeMemory& memory) {
  const auto stored = check_codec(spec.codec, values.dtype());
  if (!stored) return stored.error();
  if (auto fits = check_memory(spec, values, out, memory); !fits) return fits;
  const kernels::Input in{values.data(), *stored, memory.owed.empty() ? nullptr : memory.owed.data(), memory.found};
  return on(stream,
            [&](CUstream_st* queue) { return start_encoder(queue, spec, in, values.size(), out.data(), memory); });
}

Result<> check_encoded(Codec codec, std::size_t count, ByteView host, DType dtype) {
  if (auto known = check_codec(codec, dtype); !known) return known.error();
  const auto decoder = codec::Decoder::open(codec, dtype, count, host);
  if (!decoder) return decoder.error();
  if (may_be_size(codec, dtype, host.size(), count)) return ok();
  return Error(cohive::Errc::malformed, codec == Codec::meanstd16
                                            ? "scales of several rows"
                                            : "a code book of less than " + std::to_string(kEntries) + " entries");
}

Result<> decode_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, std::span<float> out,
                      DType dtype) {
  return read_async(stream, codec, buffer, dtype, {out.data()}, out.size());
}

Result<> accumulate_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, float weight,
                          std::span<float> accumulator, DType dtype) {
  return read_async(stream, codec, buffer, dtype, {accumulator.data(), true, weight}, accumulator.size());
}

Result<> find_non_finite_async(Stream& stream, const DeviceValues& values, std::uint32_t* found) {
  const auto stored = stored_as(values.dtype());
  if (!stored) return invalid("values that kernels do not read");
  const kernels::Input in{values.data(), *stored, nullptr, found};
  return on(stream, [&](CUstream_st* queue) { return kernels::find_non_finite(queue, in, values.size()); });
}

Result<> add_async(Stream& stream, std::span<const float> values, float weight, std::span<float> sum) {
  if (auto fits = check_sizes(values.size(), sum.size()); !fits) return fits;
  const kernels::Output to{sum.data(), true, weight};
  return on(stream, [&](CUstream_st* queue) {
    return kernels::from_stored(queue, values.data(), Stored::floats, to, sum.size());
  });
}

Result<> scale_async(Stream& stream, std::span<float> values, float factor) {
  return on(stream, [&](CUstream_st* queue) { return kernels::scale(queue, values.data(), factor, values.size()); });
}

Result<> copy_async(Stream& stream, std::span<const float> from, std::span<float> to) {
  if (auto fits = check_sizes(from.size(), to.size()); !fits) return fits;
  if (from.empty()) return ok();
  return on(stream, [&](CUstream_st* queue) {
    note_start("copy");
    return cudaMemcpyAsync(to.data(), from.data(), from.size_bytes(), cudaMemcpyDeviceToDevice, queue);
  });
}

Result<> clear_async(Stream& stream, std::span<float> values) {
  if (values.empty()) return ok();
  return on(stream, [&](CUstream_st* queue) {
    note_start("clear");
    return cudaMemsetAsync(values.data(), 0, values.size_bytes(), queue);
  });
}

}  // namespace cohive::cuda
