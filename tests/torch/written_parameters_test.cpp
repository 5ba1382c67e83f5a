// What autograd learns of parameters that cohive writes to beside LibTorch's operations.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <sstream>

#include "cohive/torch/lamb.hpp"
#include "torch/training.hpp"

namespace cohive {
namespace {

struct WritingWay {
  const char* name;
  bool local = false, delay = false;
};

const WritingWay kWritingWays[] = {{"in place"}, {.name = "local", .local = true}, {.name = "delayed", .delay = true}};

/// LibTorch's optimizers make it an error, too.
TEST(WrittenParameters, AGraphFromBeforeAStepDoesNotGoBackwardThroughOthers) {
  for (const auto& way : kWritingWays) {
    SCOPED_TRACE(way.name);
    auto weight = torch::full({4}, 0.5f).requires_grad_();
    torch::optim::SGD sgd({weight}, kRate);
    Swarm swarm(alone());
    auto options = epochs_of_three_batches();
    options.target_batch_size = kBatch;
    options.use_local_updates = way.local;
    options.delay_optimizer_step = options.delay_state_averaging = way.delay;
    Optimizer optimizer(swarm, sgd, options);
    const auto loss = (weight * weight).sum();
    loss.backward({}, /*retain_graph=*/true);
    EXPECT_NO_THROW(loss.backward({}, /*retain_graph=*/true)) << "nothing was written yet";
    optimizer.step(kBatch);
    std::ostringstream archive;
    torch::save(optimizer, archive);  // after what is delayed
    ASSERT_NE(weight[0].item<float>(), 0.5f);
    EXPECT_THROW(loss.backward(), std::exception);
  }
}

TEST(WrittenParameters, AClassDerivedFromLambStepsAsLambDoes) {
  struct OwnLamb : Lamb {
    using Lamb::Lamb;
  };
  auto ours = torch::linspace(-1, 1, 6).requires_grad_(), plain = torch::linspace(-1, 1, 6).requires_grad_();
  OwnLamb own(std::vector<torch::Tensor>{ours}, LambOptions(0.1));
  Lamb lamb(std::vector<torch::Tensor>{plain}, LambOptions(0.1));
  const auto kept = (ours * ours).sum();
  for (int i = 0; i < 3; ++i) {
    for (auto* const weight : {&ours, &plain}) {
      weight->mutable_grad().reset();
      (*weight - 2).pow(2).sum().backward();
    }
    own.step();
    lamb.step();
  }
  EXPECT_TRUE(torch::equal(ours, plain));
  EXPECT_FALSE(torch::equal(plain, torch::linspace(-1, 1, 6)));
  EXPECT_THROW(kept.backward(), std::exception) << "steps are known to autograd";
}

}  // namespace
}  // namespace cohive
