#include "codec/detail/dynamic_map.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace cohive::codec {
namespace {

/// The i-th of `count` equally spaced points in [0.1, 1], as torch.linspace computes it: from whichever end is nearer,
/// rounding once.
float point(std::size_t i, std::size_t count) {
  const float step = (1.0f - 0.1f) / static_cast<float>(count - 1);
  return i < count / 2 ? std::fma(step, static_cast<float>(i), 0.1f)
                       : std::fma(-step, static_cast<float>(count - i - 1), 1.0f);
}

CodeBook make_map() {
  CodeBook book{};
  std::size_t at = 0;
  book[at++] = 0.0f;
  book[at++] = 1.0f;
  for (int exponent = 0; exponent < 7; ++exponent) {
    const std::size_t points = (std::size_t{1} << exponent) + 1;
    const auto scale = static_cast<float>(std::pow(10.0, exponent - 6));
    for (std::size_t i = 0; i + 1 < points; ++i) {
      const float middle = scale * ((point(i, points) + point(i + 1, points)) / 2.0f);
      book[at++] = middle;
      book[at++] = -middle;
    }
  }
  std::sort(book.begin(), book.end());
  book[0] = -1.0f;  // bitsandbytes widens the map so that every scaled value lies in it
  return book;
}

/// The largest float of [low, high] that is not nearer to `high` than to `low`, distances computed in float32.
float last_of_lower(float low, float high) {
  const auto key = [](float x) {
    const auto bits = std::bit_cast<std::int32_t>(x);
    return bits < 0 ? std::int64_t{-1} - (bits & 0x7fffffff) : std::int64_t{bits};
  };
  const auto value = [](std::int64_t k) {
    return std::bit_cast<float>(static_cast<std::uint32_t>(k < 0 ? 0x80000000u | static_cast<std::uint32_t>(-1 - k)
                                                                 : static_cast<std::uint32_t>(k)));
  };
  std::int64_t lower = key(low), upper = key(high);
  while (upper - lower > 1) {
    const std::int64_t middle = lower + (upper - lower) / 2;
    const float x = value(middle);
    (std::fabs(x - high) < std::fabs(x - low) ? upper : lower) = middle;
  }
  return value(lower);
}

Borders make_borders() {
  std::array<float, 255> borders;
  for (std::size_t i = 0; i < borders.size(); ++i) borders[i] = last_of_lower(dynamic_map()[i], dynamic_map()[i + 1]);
  return Borders(borders);
}

}  // namespace

const CodeBook& dynamic_map() {
  static const CodeBook book = make_map();
  return book;
}

const Borders& dynamic_borders() {
  static const Borders borders = make_borders();
  return borders;
}

}  // namespace cohive::codec
