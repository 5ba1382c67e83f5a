#include "described_tensors.hpp"

#include <sstream>
#include <stdexcept>

namespace cohive::libtorch {
namespace {

template <class T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

[[noreturn]] void refuse_change(const std::string& name, const std::string& before, const std::string& now) {
  throw std::logic_error("cohive::Optimizer: " + name + " was " + before +
                         " when the optimizer was made collaborative, and is " + now +
                         " now: change the model first, and make its cohive::Optimizer then");
}

}  // namespace

void DescribedTensors::add(const std::string& kind, const std::vector<torch::Tensor>& tensors) {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& tensor = tensors[i];
    tensors_.push_back({kind + " " + std::to_string(i), tensor, tensor.scalar_type(), tensor.device(),
                        tensor.sizes().vec(), tensor.is_contiguous()});
  }
}

void DescribedTensors::check() const {
  for (const auto& [name, tensor, type, device, sizes, contiguous] : tensors_) {
    if (tensor.scalar_type() != type) refuse_change(name, text_of(type), text_of(tensor.scalar_type()));
    if (tensor.device() != device) refuse_change(name, "on " + device.str(), "on " + tensor.device().str());
    if (tensor.sizes() != sizes)
      refuse_change(name, "of shape " + text_of(at::IntArrayRef(sizes)), "of shape " + text_of(tensor.sizes()));
    if (contiguous && !tensor.is_contiguous()) refuse_change(name, "contiguous", "not");
  }
}

}  // namespace cohive::libtorch
