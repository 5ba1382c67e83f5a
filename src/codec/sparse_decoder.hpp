// Decoders of codecs that send few of the values: all others are 0.
#pragma once

#include <algorithm>

#include "cohive/codec/decoder.hpp"

namespace cohive::codec {

/// `Self` has for_sent(first, count, use), which calls use(place behind `first`, value) for all that was sent of a
/// stretch, and finds values that are not finite when the buffer is opened.
template <class Self>
class SparseDecoder : public Decoder {
 public:
  using Decoder::Decoder;
  void decode(std::size_t first, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    self().for_sent(first, out.size(), [&](std::size_t at, float value) { out[at] = value; });
  }
  void accumulate(std::size_t first, float weight, std::span<float> accumulator) const override {
    self().for_sent(first, accumulator.size(), [&](std::size_t at, float value) { accumulator[at] += weight * value; });
  }
  using Decoder::finite;
  bool finite(std::size_t, std::size_t) const override { return true; }

 private:
  const Self& self() const { return static_cast<const Self&>(*this); }
};

}  // namespace cohive::codec
