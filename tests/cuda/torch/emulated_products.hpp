// LibTorch's products on the emulated device, whose memory is the host's: LibTorch computes there on the stream's own
// thread.
#pragma once

#include <gtest/gtest.h>

#include "cohive/core/errors.hpp"
#include "cuda/emulator/driver.hpp"
#include "torch/device_products.hpp"

namespace cohive::cuda::emulated {

inline std::shared_ptr<LowRankProducts> make_products() {
  return libtorch::make_products(torch::kCPU, [](CUstream_st* stream, std::function<Result<>()> work) -> Result<> {
    const int status = enqueue(stream, [work = std::move(work)](int) {
      const auto done = work();
      EXPECT_TRUE(done) << done.error();
    });
    return status == 0 ? ok() : Result<>(Error(cohive::Errc::internal, "refused"));
  });
}

}  // namespace cohive::cuda::emulated
