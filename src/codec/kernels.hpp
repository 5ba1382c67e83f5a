// The inner loops of the codecs, once for each family of processors. All versions round alike, and add in one
// order: their results are equal bit for bit, and so are those of the kernels for a GPU.
// Wire data is read and written through byte pointers and may lie anywhere; floats are aligned as floats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace cohive::codec {

/// Sums of (x - pilot) and of its square.
struct Moments {
  double sum = 0;
  double squares = 0;
};

struct Kernels {
  const char* name;

  /// Halves, after clamping to the finite range; NaN stays NaN.
  void (*to_half)(const float* in, std::uint8_t* out, std::size_t count);
  /// The same; false when a value is NaN or infinite.
  bool (*to_half_checked)(const float* in, std::uint8_t* out, std::size_t count);
  /// Halves without clamping: what is too large becomes infinity.
  void (*to_half_unclamped)(const float* in, std::uint8_t* out, std::size_t count);
  void (*from_half)(const std::uint8_t* in, float* out, std::size_t count);
  /// out += weight * in
  void (*add_half)(const std::uint8_t* in, float weight, float* out, std::size_t count);
  void (*add_floats)(const std::uint8_t* in, float weight, float* out, std::size_t count);
  /// out = a - b
  void (*difference)(const float* a, const float* b, std::uint8_t* out, std::size_t count);
  /// The same with halves b and out, clamped.
  void (*half_difference)(const float* a, const std::uint8_t* b, std::uint8_t* out, std::size_t count);

  /// (x - mean) / deviation as clamped halves, and back: half * deviation + mean.
  void (*scaled_to_half)(const float* in, float mean, float deviation, std::uint8_t* out, std::size_t count);
  void (*scaled_from_half)(const std::uint8_t* in, float mean, float deviation, float* out, std::size_t count);
  void (*add_scaled_half)(const std::uint8_t* in, float mean, float deviation, float weight, float* out,
                          std::size_t count);

  /// out = in / divisor
  void (*divide)(const float* in, float divisor, float* out, std::size_t count);
  Moments (*moments)(const float* in, float pilot, std::size_t count);
  /// The largest magnitude; NaN when something is not finite.
  float (*largest)(const float* in, std::size_t count);
  bool (*all_finite)(const float* in, std::size_t count);
  /// How many magnitudes are not below `least`, which is above 0.
  std::size_t (*count_from)(const float* in, float least, std::size_t count);
  /// The places of these, ascending, and how many they are. \param places  room for `count`, which is at most 65536
  std::size_t (*places_from)(const float* in, float least, std::uint16_t* places, std::size_t count);
  bool (*all_halves_finite)(const std::uint8_t* in, std::size_t count);

  /// clamp(round_half_even((x - shift) * inverse_scale) + 128, 0, 255); 0 for NaN.
  void (*quantize)(const float* in, float shift, float inverse_scale, std::uint8_t* out, std::size_t count);
  /// Bin 0 to 255 of every value among 255 borders: how many are less than the value; 0 for NaN. The borders are a
  /// search tree of 256 floats, tree[1] the root, tree[2k] and tree[2k + 1] the children of tree[k].
  void (*find_bins)(const float* in, const float* tree, std::uint8_t* out, std::size_t count);
  /// Table values by index, and added to `out`.
  void (*look_up)(const std::uint8_t* in, const float* table, float* out, std::size_t count);
  void (*add_looked_up)(const std::uint8_t* in, const float* table, float* out, std::size_t count);
};

/// The fastest that this processor runs, chosen once.
const Kernels& kernels();
/// All that this processor runs, slowest first: for tests.
std::span<const Kernels* const> all_kernels();

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace cohive::codec
