// The framing of streaming calls: marker (1 byte) | length (8 bytes, big-endian) | payload.
//   marker 0: a message;  marker 1: an RPCError, empty for END_OF_STREAM.
// Source: docs/wire/hivemind.md, section 2.3.
#pragma once

#include <array>
#include <optional>

#include "cohive/rpc/rpc.hpp"

namespace cohive::rpc {

enum class Marker : std::uint8_t { message = 0, error = 1 };

inline constexpr std::size_t kRecordHeader = 9;
inline constexpr std::size_t kCallIdSize = 16;

struct RecordHeader {
  Marker marker;
  std::size_t size;
};
struct StreamRecord {
  Marker marker;
  Slice payload;
};

/// Reads records. One that lies inside a received slice is handed out without copying; else it is assembled once.
/// A read that is dropped or runs into its deadline can be repeated: nothing received is lost.
class RecordReader {
 public:
  explicit RecordReader(transport::Stream& stream) : stream_(stream) {}

  /// The marker and size of the next record, checked against kMaxStreamRecord; nullopt at a clean end between records.
  Task<Result<std::optional<RecordHeader>>> header(Deadline deadline);
  /// The payload that goes with the header read last. Its memory is taken ahead of the bytes: twelve times what has
  /// arrived up to 1 MiB, and twice beyond.
  Task<Result<Slice>> payload(Deadline deadline);
  /// Both.
  Task<Result<std::optional<StreamRecord>>> next(Deadline deadline);

  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  Task<Result<bool>> fill(Deadline deadline);
  bool reserve();

  transport::Stream& stream_;
  Slice buffered_;
  std::array<std::uint8_t, kRecordHeader> raw_header_{};
  std::size_t raw_size_ = 0;
  std::optional<RecordHeader> header_;
  Slice assembly_;
  std::size_t assembled_ = 0;
  std::uint64_t bytes_ = 0;
};

/// Writes records made of several parts, gathered with their header. Once a record was cut off by its deadline or by
/// dropping, the stream carries half of it: later writes fail, and the stream must not be ended as if all were well.
class RecordWriter {
 public:
  static constexpr std::size_t kStretch = 128 * 1024;
  explicit RecordWriter(transport::Stream& stream) : stream_(stream) {}
  Task<Result<>> write(Marker marker, std::span<const ByteView> parts, Deadline deadline);
  /// The same with a limit for each stretch of kStretch bytes; zero: none.
  Task<Result<>> write_while_moving(Marker marker, std::span<const ByteView> parts, Duration timeout);
  bool unfinished() const noexcept { return unfinished_; }
  std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  Result<> begin(std::size_t size);
  void end(std::size_t size);
  transport::Stream& stream_;
  bool unfinished_ = false;
  std::uint64_t bytes_ = 0;
};

}  // namespace cohive::rpc
