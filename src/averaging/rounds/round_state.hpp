// What a Round and its Averager share.
#pragma once

#include "cohive/averaging/group.hpp"
#include "cohive/averaging/group_finder.hpp"
#include "cohive/averaging/round.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"

namespace cohive::averaging {

struct Round::State {
  State(Runtime& runtime, RoundOptions options, bool has_own_tensors);

  void trigger(double with_weight, std::shared_ptr<TensorParts> tensors);
  /// Drops what runs the round.
  void cancel();
  void enter(Stage next) {
    stage = next;
    stage_changed.notify_all();
  }
  bool finished() const noexcept { return stage == Stage::finished; }

  Runtime& runtime;
  const RoundOptions options;
  const bool has_own_tensors;  ///< of the averager
  SearchPlan plan;
  RoundLimits limits;
  Stage stage = Stage::looking_for_group;
  std::shared_ptr<const Group> group;  ///< since awaiting_trigger
  Condition stage_changed;
  Event triggered;
  double weight = 1;
  std::shared_ptr<TensorParts> tensors;  ///< that were handed over; null: the averager's own
  std::optional<Result<std::shared_ptr<const RoundReport>>> result;
  TaskGroup tasks;  ///< the coroutine of the round; it uses this object and the averager
};

/// Throws std::invalid_argument for limits of zero.
void check(const RoundLimits& limits);

}  // namespace cohive::averaging
