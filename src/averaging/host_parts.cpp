#include "cohive/averaging/host_parts.hpp"

#include <stdexcept>

namespace cohive::averaging {

std::size_t TensorInfo::elements() const {
  if (const auto count = codec::element_count(shape)) return static_cast<std::size_t>(*count);
  throw std::invalid_argument("a tensor of more than 2^40 values");
}

ResidualsPtr make_residuals(std::span<const TensorInfo> tensors) {
  auto residuals = std::make_shared<std::vector<codec::Residuals>>();
  for (const auto& tensor : tensors) residuals->emplace_back(tensor.elements());
  return residuals;
}

}  // namespace cohive::averaging
