// Quantiles as numpy estimates them (linear interpolation in float32), and hivemind's quantile of quantiles.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace cohive::codec {

/// The 257 points that cut data into 256 equal shares, the ends included.
using Quantiles = std::array<float, 257>;

/// Sorts ascending; no NaN may be among them. `spare` is as long as `values`.
void sort_floats(std::span<float> values, std::span<float> spare);

/// All NaN when one of the values is. Both arrays are overwritten; `values` is not empty.
Quantiles quantiles_of(std::span<float> values, std::span<float> spare);

/// How many values hivemind estimates quantiles from at a time.
std::size_t quantile_chunk(std::size_t count);

}  // namespace cohive::codec
