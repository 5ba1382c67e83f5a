// BLOCKWISE_8BIT: an index into a fixed code book, and a scale for every 4096 values.
// Source: docs/wire/hivemind.md, section 5.7.
#include <algorithm>

#include "code_book.hpp"
#include "codec/detail/dynamic_map.hpp"
#include "kernels.hpp"

namespace cohive::codec {
namespace {

static_assert(Values::kBlock == kScaleBlock);

constexpr std::size_t kHead = 16;  // numbers of scales and of entries

std::size_t blocks_in(std::size_t count) {
  return (count + kScaleBlock - 1) / kScaleBlock;
}

class BlockwiseDecoder final : public Decoder {
 public:
  BlockwiseDecoder(DType dtype, std::size_t count, const ReceivedBook& book, const std::uint8_t* scales)
      : Decoder(dtype, count), book_(book), scales_(scales) {}

  void decode(std::size_t first, std::span<float> out) const override {
    for_runs(first, out.size(), [&](std::size_t at, std::size_t done, std::size_t here) {
      kernels().look_up(book_.indices + at, scaled_book(at, 1).data(), out.data() + done, here);
    });
  }
  void accumulate(std::size_t first, float weight, std::span<float> accumulator) const override {
    for_runs(first, accumulator.size(), [&](std::size_t at, std::size_t done, std::size_t here) {
      kernels().add_looked_up(book_.indices + at, scaled_book(at, weight).data(), accumulator.data() + done, here);
    });
  }

 private:
  /// use(first value, how many before it, how many): all with one scale.
  template <class Use>
  void for_runs(std::size_t first, std::size_t count, Use use) const {
    for (std::size_t done = 0; done < count;) {
      const std::size_t at = first + done, here = std::min(count - done, kScaleBlock - at % kScaleBlock);
      use(at, done, here);
      done += here;
    }
  }

  /// The code book times the scale of the block a value is in, rounded as each value would be, times `weight`.
  CodeBook scaled_book(std::size_t value, float weight) const {
    const auto scale = read_at<float>(scales_, value / kScaleBlock);
    CodeBook book;
    for (std::size_t i = 0; i < book.size(); ++i) book[i] = book_.entries[i] * scale;
    if (dtype() != DType::float32 && dtype() != DType::float64)
      for (float& entry : book) entry = rounded_to(dtype(), static_cast<double>(entry));
    for (float& entry : book) entry *= weight;
    return book;
  }

  ReceivedBook book_;
  const std::uint8_t* scales_;
};

}  // namespace

Slice encode_blockwise8(const CodecSpec&, const Values& values, Rows) {
  const std::size_t blocks = blocks_in(values.size());
  Slice out = Slice::uninitialised(kHead + blocks * 4 + sizeof(CodeBook) + values.size());
  std::uint8_t* const scales = out.mutable_data() + kHead;
  std::uint8_t* const book = scales + blocks * 4;
  std::uint8_t* const indices = book + sizeof(CodeBook);
  write_at(out.mutable_data(), 0, static_cast<std::int64_t>(blocks));
  write_at(out.mutable_data(), 1, std::int64_t{256});
  std::memcpy(book, dynamic_map().data(), sizeof(CodeBook));
  for_blocks(values, 0, values.size(), [&](const float* block, std::size_t first, std::size_t count) {
    // NaN where a value is not finite: better a block that says so than one that looks healthy.
    const float largest = kernels().largest(block, count);
    write_at(scales, first / kScaleBlock, largest);
    alignas(64) float scaled[kScaleBlock];
    kernels().divide(block, largest > 0 ? largest : 1.0f, scaled, count);
    dynamic_borders().find_bins(scaled, indices + first, count);
  });
  return out;
}

Result<DecoderPtr> open_blockwise8(DType dtype, std::size_t count, ByteView buffer, const Shape*) {
  const std::size_t blocks = blocks_in(count);
  if (buffer.size() < kHead) return wrong_size(buffer.size(), kHead + blocks * 4 + sizeof(CodeBook) + count);
  const auto told = read_at<std::uint64_t>(buffer.data(), 0), entries = read_at<std::uint64_t>(buffer.data(), 1);
  if (told != blocks) return malformed(std::to_string(told) + " scales where " + std::to_string(blocks) + " belong");
  if (entries > std::tuple_size_v<CodeBook>) return malformed("code book of " + std::to_string(entries) + " entries");
  const std::size_t scales_end = kHead + blocks * 4, head = scales_end + static_cast<std::size_t>(entries) * 4;
  if (buffer.size() < head) return wrong_size(buffer.size(), head + count);
  if (auto checked = check_scales(buffer.data() + kHead, blocks, "scale"); !checked) return checked.error();
  // Rounding to the dtype comes after scaling here: the book stays as it is until then.
  const auto book =
      read_code_book(DType::float32, count, buffer.subspan(scales_end, head - scales_end), buffer.subspan(head));
  if (!book) return book.error();
  return DecoderPtr(std::make_unique<BlockwiseDecoder>(dtype, count, *book, buffer.data() + kHead));
}

}  // namespace cohive::codec
