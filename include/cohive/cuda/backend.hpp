/// \file
/// The backend of a GPU: gradients are added up, averaged and stepped with in its memory, on streams of its own, and
/// the loop only awaits. Results have the bits of the host's steps.
#pragma once

#include <functional>
#include <memory>

#include "cohive/core/result.hpp"
#include "cohive/cuda/low_rank.hpp"
#include "cohive/train/backend.hpp"
#include "cohive/train/device_link.hpp"

struct CUstream_st;

namespace cohive::cuda {

/// Which GPU, and how a machine-learning library uses it.
struct BackendOptions {
  int device = 0;  ///< number of the GPU
  std::size_t streams =
      4;  ///< stretches of a round under way at once; each takes pinned and device memory of three parts
  /// Returns the stream on which the calling thread's library queues its work, a cudaStream_t; unset or null: the
  /// default one.
  std::function<CUstream_st*()> trainer_stream = nullptr;
  /// Memory of the library's own allocator, ordered by trainer_stream; unset: the driver's.
  std::function<train::Buffer(std::size_t size)> allocate = nullptr;
  /// What averages gradients by low-rank factors there (PowerSGD). Null: they are copied, and the host computes.
  std::shared_ptr<LowRankProducts> products = nullptr;
};

/// Real runtimes only, which must outlive it. Gradients are float32, float16 or bfloat16. Errors: Errc::no_device,
/// Errc::out_of_memory.
Result<std::shared_ptr<train::Backend>> make_backend(Runtime& runtime, BackendOptions options = {});

/// Links a GPU to the host, for a trainer there whose optimizer is offloaded; of the options `device` and
/// `trainer_stream` count. As make_backend.
Result<std::shared_ptr<train::DeviceLink>> make_link(Runtime& runtime, BackendOptions options = {});

}  // namespace cohive::cuda
