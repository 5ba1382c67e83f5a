// A part as a sender sent it, as what it contributes to the sum of that part.
#pragma once

#include <memory>

#include "averaging/detail/part_math.hpp"

namespace cohive::averaging {

class SentPart final : public Contribution {
 public:
  SentPart(std::shared_ptr<const EncodedPart> part, std::size_t length, double weight)
      : part_(std::move(part)), length_(length), weight_(weight) {}
  Result<bool> add(std::span<float> sum, Adding how) override { return add_part(*part_, weight_, sum, how); }
  Result<ReadValues> open() override { return open_part(part_, length_); }

 private:
  std::shared_ptr<const EncodedPart> part_;
  std::size_t length_;
  double weight_;
};

}  // namespace cohive::averaging
