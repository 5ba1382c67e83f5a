// Fractions of the work by bandwidth: the linear program of hivemind, solved with the method SciPy uses, because its
// optimum is not unique and all members must find the same one. Source: docs/wire/hivemind.md, appendix C.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace cohive::averaging {

/// Scores per peer (sum arbitrary). Unset bandwidths count as the mean of the positive ones; at least one is positive.
/// \param min_size  scores that would give less than this many elements become zero
std::vector<double> balance_load(const std::vector<std::optional<double>>& bandwidths, std::uint64_t total,
                                 std::uint64_t min_size = 0);

}  // namespace cohive::averaging
