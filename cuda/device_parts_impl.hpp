// What DeviceParts has, for its sources alone.
#pragma once

#include "averaging/detail/stretch_set.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/cuda/device_parts.hpp"
#include "device_residuals.hpp"
#include "lanes.hpp"
#include "model_kernels.hpp"

namespace cohive::cuda {

struct DeviceParts::Impl {
  Impl(Runtime& loop, std::vector<averaging::TensorInfo> about, std::vector<averaging::TensorSpan> memory,
       DevicePartsOptions how);

  Result<std::span<const float>> own(const averaging::Stretch& stretch, Stream& stream);
  Result<> finished(const averaging::Stretch& stretch, bool averaged, Stream& stream);
  Result<> keep(const averaging::Stretch& stretch, Stream& stream);
  kernels::Applied destination(const averaging::Stretch& stretch) const;
  /// Residuals on the device, where they stay from the first time on.
  Task<Result<std::shared_ptr<DeviceResiduals>>> residuals_there(codec::Residuals& residuals);
  /// Memory of error feedback, of codecs that have it; what is empty there is not.
  struct Feedback {
    std::shared_ptr<DeviceResiduals> residuals = nullptr;
    std::span<const float> owed = {};
    std::span<float> lost = {};
  };
  Task<Result<Feedback>> feedback(averaging::Stretch stretch, codec::Codec codec);
  Task<Result<Pinned>> download_corrected(averaging::Stretch stretch, codec::Codec codec);
  Task<Result<>> note_delivery(Stream& stream, averaging::Stretch stretch, codec::Codec sent);
  Task<Result<averaging::EncodedStretch>> encode(averaging::Stretch stretch, codec::CodecSpec codec);
  /// The same for what the device does not encode.
  Task<Result<averaging::EncodedStretch>> encode_on_host(averaging::Stretch stretch, codec::CodecSpec codec);
  /// What came for a stretch, checked and in pinned memory.
  struct Arrived {
    Pinned memory;
    codec::Codec codec;  ///< that the device decodes
    codec::DType dtype;  ///< of the tensor that the sender means
    std::size_t bytes;
  };
  Task<Result<Arrived>> receive(std::shared_ptr<const averaging::EncodedPart> part, std::size_t count);
  Result<> apply(Lane& lane, const averaging::Stretch& stretch, averaging::Answer::Form form, const Arrived& arrived,
                 float alpha);

  Runtime& runtime;
  const std::vector<averaging::TensorInfo> infos;
  const std::vector<averaging::TensorSpan> tensors;
  const DevicePartsOptions options;
  std::shared_ptr<Lanes> lanes;
  Semaphore moving;
  averaging::StretchSet scaled, final;
  std::size_t averaged = 0;
};

}  // namespace cohive::cuda
