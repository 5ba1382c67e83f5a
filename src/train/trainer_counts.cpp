#include "trainer_counts.hpp"

#include <utility>

namespace cohive::train {

void TrainerCounts::add_batch(double samples, TimePoint now) {
  const std::lock_guard lock(mutex_);
  counted_.samples += samples;
  ++counted_.batches;
  if (computes_since_) counted_.seconds += to_seconds(now - *computes_since_);
  computes_since_ = now;
}
void TrainerCounts::waited(TimePoint now) {
  const std::lock_guard lock(mutex_);
  computes_since_ = now;
}
Counted TrainerCounts::counted() const {
  const std::lock_guard lock(mutex_);
  return counted_;
}
Counted TrainerCounts::take() {
  const std::lock_guard lock(mutex_);
  awaited_ = false;
  return std::exchange(counted_, {});
}

bool TrainerCounts::tells_loop() {
  const std::lock_guard lock(mutex_);
  return !std::exchange(told_, true);
}
void TrainerCounts::loop_looks() {
  const std::lock_guard lock(mutex_);
  told_ = false;
}

std::uint64_t TrainerCounts::epoch() const {
  const std::lock_guard lock(mutex_);
  return epoch_;
}
bool TrainerCounts::enter(std::uint64_t epoch) {
  const std::lock_guard lock(mutex_);
  return std::exchange(epoch_, epoch) != epoch;
}

void TrainerCounts::demand() {
  const std::lock_guard lock(mutex_);
  demanded_ = true;
}
bool TrainerCounts::demanded() const {
  const std::lock_guard lock(mutex_);
  return demanded_;
}
void TrainerCounts::demand_met() {
  const std::lock_guard lock(mutex_);
  demanded_ = false;
}

void TrainerCounts::note_awaited() {
  const std::lock_guard lock(mutex_);
  awaited_ = true;
}
bool TrainerCounts::awaited() const {
  const std::lock_guard lock(mutex_);
  return awaited_;
}

TrainingStats TrainerCounts::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace cohive::train
