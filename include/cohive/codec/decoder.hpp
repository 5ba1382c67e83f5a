/// \file
/// A checked buffer, any stretch of which can be decoded: for reducers, and for decoding on several threads.
#pragma once

#include <memory>

#include "cohive/codec/codec.hpp"

namespace cohive::codec {

class Decoder;
/// A decoder that is owned.
using DecoderPtr = std::unique_ptr<const Decoder>;

/// Reads one encoded tensor. Calls may run on several threads at once. The buffer stays the caller's.
class Decoder {
 public:
  /// \param count elements of the tensor
  /// \param shape of the tensor where it is known, which some buffers must fit; null: any with that many elements
  /// Errors: see decode().
  static Result<DecoderPtr> open(Codec codec, DType dtype, std::size_t count, ByteView buffer,
                                 const Shape* shape = nullptr);
  virtual ~Decoder() = default;

  /// Returns the number of values.
  std::size_t size() const noexcept { return count_; }
  /// Returns the type of the tensor. Of meanstd16, uniform8, quantile8 and blockwise8 decode() gives values as they are
  /// in it, rounded.
  DType dtype() const noexcept { return dtype_; }

  /// Returns the values as halves, where that is how they travelled; else null.
  virtual const std::uint8_t* halves() const noexcept { return nullptr; }

  /// Writes the values [first, first + out.size()) as float32.
  virtual void decode(std::size_t first, std::span<float> out) const = 0;
  /// Adds weight * value to each element.
  virtual void accumulate(std::size_t first, float weight, std::span<float> accumulator) const = 0;
  /// Writes the same values in the tensor's dtype, row-major.
  virtual void decode_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const;
  /// Returns false when a value is NaN or infinite (in float32).
  virtual bool finite(std::size_t first, std::size_t count) const;
  /// The same for all values.
  virtual bool finite() const { return finite(0, count_); }

 protected:
  /// \param count values of the tensor.
  Decoder(DType dtype, std::size_t count) : dtype_(dtype), count_(count) {}

 private:
  DType dtype_;
  std::size_t count_;
};

}  // namespace cohive::codec
