#include "cohive/train/gradient_averager.hpp"

namespace cohive::train {

GradientAverager::GradientAverager(Dht& dht, std::vector<averaging::TensorInfo> gradients,
                                   averaging::AveragerOptions options)
    : averager_(dht, std::move(gradients), std::move(options)) {}

Task<void> GradientAverager::load_state(Deadline) {
  co_return;
}

}  // namespace cohive::train
