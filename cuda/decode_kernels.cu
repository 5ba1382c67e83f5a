// Decoding and adding, each in one pass: every codec is a source of values.
#include "codec_kernels.hpp"
#include "values.cuh"

namespace cohive::cuda::kernels {
namespace {

__device__ float rounded_to(Stored stored, float value) {
  if (stored == Stored::halves) return float_from_half(half_from_float(value));
  if (stored == Stored::bfloats) return float_from_bfloat(bfloat_from_float(value));
  return value;
}

// Sources. Their four(i) is asked for multiples of four, where aligned() holds.

struct PlainSource {
  Input in;
  bool aligned() const { return has_fours(in); }
  __device__ float value(std::size_t i) const { return stored_value(in, i); }
  __device__ Four four(std::size_t i) const { return four_at(in, i); }
};

struct ScaledHalfSource {
  const std::uint16_t* halves;
  std::size_t count;
  Stored rounded;
  bool aligned() const { return is_aligned(halves, 8); }
  /// The numbers behind the halves.
  __device__ float scale(std::size_t which) const {
    const std::uint16_t* at = halves + count + 2 * which;
    return __uint_as_float(at[0] | static_cast<std::uint32_t>(at[1]) << 16);
  }
  __device__ float scaled(std::uint16_t half, float mean, float deviation) const {
    const float spread = rounded_to(rounded, __fmul_rn(float_from_half(half), deviation));
    return rounded_to(rounded, __fadd_rn(spread, mean));
  }
  __device__ float value(std::size_t i) const { return scaled(halves[i], scale(0), scale(1)); }
  __device__ Four four(std::size_t i) const {
    const FourHalves in = load_four(halves + i);
    const float mean = scale(0), deviation = scale(1);
    Four values;
    for (int k = 0; k < 4; ++k) values.of[k] = scaled(in.of[k], mean, deviation);
    return values;
  }
};

struct IndexedSource {
  Indexed in;
  bool aligned() const { return is_aligned(in.indices, 4); }
  __device__ float looked_up(std::uint32_t index, float scale) const {
    return rounded_to(in.rounded, __fmul_rn(in.book[index], scale));
  }
  __device__ float scale(std::size_t i) const { return in.scales ? in.scales[i / kScaleBlock] : 1.0f; }
  __device__ float value(std::size_t i) const { return looked_up(in.indices[i], scale(i)); }
  __device__ Four four(std::size_t i) const {
    const std::uint32_t indices = *reinterpret_cast<const std::uint32_t*>(in.indices + i);
    const float same = scale(i);
    Four values;
    for (int k = 0; k < 4; ++k) values.of[k] = looked_up(indices >> 8 * k & 0xff, same);
    return values;
  }
};

struct Block4Source {
  const std::uint16_t* scales;
  const std::uint8_t* levels;
  bool aligned() const { return is_aligned(levels, 2); }
  __device__ float value(std::size_t i) const {
    return level4_value(float_from_bfloat(scales[i / kScaled4]), levels[i / 2] >> i % 2 * 4 & 15);
  }
  __device__ Four four(std::size_t i) const {
    const std::uint32_t all = *reinterpret_cast<const std::uint16_t*>(levels + i / 2);
    const float scale = float_from_bfloat(scales[i / kScaled4]);
    Four values;
    for (int k = 0; k < 4; ++k) values.of[k] = level4_value(scale, all >> 4 * k & 15);
    return values;
  }
};

template <class Source>
struct DecodeStep {
  Source from;
  float* out;
  __device__ void operator()(std::size_t i) const { out[i] = from.value(i); }
  __device__ void four(std::size_t i) const { store_four(out + i, from.four(i)); }
};

template <class Source>
struct AddStep {
  Source from;
  float weight;
  float* sum;
  __device__ void operator()(std::size_t i) const { sum[i] = multiply_add(sum[i], weight, from.value(i)); }
  __device__ void four(std::size_t i) const {
    Four sums = load_four(sum + i);
    const Four values = from.four(i);
    for (int k = 0; k < 4; ++k) sums.of[k] = multiply_add(sums.of[k], weight, values.of[k]);
    store_four(sum + i, sums);
  }
};

struct FindNonFinite {
  Input in;
  __device__ void operator()(std::size_t i) const { look_at(in, value_at(in, i)); }
  __device__ void four(std::size_t i) const { look_at(in, four_at(in, i)); }
};

template <class Source>
int launch_decoder(const char* name, CUstream_st* stream, Source from, const Output& to, std::size_t count) {
  const bool fours = from.aligned() && is_aligned(to.out, 16);
  if (to.adds) return launch_fours(name, stream, count, fours, AddStep<Source>{from, to.weight, to.out});
  return launch_fours(name, stream, count, fours, DecodeStep<Source>{from, to.out});
}

}  // namespace

int find_non_finite(CUstream_st* stream, const Input& in, std::size_t count) {
  return launch_fours("find_non_finite", stream, count, has_fours(in), FindNonFinite{in});
}
int from_stored(CUstream_st* stream, const void* values, Stored stored, const Output& to, std::size_t count) {
  return launch_decoder("from_stored", stream, PlainSource{{values, stored}}, to, count);
}
int from_scaled_half(CUstream_st* stream, const std::uint16_t* halves, Stored rounded, const Output& to,
                     std::size_t count) {
  return launch_decoder("from_scaled_half", stream, ScaledHalfSource{halves, count, rounded}, to, count);
}
int from_indexed(CUstream_st* stream, const Indexed& in, const Output& to, std::size_t count) {
  return launch_decoder("from_indexed", stream, IndexedSource{in}, to, count);
}
int from_block4(CUstream_st* stream, const std::uint8_t* buffer, const Output& to, std::size_t count) {
  const std::size_t scales = (count + kScaled4 - 1) / kScaled4;
  const Block4Source from{reinterpret_cast<const std::uint16_t*>(buffer), buffer + scales * 2};
  return launch_decoder("from_block4", stream, from, to, count);
}

}  // namespace cohive::cuda::kernels
