// What the 8-bit codecs share: buffers of a code book and an index for every value.
#pragma once

#include "bins.hpp"
#include "table.hpp"

namespace cohive::codec {

/// The buffer of uniform8 and quantile8: number of entries (int64), the entries, the indices.
class CodeBookBuffer {
 public:
  explicit CodeBookBuffer(std::size_t values);
  std::uint8_t* index_of(std::size_t value) { return out_.mutable_data() + kHead + value; }
  Slice take(const CodeBook& book);

 private:
  static constexpr std::size_t kHead = 8 + sizeof(CodeBook);
  Slice out_;
};

/// A code book as received, which may be shorter, and the indices, all of which have an entry. The entries are rounded
/// to `dtype`. Errors: a wrong number of indices, or one without an entry.
struct ReceivedBook {
  CodeBook entries{};
  const std::uint8_t* indices = nullptr;
};
Result<ReceivedBook> read_code_book(DType dtype, std::size_t count, ByteView book, ByteView indices);

/// Reads such a buffer.
Result<DecoderPtr> open_indexed(DType dtype, std::size_t count, ByteView buffer);

}  // namespace cohive::codec
