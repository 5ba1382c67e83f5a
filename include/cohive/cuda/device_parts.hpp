/// \file
/// DeviceParts: float32 tensors in the memory of a GPU as a round uses them. What leaves is encoded on the device and
/// copied through pinned memory; what comes back is copied, decoded and applied there. Several stretches are under way
/// at once, each on a stream of its own, and the loop only awaits.
///
///   auto parts = cuda::DeviceParts::create(runtime, averager.schema(), tensors).value();
///   round.trigger(weight, std::move(parts));
///
/// All codecs but sparse2 (see codec.hpp) are encoded on the device, and what those with error feedback owe is kept
/// there from their first use on; what other peers send in a form that only the CPU decodes (see codec.hpp) is decoded
/// on the pool. Values are added up on the host where this peer reduces: docs/architecture.md says why.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cohive/averaging/host_parts.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/cuda/device.hpp"
#include "cohive/cuda/low_rank.hpp"

namespace cohive::cuda {

class Lanes;

/// Where the tensors are, and how they take part in a round.
struct DevicePartsOptions {
  int device = 0;           ///< number of the GPU
  std::size_t streams = 4;  ///< stretches under way at once; each takes pinned and device memory of three parts
  /// What a backend uses round after round, in place of streams of its own. Null: streams are made for these parts
  /// alone.
  std::shared_ptr<Lanes> lanes = nullptr;
  bool differences = false;                     ///< results are differences, as HostPartsOptions has them
  averaging::ResidualsPtr residuals = nullptr;  ///< moved to the device; none: codecs with error feedback are not used
  /// What averages matrices by low-rank factors there (PowerSGD). Null: they are copied, and the host computes.
  std::shared_ptr<LowRankProducts> products = nullptr;
  float factor = 1;  ///< applied to `read`, in place, just before the first use of a value, and once
  /// Called once for every stretch of every tensor when the work that makes its values final is queued: queues what is
  /// to be done with them on the same stream. Loop thread. Errors end the operation.
  std::function<Result<>(const averaging::StretchResult&, Stream&)> on_result = nullptr;
};

/// Loop thread of a real runtime, which must outlive it. Serves one round; make another one for the next. An operation
/// that is dropped while its stream works blocks until that stretch is done: it uses memory of the caller.
class DeviceParts final : public averaging::TensorParts {
 public:
  /// \param memory  of each tensor, on the device. It stays the caller's and must stay put; what writes it must have
  /// finished
  ///                (`co_await stream.done(runtime)`), and nothing may write it until the round is over.
  /// Throws std::invalid_argument when it does not fit the infos. Errors: Errc::no_device, Errc::out_of_memory.
  static Result<std::shared_ptr<DeviceParts>> create(Runtime& runtime, std::vector<averaging::TensorInfo> infos,
                                                     std::vector<averaging::TensorSpan> memory,
                                                     DevicePartsOptions options = {});
  ~DeviceParts() override;

  const std::vector<averaging::TensorInfo>& infos() const noexcept override;
  bool keeps_residuals() const noexcept override;
  Task<Result<averaging::EncodedStretch>> encode(averaging::Stretch stretch, codec::CodecSpec codec) override;
  Task<Result<std::shared_ptr<averaging::OwnContribution>>> contribute(averaging::Stretch stretch,
                                                                       codec::CodecSpec codec,
                                                                       averaging::Terms terms) override;
  Task<Result<>> apply(averaging::Stretch stretch, averaging::Answer answer, averaging::Terms terms) override;
  std::unique_ptr<averaging::FactoredTensor> factored(std::size_t tensor, averaging::FactorForm form,
                                                      codec::Residuals& owed) override;
  /// As HostParts. What the device reports as an error is thrown as ErrorException: nothing can be made of it.
  Task<void> finish() override;

  /// Counts the values that have an average.
  std::size_t averaged() const noexcept;

  struct Impl;

 private:
  explicit DeviceParts(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::cuda
