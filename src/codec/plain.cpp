#include "plain.hpp"

#include <algorithm>

#include "kernels.hpp"

namespace cohive::codec {
namespace {

class PlainDecoder final : public Decoder {
 public:
  PlainDecoder(DType stored, DType dtype, std::size_t count, const std::uint8_t* numbers)
      : Decoder(dtype, count), stored_(stored), numbers_(numbers) {}

  const std::uint8_t* halves() const noexcept override { return stored_ == DType::float16 ? numbers_ : nullptr; }

  void decode(std::size_t first, std::span<float> out) const override {
    widen(stored_, at(first), out.data(), out.size());
  }

  void accumulate(std::size_t first, float weight, std::span<float> accumulator) const override {
    float* out = accumulator.data();
    if (stored_ == DType::float16) return kernels().add_half(at(first), weight, out, accumulator.size());
    if (stored_ == DType::float32) return kernels().add_floats(at(first), weight, out, accumulator.size());
    alignas(64) float values[Values::kBlock];
    for (std::size_t done = 0; done < accumulator.size();) {
      const std::size_t here = std::min(Values::kBlock, accumulator.size() - done);
      decode(first + done, {values, here});
      kernels().add_floats(reinterpret_cast<const std::uint8_t*>(values), weight, out + done, here);
      done += here;
    }
  }

  void decode_bytes(std::size_t first, std::size_t count, std::uint8_t* out) const override {
    if (stored_ != dtype()) return Decoder::decode_bytes(first, count, out);
    if (count > 0) std::memcpy(out, at(first), count * size_of(stored_));
  }

  using Decoder::finite;
  bool finite(std::size_t first, std::size_t count) const override {
    return halves() ? kernels().all_halves_finite(at(first), count) : Decoder::finite(first, count);
  }

 private:
  const std::uint8_t* at(std::size_t index) const { return numbers_ + index * size_of(stored_); }

  DType stored_;
  const std::uint8_t* numbers_;
};

}  // namespace

Result<DecoderPtr> open_plain(DType stored, DType dtype, std::size_t count, ByteView buffer) {
  const std::size_t wanted = count * size_of(stored);
  if (buffer.size() != wanted) return wrong_size(buffer.size(), wanted);
  return DecoderPtr(std::make_unique<PlainDecoder>(stored, dtype, count, buffer.data()));
}

}  // namespace cohive::codec
