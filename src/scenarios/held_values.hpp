// What a member of a group holds of a part after a round, worked out from what the part's owner made of it.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "cohive/codec/codec.hpp"

namespace cohive::averaging {

/// The values as they come out of their codec.
inline std::vector<float> through(codec::Codec codec, std::span<const float> values) {
  codec = codec::codec_for(codec, codec::DType::float32, {static_cast<std::uint32_t>(values.size())});
  std::vector<float> out(values.size());
  if (!codec::decode(codec, codec::DType::float32, codec::encode(codec, values).view(), out)) out.assign(1, NAN);
  return out;
}

inline std::vector<float> difference(std::span<const float> a, std::span<const float> b) {
  std::vector<float> out(a.begin(), a.end());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] -= b[i];
  return out;
}

/// A member that sent `own` and was answered with the difference of `average` to it.
inline std::vector<float> held_after(codec::Codec codec, std::span<const float> own, std::span<const float> average) {
  auto held = through(codec, difference(average, through(codec, own)));
  for (std::size_t i = 0; i < held.size(); ++i) held[i] += own[i];
  return held;
}

/// Of uniform8: the width of a bin, and how far a decoded value may be off, as aggregation.hpp has it.
struct UniformError {
  double step = 0, most = 0;
  explicit UniformError(std::span<const float> values) {
    if (values.size() < 2) return;
    double mean = 0, squares = 0, farthest = 0;
    for (float value : values) mean += static_cast<double>(value) / static_cast<double>(values.size());
    for (float value : values) {
      const double off = std::abs(static_cast<double>(value) - mean);
      squares += off * off;
      farthest = std::max(farthest, off);
    }
    const double deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
    step = 6 * deviation / 256;
    most = std::max(step, farthest - 3 * deviation + 1.5 * step);
  }
};

}  // namespace cohive::averaging
