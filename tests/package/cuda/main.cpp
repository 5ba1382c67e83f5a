// Counts the GPUs; a machine without any is as good.
#include <cstdio>

#include "cohive/cuda/device.hpp"
#include "cohive/cuda/errors.hpp"

int main() {
  const auto count = cohive::cuda::device_count();
  std::printf("%d GPUs\n", count ? *count : 0);
  return count || count.error() == cohive::cuda::Errc::no_device ? 0 : 1;
}
