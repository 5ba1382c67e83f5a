// Two ends of a wire in memory, for tests that play one side byte by byte.
#pragma once

#include <deque>
#include <memory>

#include "cohive/core/errors.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::transport::test {

struct MemoryPipe {
  explicit MemoryPipe(Runtime& runtime) : changed(runtime, "memory pipe") {}
  std::deque<std::uint8_t> bytes;
  bool closed = false;
  bool stalled = false;  // the network takes no more bytes
  int let_through = 0;   // but so many writes
  std::size_t room = 0;  // bytes of memory that a read waits with
  Condition changed;
};

class MemoryConnection final : public RawConnection {
 public:
  MemoryConnection(std::shared_ptr<MemoryPipe> in, std::shared_ptr<MemoryPipe> out)
      : in_(std::move(in)), out_(std::move(out)) {}
  ~MemoryConnection() override { close(); }

  Task<Result<std::size_t>> read_some(MutableBytes into) override {
    const auto in = in_;
    while (in->bytes.empty()) {
      if (closed_) co_return Error(cohive::Errc::closed, "memory");
      if (in->closed) co_return std::size_t{0};
      in->room = into.size();
      co_await in->changed.wait();
      in->room = 0;
    }
    const std::size_t count = std::min(into.size(), in->bytes.size());
    const auto end = in->bytes.begin() + static_cast<std::ptrdiff_t>(count);
    std::copy(in->bytes.begin(), end, into.begin());
    in->bytes.erase(in->bytes.begin(), end);
    co_return count;
  }
  Task<void> wait_readable() override {
    const auto in = in_;
    while (in->bytes.empty() && !in->closed) co_await in->changed.wait();
  }
  Task<Result<>> write_all(std::span<const ByteView> buffers) override {
    const auto out = out_;
    while (out->stalled && out->let_through == 0 && !out->closed) co_await out->changed.wait();
    if (out->closed) co_return Error(cohive::Errc::closed, "memory");
    if (out->stalled) --out->let_through;
    for (ByteView buffer : buffers) out->bytes.insert(out->bytes.end(), buffer.begin(), buffer.end());
    out->changed.notify_all();
    co_return ok();
  }
  void end_writing() noexcept override {
    out_->closed = true;
    out_->changed.notify_all();
  }
  void close() noexcept override {
    closed_ = true;
    for (auto* pipe : {in_.get(), out_.get()}) {
      pipe->closed = true;
      pipe->changed.notify_all();
    }
  }
  const Multiaddr& local_address() const override { return address_; }
  const Multiaddr& remote_address() const override { return address_; }

 private:
  std::shared_ptr<MemoryPipe> in_, out_;
  bool closed_ = false;
  Multiaddr address_ = Multiaddr::from_text("/ip4/192.0.2.1/tcp/4001").value();
};

/// One end for the code under test; the other is the test's own, to write and read bytes without coroutines.
class Wire {
 public:
  explicit Wire(Runtime& runtime)
      : to_us_(std::make_shared<MemoryPipe>(runtime)), from_us_(std::make_shared<MemoryPipe>(runtime)) {}
  std::unique_ptr<RawConnection> our_end() { return std::make_unique<MemoryConnection>(to_us_, from_us_); }
  std::unique_ptr<RawConnection> other_end() { return std::make_unique<MemoryConnection>(from_us_, to_us_); }

  void send(ByteView bytes) {
    to_us_->bytes.insert(to_us_->bytes.end(), bytes.begin(), bytes.end());
    to_us_->changed.notify_all();
  }
  void send(std::string_view text) { send(as_bytes(text)); }
  /// No more bytes from the other side.
  void finish() {
    to_us_->closed = true;
    to_us_->changed.notify_all();
  }
  /// Everything written by the code under test since the last call.
  Bytes received() {
    Bytes all(from_us_->bytes.begin(), from_us_->bytes.end());
    from_us_->bytes.clear();
    return all;
  }
  bool closed_by_us() const { return from_us_->closed; }
  /// Bytes of memory with which the code under test waits for more.
  std::size_t room_of_the_waiting_read() const { return to_us_->room; }
  void stall(bool stalled) {
    from_us_->stalled = stalled;
    from_us_->changed.notify_all();
  }
  /// One write of a wire that is stalled passes.
  void let_one_through() {
    ++from_us_->let_through;
    from_us_->changed.notify_all();
  }

 private:
  std::shared_ptr<MemoryPipe> to_us_, from_us_;
};

}  // namespace cohive::transport::test
