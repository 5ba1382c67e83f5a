// Memory of zeros, however much: the system gives it page by page as it is written.
#pragma once

#include <cstdlib>
#include <memory>
#include <new>
#include <span>

namespace cohive::averaging {

class ZeroedFloats {
 public:
  ZeroedFloats() = default;
  explicit ZeroedFloats(std::size_t size)
      : values_(static_cast<float*>(std::calloc(size, sizeof(float)))), size_(size) {
    if (!values_ && size > 0) throw std::bad_alloc();
  }
  std::span<float> span() noexcept { return {values_.get(), size_}; }
  std::span<const float> span() const noexcept { return {values_.get(), size_}; }

 private:
  struct Free {
    void operator()(float* values) const noexcept { std::free(values); }
  };
  std::unique_ptr<float[], Free> values_;
  std::size_t size_ = 0;
};

}  // namespace cohive::averaging
