// What threads of the pool write is ordered with the trainer's own work on its device.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "cohive/core/sim_runtime.hpp"
#include "torch/torch_replica.hpp"
#include "torch/training.hpp"

namespace cohive::libtorch {
namespace {

/// Counts who takes its turn.
class CountedStream final : public TrainerStream {
 public:
  std::shared_ptr<void> in_turn() override {
    ++turns;
    return nullptr;
  }
  int turns = 0;
};

TEST(TrainerStream, PublishedParametersAreWrittenInItsTurn) {
  for (const auto type : {torch::kFloat32, torch::kFloat64}) {
    SCOPED_TRACE(c10::toString(type));
    SimRuntime runtime;
    auto weight = torch::zeros({4}, type).requires_grad_();
    torch::optim::SGD sgd({weight}, 1.0);
    const auto stream = std::make_shared<CountedStream>();
    const auto model =
        make_replica(runtime, {.parameters = {weight}, .optimizer = sgd, .trainer = stream}, epochs_of_three_batches());
    std::vector<float> change(4, 0.5f);
    model->replica().change_parameters({std::span(change)});
    stream->turns = 0;
    model->replica().publish();
    EXPECT_GT(stream->turns, 0);
    EXPECT_EQ(weight[3].item<double>(), 0.5);
  }
}

}  // namespace
}  // namespace cohive::libtorch
