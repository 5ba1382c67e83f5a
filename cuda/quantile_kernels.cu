// quantile8: borders between bins of equal shares, estimated as quantiles of the quantiles of chunks; then as uniform8.
#include "bins_kernels.hpp"
#include "select.cuh"

namespace cohive::cuda::kernels {
namespace {

constexpr std::size_t kSmallestChunk = 100'000;

/// As quantile_chunk of the codecs.
std::size_t chunk_of(std::size_t count) {
  if (count <= kSmallestChunk) return kSmallestChunk;
  const std::size_t left = count % kSmallestChunk, chunks = count / kSmallestChunk;
  return left == 0 ? kSmallestChunk : kSmallestChunk + (left - 1) / chunks + 1;
}

__device__ float float_of_key(std::uint32_t key) {
  return __uint_as_float(key ^ (key >> 31 ? 0x80000000 : 0xffffffff));
}

__device__ float interpolated(float low, float high, float part) {
  const float difference = __fsub_rn(high, low);
  return part >= 0.5f ? __fsub_rn(high, __fmul_rn(difference, __fsub_rn(1, part)))
                      : __fadd_rn(low, __fmul_rn(difference, part));
}

/// One thread for each point of each segment.
struct Interpolate {
  const Found* found;
  std::size_t count, segment;
  float* points;
  __device__ void operator()(std::size_t i) const {
    const std::size_t which = i / kPoints, point = i % kPoints, rest = count - which * segment;
    const std::size_t last = (rest < segment ? rest : segment) - 1;
    const Found& of = found[which];
    const float below = float_of_key(of.keys[2 * point]), above = float_of_key(of.keys[2 * point + 1]);
    const Place place = place_of(point, last);
    // At the end numpy interpolates between the last value and itself: NaN where that is infinite.
    const float value = place.below >= last ? interpolated(above, above, 0) : interpolated(below, above, place.part);
    points[i] = of.has_nan ? __uint_as_float(0x7fc00000) : value;
  }
};

/// The points but the first and the last as a search tree.
__global__ void make_tree(const float* points, float* tree) {
  __shared__ std::uint32_t has_nan;
  const unsigned thread = threadIdx.x;
  if (thread == 0) has_nan = 0;
  __syncthreads();
  if (thread > 0) {
    unsigned first = 1;  // of the level that the node is in
    while (2 * first <= thread) first *= 2;
    const unsigned stride = kEntries / first;  // between two nodes of the level
    const float border = points[stride / 2 + (thread - first) * stride];
    if (border != border) atomicMax(&has_nan, 1u);
    tree[thread] = border;
  }
  __syncthreads();
  if (thread == 0) tree[0] = has_nan ? 1.0f : 0.0f;  // then every value goes to the last bin, as torch.bucketize has it
}

Input from(const Input& in, std::size_t first) {
  const std::size_t width = in.stored == Stored::floats ? 4 : 2;
  return {static_cast<const std::uint8_t*>(in.values) + first * width, in.stored, in.owed ? in.owed + first : nullptr,
          in.found};
}

/// Writes the points of all segments.
int find_points(CUstream_st* stream, const Input& in, std::size_t count, std::size_t segment, std::uint8_t* scratch,
                float* points) {
  for (std::size_t first = 0; first < count; first += kSegmentsAtOnce * segment) {
    const std::size_t here = count - first < kSegmentsAtOnce * segment ? count - first : kSegmentsAtOnce * segment;
    const std::size_t segments = (here + segment - 1) / segment;
    if (const int status = select_ranks(stream, {from(in, first), here, segment, false, 0}, scratch)) return status;
    const Interpolate step{reinterpret_cast<const Found*>(scratch), here, segment, points + first / segment * kPoints};
    if (const int status = launch_each("interpolate", stream, segments * kPoints, step)) return status;
  }
  return cudaSuccess;
}

std::size_t chunks_of(std::size_t count) {
  return (count + chunk_of(count) - 1) / chunk_of(count);
}
std::size_t points_bytes(std::size_t segments) {
  return padded(segments * kPoints * sizeof(float));
}
std::size_t largest_selection(std::size_t count) {
  const std::size_t chunks = chunks_of(count);
  return selection_scratch(false, chunks < kSegmentsAtOnce ? chunks : kSegmentsAtOnce);
}

}  // namespace

std::size_t quantile_scratch(std::size_t count) {
  if (count == 0) return 0;
  return padded(kEntries * sizeof(float)) + points_bytes(1) + points_bytes(chunks_of(count)) +
         padded(largest_selection(count)) + bins_scratch(count);
}

int to_quantile(CUstream_st* stream, const Input& in, std::uint8_t* scratch, std::uint8_t* out, std::size_t count) {
  auto* const tree = reinterpret_cast<float*>(scratch);
  if (count == 0) return bins_to_book(stream, in, {tree, true}, scratch, out, 0);
  const std::size_t chunks = chunks_of(count);
  auto* const combined = reinterpret_cast<float*>(scratch + padded(kEntries * sizeof(float)));
  auto* const points = reinterpret_cast<float*>(reinterpret_cast<std::uint8_t*>(combined) + points_bytes(1));
  std::uint8_t* const selection = reinterpret_cast<std::uint8_t*>(points) + points_bytes(chunks);
  if (const int status = find_points(stream, in, count, chunk_of(count), selection, points)) return status;
  const std::size_t all = chunks * kPoints;
  if (const int status = find_points(stream, {points}, all, all, selection, combined)) return status;
  if (const int status = launch("make_tree", make_tree, 1u, kThreads, stream, combined, tree)) return status;
  return bins_to_book(stream, in, {tree, true}, selection + padded(largest_selection(count)), out, count);
}

}  // namespace cohive::cuda::kernels
