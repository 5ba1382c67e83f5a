// Sums of squares of fixed blocks, from which norms are put together in a fixed order.
#pragma once

#include <span>

#include "cohive/optim/view.hpp"

namespace cohive::optim {

/// Number of blocks that `size` values have.
std::size_t norm_blocks(std::size_t size);
/// The sum of squares of every block of `values`.
void block_sums(ConstView values, std::span<double> sums);
double total(std::span<const double> sums);

}  // namespace cohive::optim
