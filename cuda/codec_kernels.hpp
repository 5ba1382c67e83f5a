// What the codecs' .cu files offer to the rest: launches on a stream. All pointers are the device's. Each returns a
// cudaError_t, of what was queued.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace cohive::cuda::kernels {

constexpr std::size_t kScaleBlock = 4096;  // values that share a scale in blockwise8
constexpr std::size_t kEntries = 256;      // of a code book
constexpr std::size_t kScaled4 = 64;       // values that share a scale in block4
constexpr std::size_t kReach = 65536;      // values whose places a top_k buffer counts from one of them

/// What values are stored as, or rounded to.
enum class Stored : std::uint8_t { floats, halves, bfloats };

/// Values, and what is owed of them (null: nothing). Their sum is what is encoded.
struct Input {
  const void* values;
  Stored stored = Stored::floats;
  const float* owed = nullptr;
  std::uint32_t* found = nullptr;  ///< encoders set it to 1 when a sum is not finite; null: nobody asks
};

/// The code book of blockwise8 and its borders as a search tree (see Kernels::find_bins of the codecs): travels with
/// the launch.
struct BlockwiseTables {
  float book[kEntries];
  float tree[kEntries];
};

// ---- Encoders. `out` is the whole buffer, at a multiple of 4 bytes. `left`, where there is one, gets what the codec
// loses of each value; it may be the memory of in.owed.

int to_floats(CUstream_st* stream, const Input& in, float* out, std::size_t count);
int to_half(CUstream_st* stream, const Input& in, std::uint16_t* out, std::size_t count);
int to_blockwise(CUstream_st* stream, const BlockwiseTables& tables, const Input& in, std::uint8_t* out,
                 std::size_t count);
int to_block4(CUstream_st* stream, const Input& in, float* left, std::uint8_t* out, std::size_t count);

// These look at all values first. `scratch` has as many bytes as the function of that name says, and begins at a
// multiple of 16.
std::size_t spread_scratch(std::size_t count);
int to_scaled_half(CUstream_st* stream, const Input& in, std::uint8_t* scratch, std::uint8_t* out, std::size_t count);
std::size_t uniform_scratch(std::size_t count);
int to_uniform(CUstream_st* stream, const Input& in, std::uint8_t* scratch, std::uint8_t* out, std::size_t count);
std::size_t quantile_scratch(std::size_t count);
int to_quantile(CUstream_st* stream, const Input& in, std::uint8_t* scratch, std::uint8_t* out, std::size_t count);
std::size_t top_k_scratch(std::size_t count);
/// \param wanted  how many values are sent, at least one of at least one
int to_top_k(CUstream_st* stream, const Input& in, float* left, std::size_t wanted, std::uint8_t* scratch,
             std::uint8_t* out, std::size_t count);

/// Only looks for values that are not finite.
int find_non_finite(CUstream_st* stream, const Input& in, std::size_t count);

// ---- Decoders

/// What becomes of decoded values: out = the value, or out += weight * the value.
struct Output {
  float* out;
  bool adds = false;
  float weight = 1;
};

/// An 8-bit buffer. Without scales they are 1. Values are rounded: of a book with scales after scaling.
struct Indexed {
  const float* book;
  const std::uint8_t* indices;
  const float* scales;
  Stored rounded = Stored::floats;
};

int from_stored(CUstream_st* stream, const void* values, Stored stored, const Output& to, std::size_t count);
/// halves, then mean and deviation, which need not be aligned. \param rounded  what every step is rounded to
int from_scaled_half(CUstream_st* stream, const std::uint16_t* halves, Stored rounded, const Output& to,
                     std::size_t count);
int from_indexed(CUstream_st* stream, const Indexed& in, const Output& to, std::size_t count);
int from_block4(CUstream_st* stream, const std::uint8_t* buffer, const Output& to, std::size_t count);
/// \param sent  how many values the buffer has
int from_top_k(CUstream_st* stream, const std::uint8_t* buffer, std::size_t sent, const Output& to, std::size_t count);

}  // namespace cohive::cuda::kernels
