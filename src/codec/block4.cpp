// block4, little-endian: ceil(n / 64) x bfloat16 scale, then ceil(n / 2) bytes: value i is the low (even i) or high
// half of byte i / 2, as scale * (half - 8) / 7.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>

#include "half.hpp"
#include "kernels.hpp"
#include "table.hpp"

namespace cohive::codec {
namespace {

constexpr std::size_t kScaled = 64;  // values that share a scale
constexpr float kLevels = 7;         // on each side of zero

std::size_t scales_of(std::size_t count) {
  return (count + kScaled - 1) / kScaled;
}

/// Rounded up, so that no value exceeds its scale; infinity only for what is not finite.
std::uint16_t scale_bits(float largest) {
  const auto bits = std::bit_cast<std::uint32_t>(largest);
  if (!std::isfinite(largest)) return 0x7fc0;
  return static_cast<std::uint16_t>(std::min<std::uint32_t>((bits + 0xffff) >> 16, 0x7f7f));
}

class Block4Decoder final : public Decoder {
 public:
  Block4Decoder(DType dtype, std::size_t count, const std::uint8_t* buffer)
      : Decoder(dtype, count), scales_(buffer), levels_(buffer + scales_of(count) * 2) {}

  void decode(std::size_t first, std::span<float> out) const override {
    for_scaled(first, out.size(), [&](std::size_t done, const float* values, std::size_t here) {
      std::copy_n(values, here, out.begin() + static_cast<std::ptrdiff_t>(done));
    });
  }
  void accumulate(std::size_t first, float weight, std::span<float> accumulator) const override {
    for_scaled(first, accumulator.size(), [&](std::size_t done, const float* values, std::size_t here) {
      kernels().add_floats(reinterpret_cast<const std::uint8_t*>(values), weight, accumulator.data() + done, here);
    });
  }
  using Decoder::finite;
  bool finite(std::size_t, std::size_t) const override { return true; }  // the scales have been checked

 private:
  /// use(how many values before these, the values, how many): all with one scale.
  template <class Use>
  void for_scaled(std::size_t first, std::size_t count, Use use) const {
    for (std::size_t done = 0; done < count;) {
      const std::size_t at = first + done, within = at % kScaled, here = std::min(count - done, kScaled - within);
      std::array<float, kScaled> values;
      decode_scaled(at - within, values);
      use(done, values.data() + within, here);
      done += here;
    }
  }

  /// All values with the scale of value `first`; values beyond the end of the tensor may be anything.
  void decode_scaled(std::size_t first, std::array<float, kScaled>& values) const {
    const float scale = float_from_bfloat(read_at<std::uint16_t>(scales_, first / kScaled));
    std::array<float, 16> table;
    for (int level = 0; level < 16; ++level)  // no encoder uses level 0; it must not exceed the scale either
      table[static_cast<std::size_t>(level)] = scale * (static_cast<float>(std::max(level - 8, -7)) / kLevels);
    const std::size_t pairs = (std::min(kScaled, size() - first) + 1) / 2;
    const std::uint8_t* from = levels_ + first / 2;
    for (std::size_t i = 0; i < pairs; ++i) {
      values[2 * i] = table[from[i] & 15];
      values[2 * i + 1] = table[from[i] >> 4];
    }
  }

  const std::uint8_t* scales_;
  const std::uint8_t* levels_;
};

}  // namespace

Slice encode_block4(const CodecSpec&, const Values& values, Rows) {
  static_assert(Values::kBlock % kScaled == 0);
  Slice out = Slice::uninitialised(scales_of(values.size()) * 2 + (values.size() + 1) / 2);
  std::uint8_t* const scales = out.mutable_data();
  std::uint8_t* const bytes = scales + scales_of(values.size()) * 2;
  for_blocks(values, 0, values.size(), [&](const float* block, std::size_t first, std::size_t count) {
    for (std::size_t at = 0; at < count; at += kScaled) {
      const std::size_t here = std::min(kScaled, count - at);
      std::uint16_t bits = scale_bits(kernels().largest(block + at, here));
      float inverse = kLevels / float_from_bfloat(bits);
      if (std::isinf(inverse)) inverse = 0, bits = 0;  // hardly more than nothing
      write_at(scales, (first + at) / kScaled, bits);
      std::array<std::uint8_t, kScaled> levels;
      levels.fill(128);
      kernels().quantize(block + at, 0, inverse, levels.data(), here);
      std::uint8_t* to = bytes + (first + at) / 2;
      for (std::size_t i = 0; i < (here + 1) / 2; ++i)
        to[i] = static_cast<std::uint8_t>(((levels[2 * i] - 120) & 15) | (levels[2 * i + 1] - 120) << 4);
    }
  });
  return out;
}

Result<DecoderPtr> open_block4(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  const std::size_t scales = scales_of(count), wanted = scales * 2 + (count + 1) / 2;
  if (buffer.size() != wanted) return wrong_size(buffer.size(), wanted);
  for (std::size_t i = 0; i < scales; ++i)
    if (!std::isfinite(float_from_bfloat(read_at<std::uint16_t>(buffer.data(), i))))
      return malformed("scale " + std::to_string(i) + " of a block4 buffer is not a finite number");
  return DecoderPtr(std::make_unique<Block4Decoder>(dtype, count, buffer.data()));
}

}  // namespace cohive::codec
