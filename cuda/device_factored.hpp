// A tensor of a round on a device that is averaged by low-rank factors.
#pragma once

#include "device_parts_impl.hpp"

namespace cohive::cuda {

/// The factors are copied; the tensor and what is owed of it stay on the device.
class DeviceFactored final : public averaging::FactoredTensor {
 public:
  DeviceFactored(DeviceParts::Impl& parts, std::size_t tensor, averaging::FactorForm form, codec::Residuals& owed);

  Task<Result<>> project(std::span<const float> q, std::span<float> p) override;
  Task<Result<>> take_average(std::span<const float> p) override;
  Task<Result<>> gather(std::span<float> q) override;
  Task<Result<>> apply(std::span<const float> q, bool counts) override;

 private:
  Task<Result<Pinned>> pinned_copy(std::span<const float> values);
  Task<Result<>> read_back(Stream& stream, Queued& queued, const DeviceBuffer& result, Pinned through,
                           std::span<float> to);
  Task<Result<LowRankProducts::Matrix>> matrix(Stream& stream);
  template <class Call>
  Task<Result<>> call_library(Stream& stream, const char* what, Call call);

  DeviceParts::Impl& parts_;
  const averaging::Stretch all_;
  const averaging::FactorForm form_;
  codec::Residuals& owed_;
  std::optional<DeviceBuffer> p_;  // orthonormal
};

}  // namespace cohive::cuda
