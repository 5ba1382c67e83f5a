// UNIFORM_8BIT: bins of one width, six deviations in all. Source: docs/wire/hivemind.md, section 5.5.
#include <cmath>
#include <limits>

#include "code_book.hpp"
#include "kernels.hpp"
#include "spread.hpp"

namespace cohive::codec {
namespace {

constexpr float kRangeInSigmas = 6;

}  // namespace

Slice encode_uniform8(const CodecSpec&, const Values& values, Rows) {
  const Spread spread = spread_of(values, 0, values.size());
  const float shift = rounded_to(values.dtype(), spread.mean());
  const float deviation = static_cast<float>(spread.norm(static_cast<double>(shift))) /
                          static_cast<float>(std::sqrt(static_cast<double>(values.size() - 1)));
  float inverse_scale = 1.0f / (kRangeInSigmas * deviation / 256.0f);
  // Values that do not differ (or hardly, or are not numbers) all go to bin 0.
  if (!std::isfinite(inverse_scale)) inverse_scale = std::numeric_limits<float>::quiet_NaN();
  CodeBookBuffer out(values.size());
  Bins bins;
  for_blocks(values, 0, values.size(), [&](const float* block, std::size_t at, std::size_t here) {
    kernels().quantize(block, shift, inverse_scale, out.index_of(at), here);
    bins.add(block, out.index_of(at), here);
  });
  return out.take(bins.averages());
}

Result<DecoderPtr> open_uniform8(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  return open_indexed(dtype, count, buffer);
}

}  // namespace cohive::codec
