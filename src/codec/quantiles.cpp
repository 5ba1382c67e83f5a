#include "quantiles.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

namespace cohive::codec {
namespace {

constexpr std::size_t kSmallestChunk = 100'000;
constexpr unsigned kDigitBits = 8;  // 256 places to write to stay in the first-level cache
constexpr std::size_t kDigits = std::size_t{1} << kDigitBits;
constexpr std::size_t kPasses = 4;  // even: the last ends where it began
constexpr std::size_t kWorthRadix = 2048;

/// Unsigned integers in the order of the floats.
std::uint32_t key_of(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return bits ^ (static_cast<std::uint32_t>(-static_cast<std::int32_t>(bits >> 31)) | 0x80000000u);
}

float lerp(float low, float high, float part) {
  const float difference = high - low;
  return part >= 0.5f ? high - difference * (1 - part) : low + difference * part;
}

}  // namespace

void sort_floats(std::span<float> values, std::span<float> spare) {
  if (values.size() < kWorthRadix) return std::sort(values.begin(), values.end());
  std::array<std::array<std::uint32_t, kDigits>, kPasses> starts{};
  for (float value : values)
    for (std::size_t pass = 0; pass < kPasses; ++pass)
      ++starts[pass][key_of(value) >> pass * kDigitBits & (kDigits - 1)];
  std::span<float> from = values, to = spare;
  for (std::size_t pass = 0; pass < kPasses; ++pass) {
    auto& start = starts[pass];
    std::uint32_t total = 0;
    for (std::uint32_t& slot : start) total += std::exchange(slot, total);
    for (float value : from) to[start[key_of(value) >> pass * kDigitBits & (kDigits - 1)]++] = value;
    std::swap(from, to);
  }
}

Quantiles quantiles_of(std::span<float> values, std::span<float> spare) {
  Quantiles result;
  if (std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); })) {
    result.fill(std::numeric_limits<float>::quiet_NaN());
    return result;
  }
  sort_floats(values, spare);
  const std::size_t last = values.size() - 1;
  for (std::size_t i = 0; i < result.size(); ++i) {
    const float position = static_cast<float>(last) * (static_cast<float>(i) / 256.0f);
    const auto below = static_cast<std::size_t>(position);
    // At the end numpy interpolates between the last value and itself: NaN where that is infinite.
    result[i] = below >= last ? lerp(values[last], values[last], 0)
                              : lerp(values[below], values[below + 1], position - static_cast<float>(below));
  }
  return result;
}

std::size_t quantile_chunk(std::size_t count) {
  if (count <= kSmallestChunk) return kSmallestChunk;
  const std::size_t left = count % kSmallestChunk, chunks = count / kSmallestChunk;
  return left == 0 ? kSmallestChunk : kSmallestChunk + (left - 1) / chunks + 1;
}

}  // namespace cohive::codec
