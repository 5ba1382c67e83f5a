#include "cohive/train/gradient_averager.hpp"

namespace cohive::train {

GradientAverager::GradientAverager(Dht& dht, std::vector<averaging::TensorInfo> gradients,
                                   averaging::AveragerOptions options)
    : averager_(dht, std::move(gradients), std::move(options)) {}

Task<void> GradientAverager::load_state(Deadline) {
  co_return;
}

Task<std::vector<checkpoint::NamedTensor>> GradientAverager::save() {
  co_return std::vector<checkpoint::NamedTensor>();
}

Task<Result<>> GradientAverager::restore(std::vector<checkpoint::NamedTensor>) {
  co_return ok();
}

}  // namespace cohive::train
