/// \file
/// The codecs and the arithmetic of the reducer on a GPU. All spans here but those called `host` are memory of the
/// stream's device; buffers begin at a multiple of 4 bytes, as those of a DeviceBuffer do. Everything is queued on the
/// stream and runs in order. Tensors are float32.
///
/// Beside the functions of cohive/codec/codec.hpp with these names (every operation is rounded by itself, none fused):
///   none, float16      the same bytes, and the same values
///   blockwise8         the same bytes, but for the scale of a block with a value that is not finite: a NaN here and
///                      there, its bits may differ, and decoders refuse both
///   uniform8,          decoding gives the same values; their encoders need statistics of the whole tensor and stay on
///   quantile8          the CPU
///   meanstd16          stays on the CPU
/// Where arithmetic makes a NaN, it is one on both sides, of bits that may differ.
///
/// Errors: cohive::Errc::invalid_argument for spans that do not fit each other, for misaligned memory and for a codec
/// that stays on the CPU; Errc::failed when the work cannot be queued.
/// Source: docs/wire/hivemind.md, section 5.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cohive/codec/codec.hpp"
#include "cohive/cuda/device.hpp"

namespace cohive::cuda {

using codec::Codec;

/// Whether the GPU encodes with this codec.
bool can_encode(Codec codec);
/// Whether the GPU decodes this codec.
bool can_decode(Codec codec);
/// Bytes of an encoded tensor of `count` values; nullopt for a codec that stays on the CPU.
std::optional<std::size_t> encoded_size(Codec codec, std::size_t count);

/// Encodes a one-dimensional tensor. `out` has encoded_size() bytes.
Result<> encode_async(Stream& stream, Codec codec, std::span<const float> values, std::span<std::uint8_t> out);

/// Whether a buffer of the network, still on the host, may be uploaded and decoded: kernels trust what they read.
/// Errors: as codec::decode, and Errc::malformed for a code book of less than 256 entries, which the CPU can decode.
Result<> check_encoded(Codec codec, std::size_t count, ByteView host);
/// Decodes a buffer that check_encoded() accepted, or encode_async() wrote.
Result<> decode_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, std::span<float> out);
/// accumulator += weight * decode(buffer)
Result<> accumulate_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, float weight,
                          std::span<float> accumulator);

/// Sets *found to 1 when a value is NaN or infinite, and leaves it alone otherwise.
Result<> find_non_finite_async(Stream& stream, std::span<const float> values, std::uint32_t* found);

/// The reducer's steps, element by element. The CPU's reducer may fuse multiplication and addition where its processor
/// can: its last bit may differ then.
/// sum += weight * values
Result<> add_async(Stream& stream, std::span<const float> values, float weight, std::span<float> sum);
/// values /= divisor
Result<> divide_async(Stream& stream, std::span<float> values, float divisor);
/// values = average - values: what a reducer answers.
Result<> subtract_from_async(Stream& stream, std::span<const float> average, std::span<float> values);
/// values *= factor
Result<> scale_async(Stream& stream, std::span<float> values, float factor);
/// to = from
Result<> copy_async(Stream& stream, std::span<const float> from, std::span<float> to);
/// values = 0
Result<> clear_async(Stream& stream, std::span<float> values);
/// values += alpha * (average - values)
Result<> move_towards_async(Stream& stream, std::span<const float> average, float alpha, std::span<float> values);

}  // namespace cohive::cuda
