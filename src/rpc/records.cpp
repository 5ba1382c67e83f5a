#include "records.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/rpc/errors.hpp"

namespace cohive::rpc {

namespace {
constexpr std::size_t kHeader = 9;
}

Task<Result<bool>> RecordReader::fill(Deadline deadline) {
  if (!buffered_.empty()) co_return true;
  auto slice = co_await stream_.read(deadline);
  if (!slice) co_return slice.error();
  buffered_ = std::move(*slice);
  co_return !buffered_.empty();
}

Task<Result<Slice>> RecordReader::take(std::size_t size, Deadline deadline) {
  std::vector<Slice> pieces;  // memory grows with what arrives, not with what was announced
  std::size_t have = 0;
  while (have < size) {
    auto more = co_await fill(deadline);
    if (!more) co_return more.error();
    if (!*more) co_return Error(cohive::Errc::end_of_stream, stream_.peer(), "record cut off");
    const std::size_t count = std::min(size - have, buffered_.size());
    pieces.push_back(buffered_.sub(0, count));
    buffered_.remove_prefix(count);
    have += count;
  }
  if (pieces.size() == 1) co_return std::move(pieces.front());
  Slice joined = Slice::uninitialised(size);
  std::uint8_t* at = joined.mutable_data();
  for (const Slice& piece : pieces) {
    std::memcpy(at, piece.data(), piece.size());
    at += piece.size();
  }
  co_return joined;
}

Task<Result<std::optional<StreamRecord>>> RecordReader::next(Deadline deadline) {
  auto more = co_await fill(deadline);
  if (!more) co_return more.error();
  if (!*more) co_return std::optional<StreamRecord>();
  auto header = co_await take(kHeader, deadline);
  if (!header) co_return header.error();
  const std::uint8_t marker = header->data()[0];
  std::uint64_t length = 0;
  for (std::size_t i = 1; i < kHeader; ++i) length = length << 8 | header->data()[i];
  if (marker > 1) co_return Error(Errc::malformed_frame, stream_.peer(), "marker " + std::to_string(marker));
  if (length > kMaxStreamRecord)
    co_return Error(Errc::frame_too_large, stream_.peer(), "record of " + std::to_string(length) + " bytes");
  auto payload = co_await take(length, deadline);
  if (!payload) co_return payload.error();
  co_return std::optional<StreamRecord>(StreamRecord{static_cast<Marker>(marker), std::move(*payload)});
}

Task<Result<>> write_record(transport::Stream& stream, Marker marker, std::span<const ByteView> parts, Deadline deadline) {
  std::uint64_t length = 0;
  for (ByteView part : parts) length += part.size();
  std::uint8_t header[kHeader] = {static_cast<std::uint8_t>(marker)};
  for (std::size_t i = kHeader - 1; i > 0; --i, length >>= 8) header[i] = static_cast<std::uint8_t>(length);
  std::vector<ByteView> all{ByteView(header)};
  all.insert(all.end(), parts.begin(), parts.end());
  co_return co_await stream.write(all, deadline);
}

}  // namespace cohive::rpc
