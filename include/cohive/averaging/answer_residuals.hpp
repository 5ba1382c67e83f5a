/// \file
/// AnswerResiduals: error feedback of a reducer. What its averages lose on their way to the members is part of the next
/// average of the same values.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/codec/residuals.hpp"

namespace cohive::averaging {

/// Holds what averages lost that this member has encoded as a reducer, round after round, by place in the tensors.
/// Memory: 4 bytes for each value that it reduces. Any thread.
class AnswerResiduals {
 public:
  /// Owes nothing yet.
  explicit AnswerResiduals(std::span<const TensorInfo> tensors);

  /// Begins a round in which this member reduces these stretches: what is owed of others is forgotten, since their new
  /// reducers do not know it.
  void reduce(std::vector<Stretch> stretches);
  /// Writes an average plus what is owed of its values.
  void correct(const Stretch& stretch, std::span<const float> average, std::span<float> out) const;
  /// Notes that the corrected average goes to all members as `encoded`. Errors: a buffer that cannot be decoded.
  Result<> commit(const Stretch& stretch, codec::Codec codec, std::span<const float> average, ByteView encoded);
  /// Returns what is owed of a tensor; empty when nothing ever was.
  std::vector<float> values(std::size_t tensor) const;

 private:
  mutable std::mutex mutex_;  // work of a round that was cancelled may go on beside the next one
  std::vector<codec::Residuals> owed_;
  std::vector<Stretch> reduced_;
};
/// Handed to the tensors of one round after another.
using AnswerResidualsPtr = std::shared_ptr<AnswerResiduals>;

}  // namespace cohive::averaging
