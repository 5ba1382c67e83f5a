/// \file
/// Views of floating-point values in host memory, of any of the four floating dtypes.
#pragma once

#include <cstddef>
#include <span>

#include "cohive/codec/tensor.hpp"

namespace cohive::optim {

using codec::DType;

/// A stretch of values that are only read. The memory stays the caller's and is aligned for its dtype.
class ConstView {
 public:
  ConstView() = default;
  /// Views floats.
  ConstView(std::span<const float> values) : ConstView(DType::float32, values.data(), values.size()) {}
  /// Views doubles.
  ConstView(std::span<const double> values) : ConstView(DType::float64, values.data(), values.size()) {}
  /// \param size number of values
  /// \throws std::invalid_argument unless `dtype` is float64, float32, float16 or bfloat16
  ConstView(DType dtype, const void* data, std::size_t size);

  /// Returns the type of the values.
  DType dtype() const noexcept { return dtype_; }
  /// Returns the first value; may be null when there are none.
  const void* data() const noexcept { return data_; }
  /// Number of values.
  std::size_t size() const noexcept { return size_; }
  /// Tells whether there are no values: the case of views that were not given any.
  bool empty() const noexcept { return size_ == 0; }
  /// Values [offset, offset + count). \throws std::out_of_range
  ConstView sub(std::size_t offset, std::size_t count) const;

 private:
  DType dtype_ = DType::float32;
  const void* data_ = nullptr;
  std::size_t size_ = 0;
};

/// A stretch of values that may be written; otherwise as ConstView.
class View {
 public:
  View() = default;
  /// Views floats.
  View(std::span<float> values) : View(DType::float32, values.data(), values.size()) {}
  /// Views doubles.
  View(std::span<double> values) : View(DType::float64, values.data(), values.size()) {}
  /// Views `size` values at `data`, which stay the caller's. Throws std::invalid_argument for a dtype that is not
  /// floating.
  View(DType dtype, void* data, std::size_t size) : view_(dtype, data, size), data_(data) {}

  /// Returns the type of the values.
  DType dtype() const noexcept { return view_.dtype(); }
  /// Returns the first value; may be null when there are none.
  void* data() const noexcept { return data_; }
  /// Returns the number of values.
  std::size_t size() const noexcept { return view_.size(); }
  /// Tells whether there are no values.
  bool empty() const noexcept { return view_.empty(); }
  /// Returns values [offset, offset + count). Throws std::out_of_range.
  View sub(std::size_t offset, std::size_t count) const;
  /// Returns the same values, to be read only.
  operator ConstView() const noexcept { return view_; }

 private:
  ConstView view_;
  void* data_ = nullptr;
};

}  // namespace cohive::optim
