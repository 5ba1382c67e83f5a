/// \file
/// PlainReplica: a model of plain float32 buffers with an optimizer of cohive, for trainers without a machine-learning
/// library and for simulated runs. The trainer computes gradients by itself:
///
///   std::vector<float>& gradient = ...;              // of the model's live parameters
///   replica.add_gradients({gradient}, batch_size);
///   if (run.count(batch_size) == Run::Next::synchronise) co_await run.synchronise();
#pragma once

#include <vector>

#include "cohive/train/buffer_replica.hpp"

namespace cohive::train {

/// A BufferReplica over memory of its own. The spans of its parameters move when next parameters are published.
class PlainReplica final : public BufferReplica {
 public:
  /// Begins with parameters of zero, which are to be written before the run begins. \param shapes  of the parameters
  PlainReplica(Runtime& runtime, const std::vector<codec::Shape>& shapes, optim::Options optimizer);
  ~PlainReplica() override { wait_until_unused(); }

 protected:
  void exchange_live(std::size_t parameter, Buffer& next) override { std::swap(live_[parameter], next); }
};

}  // namespace cohive::train
