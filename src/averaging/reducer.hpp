// The reducer of our parts: strictly in order, each part is averaged once every active sender has contributed.
// Source: hivemind wire spec, sections 6.7 and 6.8.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <vector>

#include "cohive/core/result.hpp"
#include "cohive/core/sync.hpp"

namespace cohive::averaging {

class Reducer {
 public:
  /// An average; null when the contributors' weights sum to zero, which changes nobody's values.
  using Average = std::shared_ptr<const std::vector<float>>;

  Reducer(Runtime& runtime, std::vector<std::size_t> part_lengths, std::size_t senders);

  /// Waits until it is part `index`'s turn, then adds `add(accumulator, weight)`.
  /// Errors: whatever `add` reports; round_cancelled when the sender was banned meanwhile.
  Task<Result<>> contribute(std::size_t sender, std::size_t index, double weight, std::function<Result<>(std::span<float>)> add);
  /// Waits for the average of a part.
  Task<Result<Average>> average(std::size_t index);
  /// Leaves a sender out of what is not averaged yet. What it has added stays.
  void ban(std::size_t sender);
  bool banned(std::size_t sender) const { return !active_.contains(sender); }
  bool finished() const { return current_ == lengths_.size(); }
  void cancel();

 private:
  void begin_part();
  void finish_if_complete();
  std::vector<std::size_t> lengths_;
  std::vector<Average> averages_;
  std::set<std::size_t> active_, contributed_;
  std::size_t current_ = 0;
  std::shared_ptr<std::vector<float>> accumulator_;
  double weight_ = 0;
  bool cancelled_ = false;
  Condition changed_;
};

}  // namespace cohive::averaging
