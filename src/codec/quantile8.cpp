// QUANTILE_8BIT: as many values in each bin, estimated as quantiles of the quantiles of chunks.
// Source: docs/wire/hivemind.md, section 5.6.
#include <algorithm>

#include "code_book.hpp"
#include "quantiles.hpp"

namespace cohive::codec {
namespace {

Borders borders_of(const Values& values) {
  const std::size_t chunk_size = quantile_chunk(values.size());
  std::vector<float> all, chunk, spare;
  for (std::size_t first = 0; first < values.size(); first += chunk_size) {
    chunk.resize(std::min(chunk_size, values.size() - first));
    spare.resize(chunk.size());
    for_blocks(values, first, chunk.size(), [&](const float* block, std::size_t at, std::size_t here) {
      std::copy_n(block, here, chunk.begin() + static_cast<std::ptrdiff_t>(at - first));
    });
    const Quantiles quantiles = quantiles_of(chunk, spare);
    all.insert(all.end(), quantiles.begin(), quantiles.end());
  }
  spare.resize(all.size());
  const Quantiles combined = quantiles_of(all, spare);
  std::array<float, 255> borders;
  std::copy_n(combined.begin() + 1, borders.size(), borders.begin());
  return Borders(borders);
}

}  // namespace

Slice encode_quantile8(const CodecSpec&, const Values& values, Rows) {
  CodeBookBuffer out(values.size());
  Bins bins;
  if (values.size() > 0) {
    const Borders borders = borders_of(values);
    for_blocks(values, 0, values.size(), [&](const float* block, std::size_t at, std::size_t here) {
      borders.find_bins(block, out.index_of(at), here);
      bins.add(block, out.index_of(at), here);
    });
  }
  return out.take(bins.averages());
}

Result<DecoderPtr> open_quantile8(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  return open_indexed(dtype, count, buffer);
}

}  // namespace cohive::codec
