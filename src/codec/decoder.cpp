#include "cohive/codec/decoder.hpp"

#include <cmath>
#include <cstring>
#include <limits>

#include "cohive/core/errors.hpp"
#include "dynamic_map.hpp"
#include "half.hpp"
#include "kernels.hpp"
#include "values.hpp"

namespace cohive::codec {
namespace {

constexpr std::size_t kRun = Values::kBlock;

Error malformed(std::string what) {
  return Error(Errc::malformed, std::move(what));
}

Error wrong_size(std::size_t have, std::size_t want) {
  return malformed("tensor buffer of " + std::to_string(have) + " bytes where " + std::to_string(want) + " belong");
}

float float_at(const std::uint8_t* bytes, std::size_t index) {
  float value;
  std::memcpy(&value, bytes + index * 4, 4);
  return value;
}

std::uint64_t integer_at(ByteView bytes, std::size_t offset) {
  std::uint64_t value;
  std::memcpy(&value, bytes.data() + offset, 8);
  return value;
}

Result<> check_scales(const std::uint8_t* scales, std::size_t count, std::string_view what) {
  for (std::size_t i = 0; i < count; ++i)
    if (!std::isfinite(float_at(scales, i)))
      return malformed(std::string(what) + " " + std::to_string(i) + " of a tensor is not a finite number");
  return ok();
}

}  // namespace

Result<Decoder> Decoder::open(Codec codec, DType dtype, std::size_t count, ByteView buffer) {
  const auto refused = [&] {
    return malformed(std::string(name_of(codec)) + " codec with a tensor of " + std::string(name_of(dtype)));
  };
  if (!is_floating(dtype)) return refused();
  Decoder decoder(codec, dtype, count);
  Result<> read = ok();
  switch (codec) {
    case Codec::none:
      read = decoder.read_plain(buffer);
      break;
    case Codec::float16:
    case Codec::meanstd16:
      if (dtype == DType::bfloat16) return refused();
      decoder.stored_ = DType::float16;
      read = codec == Codec::float16 ? decoder.read_plain(buffer) : decoder.read_scaled(buffer);
      break;
    case Codec::quantile8:
    case Codec::uniform8:
      read = decoder.read_indexed(buffer);
      break;
    case Codec::blockwise8:
      read = decoder.read_blockwise(buffer);
      break;
    default:
      return malformed("codec " + std::to_string(static_cast<int>(codec)));
  }
  if (!read) return read.error();
  return decoder;
}

Result<> Decoder::read_plain(ByteView buffer) {
  if (codec_ == Codec::none) {
    // bfloat16 travels as float32 by default, and as its own two bytes from peers told to be efficient.
    const bool widened = dtype_ == DType::bfloat16 && count_ > 0 && buffer.size() == count_ * 4;
    stored_ = widened ? DType::float32 : dtype_;
  }
  const std::size_t wanted = count_ * size_of(stored_);
  if (buffer.size() != wanted) return wrong_size(buffer.size(), wanted);
  payload_ = buffer.data();
  return ok();
}

/// Halves, then the means and the deviations of all rows; how many rows follows from the size.
Result<> Decoder::read_scaled(ByteView buffer) {
  const std::size_t halves = count_ * 2;
  if (buffer.size() < halves || (buffer.size() - halves) % 8 != 0) return wrong_size(buffer.size(), halves + 8);
  const std::size_t rows = (buffer.size() - halves) / 8;
  if (count_ == 0) return ok();  // rows of no values: their scales are 0/0
  if (rows == 0 || count_ % rows != 0)
    return malformed("scales of " + std::to_string(rows) + " rows for " + std::to_string(count_) + " values");
  row_ = count_ / rows;
  payload_ = buffer.data();
  means_ = payload_ + halves;
  scales_ = means_ + rows * 4;
  if (auto checked = check_scales(means_, rows, "mean"); !checked) return checked;
  return check_scales(scales_, rows, "deviation");
}

Result<> Decoder::read_code_book(ByteView book, ByteView indices) {
  if (indices.size() != count_)
    return malformed("tensor of " + std::to_string(count_) + " values with " + std::to_string(indices.size()) +
                     " indices");
  payload_ = indices.data();
  const std::size_t entries = book.size() / 4;
  for (std::size_t i = 0; i < entries; ++i)
    table_[i] = rounded_to(dtype_, static_cast<double>(float_at(book.data(), i)));
  if (entries == table_.size()) return ok();
  for (std::uint8_t index : indices)
    if (index >= entries)
      return malformed("index " + std::to_string(index) + " into a code book of " + std::to_string(entries));
  return ok();
}

Result<> Decoder::read_indexed(ByteView buffer) {
  if (buffer.size() < 8) return wrong_size(buffer.size(), 8 + sizeof table_ + count_);
  const std::uint64_t entries = integer_at(buffer, 0);
  if (entries > table_.size()) return malformed("code book of " + std::to_string(entries) + " entries");
  const std::size_t head = 8 + static_cast<std::size_t>(entries) * 4;
  if (buffer.size() < head) return wrong_size(buffer.size(), head + count_);
  return read_code_book(buffer.subspan(8, head - 8), buffer.subspan(head));
}

Result<> Decoder::read_blockwise(ByteView buffer) {
  constexpr std::size_t kHead = 16;
  const std::size_t blocks = (count_ + kScaleBlock - 1) / kScaleBlock;
  if (buffer.size() < kHead) return wrong_size(buffer.size(), kHead + blocks * 4 + sizeof table_ + count_);
  if (integer_at(buffer, 0) != blocks)
    return malformed(std::to_string(integer_at(buffer, 0)) + " scales where " + std::to_string(blocks) + " belong");
  const std::uint64_t entries = integer_at(buffer, 8);
  if (entries > table_.size()) return malformed("code book of " + std::to_string(entries) + " entries");
  const std::size_t scales_end = kHead + blocks * 4, head = scales_end + static_cast<std::size_t>(entries) * 4;
  if (buffer.size() < head) return wrong_size(buffer.size(), head + count_);
  row_ = kScaleBlock;
  scales_ = buffer.data() + kHead;
  if (auto checked = check_scales(scales_, blocks, "scale"); !checked) return checked;
  // Rounding to the dtype comes after scaling here: the table stays as it is until then.
  const DType dtype = std::exchange(dtype_, DType::float32);
  auto read = read_code_book(buffer.subspan(scales_end, head - scales_end), buffer.subspan(head));
  dtype_ = dtype;
  return read;
}

std::size_t Decoder::run_length(std::size_t first, std::size_t wanted) const {
  const std::size_t run = std::min(wanted, kRun);
  return scales_ ? std::min(run, row_ - first % row_) : run;
}

/// The code book times the scale of the block `first` is in, rounded as each value would be, times `weight`.
std::array<float, 256> Decoder::scaled_table(std::size_t first, float weight) const {
  const float scale = scales_ ? float_at(scales_, first / row_) : 1.0f;
  std::array<float, 256> table;
  for (std::size_t i = 0; i < table.size(); ++i) table[i] = table_[i] * scale;
  if (scales_ && dtype_ != DType::float32 && dtype_ != DType::float64)
    for (float& value : table) value = rounded_to(dtype_, static_cast<double>(value));
  for (float& value : table) value *= weight;
  return table;
}

void Decoder::decode_run(std::size_t first, std::span<float> out) const {
  switch (codec_) {
    case Codec::none:
    case Codec::float16:
      return widen(stored_, payload_ + first * size_of(stored_), out.data(), out.size());
    case Codec::meanstd16:
      if (dtype_ == DType::float32)
        return kernels().scaled_from_half(payload_ + first * 2, float_at(means_, first / row_),
                                          float_at(scales_, first / row_), out.data(), out.size());
      alignas(8) std::uint8_t bytes[kRun * 8];
      decode_scaled_bytes(first, out.size(), bytes);
      return widen(dtype_, bytes, out.data(), out.size());
    case Codec::quantile8:
    case Codec::uniform8:
      return kernels().look_up(payload_ + first, table_.data(), out.data(), out.size());
    case Codec::blockwise8:
      return kernels().look_up(payload_ + first, scaled_table(first, 1).data(), out.data(), out.size());
  }
}

/// half * deviation + mean, every step rounded to the dtype, as torch computes in place.
void Decoder::decode_scaled_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const {
  const float mean = float_at(means_, first / row_), deviation = float_at(scales_, first / row_);
  for (std::size_t i = 0; i < count; ++i) {
    std::uint16_t half;
    std::memcpy(&half, payload_ + (first + i) * 2, 2);
    const float value = float_from_half(half);
    if (dtype_ == DType::float64) {
      const double result = static_cast<double>(value) * static_cast<double>(deviation) + static_cast<double>(mean);
      std::memcpy(out + i * 8, &result, 8);
    } else {
      const std::uint16_t result = half_from_float(float_from_half(half_from_float(value * deviation)) + mean);
      std::memcpy(out + i * 2, &result, 2);
    }
  }
}

void Decoder::accumulate_run(std::size_t first, float weight, std::span<float> accumulator) const {
  float* out = accumulator.data();
  const std::size_t count = accumulator.size();
  if (codec_ != Codec::meanstd16 && stored_ == DType::float16)
    return kernels().add_half(payload_ + first * 2, weight, out, count);
  if (codec_ == Codec::none && stored_ == DType::float32 && dtype_ == DType::float32)
    return kernels().add_floats(payload_ + first * 4, weight, out, count);
  if (codec_ == Codec::meanstd16 && dtype_ == DType::float32)
    return kernels().add_scaled_half(payload_ + first * 2, float_at(means_, first / row_),
                                     float_at(scales_, first / row_), weight, out, count);
  if (codec_ == Codec::blockwise8)
    return kernels().add_looked_up(payload_ + first, scaled_table(first, weight).data(), out, count);
  alignas(64) float values[kRun];
  decode_run(first, {values, count});
  kernels().add_floats(reinterpret_cast<const std::uint8_t*>(values), weight, out, count);
}

void Decoder::decode(std::size_t first, std::span<float> out) const {
  for (std::size_t at = 0; at < out.size();) {
    const std::size_t run = run_length(first + at, out.size() - at);
    decode_run(first + at, out.subspan(at, run));
    at += run;
  }
}

void Decoder::accumulate(std::size_t first, float weight, std::span<float> accumulator) const {
  if (codec_ == Codec::uniform8 || codec_ == Codec::quantile8) {
    const auto table = scaled_table(first, weight);
    return kernels().add_looked_up(payload_ + first, table.data(), accumulator.data(), accumulator.size());
  }
  for (std::size_t at = 0; at < accumulator.size();) {
    const std::size_t run = run_length(first + at, accumulator.size() - at);
    accumulate_run(first + at, weight, accumulator.subspan(at, run));
    at += run;
  }
}

void Decoder::decode_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const {
  const std::size_t size = size_of(dtype_);
  if ((codec_ == Codec::none || codec_ == Codec::float16) && stored_ == dtype_) {
    if (count > 0) std::memcpy(out, payload_ + first * size, count * size);
    return;
  }
  alignas(64) float values[kRun];
  for (std::size_t at = 0; at < count;) {
    const std::size_t run = run_length(first + at, count - at);
    if (codec_ == Codec::meanstd16 && dtype_ != DType::float32) {
      decode_scaled_bytes(first + at, run, out + at * size);
    } else {
      decode_run(first + at, {values, run});
      narrow(dtype_, values, out + at * size, run);
    }
    at += run;
  }
}

bool Decoder::finite() const {
  const bool by_table = codec_ == Codec::uniform8 || codec_ == Codec::quantile8;
  if (by_table && kernels().all_finite(table_.data(), table_.size())) return true;
  return finite(0, count_);
}

bool Decoder::finite(std::size_t first, std::size_t count) const {
  if (codec_ != Codec::meanstd16 && stored_ == DType::float16)
    return kernels().all_halves_finite(payload_ + first * 2, count);
  alignas(64) float values[kRun];
  for (std::size_t at = 0; at < count;) {
    const std::size_t run = run_length(first + at, count - at);
    decode_run(first + at, {values, run});
    if (!kernels().all_finite(values, run)) return false;
    at += run;
  }
  return true;
}

}  // namespace cohive::codec
