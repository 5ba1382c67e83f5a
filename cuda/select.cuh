// What the kernels that select values share.
#pragma once

#include "select_kernels.hpp"
#include "values.cuh"

namespace cohive::cuda::kernels {

__device__ inline Place place_of(std::size_t point, std::size_t last) {
  const float position = __fmul_rn(static_cast<float>(last), __fdiv_rn(static_cast<float>(point), 256.0f));
  const auto below = static_cast<std::size_t>(position);
  return {below, __fsub_rn(position, static_cast<float>(below))};
}

}  // namespace cohive::cuda::kernels
