// Averages that a minority of senders cannot move far. Pure functions that run on any thread.
// Source: cohive/averaging/aggregation.hpp says what is computed.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "cohive/averaging/aggregation.hpp"
#include "cohive/averaging/tensor_parts.hpp"

namespace cohive::averaging {

/// What one sender says a part should be: finite values.
struct Vote {
  std::size_t sender = 0;
  double weight = 1;  ///< finite, not negative
  ReadValues read;
};

/// Writes into `out` what the votes make together; not for Mean, which is added up as parts come. False when they make
/// nothing: no vote with a weight, or values that cannot be read.
bool aggregate(const Aggregation& how, std::vector<Vote> votes, std::span<float> out);

/// The aggregation and its parameters, as text that is the same for all peers that have the same.
std::string description(const Aggregation& how);

/// How many of `votes` are left out at each end.
std::size_t trimmed_at_each_end(const TrimmedMean& how, std::size_t votes);

}  // namespace cohive::averaging
