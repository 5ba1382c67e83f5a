// The framing of streaming calls: marker (1 byte) | length (8 bytes, big-endian) | payload.
//   marker 0: a message;  marker 1: an RPCError, empty for END_OF_STREAM.
// Source: hivemind wire spec, section 2.3.
#pragma once

#include <optional>

#include "cohive/rpc/rpc.hpp"

namespace cohive::rpc {

enum class Marker : std::uint8_t { message = 0, error = 1 };

struct StreamRecord {
  Marker marker;
  Slice payload;
};

/// Reads records; a record inside one received slice is handed out without copying.
class RecordReader {
 public:
  explicit RecordReader(transport::Stream& stream) : stream_(stream) {}
  /// nullopt at a clean end between records.
  Task<Result<std::optional<StreamRecord>>> next(Deadline deadline);

 private:
  Task<Result<bool>> fill(Deadline deadline);
  Task<Result<Slice>> take(std::size_t size, Deadline deadline);
  transport::Stream& stream_;
  Slice buffered_;
};

/// Writes one record made of several parts, gathered.
Task<Result<>> write_record(transport::Stream& stream, Marker marker, std::span<const ByteView> parts, Deadline deadline);

}  // namespace cohive::rpc
