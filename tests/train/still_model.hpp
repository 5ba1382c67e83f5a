// A model that training does not change, for tests of what trainers do beside it.
#pragma once

#include <algorithm>

#include "cohive/train/plain_replica.hpp"
#include "train/four_trainers.hpp"

namespace cohive::train {

/// All of its parameters have one value, of which a trainer may have its own.
class StillModel final : public TrainedModel {
 public:
  StillModel(Runtime& runtime, float value) : replica_(runtime, {{64}}, optim::SgdOptions{.lr = 0}) {
    std::ranges::fill(replica_.parameter(0), value);
  }
  Replica& replica() override { return replica_; }
  void compute(std::uint64_t, std::size_t) override {
    const std::vector<float> none(64);
    replica_.add_gradients({none}, double{kSamples});
  }
  std::vector<float> parameters() override { return {replica_.parameter(0).begin(), replica_.parameter(0).end()}; }

 private:
  PlainReplica replica_;
};

}  // namespace cohive::train
