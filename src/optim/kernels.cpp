#include "optim/detail/kernels.hpp"

#include <atomic>
#include <vector>

namespace cohive::optim {
namespace {

std::vector<const Kernels*> supported() {
  std::vector<const Kernels*> found{&kBaselineKernels};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) found.push_back(&kAvx2Kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
      __builtin_cpu_supports("avx512dq"))
    found.push_back(&kAvx512Kernels);
#endif
  return found;
}

std::atomic<const Kernels*>& in_use() {
  static std::atomic<const Kernels*> family = all_kernels().back();
  return family;
}

}  // namespace

std::span<const Kernels* const> all_kernels() {
  static const std::vector<const Kernels*> found = supported();
  return found;
}

const Kernels& kernels() {
  return *in_use().load(std::memory_order_relaxed);
}

KernelsInUse::KernelsInUse(const Kernels& family) : before_(in_use().exchange(&family)) {}

KernelsInUse::~KernelsInUse() {
  in_use() = before_;
}

}  // namespace cohive::optim
