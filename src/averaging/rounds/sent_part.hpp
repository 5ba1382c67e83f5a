// A part as a sender sent it, as what it contributes to the sum of that part.
#pragma once

#include <memory>

#include "averaging/detail/part_math.hpp"
#include "cohive/core/try.hpp"

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

/// Our own values of a part that we reduce, as we would send them.
class OwnSentPart final : public OwnContribution {
 public:
  OwnSentPart(EncodedStretch sent, codec::Codec codec, std::size_t length, double weight)
      : sent_(std::move(sent)), part_(part_of(sent_, codec), length, weight) {}
  Result<bool> add(std::span<float> sum, Adding how) override { return part_.add(sum, how); }
  Result<ReadValues> open() override {
    TRY(auto read, part_.open());
    return ReadValues([read = std::move(read), owner = sent_.owner](std::size_t first, std::span<float> out) {
      return read(first, out);
    });
  }
  bool applied() const noexcept override { return false; }
  void revoke() noexcept override {}

 private:
  static std::shared_ptr<const EncodedPart> part_of(const EncodedStretch& sent, codec::Codec codec) {
    auto part = std::make_shared<EncodedPart>();
    part->codec = codec;
    part->buffer = sent.bytes;
    return part;
  }

  const EncodedStretch sent_;
  SentPart part_;
};

}  // namespace cohive::averaging
