// AVX2.
#include "optim/detail/kernels.hpp"

#if defined(__x86_64__)
// Only what follows may use these instructions.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2")
#endif

namespace cohive::optim {
namespace {

#include "kernels_body.hpp"

}  // namespace

#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

const Kernels kAvx2Kernels = COHIVE_OPTIM_KERNELS("avx2");

}  // namespace cohive::optim
#endif
