// meanstd16 and uniform8: mean and deviation of all values, then each value by itself. Sums are taken in the order of
// the codecs' Spread: sixteen lanes in each 4096 values, then 64 of these, then the rest.
#include "bins_kernels.hpp"
#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

constexpr unsigned kLanes = 16;
constexpr unsigned kTilesAtOnce = kThreads / kLanes;
constexpr std::size_t kTilesInRun = (std::size_t{1} << 18) / kTile;

/// Sums of (x - pilot) and of its square, where the pilot is the first value of all.
struct Sums {
  double sum, squares;
};
__device__ void add(Sums& sums, const Sums& more) {
  sums.sum = __dadd_rn(sums.sum, more.sum);
  sums.squares = __dadd_rn(sums.squares, more.squares);
}
__device__ void add(Sums& sums, double distance) {
  add(sums, Sums{distance, __dmul_rn(distance, distance)});
}

/// How far a value is from the pilot.
__device__ double distance_of(const Input& in, std::size_t i, double pilot) {
  const float value = value_at(in, i);
  look_at(in, value);
  return __dsub_rn(static_cast<double>(value), pilot);
}

/// Sixteen threads for each tile.
__global__ void sum_tiles(Input in, Sums* tiles, std::size_t count) {
  __shared__ Sums lanes[kThreads];
  const unsigned thread = threadIdx.x, lane = thread % kLanes;
  const std::size_t tile = static_cast<std::size_t>(blockIdx.x) * kTilesAtOnce + thread / kLanes;
  const std::size_t first = tile * kTile;
  const std::size_t here = first >= count ? 0 : count - first < kTile ? count - first : kTile;
  const auto pilot = static_cast<double>(value_at(in, 0));
  Sums mine{0, 0};
#pragma unroll 8
  for (std::size_t at = lane; at < here / kLanes * kLanes; at += kLanes) add(mine, distance_of(in, first + at, pilot));
  lanes[thread] = mine;
  for (unsigned half = kLanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) add(lanes[thread], lanes[thread + half]);
  }
  if (lane != 0 || here == 0) return;
  mine = lanes[thread];
  for (std::size_t at = here / kLanes * kLanes; at < here; ++at) add(mine, distance_of(in, first + at, pilot));
  tiles[tile] = mine;
}

/// The sums of all tiles, in one block of threads; for its first thread.
__device__ Sums sum_of(const Sums* tiles, std::size_t count) {
  __shared__ Sums runs[kThreads];
  const std::size_t all = (count + kTilesInRun - 1) / kTilesInRun;
  Sums total{0, 0};
  for (std::size_t base = 0; base < all; base += kThreads) {
    const std::size_t run = base + threadIdx.x;
    Sums mine{0, 0};
    for (std::size_t tile = run * kTilesInRun; tile < (run + 1) * kTilesInRun && tile < count; ++tile)
      add(mine, tiles[tile]);
    runs[threadIdx.x] = mine;
    __syncthreads();
    if (threadIdx.x == 0)
      for (std::size_t at = 0; at < kThreads && base + at < all; ++at) add(total, runs[at]);
    __syncthreads();
  }
  return total;
}

/// As Spread of the codecs.
struct Spread {
  double pilot, count;
  Sums sums;
  __device__ double mean() const { return __dadd_rn(pilot, __ddiv_rn(sums.sum, count)); }
  __device__ double norm(float centre) const {
    const double shift = __dsub_rn(static_cast<double>(centre), pilot);
    const double less = __dmul_rn(__dmul_rn(2, shift), sums.sum), more = __dmul_rn(__dmul_rn(count, shift), shift);
    const double squares = __dadd_rn(__dsub_rn(sums.squares, less), more);
    return __dsqrt_rn(squares < 0 ? 0 : squares);
  }
};

__device__ void write_float(std::uint16_t* to, float value) {
  const std::uint32_t bits = __float_as_uint(value);
  to[0] = static_cast<std::uint16_t>(bits);
  to[1] = static_cast<std::uint16_t>(bits >> 16);
}

