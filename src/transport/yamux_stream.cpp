#include "yamux_stream.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"

namespace cohive::transport {

namespace {
constexpr std::size_t kHeaderSize = 12;
/// A full frame fills one encrypted record exactly.
constexpr std::size_t kMaxPayload = kNoiseMaxPlaintext - kHeaderSize;
constexpr std::uint8_t kData = 0;
}  // namespace

/// Counts the writers of a connection while it lives.
struct WriterTurn {
  std::shared_ptr<YamuxStreamState> state;
  explicit WriterTurn(std::shared_ptr<YamuxStreamState> s) : state(std::move(s)) {
    state->writing = true;
    if (state->connection) ++state->connection->writers_;
  }
  ~WriterTurn() {
    state->writing = false;
    if (state->connection) --state->connection->writers_;
  }
};

YamuxStream::~YamuxStream() {
  if (state_->connection) state_->connection->release(*state_);
}

std::optional<Error> YamuxStream::broken() const {
  if (state_->was_reset) return Error(cohive::Errc::reset, peer_);
  if (state_->failure) return *state_->failure;
  return std::nullopt;
}

/// A peer accepts only so many new streams at once; the others wait here before they are announced.
Task<Result<>> YamuxStream::wait_for_backlog(Deadline deadline) {
  struct PassOn {  // the wake-up of a waiter that gives up belongs to the next one
    std::shared_ptr<YamuxStreamState> state;
    ~PassOn() {
      if (state->connection) state->connection->openable_.notify_one();
    }
  };
  PassOn pass_on{state_};
  const auto state = state_;
  while (state->connection && state->syn_pending && !state->connection->may_announce()) {
    if (!co_await state->connection->openable_.wait(deadline))
      co_return Error(cohive::Errc::timeout, peer_, "opening a stream");
  }
  co_return ok();
}

Task<Result<Slice>> YamuxStream::read(Deadline deadline) {
  const auto state = state_;
  if (state->syn_pending) {
    auto turn = co_await wait_for_backlog(deadline);
    if (!turn) co_return turn.error();
    if (state->connection && state->syn_pending) state->connection->send_control(*state, 0);
  }
  for (;;) {
    if (!state->received.empty()) {
      Slice slice = std::move(state->received.front());
      state->received.pop_front();
      if (state->received.empty()) state->drop_tail();
      state->received_bytes -= slice.size();
      state->consumed += slice.size();
      if (state->connection) {
        state->connection->buffered_ -= slice.size();
        state->connection->return_credit(*state);
      }
      co_return slice;
    }
    if (state->remote_fin) co_return Slice();
    if (auto error = broken()) co_return *error;
    if (!co_await state->readable.wait(deadline)) co_return Error(cohive::Errc::timeout, peer_, "reading");
  }
}

void YamuxStream::unread(Slice bytes) {
  if (bytes.empty()) return;
  // Its credit was already returned; what is read again must not be credited twice.
  state_->received_bytes += bytes.size();
  state_->consumed -= std::min(state_->consumed, bytes.size());
  if (state_->connection) state_->connection->buffered_ += bytes.size();
  state_->received.push_front(std::move(bytes));
}

void YamuxStream::expect(Slice region) {
  region.remove_prefix(std::min(region.size(), state_->received_bytes));
  state_->expected = region.empty() ? Slice() : std::move(region);
}

Task<Result<>> YamuxStream::write(std::span<const ByteView> buffers, Deadline deadline) {
  const auto state = state_;
  std::size_t left = 0;
  for (ByteView buffer : buffers) left += buffer.size();
  std::size_t index = 0, offset = 0;  // where in `buffers` we are
  std::vector<ByteView> frame;
  const WriterTurn turn(state);
  while (left > 0) {
    if (auto error = broken()) co_return *error;
    if (state->local_fin) co_return Error(cohive::Errc::closed, peer_, "writing after the end");
    YamuxConnection& connection = *state->connection;
    if (state->syn_pending && !connection.may_announce()) {
      auto opened = co_await wait_for_backlog(deadline);
      if (!opened) co_return opened.error();
      continue;
    }
    if (state->send_window == 0) {
      // A responder that has finished and grants no credit gave up on our request. (Who opened the stream may well have
      // finished and wait for our answer.)
      if (state->remote_fin && state->outbound)
        co_return Error(cohive::Errc::closed, peer_, "the peer stopped reading");
      if (!co_await state->writable.wait(deadline)) co_return Error(cohive::Errc::timeout, peer_, "writing");
      continue;
    }
    if (!connection.may_queue(left)) {
      if (!co_await connection.writable_.wait(deadline)) co_return Error(cohive::Errc::timeout, peer_, "writing");
      continue;
    }
    const std::size_t size = std::min({left, state->send_window, kMaxPayload, connection.queue_limit_});
    frame.clear();
    for (std::size_t need = size; need > 0;) {
      const std::size_t take = std::min(need, buffers[index].size() - offset);
      if (take) frame.push_back(buffers[index].subspan(offset, take));
      need -= take;
      offset += take;
      if (offset == buffers[index].size()) {
        ++index;
        offset = 0;
      }
    }
    connection.send_frame(kData, connection.opening_flags(*state), state->id, static_cast<std::uint32_t>(size), frame);
    state->send_window -= size;
    left -= size;
    if (left > 0 && connection.writers_ > 1) co_await runtime_.yield();  // the others' turn
  }
  co_return ok();
}

void YamuxStream::close_write() noexcept {
  if (state_->local_fin || state_->was_reset || !state_->connection) return;
  state_->local_fin = true;
  state_->connection->send_control(*state_, 0x4);
  if (state_->finished()) state_->connection->forget(state_->id);
}

void YamuxStream::reset() noexcept {
  if (state_->finished() || !state_->connection) return;
  state_->connection->reset_stream(*state_);
}

}  // namespace cohive::transport
