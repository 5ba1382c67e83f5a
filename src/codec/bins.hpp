// What the 8-bit encoders share: finding each value's bin, and the average of every bin, which is what bins decode to.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cohive::codec {

using CodeBook = std::array<float, 256>;

/// Sums and counts of the values in each of 256 bins.
class Bins {
 public:
  void add(const float* values, const std::uint8_t* bins, std::size_t count);
  void add(const Bins& other);
  /// Averages; 0 for empty bins.
  CodeBook averages() const;

 private:
  std::array<double, 256> sums_{};
  std::array<double, 256> counts_{};
};

/// Sorts values into 256 bins that 255 ascending borders separate: bin = how many borders are less than the value.
class Borders {
 public:
  /// With a NaN among them every value gets bin 255, as torch.bucketize has it.
  explicit Borders(const std::array<float, 255>& borders);
  void find_bins(const float* values, std::uint8_t* bins, std::size_t count) const;
  const std::array<float, 256>& tree() const noexcept { return tree_; }

 private:
  std::array<float, 256> tree_{};  // see Kernels::find_bins
  bool all_last_ = false;
};

}  // namespace cohive::codec
