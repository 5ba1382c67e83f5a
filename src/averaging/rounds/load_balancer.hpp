// Fractions of the work by bandwidth: the linear program of hivemind, solved with the method SciPy uses, because its
// optimum is not unique and all members must find the same one. Source: docs/wire/hivemind.md, appendix C.
#pragma once

#include <cstdint>
#include <optional>
#include <stop_token>
#include <vector>

namespace cohive::averaging {

/// Scores per peer (sum arbitrary). Unset bandwidths count as the mean of the positive ones; at least one is positive.
/// \param min_size  scores that would give less than this many elements become zero
/// \param stop  gives up between two steps, which are fractions of a second of a thousand members: the result means
/// nothing
std::vector<double> balance_load(const std::vector<std::optional<double>>& bandwidths, std::uint64_t total,
                                 std::uint64_t min_size = 0, const std::stop_token& stop = {});

}  // namespace cohive::averaging
