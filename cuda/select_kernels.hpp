// Order statistics: the values of given ranks, without sorting. Eight bits of them are found at a time, by counting:
// the result depends on no order of threads.
#pragma once

#include "codec_kernels.hpp"

namespace cohive::cuda::kernels {

constexpr std::size_t kPoints = 257;         // that cut values into 256 equal shares, the ends included
constexpr std::size_t kRanks = 2 * kPoints;  // the values below and above each point
constexpr std::size_t kSegmentsAtOnce = 16;  // more take turns: they need memory

/// What is found, of each segment.
struct Found {
  std::uint32_t keys[kRanks];  ///< of the values of these ranks
  std::uint32_t left[kRanks];  ///< how many values of the same key have a smaller rank
  std::uint32_t slots[kRanks];
  std::uint32_t has_nan;
};

/// Values in segments of `segment` (the last may be shorter), each by itself; at most kSegmentsAtOnce.
struct Selection {
  Input in;
  std::size_t count, segment;
  bool by_magnitude;  ///< the value of this one rank in descending order of magnitude; else the ranks of all points
  std::size_t rank;
};

/// A point's place among `count` sorted values, as numpy has it: whole, and the part behind it.
struct Place {
  std::size_t below;
  float part;
};

std::size_t selection_scratch(bool by_magnitude, std::size_t segments);
/// Writes at the begin of `scratch` one Found for each segment.
int select_ranks(CUstream_st* stream, const Selection& selection, std::uint8_t* scratch);

}  // namespace cohive::cuda::kernels
