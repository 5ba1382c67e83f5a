// A trainer whose device has failed to hand over a gradient leaves its run all the same.
#include <gtest/gtest.h>

#include <stdexcept>

#include "cohive/train/device_link.hpp"
#include "train/training_swarm.hpp"

namespace cohive::train {
namespace {

/// Copies that never arrive.
class FailingTransfer final : public Transfer {
 public:
  MutableBytes memory() const noexcept override { return {}; }
  void follow_trainer() override {}
  void download(const void*, MutableBytes) override {}
  void upload(ByteView, void*) override {}
  void hold_back_trainer() override {}
  void keep(std::shared_ptr<const void>) override {}
  Task<void> done() override {
    throw std::runtime_error("the device is gone");
    co_return;
  }
  void wait() override {}
};

TEST(FailingGradients, DoNotKeepATrainerFromLeavingAGroup) {
  constexpr const char* kTold = "leaving rounds that had begun failed";
  const auto told = TrainingSwarm::lines_with(kTold);
  // At some of these moments of an epoch a group has formed, whose round has not begun.
  for (Duration moment = 0s; moment < 4s; moment += 500ms) {
    TrainingSwarm swarm;
    auto& first = swarm.add();
    swarm.add();
    ASSERT_TRUE(swarm.wait_for(5min, [&] { return first.rounds > 1; }));
    ASSERT_TRUE(swarm.wait_for(1min, [&] { return first.run->progress().own_samples > 0; })) << "it is in the epoch";
    first.tasks.reset();
    first.replica->sums().add(std::vector<GradientSums::Gradient>(1), 8, 1, std::make_shared<FailingTransfer>());
    swarm.pass(moment);
    EXPECT_NO_THROW(swarm.net.run(first.run->close()));
  }
  EXPECT_GT(TrainingSwarm::lines_with(kTold), told) << "no moment was that of a group";
}

}  // namespace
}  // namespace cohive::train
