// How members of a round see that they hold the same values.
#pragma once

#include <cstdint>
#include <vector>

namespace cohive::train {

/// Returns a number that values with the same bits have in common; never 0.
std::uint64_t checksum_of(const std::vector<std::vector<float>>& values);

}  // namespace cohive::train
