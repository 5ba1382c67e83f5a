// For every processor: SSE2 on x86-64, NEON on aarch64.
#include "optim/detail/kernels.hpp"

namespace cohive::optim {
namespace {

#include "kernels_body.hpp"

}  // namespace

const Kernels kBaselineKernels = COHIVE_OPTIM_KERNELS("baseline");

}  // namespace cohive::optim
