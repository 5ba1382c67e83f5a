// LibTorch's products for PowerSGD on a device.
#pragma once

#include <torch/torch.h>

#include <functional>
#include <memory>

#include "cohive/cuda/low_rank.hpp"

namespace cohive::libtorch {

/// Queues LibTorch's work on a stream: calls `work` while that stream is LibTorch's current one.
using OnStream = std::function<Result<>(CUstream_st* stream, std::function<Result<>()> work)>;

/// \param device    of the memory
/// \param on_stream such as that of a GPU, by which LibTorch queues its kernels
std::shared_ptr<cuda::LowRankProducts> make_products(torch::Device device, OnStream on_stream);

}  // namespace cohive::libtorch
