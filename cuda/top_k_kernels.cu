// top_k: for every 65536 values how many of them follow (uint32), then the offsets of all these within their 65536
// (uint16, ascending), then the values (float16). Of equal magnitudes the first are taken.
#include "bins_kernels.hpp"
#include "select_kernels.hpp"
#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

/// Values above the least magnitude that is sent, and values of just that magnitude.
struct Taken {
  std::uint32_t above, equal;
};
__device__ Taken operator+(Taken a, Taken b) {
  return {a.above + b.above, a.equal + b.equal};
}
__device__ Taken taken_of(const Found& found, float value) {
  const std::uint32_t magnitude = __float_as_uint(value) & kMagnitude, least = ~found.keys[0];
  return {magnitude > least ? 1u : 0u, magnitude == least ? 1u : 0u};
}
/// How many values are sent before a place, given what lies before it.
__device__ std::uint32_t sent_before(const Found& found, Taken before) {
  const std::uint32_t ties = found.left[0] + 1;
  return before.above + (before.equal < ties ? before.equal : ties);
}

/// The sum of those of all threads of the block before this one. \param sums  one for each thread
__device__ Taken before_in_block(Taken mine, Taken* sums) {
  const unsigned thread = threadIdx.x;
  Taken sum = mine;
  for (unsigned reach = 1; reach < kThreads; reach *= 2) {
    sums[thread] = sum;
    __syncthreads();
    if (thread >= reach) sum = sums[thread - reach] + sum;
    __syncthreads();
  }
  return {sum.above - mine.above, sum.equal - mine.equal};
}

/// One block of threads for each tile.
__global__ void count_taken(Input in, bool fours, const Found* found, Taken* tiles, std::size_t count) {
  __shared__ std::uint32_t above, equal;
  if (threadIdx.x == 0) above = equal = 0;
  __syncthreads();
  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kTile;
  const std::size_t end = first + kTile < count ? first + kTile : count;
  Taken mine{0, 0};
  for (std::size_t i = first + 4 * threadIdx.x; i < end; i += 4 * kThreads) {
    const Four values = four_before(in, i, end, fours);
    for (unsigned k = 0; k < 4 && i + k < end; ++k) mine = mine + taken_of(*found, values.of[k]);
  }
  if (mine.above > 0) atomicAdd(&above, mine.above);
  if (mine.equal > 0) atomicAdd(&equal, mine.equal);
  __syncthreads();
  if (threadIdx.x == 0) tiles[blockIdx.x] = {above, equal};
}

/// From what each tile has to what lies before it; one block of threads.
__global__ void sum_before_tiles(Taken* tiles, std::size_t count) {
  __shared__ Taken sums[kThreads];
  const std::size_t share = (count + kThreads - 1) / kThreads, first = share * threadIdx.x;
  Taken mine{0, 0};
  for (std::size_t i = first; i < first + share && i < count; ++i) mine = mine + tiles[i];
  Taken before = before_in_block(mine, sums);
  for (std::size_t i = first; i < first + share && i < count; ++i) {
    const Taken here = tiles[i];
    tiles[i] = before;
    before = before + here;
  }
}

/// Where the parts of a buffer lie.
struct Buffer {
  std::uint32_t* counts;
  std::uint16_t* offsets;
  std::uint16_t* halves;
};

