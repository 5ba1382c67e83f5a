#include "circuit_connection.hpp"

#include <algorithm>
#include <cstring>

#include "circuit_message.hpp"
#include "cohive/core/errors.hpp"

namespace cohive::p2p {

CircuitConnection::CircuitConnection(transport::StreamPtr stream, CircuitLimit limit, Multiaddr local, Multiaddr remote)
    : stream_(std::move(stream)),
      left_(limit.bytes > 0 ? limit.bytes : kUnlimited),
      to_come_(left_),
      local_(std::move(local)),
      remote_(std::move(remote)) {}

Task<Result<std::size_t>> CircuitConnection::read_some(MutableBytes into) {
  if (closed_) co_return Error(cohive::Errc::closed, remote_.text());
  auto bytes = co_await stream_->read(Deadline::never());
  if (!bytes) co_return bytes.error();
  const std::size_t count = std::min(into.size(), bytes->size());
  if (count > 0) std::memcpy(into.data(), bytes->data(), count);
  if (to_come_ != kUnlimited) to_come_ -= std::min<std::uint64_t>(to_come_, count);
  if (count < bytes->size()) stream_->unread(bytes->sub(count, bytes->size() - count));
  co_return count;
}

/// Circuits that share a slow line wait long for the relay to grant credit, which it does for much at a time.
Task<Result<>> CircuitConnection::write_all(std::span<const ByteView> buffers) {
  if (closed_) co_return Error(cohive::Errc::closed, remote_.text());
  std::size_t size = 0;
  for (const ByteView buffer : buffers) size += buffer.size();
  if (left_ != kUnlimited) {
    if (size > left_) co_return Error(cohive::Errc::closed, "the relay carries no more bytes to this peer");
    left_ -= size;
  }
  co_return co_await stream_->write(buffers, stream_->runtime().after(kCircuitStall));
}

void CircuitConnection::end_writing() noexcept {
  if (!closed_) stream_->close_write();
}

void CircuitConnection::close() noexcept {
  if (std::exchange(closed_, true)) return;
  stream_->reset();
}

}  // namespace cohive::p2p
