#include "records.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "cohive/core/try.hpp"
#include "cohive/rpc/errors.hpp"
#include "core/detail/assertion.hpp"

namespace cohive::rpc {

namespace {
// Bytes of room for a record that does not arrive in one piece. An announced size costs its sender nothing: until the
// record is large, room is taken for several times what has arrived, so that the usual parts are copied at most once.
// Larger records double it.
constexpr std::size_t kLeastRoom = 4 * 1024, kMostRoom = 1024 * 1024;
constexpr std::size_t kRoomForArrived = 12;
}  // namespace

Task<Result<bool>> RecordReader::fill(Deadline deadline) {
  if (!buffered_.empty()) co_return true;
  CO_TRY(buffered_, co_await stream_.read(deadline));
  bytes_ += buffered_.size();
  co_return !buffered_.empty();
}

Task<Result<std::optional<RecordHeader>>> RecordReader::header(Deadline deadline) {
  while (!header_) {
    CO_TRY(auto more, co_await fill(deadline));
    if (!more) {
      if (raw_size_ == 0) co_return std::optional<RecordHeader>();
      co_return Error(cohive::Errc::end_of_stream, stream_.peer(), "record cut off");
    }
    const std::size_t count = std::min(kRecordHeader - raw_size_, buffered_.size());
    std::memcpy(raw_header_.data() + raw_size_, buffered_.data(), count);
    buffered_.remove_prefix(count);
    raw_size_ += count;
    COHIVE_ASSERT(raw_size_ <= kRecordHeader);
    if (raw_size_ < kRecordHeader) continue;

    const std::uint8_t marker = raw_header_[0];
    std::uint64_t length = 0;
    for (std::size_t i = 1; i < kRecordHeader; ++i) length = length << 8 | raw_header_[i];
    if (marker > 1) co_return Error(Errc::malformed_frame, stream_.peer(), "marker " + std::to_string(marker));
    if (length > kMaxStreamRecord)
      co_return Error(Errc::frame_too_large, stream_.peer(), "record of " + std::to_string(length) + " bytes");
    header_ = RecordHeader{static_cast<Marker>(marker), static_cast<std::size_t>(length)};
  }
  co_return header_;
}

/// True when the room is new.
bool RecordReader::reserve() {
  if (assembled_ < assembly_.size()) return false;
  const std::size_t arrived = assembled_ + buffered_.size();
  const std::size_t first = std::clamp(kRoomForArrived * arrived, kLeastRoom, kMostRoom);
  Slice larger = Slice::uninitialised(std::min(header_->size, std::max(first, 2 * assembled_)));
  if (assembled_) std::memcpy(larger.mutable_data(), assembly_.data(), assembled_);
  assembly_ = std::move(larger);
  return true;
}

Task<Result<Slice>> RecordReader::payload(Deadline deadline) {
  COHIVE_ASSERT(header_);  // header() comes first
  const std::size_t size = header_->size;
  Slice result;
  while (assembled_ < size) {
    CO_TRY(auto more, co_await fill(deadline));
    if (!more) co_return Error(cohive::Errc::end_of_stream, stream_.peer(), "record cut off");
    if (assembled_ == 0 && buffered_.size() >= size) {
      result = buffered_.sub(0, size);
      buffered_.remove_prefix(size);
      break;
    }
    const bool fresh = reserve();
    const std::size_t count = std::min(assembly_.size() - assembled_, buffered_.size());
    std::uint8_t* const to = assembly_.mutable_data() + assembled_;
    if (buffered_.data() != to) std::memcpy(to, buffered_.data(), count);  // else it was received there
    buffered_.remove_prefix(count);
    assembled_ += count;
    COHIVE_ASSERT(assembled_ <= assembly_.size() && assembly_.size() <= size);
    if (!buffered_.empty()) continue;
    buffered_ = Slice();
    if (fresh) stream_.expect(assembly_.sub(assembled_, assembly_.size() - assembled_));
  }
  if (assembled_ > 0) result = std::exchange(assembly_, Slice());
  assembled_ = raw_size_ = 0;
  header_.reset();
  co_return result;
}

Task<Result<std::optional<StreamRecord>>> RecordReader::next(Deadline deadline) {
  CO_TRY(auto head, co_await header(deadline));
  if (!head) co_return std::optional<StreamRecord>();
  const Marker marker = head->marker;
  CO_TRY(auto body, co_await payload(deadline));
  co_return std::optional<StreamRecord>(StreamRecord{marker, std::move(body)});
}

namespace {

std::array<std::uint8_t, kRecordHeader> header_of(Marker marker, std::size_t size) {
  std::array<std::uint8_t, kRecordHeader> header{static_cast<std::uint8_t>(marker)};
  std::uint64_t length = size;
  for (std::size_t i = kRecordHeader - 1; i > 0; --i, length >>= 8) header[i] = static_cast<std::uint8_t>(length);
  return header;
}

std::size_t size_of(std::span<const ByteView> parts) {
  std::size_t size = 0;
  for (ByteView part : parts) size += part.size();
  return size;
}

}  // namespace

Result<> RecordWriter::begin(std::size_t size) {
  if (unfinished_) return Error(cohive::Errc::closed, stream_.peer(), "an earlier message is unfinished");
  if (size > kMaxStreamRecord)
    return Error(Errc::frame_too_large, stream_.peer(), "record of " + std::to_string(size) + " bytes");
  unfinished_ = true;
  return ok();
}

void RecordWriter::end(std::size_t size) {
  COHIVE_ASSERT(unfinished_);
  unfinished_ = false;
  bytes_ += kRecordHeader + size;
}

Task<Result<>> RecordWriter::write(Marker marker, std::span<const ByteView> parts, Deadline deadline) {
  const std::size_t size = size_of(parts);
  CO_TRY(begin(size));
  const auto header = header_of(marker, size);
  std::vector<ByteView> all{header};
  all.insert(all.end(), parts.begin(), parts.end());
  CO_TRY(co_await stream_.write(all, deadline));
  end(size);
  co_return ok();
}

Task<Result<>> RecordWriter::write_while_moving(Marker marker, std::span<const ByteView> parts, Duration timeout) {
  const std::size_t size = size_of(parts);
  CO_TRY(begin(size));
  const auto header = header_of(marker, size);
  std::vector<ByteView> left{header};
  left.insert(left.end(), parts.begin(), parts.end());
  std::ranges::reverse(left);
  while (!left.empty()) {
    std::vector<ByteView> stretch;
    for (std::size_t room = kStretch; room > 0 && !left.empty();) {
      ByteView& next = left.back();
      stretch.push_back(next.first(std::min(room, next.size())));
      room -= stretch.back().size();
      next = next.subspan(stretch.back().size());
      if (next.empty()) left.pop_back();
    }
    const Deadline deadline = timeout > Duration::zero() ? stream_.runtime().after(timeout) : Deadline::never();
    CO_TRY(co_await stream_.write(stretch, deadline));
  }
  end(size);
  co_return ok();
}

}  // namespace cohive::rpc
