// Peers average a model as it was when its Optimizer was made. What has become something else since, as by
// model->to(torch::kBFloat16), is refused with a sentence before anything reads it.
#pragma once

#include <torch/torch.h>

#include <string>
#include <vector>

namespace cohive::libtorch {

class DescribedTensors {
 public:
  /// Notes what tensors are now. \param kind  what a sentence calls one, such as "parameter"
  void add(const std::string& kind, const std::vector<torch::Tensor>& tensors);
  /// Throws std::logic_error for the first tensor whose type, shape, device or layout is another one now.
  void check() const;

 private:
  struct Described {
    std::string name;
    torch::Tensor tensor;
    torch::ScalarType type;
    torch::Device device;
    std::vector<std::int64_t> sizes;
    bool contiguous;
  };
  std::vector<Described> tensors_;
};

}  // namespace cohive::libtorch
