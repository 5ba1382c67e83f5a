// What the 8-bit encoders share: finding each value's bin, and the average of every bin.
#pragma once

#include "codec_kernels.hpp"

namespace cohive::cuda::kernels {

/// Bytes between the parts of a scratch memory.
constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

/// How values are sorted into bins; memory of the device.
struct Binning {
  const float* numbers;
  bool search;  ///< numbers are 255 borders as a search tree (tree[0]: not 0 when all values go to the last bin); else
                ///< the shift and the inverse scale that quantize
};

/// Bytes of the tables that bins_to_book() needs.
std::size_t bins_scratch(std::size_t count);
/// Writes all of a buffer of uniform8 or quantile8. The sums of bins are taken as Bins of the codecs takes them.
int bins_to_book(CUstream_st* stream, const Input& in, const Binning& binning, std::uint8_t* scratch, std::uint8_t* out,
                 std::size_t count);

}  // namespace cohive::cuda::kernels
