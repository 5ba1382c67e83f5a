// Optimizer steps on a device, value by value, with the bits of src/optim/kernels_body.hpp. All pointers are the
// device's. Each returns the cudaError_t of the launch. Source of the formulas: docs/optimizer-steps.md.
#pragma once

#include <cstddef>

#include "optim/detail/kernels.hpp"

struct CUstream_st;

namespace cohive::cuda::kernels {

using optim::StepArrays;

constexpr std::size_t kNormBlock = 1024;  // values whose squares are summed as one block, as optim's

int step(CUstream_st* stream, const optim::SgdNumbers<float>& numbers, const StepArrays<float>& arrays,
         std::size_t count);
int step(CUstream_st* stream, const optim::AdamNumbers<float>& numbers, const StepArrays<float>& arrays,
         std::size_t count);
int step(CUstream_st* stream, const optim::RmspropNumbers<float>& numbers, const StepArrays<float>& arrays,
         std::size_t count);
int step(CUstream_st* stream, const optim::AdagradNumbers<float>& numbers, const StepArrays<float>& arrays,
         std::size_t count);

// LAMB: both moments of any stretch; the sums of squares of a whole tensor, one pair for every block of
// kNormBlock values; and out = in + rate * update, of any stretch.
int lamb_moments(CUstream_st* stream, const optim::LambNumbers<float>& numbers, const StepArrays<float>& arrays,
                 std::size_t count);
int lamb_sums(CUstream_st* stream, const optim::LambNumbers<float>& numbers, const StepArrays<float>& arrays,
              std::size_t count, optim::LambSums* sums);
int lamb_apply(CUstream_st* stream, const optim::LambNumbers<float>& numbers, float rate,
               const StepArrays<float>& arrays, std::size_t count);

/// The sum of squares of every block of kNormBlock values.
int square_sums(CUstream_st* stream, const float* values, std::size_t count, double* sums);

}  // namespace cohive::cuda::kernels
