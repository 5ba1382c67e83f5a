#include "code_book.hpp"

#include "kernels.hpp"

namespace cohive::codec {
namespace {

class IndexedDecoder final : public Decoder {
 public:
  IndexedDecoder(DType dtype, std::size_t count, const ReceivedBook& book) : Decoder(dtype, count), book_(book) {}

  void decode(std::size_t first, std::span<float> out) const override {
    kernels().look_up(book_.indices + first, book_.entries.data(), out.data(), out.size());
  }
  void accumulate(std::size_t first, float weight, std::span<float> accumulator) const override {
    CodeBook weighted = book_.entries;
    for (float& value : weighted) value *= weight;
    kernels().add_looked_up(book_.indices + first, weighted.data(), accumulator.data(), accumulator.size());
  }
  using Decoder::finite;
  bool finite() const override {
    return kernels().all_finite(book_.entries.data(), book_.entries.size()) || finite(0, size());
  }

 private:
  ReceivedBook book_;
};

}  // namespace

CodeBookBuffer::CodeBookBuffer(std::size_t values) : out_(Slice::uninitialised(kHead + values)) {
  write_at(out_.mutable_data(), 0, std::int64_t{256});
}

Slice CodeBookBuffer::take(const CodeBook& book) {
  std::memcpy(out_.mutable_data() + 8, book.data(), sizeof book);
  return std::move(out_);
}

Result<ReceivedBook> read_code_book(DType dtype, std::size_t count, ByteView book, ByteView indices) {
  if (indices.size() != count)
    return malformed("tensor of " + std::to_string(count) + " values with " + std::to_string(indices.size()) +
                     " indices");
  ReceivedBook received;
  received.indices = indices.data();
  const std::size_t entries = book.size() / 4;
  for (std::size_t i = 0; i < entries; ++i)
    received.entries[i] = rounded_to(dtype, static_cast<double>(read_at<float>(book.data(), i)));
  if (entries == received.entries.size()) return received;
  for (std::uint8_t index : indices)
    if (index >= entries)
      return malformed("index " + std::to_string(index) + " into a code book of " + std::to_string(entries));
  return received;
}

Result<DecoderPtr> open_indexed(DType dtype, std::size_t count, ByteView buffer) {
  if (buffer.size() < 8) return wrong_size(buffer.size(), 8 + sizeof(CodeBook) + count);
  const auto entries = read_at<std::uint64_t>(buffer.data(), 0);
  if (entries > std::tuple_size_v<CodeBook>) return malformed("code book of " + std::to_string(entries) + " entries");
  const std::size_t head = 8 + static_cast<std::size_t>(entries) * 4;
  if (buffer.size() < head) return wrong_size(buffer.size(), head + count);
  const auto book = read_code_book(dtype, count, buffer.subspan(8, head - 8), buffer.subspan(head));
  if (!book) return book.error();
  return DecoderPtr(std::make_unique<IndexedDecoder>(dtype, count, *book));
}

}  // namespace cohive::codec
