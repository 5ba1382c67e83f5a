// The application's handle of a yamux stream.
#pragma once

#include "yamux.hpp"

namespace cohive::transport {

class YamuxStream final : public Stream {
 public:
  YamuxStream(Runtime& runtime, std::shared_ptr<YamuxStreamState> state, PeerId peer, Multiaddr remote)
      : runtime_(runtime), state_(std::move(state)), peer_(peer), remote_(std::move(remote)) {}
  ~YamuxStream() override;

  Task<Result<Slice>> read(Deadline deadline) override;
  void unread(Slice bytes) override;
  void expect(Slice region) override;
  Task<Result<>> write(std::span<const ByteView> buffers, Deadline deadline) override;
  void limit_window(std::size_t most) override { state_->most_window = most; }
  void hint_bulk_receive() override {
    if (state_->connection) state_->connection->hint_bulk_receive(*state_);
  }
  void close_write() noexcept override;
  void reset() noexcept override;
  const PeerId& peer() const override { return peer_; }
  const Multiaddr& remote_address() const override { return remote_; }
  std::uint64_t receive_quota() const override;
  Runtime& runtime() const override { return runtime_; }
  bool readable() const override {
    return !state_->received.empty() || state_->in != YamuxStreamState::Half::open || state_->failure;
  }

  void mark_accepted() noexcept { state_->holder = YamuxStreamState::Holder::application; }
  bool is(const YamuxStreamState& state) const noexcept { return state_.get() == &state; }

 private:
  std::optional<Error> broken(YamuxStreamState::Half half) const;
  Task<Result<>> wait_for_backlog(Deadline deadline);
  Runtime& runtime_;
  std::shared_ptr<YamuxStreamState> state_;
  PeerId peer_;
  Multiaddr remote_;
};

}  // namespace cohive::transport
