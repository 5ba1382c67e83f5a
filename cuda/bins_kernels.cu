// An average is a sum of floats, whose order its bits depend on. The host's order is: within 4096 values, every fourth
// one goes to one of four tables; tables are added to sums of doubles one after another. So here each tile of values
// has a block of threads, of which four walk through it, and many tiles are under way at once.
#include "bins_kernels.hpp"
#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

constexpr unsigned kTables = 4;
constexpr unsigned kAveraging = 32;  // bins of a block of threads, where tables are added up

/// What a tile leaves behind.
struct Table {
  float sums[kTables][kEntries];
  std::uint32_t counts[kEntries];
};

__device__ std::uint32_t bin_of(const Binning& binning, const float* numbers, float value) {
  if (!binning.search)
    return static_cast<std::uint32_t>(quantized(__fmul_rn(__fsub_rn(value, numbers[0]), numbers[1])) + 128);
  if (numbers[0] != 0) return 255;
  std::uint32_t at = 1;
  for (int level = 0; level < 8; ++level) at = 2 * at + (numbers[at] < value ? 1u : 0u);
  return at & 0xff;
}

/// One block of threads for each tile.
__global__ void bin_tiles(Input in, bool fours, Binning binning, std::uint8_t* indices, Table* tables,
                          std::size_t count) {
  __shared__ float numbers[kEntries];
  __shared__ float sums[kTables][kEntries];
  __shared__ std::uint32_t counts[kEntries];
  __shared__ std::uint32_t bins[kTile / 4];  // four in each
  const unsigned thread = threadIdx.x;
  if (binning.search || thread < 2) numbers[thread] = binning.numbers[thread];
  for (unsigned table = 0; table < kTables; ++table) sums[table][thread] = 0;
  counts[thread] = 0;
  __syncthreads();

  const std::size_t first = static_cast<std::size_t>(blockIdx.x) * kTile;
  const std::size_t end = first + kTile < count ? first + kTile : count;
  for (unsigned at = thread; at < kTile / 4; at += kThreads) {
    const std::size_t i = first + 4 * at;
    const Four values = four_before(in, i, end, fours);
    std::uint32_t word = 0;
    for (unsigned k = 0; k < 4 && i + k < end; ++k) {
      const std::uint32_t bin = bin_of(binning, numbers, values.of[k]);
      atomicAdd(&counts[bin], 1u);
      word |= bin << 8 * k;
    }
    bins[at] = word;
    store_bytes_before(indices, i, end, word);
  }
  __syncthreads();

  const auto whole = static_cast<unsigned>((end - first) / 4), rest = static_cast<unsigned>((end - first) % 4);
  if (thread < kTables) {
#pragma unroll 8
    for (unsigned at = 0; at < whole; ++at) {
      float& sum = sums[thread][bins[at] >> 8 * thread & 0xff];
      sum = __fadd_rn(sum, value_at(in, first + 4 * at + thread));
    }
  }
  if (thread == 0)  // what makes no four
    for (unsigned k = 0; k < rest; ++k) {
      float& sum = sums[0][bins[whole] >> 8 * k & 0xff];
      sum = __fadd_rn(sum, value_at(in, first + 4 * whole + k));
    }
  __syncthreads();
  Table& table = tables[blockIdx.x];
  for (unsigned k = 0; k < kTables; ++k) table.sums[k][thread] = sums[k][thread];
  table.counts[thread] = counts[thread];
}

/// One thread for each bin.
__global__ void average_bins(const Table* tables, std::size_t tiles, std::uint32_t* head, float* book) {
  const unsigned bin = blockIdx.x * kAveraging + threadIdx.x;
  double sum = 0;
  std::uint32_t count = 0;
#pragma unroll 4
  for (std::size_t tile = 0; tile < tiles; ++tile) {
    for (unsigned k = 0; k < kTables; ++k) sum = __dadd_rn(sum, static_cast<double>(tables[tile].sums[k][bin]));
    count += tables[tile].counts[bin];
  }
  book[bin] = count > 0 ? __double2float_rn(__ddiv_rn(sum, static_cast<double>(count))) : 0.0f;
  if (bin < 2) head[bin] = bin == 0 ? kEntries : 0;  // a little-endian int64
}

}  // namespace

std::size_t bins_scratch(std::size_t count) {
  return tiles_of(count) * sizeof(Table);
}

int bins_to_book(CUstream_st* stream, const Input& in, const Binning& binning, std::uint8_t* scratch, std::uint8_t* out,
                 std::size_t count) {
  static_assert(kThreads == kEntries, "each thread takes one bin");
  auto* const tables = reinterpret_cast<Table*>(scratch);
  const std::size_t tiles = tiles_of(count);
  if (tiles > 0)
    if (const int status = launch("bin_tiles", bin_tiles, static_cast<unsigned>(tiles), kThreads, stream, in,
                                  has_fours(in), binning, out + 8 + kEntries * 4, tables, count))
      return status;
  return launch("average_bins", average_bins, static_cast<unsigned>(kEntries / kAveraging), kAveraging, stream, tables,
                tiles, reinterpret_cast<std::uint32_t*>(out), reinterpret_cast<float*>(out + 8));
}

}  // namespace cohive::cuda::kernels
