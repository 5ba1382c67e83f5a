// Each of four levels finds eight more bits of every rank's key: values whose bits so far are those of a rank are
// counted by their next eight, and the rank walks along the counts. Ranks with the same bits so far share a slot of
// counters.
#include "select_kernels.hpp"

#include "select.cuh"

namespace cohive::cuda::kernels {
namespace {

constexpr unsigned kLevels = 4;
constexpr std::size_t kDigits = 256;

/// Unsigned integers in the order that is asked for.
__device__ std::uint32_t key_of(bool by_magnitude, float value) {
  const std::uint32_t bits = __float_as_uint(value);
  if (by_magnitude) return ~(bits & kMagnitude);
  return bits ^ (bits >> 31 ? 0xffffffff : 0x80000000);
}
__device__ std::uint32_t digit_of(std::uint32_t key, unsigned level) {
  return key >> (24 - 8 * level) & 0xff;
}

/// The memory of a selection. Of each segment there are: what is found; the counters of each slot; for each level but
/// the last and each slot and digit the slot of the next level, plus 1. The first level has one slot.
struct Tables {
  Found* found;
  std::uint32_t* counters;
  std::uint32_t* next;
  std::size_t ranks;

  __device__ std::uint32_t* counts(std::size_t segment, std::uint32_t slot) const {
    return counters + (segment * ranks + slot) * kDigits;
  }
  __device__ std::uint32_t* next_slots(std::size_t segment, unsigned level, std::uint32_t slot) const {
    const std::size_t row = level == 0 ? 0 : 1 + (level - 1) * ranks + slot;
    return next + (segment * (1 + 2 * ranks) + row) * kDigits;
  }
};

/// Each block of threads takes a tile of a segment.
__global__ void count_digits(Selection selection, Tables tables, unsigned level, std::size_t blocks_of_segment) {
  __shared__ std::uint32_t counts[kDigits];
  const std::size_t segment = blockIdx.x / blocks_of_segment, begin = segment * selection.segment;
  const std::size_t size = selection.count - begin < selection.segment ? selection.count - begin : selection.segment;
  const std::size_t first = blockIdx.x % blocks_of_segment * kTile;
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (std::size_t at = first + threadIdx.x; at < first + kTile && at < size; at += kThreads) {
    const float value = value_at(selection.in, begin + at);
    const std::uint32_t key = key_of(selection.by_magnitude, value);
    if (level == 0) {
      look_at(selection.in, value);
      atomicAdd(&counts[digit_of(key, 0)], 1u);
      if (value != value) atomicMax(&tables.found[segment].has_nan, 1u);
      continue;
    }
    std::uint32_t slot = 1;
    for (unsigned before = 0; before < level && slot != 0; ++before)
      slot = tables.next_slots(segment, before, slot - 1)[digit_of(key, before)];
    if (slot != 0) atomicAdd(tables.counts(segment, slot - 1) + digit_of(key, level), 1u);
  }
  if (level != 0) return;
  __syncthreads();
  if (counts[threadIdx.x] != 0) atomicAdd(tables.counts(segment, 0) + threadIdx.x, counts[threadIdx.x]);
}

/// One thread for each rank of each segment.
struct PickDigit {
  Selection selection;
  Tables tables;
  unsigned level;

  __device__ std::uint32_t rank_of(std::size_t segment, std::size_t which) const {
    if (selection.by_magnitude) return static_cast<std::uint32_t>(selection.rank);
    const std::size_t begin = segment * selection.segment, rest = selection.count - begin;
    const std::size_t last = (rest < selection.segment ? rest : selection.segment) - 1;
    const std::size_t rank = place_of(which / 2, last).below + which % 2;
    return static_cast<std::uint32_t>(rank < last ? rank : last);
  }

  __device__ void operator()(std::size_t i) const {
    const std::size_t segment = i / tables.ranks, which = i % tables.ranks;
    Found& found = tables.found[segment];
    std::uint32_t key = 0, left = 0, slot = 0;
    if (level == 0) {
      left = rank_of(segment, which);
    } else {
      key = found.keys[which];
      left = found.left[which];
      slot = tables.next_slots(segment, level - 1, found.slots[which])[digit_of(key, level - 1)] - 1;
    }
    const std::uint32_t* const counts = tables.counts(segment, slot);
    std::uint32_t digit = 0;
    for (; digit + 1 < kDigits && left >= counts[digit]; ++digit) left -= counts[digit];
    key |= digit << (24 - 8 * level);
    found.keys[which] = key;
    found.left[which] = left;
    found.slots[which] = slot;
    if (level + 1 < kLevels)
      atomicMax(tables.next_slots(segment, level, slot) + digit, static_cast<std::uint32_t>(which) + 1);
  }
};

std::size_t found_bytes(std::size_t segments) {
  return (segments * sizeof(Found) + 15) / 16 * 16;
}
std::size_t counter_bytes(std::size_t segments, std::size_t ranks) {
  return segments * ranks * kDigits * sizeof(std::uint32_t);
}
std::size_t next_bytes(std::size_t segments, std::size_t ranks) {
  return segments * (1 + 2 * ranks) * kDigits * sizeof(std::uint32_t);
}

}  // namespace

std::size_t selection_scratch(bool by_magnitude, std::size_t segments) {
  const std::size_t ranks = by_magnitude ? 1 : kRanks;
  return found_bytes(segments) + counter_bytes(segments, ranks) + next_bytes(segments, ranks);
}

int select_ranks(CUstream_st* stream, const Selection& selection, std::uint8_t* scratch) {
  const std::size_t segments = (selection.count + selection.segment - 1) / selection.segment;
  const std::size_t ranks = selection.by_magnitude ? 1 : kRanks;
  const std::size_t longest = selection.count < selection.segment ? selection.count : selection.segment;
  const std::size_t blocks_of_segment = tiles_of(longest);
  std::uint8_t* const counters = scratch + found_bytes(segments);
  std::uint8_t* const next = counters + counter_bytes(segments, ranks);
  const Tables tables{reinterpret_cast<Found*>(scratch), reinterpret_cast<std::uint32_t*>(counters),
                      reinterpret_cast<std::uint32_t*>(next), ranks};
  if (const int status = cudaMemsetAsync(scratch, 0, selection_scratch(selection.by_magnitude, segments), stream))
    return status;
  for (unsigned level = 0; level < kLevels; ++level) {
    if (level > 0)
      if (const int status = cudaMemsetAsync(counters, 0, counter_bytes(segments, ranks), stream)) return status;
    if (const int status = launch("count_digits", count_digits, static_cast<unsigned>(segments * blocks_of_segment),
                                  kThreads, stream, selection, tables, level, blocks_of_segment))
      return status;
    if (const int status = launch_each("pick_digit", stream, segments * ranks, PickDigit{selection, tables, level}))
      return status;
  }
  return cudaSuccess;
}

}  // namespace cohive::cuda::kernels
