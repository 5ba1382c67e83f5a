// What is owed of a tensor, in the memory of a device.
#pragma once

#include <atomic>
#include <memory>
#include <optional>

#include "cohive/codec/residuals.hpp"
#include "lasting_memory.hpp"

namespace cohive::cuda {

/// The spans are for queued work; what else is here blocks until it is done.
class DeviceResiduals final : public codec::ResidualsMemory {
 public:
  /// Residuals that are kept on a device already; null for others.
  static std::shared_ptr<DeviceResiduals> find(const codec::Residuals& residuals);
  /// Copies residuals of the host there, to be kept there (keep_in). Errors: Errc::out_of_memory.
  static Result<std::shared_ptr<DeviceResiduals>> copy_of(const codec::Residuals& residuals,
                                                          std::shared_ptr<LastingMemory> from);

  /// Returns what is owed of a stretch.
  std::span<float> owed(std::size_t first, std::size_t count) const { return memory_.floats().subspan(first, count); }
  /// Tells whether anything ever was.
  bool owes() const noexcept { return owes_; }
  /// Notes that something is, from the work on that is queued next. Loop thread.
  void note_owed() noexcept { owes_ = true; }

  /// Takes memory of this size, for keep_lost(). Errors: Errc::out_of_memory.
  Result<DeviceBuffer> make_lost() const { return from_->take(memory_.size()); }
  void keep_lost(DeviceBuffer memory) { lost_ = std::move(memory); }
  bool has_lost() const noexcept { return lost_.has_value(); }
  /// Returns what the codec has lost of a stretch: owed once that is known to be delivered.
  std::span<float> lost(std::size_t first, std::size_t count) const { return lost_->floats().subspan(first, count); }

  void read(std::size_t first, std::span<float> out) const override;
  void write(std::size_t first, std::span<const float> values) override;

 private:
  DeviceResiduals(std::shared_ptr<LastingMemory> from, DeviceBuffer memory, bool owes)
      : from_(std::move(from)), memory_(std::move(memory)), owes_(owes) {}

  const std::shared_ptr<LastingMemory> from_;
  const DeviceBuffer memory_;
  std::atomic<bool> owes_;
  std::optional<DeviceBuffer> lost_;
};

}  // namespace cohive::cuda
