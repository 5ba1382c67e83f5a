#include "cohive/transport/stream.hpp"

#include <algorithm>
#include <utility>

#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"
#include "cohive/core/varint.hpp"

namespace cohive::transport {

Task<Result<>> Stream::write(ByteView bytes, Deadline deadline) {
  const ByteView one[] = {bytes};
  co_return co_await write(std::span<const ByteView>(one), deadline);
}

StreamReader::~StreamReader() {
  if (!buffered_.empty()) stream_.unread(std::move(buffered_));
}

/// Lets go of the memory with the last byte: the rest of a message may take its peer a while.
void StreamReader::consume(std::size_t count) {
  buffered_.remove_prefix(count);
  if (buffered_.empty()) buffered_ = Slice();
}

Task<Result<bool>> StreamReader::fill(Deadline deadline) {
  if (!buffered_.empty()) co_return true;
  CO_TRY(buffered_, co_await stream_.read(deadline));
  co_return !buffered_.empty();
}

/// Grows with what arrives: an announced length alone takes no memory.
Task<Result<>> StreamReader::append_until(Bytes& bytes, std::size_t size, Deadline deadline) {
  while (bytes.size() < size) {
    CO_TRY(auto more, co_await fill(deadline));
    if (!more) co_return Error(cohive::Errc::end_of_stream, stream_.peer());
    const std::size_t count = std::min(size - bytes.size(), buffered_.size());
    bytes.insert(bytes.end(), buffered_.data(), buffered_.data() + count);
    consume(count);
  }
  co_return ok();
}

Task<Result<Bytes>> StreamReader::read_exactly(std::size_t size, Deadline deadline) {
  Bytes bytes;
  CO_TRY(co_await append_until(bytes, size, deadline));
  co_return bytes;
}

Task<Result<std::optional<std::size_t>>> StreamReader::read_length(std::size_t limit, Deadline deadline) {
  while (!length_) {
    CO_TRY(auto more, co_await fill(deadline));
    if (!more) {
      if (prefix_.empty()) co_return std::optional<std::size_t>();
      co_return Error(cohive::Errc::end_of_stream, stream_.peer(), "length prefix");
    }
    prefix_.push_back(buffered_.data()[0]);
    consume(1);
    const Varint length = read_varint(prefix_);
    if (length.status == VarintStatus::incomplete) continue;
    if (length.status == VarintStatus::invalid)
      co_return Error(cohive::Errc::malformed, stream_.peer(), "length prefix");
    if (length.value > limit)
      co_return Error(cohive::Errc::limit_exceeded, stream_.peer(),
                      "message of " + std::to_string(length.value) + " bytes");
    length_ = static_cast<std::size_t>(length.value);
  }
  co_return length_;
}

Task<Result<std::optional<Bytes>>> StreamReader::read_message(std::size_t limit, Deadline deadline) {
  CO_TRY(const auto length, co_await read_length(limit, deadline));
  if (!length) co_return std::optional<Bytes>();
  CO_TRY(co_await append_until(message_, *length, deadline));
  length_.reset();
  prefix_.clear();
  co_return std::optional<Bytes>(std::exchange(message_, {}));
}

Task<Result<bool>> StreamReader::at_end(Deadline deadline) {
  CO_TRY(auto more, co_await fill(deadline));
  co_return !more;
}

Task<Result<>> write_message(Stream& stream, ByteView message, Deadline deadline) {
  Bytes prefix;
  append_varint(prefix, message.size());
  const ByteView parts[] = {prefix, message};
  co_return co_await stream.write(std::span<const ByteView>(parts), deadline);
}

}  // namespace cohive::transport
