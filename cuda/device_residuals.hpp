// What is owed of a tensor, in the memory of a device.
#pragma once

#include <memory>

#include "cohive/codec/residuals.hpp"
#include "cohive/cuda/device.hpp"

namespace cohive::cuda {

/// The spans are for queued work; what else is here blocks until it is done.
class DeviceResiduals final : public codec::ResidualsMemory {
 public:
  /// Residuals that are kept on a device already; null for others.
  static std::shared_ptr<DeviceResiduals> find(const codec::Residuals& residuals);
  /// Copies residuals of the host there, to be kept there (keep_in). Errors: Errc::out_of_memory.
  static Result<std::shared_ptr<DeviceResiduals>> copy_of(const codec::Residuals& residuals, int device);

  /// Returns what is owed of a stretch.
  std::span<float> owed(std::size_t first, std::size_t count) const { return memory_.floats().subspan(first, count); }

  void read(std::size_t first, std::span<float> out) const override;
  void write(std::size_t first, std::span<const float> values) override;

 private:
  DeviceResiduals(DeviceBuffer memory, int device) : memory_(std::move(memory)), device_(device) {}

  const DeviceBuffer memory_;
  const int device_;
};

}  // namespace cohive::cuda
