// A raw connection dressed as a Stream, so that the code of multistream-select and of handshakes reads from both alike.
#pragma once

#include <deque>

#include "cohive/core/combine.hpp"
#include "cohive/transport/network.hpp"
#include "cohive/transport/stream.hpp"

namespace cohive::transport {

class RawStream final : public Stream {
 public:
  RawStream(Runtime& runtime, RawConnection& raw, PeerId peer = {}) : runtime_(runtime), raw_(raw), peer_(peer) {}

  Task<Result<Slice>> read(Deadline deadline) override {
    if (!unread_.empty()) {
      Slice slice = std::move(unread_.front());
      unread_.pop_front();
      co_return slice;
    }
    Slice slice = Slice::uninitialised(kReadSize);
    auto count = co_await within(runtime_, deadline, raw_.read_some({slice.mutable_data(), slice.size()}), "reading");
    if (!count) co_return count.error();
    co_return slice.sub(0, *count);
  }
  void unread(Slice bytes) override { unread_.push_front(std::move(bytes)); }
  Task<Result<>> write(std::span<const ByteView> buffers, Deadline deadline) override {
    co_return co_await within(runtime_, deadline, raw_.write_all(buffers), "writing");
  }
  void close_write() noexcept override {}
  void reset() noexcept override { raw_.close(); }
  const PeerId& peer() const override { return peer_; }
  const Multiaddr& remote_address() const override { return raw_.remote_address(); }
  Runtime& runtime() const override { return runtime_; }
  bool readable() const override { return !unread_.empty(); }

  /// Bytes received beyond the handshake.
  Bytes take_unread() {
    Bytes all;
    for (const auto& slice : unread_) all.insert(all.end(), slice.data(), slice.data() + slice.size());
    unread_.clear();
    return all;
  }

 private:
  static constexpr std::size_t kReadSize = 4096;
  Runtime& runtime_;
  RawConnection& raw_;
  PeerId peer_;
  std::deque<Slice> unread_;
};

}  // namespace cohive::transport
