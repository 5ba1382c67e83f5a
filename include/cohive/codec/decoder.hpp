/// \file
/// A checked buffer, any stretch of which can be decoded: for reducers, and for decoding on several threads.
#pragma once

#include <array>

#include "cohive/codec/codec.hpp"

namespace cohive::codec {

/// Reads one encoded tensor. Const calls may run on several threads at once. The buffer stays the caller's.
class Decoder {
 public:
  /// \param count elements of the tensor
  /// Errors: see decode().
  static Result<Decoder> open(Codec codec, DType dtype, std::size_t count, ByteView buffer);

  std::size_t size() const noexcept { return count_; }
  /// Bytes of one value in the tensor's dtype.
  std::size_t value_size() const { return size_of(dtype_); }

  /// The values as halves, where that is how they travelled; else null.
  const std::uint8_t* halves() const noexcept { return stored_ == DType::float16 && !scales_ ? payload_ : nullptr; }

  /// Values [first, first + out.size()) as float32.
  void decode(std::size_t first, std::span<float> out) const;
  /// Adds weight * value to each element.
  void accumulate(std::size_t first, float weight, std::span<float> accumulator) const;
  /// The same values in the tensor's dtype, row-major.
  void decode_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const;
  /// False when a value is NaN or infinite (in float32).
  bool finite() const;
  bool finite(std::size_t first, std::size_t count) const;

 private:
  Decoder(Codec codec, DType dtype, std::size_t count) : codec_(codec), dtype_(dtype), count_(count) {}
  Result<> read_plain(ByteView buffer);
  Result<> read_scaled(ByteView buffer);
  Result<> read_code_book(ByteView book, ByteView indices);
  Result<> read_indexed(ByteView buffer);
  Result<> read_blockwise(ByteView buffer);

  /// At most 4096 values; none of them in another row or scale block than the first.
  void decode_run(std::size_t first, std::span<float> out) const;
  void accumulate_run(std::size_t first, float weight, std::span<float> accumulator) const;
  void decode_scaled_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const;
  std::size_t run_length(std::size_t first, std::size_t wanted) const;
  float scale(const std::uint8_t* scales, std::size_t index) const;
  std::array<float, 256> scaled_table(std::size_t first, float weight) const;

  Codec codec_;
  DType dtype_;
  std::size_t count_;
  DType stored_ = DType::float32;          ///< of the payload, where it is numbers
  const std::uint8_t* payload_ = nullptr;  ///< numbers, or indices into the table
  const std::uint8_t* means_ = nullptr;
  const std::uint8_t* scales_ = nullptr;  ///< deviations, or the largest magnitudes
  std::size_t row_ = 1;                   ///< values that share a scale
  std::array<float, 256> table_{};
};

}  // namespace cohive::codec
