// MEANSTD_16BIT: halves of (x - mean) / deviation for each row of the last axis; then all means, then all deviations.
// Source: docs/wire/hivemind.md, section 5.4.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "half.hpp"
#include "kernels.hpp"
#include "spread.hpp"
#include "table.hpp"

namespace cohive::codec {
namespace {

struct Scale {
  float mean, deviation;
};

Scale scale_of(const Spread& spread) {
  // Python divides by zero for rows of no values; these are the bits it gets.
  if (spread.count == 0) return {std::bit_cast<float>(0xffc00000u), std::bit_cast<float>(0xffc00000u)};
  const auto mean = static_cast<float>(spread.mean());
  const double norm = spread.norm(static_cast<double>(mean)), root = std::sqrt(static_cast<double>(spread.count));
  float deviation = static_cast<float>(norm) / static_cast<float>(root);   // as Python divides
  if (std::isinf(deviation)) deviation = static_cast<float>(norm / root);  // a float may hold it, and not the norm
  if (deviation < std::numeric_limits<float>::epsilon()) deviation = std::numeric_limits<float>::epsilon();
  return {mean, deviation};
}

class MeanStdDecoder final : public Decoder {
 public:
  MeanStdDecoder(DType dtype, std::size_t count, const std::uint8_t* halves, std::size_t rows)
      : Decoder(dtype, count), halves_(halves), means_(halves + count * 2), scales_(means_ + rows * 4) {
    if (rows > 0) row_ = count / rows;
  }

  void decode(std::size_t first, std::span<float> out) const override {
    for_runs(first, out.size(), [&](std::size_t at, std::size_t done, std::size_t here) {
      const Scale scale = scale_at(at);
      float* to = out.data() + done;
      if (dtype() == DType::float32)
        return kernels().scaled_from_half(halves_ + at * 2, scale.mean, scale.deviation, to, here);
      alignas(8) std::uint8_t bytes[Values::kBlock * 8];
      decode_as_torch(at, here, bytes);
      widen(dtype(), bytes, to, here);
    });
  }

  void accumulate(std::size_t first, float weight, std::span<float> accumulator) const override {
    for_runs(first, accumulator.size(), [&](std::size_t at, std::size_t done, std::size_t here) {
      const Scale scale = scale_at(at);
      float* to = accumulator.data() + done;
      if (dtype() == DType::float32)
        return kernels().add_scaled_half(halves_ + at * 2, scale.mean, scale.deviation, weight, to, here);
      alignas(64) float values[Values::kBlock];
      decode(at, {values, here});
      kernels().add_floats(reinterpret_cast<const std::uint8_t*>(values), weight, to, here);
    });
  }

  void decode_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const override {
    if (dtype() == DType::float32) return Decoder::decode_bytes(first, count, out);
    for_runs(first, count, [&](std::size_t at, std::size_t done, std::size_t here) {
      decode_as_torch(at, here, out + done * size_of(dtype()));
    });
  }

 private:
  /// use(first value, how many before it, how many): all in one row, at most one block.
  template <class Use>
  void for_runs(std::size_t first, std::size_t count, Use use) const {
    for (std::size_t done = 0; done < count;) {
      const std::size_t at = first + done, here = std::min({Values::kBlock, count - done, row_ - at % row_});
      use(at, done, here);
      done += here;
    }
  }

  Scale scale_at(std::size_t value) const {
    return {read_at<float>(means_, value / row_), read_at<float>(scales_, value / row_)};
  }

  /// half * deviation + mean, every step rounded to the dtype, as torch computes in place.
  void decode_as_torch(std::size_t first, std::size_t count, std::uint8_t* out) const {
    const Scale scale = scale_at(first);
    for (std::size_t i = 0; i < count; ++i) {
      const float value = float_from_half(read_at<std::uint16_t>(halves_, first + i));
      if (dtype() == DType::float64)
        write_at(out, i,
                 static_cast<double>(value) * static_cast<double>(scale.deviation) + static_cast<double>(scale.mean));
      else
        write_at(out, i, half_from_float(float_from_half(half_from_float(value * scale.deviation)) + scale.mean));
    }
  }

  const std::uint8_t* halves_;
  const std::uint8_t* means_;
  const std::uint8_t* scales_;
  std::size_t row_ = 1;  // values that share a scale
};

}  // namespace

Slice encode_meanstd16(const CodecSpec&, const Values& values, Rows shape) {
  const auto [rows, row] = shape;
  Slice out = Slice::uninitialised(values.size() * 2 + rows * 8);
  std::uint8_t* const halves = out.mutable_data();
  std::uint8_t* const means = halves + values.size() * 2;
  for (std::size_t i = 0; i < rows; ++i) {
    const Scale scale = scale_of(spread_of(values, i * row, row));
    write_at(means, i, scale.mean);
    write_at(means, rows + i, scale.deviation);
    for_blocks(values, i * row, row, [&](const float* block, std::size_t at, std::size_t here) {
      kernels().scaled_to_half(block, scale.mean, scale.deviation, halves + at * 2, here);
    });
  }
  return out;
}

/// How many rows there are follows from the size, where no shape says it.
Result<DecoderPtr> open_meanstd16(DType dtype, std::size_t count, ByteView buffer, const Shape* shape) {
  const std::size_t halves = count * 2;
  if (buffer.size() < halves || (buffer.size() - halves) % 8 != 0) return wrong_size(buffer.size(), halves + 8);
  const std::size_t rows = (buffer.size() - halves) / 8;
  if (shape) {
    const auto wanted = shape->empty() ? std::nullopt : element_count({shape->begin(), shape->end() - 1});
    if (wanted != rows)
      return malformed("tensor buffer of " + std::to_string(buffer.size()) + " bytes for " + std::to_string(count) +
                       " scaled halves of " + std::to_string(wanted.value_or(0)) + " rows");
  }
  if (count > 0) {  // the scales of rows of no values are 0/0
    if (rows == 0 || count % rows != 0)
      return malformed("scales of " + std::to_string(rows) + " rows for " + std::to_string(count) + " values");
    const std::uint8_t* means = buffer.data() + halves;
    if (auto checked = check_scales(means, rows, "mean"); !checked) return checked.error();
    if (auto checked = check_scales(means + rows * 4, rows, "deviation"); !checked) return checked.error();
  }
  return DecoderPtr(std::make_unique<MeanStdDecoder>(dtype, count, buffer.data(), count > 0 ? rows : 0));
}

}  // namespace cohive::codec
