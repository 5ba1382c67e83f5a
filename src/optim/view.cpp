#include "cohive/optim/view.hpp"

#include <stdexcept>
#include <string>

namespace cohive::optim {
namespace {

void check_view_range(std::size_t size, std::size_t offset, std::size_t count) {
  if (offset > size || count > size - offset)
    throw std::out_of_range("values " + std::to_string(offset) + " to " + std::to_string(offset + count) + " of " +
                            std::to_string(size));
}

}  // namespace

ConstView::ConstView(DType dtype, const void* data, std::size_t size) : dtype_(dtype), data_(data), size_(size) {
  if (!codec::is_floating(dtype))
    throw std::invalid_argument("optimizers work on floating-point values, not on " +
                                std::string(codec::name_of(dtype)));
}

ConstView ConstView::sub(std::size_t offset, std::size_t count) const {
  check_view_range(size_, offset, count);
  return {dtype_, static_cast<const std::byte*>(data_) + offset * codec::size_of(dtype_), count};
}

View View::sub(std::size_t offset, std::size_t count) const {
  check_view_range(size(), offset, count);
  return {dtype(), static_cast<std::byte*>(data_) + offset * codec::size_of(dtype()), count};
}

}  // namespace cohive::optim
