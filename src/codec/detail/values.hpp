// What an encoder reads: float32 values, the difference of two arrays, or a tensor of another dtype, a block at a time.
#pragma once

#include <optional>
#include <span>

#include "cohive/codec/tensor.hpp"

namespace cohive::codec {

class Decoder;

class Values {
 public:
  /// The most that one block may have: fits in the first-level cache beside what is made of it.
  static constexpr std::size_t kBlock = 4096;

  /// The memory given stays the caller's; floating dtypes only.
  explicit Values(std::span<const float> values);
  static Values of(DType dtype, ByteView bytes);
  static Values difference(std::span<const float> average, std::span<const float> base);
  static Values difference(std::span<const float> average, const Decoder& base);

  std::size_t size() const noexcept { return size_; }
  DType dtype() const noexcept { return dtype_; }
  /// Where these are the difference to halves: what is subtracted from, and the halves from value `first` on.
  struct HalfDifference {
    const float* from;
    const std::uint8_t* halves;
  };
  std::optional<HalfDifference> half_difference(std::size_t first) const;

  /// Values [first, first + count) as float32, in `scratch` (kBlock floats) unless they lie somewhere already.
  const float* block(std::size_t first, std::size_t count, float* scratch) const;

 private:
  Values(DType dtype, const std::uint8_t* data, std::size_t size) : dtype_(dtype), data_(data), size_(size) {}

  DType dtype_;
  const std::uint8_t* data_;
  const float* minus_ = nullptr;
  const Decoder* minus_decoded_ = nullptr;
  std::size_t size_;
};

/// Runs use(pointer, first, count) over values [first, first + count) in blocks.
template <class Use>
void for_blocks(const Values& values, std::size_t first, std::size_t count, Use use) {
  alignas(64) float scratch[Values::kBlock];
  for (std::size_t end = first + count; first < end;) {
    const std::size_t here = end - first < Values::kBlock ? end - first : Values::kBlock;
    use(values.block(first, here, scratch), first, here);
    first += here;
  }
}

/// `count` values of a floating dtype at any address, as float32, and float32 values as a dtype (too large: infinity).
void widen(DType from, const std::uint8_t* in, float* out, std::size_t count);
void narrow(DType to, const float* in, std::uint8_t* out, std::size_t count);
/// The nearest value that `dtype` has.
float rounded_to(DType dtype, double value);

}  // namespace cohive::codec
