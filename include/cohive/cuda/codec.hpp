/// \file
/// The codecs on a GPU, and the arithmetic of a member whose tensors are there. All spans here but those called `host`
/// are memory of the stream's device; buffers begin at a multiple of 4 bytes, as those of a DeviceBuffer do. Everything
/// is queued on the stream and runs in order. Tensors are float32, float16 or bfloat16, and are decoded to float32.
///
/// Bytes and values are those of the functions of cohive/codec/codec.hpp with these names, bit for bit (every operation
/// is rounded by itself, none fused, and sums are taken in the host's order), but for tensors with a value that is not
/// finite:
///   blockwise8         the scale of a block with such a value is a NaN here and there, of bits that may differ
///   meanstd16          mean, deviation and values are NaNs, of bits that may differ
///   uniform8,          entries of the code book that are NaNs have bits that may differ
///   quantile8
/// Decoders refuse these scales, and whoever applies a tensor refuses the values. Where arithmetic makes a NaN, it is
/// one on both sides, of bits that may differ.
///
/// Errors: cohive::Errc::invalid_argument for spans that do not fit each other, for misaligned memory and for a
/// combination of codec and dtype that stays on the CPU; Errc::failed when the work cannot be queued.
/// Source: docs/wire/hivemind.md, section 5.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "cohive/codec/codec.hpp"
#include "cohive/cuda/device.hpp"

namespace cohive::cuda {

using codec::Codec;

/// Whether the GPU encodes tensors of this dtype with this codec: of the three dtypes above all that codec_for() leaves
/// as they are, but for sparse2, which stays on the CPU.
bool can_encode(Codec codec, codec::DType dtype = codec::DType::float32);
/// Whether the GPU decodes this codec.
bool can_decode(Codec codec, codec::DType dtype = codec::DType::float32);
/// Bytes of an encoded tensor of `count` values; nullopt for a combination that stays on the CPU.
std::optional<std::size_t> encoded_size(codec::CodecSpec codec, std::size_t count,
                                        codec::DType dtype = codec::DType::float32);
/// Bytes of device memory that encoding takes beside its result. 0 for codecs that look at no more than a few thousand
/// values at once.
std::size_t scratch_size(Codec codec, std::size_t count);

/// What is encoded. Implicit: float32 values are the usual ones.
class DeviceValues {
 public:
  /// Takes float32 values.
  DeviceValues(std::span<const float> values)
      : dtype_(codec::DType::float32), data_(values.data()), size_(values.size()) {}
  /// Takes the same.
  DeviceValues(std::span<float> values) : DeviceValues(std::span<const float>(values)) {}
  /// Takes `count` values of a dtype, aligned as one of them.
  DeviceValues(codec::DType dtype, const void* data, std::size_t count) : dtype_(dtype), data_(data), size_(count) {}

  /// Returns the type of the values.
  codec::DType dtype() const noexcept { return dtype_; }
  /// Returns their address on the device.
  const void* data() const noexcept { return data_; }
  /// Returns the number of values.
  std::size_t size() const noexcept { return size_; }

 private:
  codec::DType dtype_;
  const void* data_;
  std::size_t size_;
};

/// Memory of the device that an encoder uses beside its values and its result.
struct EncodeMemory {
  std::span<std::uint8_t> scratch = {};  ///< at least scratch_size() bytes, at a multiple of 16
  /// Error feedback, of codecs that have it: what is owed of each value, added before it is encoded. Empty: nothing.
  std::span<const float> owed = {};
  /// What the codec loses of these sums, and owes from now on; may be the memory of `owed`. Empty: nobody asks for it,
  /// and what is owed stays as it is, until the buffer is known to be delivered.
  std::span<float> left = {};
  /// Set to 1 when a value, or its sum with what is owed, is NaN or infinite, and left alone otherwise: in the same
  /// pass. Null: nobody asks.
  std::uint32_t* found = nullptr;
};

/// Encodes a one-dimensional tensor, as encode_tensor() does. `out` has encoded_size() bytes. uniform8, quantile8 and
/// top_k take less than 2^32 values.
Result<> encode_async(Stream& stream, codec::CodecSpec codec, const DeviceValues& values, std::span<std::uint8_t> out,
                      const EncodeMemory& memory = {});

/// Whether a buffer of the network, still on the host, may be uploaded and decoded: kernels trust what they read.
/// Errors: as codec::decode; and Errc::malformed for what only the CPU decodes, a code book of less than 256 entries
/// and scaled halves of several rows.
Result<> check_encoded(Codec codec, std::size_t count, ByteView host, codec::DType dtype = codec::DType::float32);
/// Decodes a buffer that check_encoded() accepted, or encode_async() wrote, for a tensor of `dtype`.
Result<> decode_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, std::span<float> out,
                      codec::DType dtype = codec::DType::float32);
/// accumulator += weight * decode(buffer), in one pass. With the sums of values and what is owed of them as accumulator
/// and a weight of -1 it gives what is owed after the buffer was delivered.
Result<> accumulate_async(Stream& stream, Codec codec, std::span<const std::uint8_t> buffer, float weight,
                          std::span<float> accumulator, codec::DType dtype = codec::DType::float32);

/// Sets *found to 1 when a value is NaN or infinite, and leaves it alone otherwise.
Result<> find_non_finite_async(Stream& stream, const DeviceValues& values, std::uint32_t* found);

/// Element by element. The CPU may fuse multiplication and addition where its processor can: its last bit may differ
/// then.
/// sum += weight * values
Result<> add_async(Stream& stream, std::span<const float> values, float weight, std::span<float> sum);
/// values *= factor
Result<> scale_async(Stream& stream, std::span<float> values, float factor);
/// to = from
Result<> copy_async(Stream& stream, std::span<const float> from, std::span<float> to);
/// values = 0
Result<> clear_async(Stream& stream, std::span<float> values);

}  // namespace cohive::cuda