/// Mean and deviation, also behind the halves of the buffer.
__global__ void find_scale(Input in, const Sums* tiles, std::size_t count, std::size_t of_tiles, float* numbers,
                           std::uint16_t* behind) {
  const Sums sums = sum_of(tiles, of_tiles);
  if (threadIdx.x != 0) return;
  // Python divides by zero for rows of no values; these are the bits it gets.
  float mean = __uint_as_float(0xffc00000), deviation = mean;
  if (count > 0) {
    const Spread spread{static_cast<double>(value_at(in, 0)), static_cast<double>(count), sums};
    constexpr float kLeast = 1.1920928955078125e-7f;
    mean = __double2float_rn(spread.mean());
    const double norm = spread.norm(mean), root = __dsqrt_rn(static_cast<double>(count));
    deviation = __fdiv_rn(__double2float_rn(norm), __double2float_rn(root));
    if (!is_finite(deviation)) deviation = __double2float_rn(__ddiv_rn(norm, root));
    if (deviation < kLeast) deviation = kLeast;
  }
  numbers[0] = mean;
  numbers[1] = deviation;
  write_float(behind, mean);
  write_float(behind + 2, deviation);
}

/// Shift and inverse scale of 256 bins, six deviations in all.
__global__ void find_bins(Input in, const Sums* tiles, std::size_t count, std::size_t of_tiles, float* numbers) {
  const Sums sums = sum_of(tiles, of_tiles);
  if (threadIdx.x != 0) return;
  const Spread spread{static_cast<double>(value_at(in, 0)), static_cast<double>(count), sums};
  float shift = __double2float_rn(spread.mean());
  if (in.stored == Stored::halves) shift = float_from_half(half_from_float(shift));
  if (in.stored == Stored::bfloats) shift = float_from_bfloat(bfloat_from_float(shift));
  const float deviation =
      __fdiv_rn(__double2float_rn(spread.norm(shift)), __double2float_rn(__dsqrt_rn(static_cast<double>(count - 1))));
  float inverse = __fdiv_rn(1, __fdiv_rn(__fmul_rn(6, deviation), 256));
  // Values that do not differ (or hardly, or are not numbers) all go to bin 0.
  if (!is_finite(inverse)) inverse = __uint_as_float(0x7fc00000);
  numbers[0] = shift;
  numbers[1] = inverse;
}

struct ScaleToHalf {
  Input in;
  const float* numbers;
  std::uint16_t* out;
  __device__ std::uint16_t scaled(float value) const {
    return clamped_half(__fdiv_rn(__fsub_rn(value, numbers[0]), numbers[1]));
  }
  __device__ void operator()(std::size_t i) const { out[i] = scaled(value_at(in, i)); }
  __device__ void four(std::size_t i) const {
    const Four values = four_at(in, i);
    FourHalves halves;
    for (int k = 0; k < 4; ++k) halves.of[k] = scaled(values.of[k]);
    store_four(out + i, halves);
  }
};

// Of a scratch memory: two numbers, the sums of tiles, and what comes behind them.
constexpr std::size_t kNumbers = 16;
Sums* sums_in(std::uint8_t* scratch) {
  return reinterpret_cast<Sums*>(scratch + kNumbers);
}
float* numbers_in(std::uint8_t* scratch) {
  return reinterpret_cast<float*>(scratch);
}

int launch_sums(CUstream_st* stream, const Input& in, std::uint8_t* scratch, std::size_t count) {
  if (count == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((tiles_of(count) + kTilesAtOnce - 1) / kTilesAtOnce);
  return launch("sum_tiles", sum_tiles, blocks, kThreads, stream, in, sums_in(scratch), count);
}

}  // namespace

std::size_t spread_scratch(std::size_t count) {
  return kNumbers + tiles_of(count) * sizeof(Sums);
}

int to_scaled_half(CUstream_st* stream, const Input& in, std::uint8_t* scratch, std::uint8_t* out, std::size_t count) {
  auto* const halves = reinterpret_cast<std::uint16_t*>(out);
  float* const numbers = numbers_in(scratch);
  if (const int status = launch_sums(stream, in, scratch, count)) return status;
  if (const int status = launch("find_scale", find_scale, 1u, kThreads, stream, in, sums_in(scratch), count,
                                tiles_of(count), numbers, halves + count))
    return status;
  return launch_fours("scale_to_half", stream, count, has_fours(in) && is_aligned(out, 8),
                      ScaleToHalf{in, numbers, halves});
}

std::size_t uniform_scratch(std::size_t count) {
  return spread_scratch(count) + bins_scratch(count);
}

int to_uniform(CUstream_st* stream, const Input& in, std::uint8_t* scratch, std::uint8_t* out, std::size_t count) {
  float* const numbers = numbers_in(scratch);
  if (const int status = launch_sums(stream, in, scratch, count)) return status;
  if (count > 0)
    if (const int status =
            launch("find_bins", find_bins, 1u, kThreads, stream, in, sums_in(scratch), count, tiles_of(count), numbers))
      return status;
  return bins_to_book(stream, in, {numbers, false}, scratch + spread_scratch(count), out, count);
}

}  // namespace cohive::cuda::kernels