/// One block of threads for each tile, each thread for sixteen values.
__global__ void write_taken(Input in, bool fours, const Found* found, const Taken* tiles, float* left, Buffer out,
                            std::size_t count, std::uint32_t wanted) {
  constexpr unsigned kMine = kTile / kThreads;
  constexpr std::size_t kTilesInReach = kReach / kTile;
  __shared__ Taken sums[kThreads];
  const std::size_t tile = blockIdx.x, first = tile * kTile + threadIdx.x * kMine;
  const std::size_t end = tile * kTile + kTile < count ? tile * kTile + kTile : count;
  Four values[kMine / 4];
  Taken mine{0, 0};
#pragma unroll  // or the values would not stay in registers
  for (unsigned j = 0; j < kMine / 4; ++j) {
    values[j] = four_before(in, first + 4 * j, end, fours);
    for (unsigned k = 0; k < 4 && first + 4 * j + k < end; ++k) mine = mine + taken_of(*found, values[j].of[k]);
  }
  Taken before = tiles[tile] + before_in_block(mine, sums);
#pragma unroll
  for (unsigned j = 0; j < kMine; ++j) {
    const std::size_t i = first + j;
    if (i >= end) continue;
    const float value = values[j / 4].of[j % 4];
    const Taken here = taken_of(*found, value);
    const std::uint32_t at = sent_before(*found, before);
    before = before + here;
    if (sent_before(*found, before) == at) continue;
    // What is too large is sent as far as it goes; what is not finite must not look as if it were.
    const std::uint16_t half = is_finite(value) ? clamped_half(value) : half_from_float(value);
    out.offsets[at] = static_cast<std::uint16_t>(i % kReach);
    out.halves[at] = half;
    if (left) left[i] = multiply_add(value, -1, float_from_half(half));
  }
  if (threadIdx.x != 0 || tile % kTilesInReach != 0) return;
  const std::size_t next = tile + kTilesInReach;
  const std::uint32_t stop = next < (count + kTile - 1) / kTile ? sent_before(*found, tiles[next]) : wanted;
  out.counts[tile / kTilesInReach] = stop - sent_before(*found, tiles[tile]);
}

/// One block of threads for each count of a buffer.
__global__ void spread_values(const std::uint32_t* counts, const std::uint16_t* offsets, const std::uint16_t* halves,
                              Output to) {
  __shared__ std::uint32_t begin;
  if (threadIdx.x == 0) begin = 0;
  __syncthreads();
  std::uint32_t before = 0;
  for (unsigned reach = threadIdx.x; reach < blockIdx.x; reach += kThreads) before += counts[reach];
  if (before > 0) atomicAdd(&begin, before);
  __syncthreads();
  float* const out = to.out + blockIdx.x * kReach;
  for (std::uint32_t i = threadIdx.x; i < counts[blockIdx.x]; i += kThreads) {
    const float value = float_from_half(halves[begin + i]);
    float& place = out[offsets[begin + i]];
    place = to.adds ? multiply_add(place, to.weight, value) : value;
  }
}

std::size_t reaches_of(std::size_t count) {
  return (count + kReach - 1) / kReach;
}

}  // namespace

std::size_t top_k_scratch(std::size_t count) {
  return padded(selection_scratch(true, 1)) + tiles_of(count) * sizeof(Taken);
}

int to_top_k(CUstream_st* stream, const Input& given, float* left, std::size_t wanted, std::uint8_t* scratch,
             std::uint8_t* out, std::size_t count) {
  Input in = given;
  if (left) {  // first all of it is left; then what is sent is taken from that
    if (const int status = to_floats(stream, in, left, count)) return status;
    in = {left};
  }
  if (const int status = select_ranks(stream, {in, count, count, true, wanted - 1}, scratch)) return status;
  const auto* const found = reinterpret_cast<const Found*>(scratch);
  auto* const tiles = reinterpret_cast<Taken*>(scratch + padded(selection_scratch(true, 1)));
  auto* const offsets = reinterpret_cast<std::uint16_t*>(out + reaches_of(count) * 4);
  const Buffer buffer{reinterpret_cast<std::uint32_t*>(out), offsets, offsets + wanted};
  const auto blocks = static_cast<unsigned>(tiles_of(count));
  if (const int status =
          launch("count_taken", count_taken, blocks, kThreads, stream, in, has_fours(in), found, tiles, count))
    return status;
  if (const int status = launch("sum_before_tiles", sum_before_tiles, 1u, kThreads, stream, tiles, tiles_of(count)))
    return status;
  return launch("write_taken", write_taken, blocks, kThreads, stream, in, has_fours(in), found, tiles, left, buffer,
                count, static_cast<std::uint32_t>(wanted));
}

int from_top_k(CUstream_st* stream, const std::uint8_t* buffer, std::size_t sent, const Output& to, std::size_t count) {
  const std::size_t reaches = reaches_of(count);
  if (reaches == 0) return cudaSuccess;
  if (!to.adds)
    if (const int status = cudaMemsetAsync(to.out, 0, count * sizeof(float), stream)) return status;
  const auto* const offsets = reinterpret_cast<const std::uint16_t*>(buffer + reaches * 4);
  return launch("spread_values", spread_values, static_cast<unsigned>(reaches), kThreads, stream,
                reinterpret_cast<const std::uint32_t*>(buffer), offsets, offsets + sent, to);
}

}  // namespace cohive::cuda::kernels
