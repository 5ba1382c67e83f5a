#include "cohive/averaging/answer_residuals.hpp"

#include "averaging/detail/stretch_set.hpp"

namespace cohive::averaging {

AnswerResiduals::AnswerResiduals(std::span<const TensorInfo> tensors) {
  for (const auto& tensor : tensors) owed_.emplace_back(tensor.elements());
}

void AnswerResiduals::reduce(std::vector<Stretch> stretches) {
  const std::lock_guard lock(mutex_);
  StretchSet now(owed_.size());
  for (const Stretch& stretch : stretches) now.claim(stretch);
  for (const Stretch& before : reduced_)
    for (const Stretch& gone : now.missing(before)) owed_[gone.tensor].clear(gone.offset, gone.length);
  reduced_ = std::move(stretches);
}

void AnswerResiduals::correct(const Stretch& stretch, std::span<const float> average, std::span<float> out) const {
  const std::lock_guard lock(mutex_);
  owed_[stretch.tensor].correct(stretch.offset, average, out);
}

Result<> AnswerResiduals::commit(const Stretch& stretch, codec::Codec codec, std::span<const float> average,
                                 ByteView encoded) {
  const std::lock_guard lock(mutex_);
  return owed_[stretch.tensor].commit(codec, stretch.offset, average, encoded);
}

std::vector<float> AnswerResiduals::values(std::size_t tensor) const {
  const std::lock_guard lock(mutex_);
  return owed_[tensor].values();
}

}  // namespace cohive::averaging
