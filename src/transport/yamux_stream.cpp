#include "yamux_stream.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"

namespace cohive::transport {
namespace {

using namespace yamux;
using Half = YamuxStreamState::Half;
using Opening = YamuxStreamState::Opening;

// Smaller payloads are copied: they would pin a block of 132 KiB, and only their bytes are charged to the peer. Full
// frames, ours and go-libp2p's, and the chunks of bundles, of 60 KiB with a header, are larger.
constexpr std::size_t kCopyBelow = 60 * 1024;
constexpr std::size_t kTail = 4 * 1024;  // tiny payloads that wait to be read are collected in blocks of it

}  // namespace

// ---- What connection and handle share

YamuxStreamState::YamuxStreamState(Runtime& runtime, YamuxConnection& owner, YamuxTotals& totals,
                                   std::uint32_t stream_id, bool is_outbound, std::size_t window)
    : connection(&owner),
      id(stream_id),
      outbound(is_outbound),
      opening(is_outbound ? Opening::unsent : Opening::acknowledged),
      holder(is_outbound ? Holder::application : Holder::backlog),
      send_window(window),
      receive_window(window),
      window_limit(window),
      open(is_outbound ? totals.outbound : totals.inbound, 1),
      unacknowledged(totals.unacknowledged),
      buffered(totals.buffered),
      granted_extra(totals.granted_extra),
      writing(totals.writing),
      readable(runtime, "stream data"),
      writable(runtime, "stream window") {}

void YamuxStreamState::reset() {
  for (Half* half : {&in, &out})
    if (*half == Half::open) *half = Half::reset;
}

void YamuxStreamState::leave() {
  connection = nullptr;
  own.release();
  for (PartOf* part : {&open, &unacknowledged, &buffered, &granted_extra, &writing}) part->leave();
}

void YamuxStreamState::store(Slice bytes) {
  buffered.add(bytes.size());
  const bool in_place = !expected.empty() && bytes.data() == expected.data();  // it pins its reader's own memory
  expected.remove_prefix(std::min(expected.size(), bytes.size()));
  if (expected.empty()) expected = Slice();  // its memory is its reader's alone
  if (in_place || bytes.size() >= kCopyBelow) {
    drop_tail();
    received.push_back(std::move(bytes));
    return;
  }
  const std::uint8_t* free = tail.empty() ? nullptr : tail.data() + tail_used;
  const bool adjoins = free && !received.empty() && received.back().data() + received.back().size() == free;
  if (adjoins && tail.size() - tail_used >= bytes.size()) {
    // Behind the last slice, in the same block: a flood of tiny frames takes no more room than its bytes.
    std::memcpy(tail.mutable_data() + tail_used, bytes.data(), bytes.size());
    const std::size_t size = received.back().size() + bytes.size();
    tail_used += bytes.size();
    received.back() = tail.sub(tail_used - size, size);
    return;
  }
  tail = Slice::uninitialised(received.empty() ? bytes.size() : std::max(kTail, bytes.size()));
  std::memcpy(tail.mutable_data(), bytes.data(), bytes.size());
  tail_used = bytes.size();
  received.push_back(tail.sub(0, tail_used));
}

void YamuxStreamState::drop_tail() {
  tail = Slice();
  tail_used = 0;
}

void YamuxStreamState::discard_received() {
  received.clear();
  buffered.set(0);
  memory.release();
  expected = Slice();
  drop_tail();
}

// ---- The handle

YamuxStream::~YamuxStream() {
  if (state_->connection) state_->connection->release(*state_, begun());
}

/// Why nothing more goes through a half of the stream, if so.
std::optional<Error> YamuxStream::broken(Half half) const {
  if (half == Half::reset) return Error(cohive::Errc::reset, peer_);
  if (state_->failure) return *state_->failure;
  return std::nullopt;
}

/// A peer accepts only so many new streams at once; further ones wait here before they are announced.
Task<Result<>> YamuxStream::wait_for_backlog(Deadline deadline) {
  const auto state = state_;
  const auto pass_on = on_exit([state] {  // the wake-up of a waiter that gives up belongs to the next one
    if (state->connection) state->connection->openable_.notify_one();
  });
  while (state->connection && state->opening == Opening::unsent && !state->connection->may_announce()) {
    if (!co_await state->connection->openable_.wait(deadline))
      co_return Error(cohive::Errc::timeout, peer_, "opening a stream");
  }
  co_return ok();
}

Task<Result<Slice>> YamuxStream::read(Deadline deadline) {
  const auto state = state_;
  if (state->opening == Opening::unsent) {
    auto turn = co_await wait_for_backlog(deadline);
    if (!turn) co_return turn.error();
    if (state->connection && state->opening == Opening::unsent) state->connection->send_control(*state, 0);
  }
  for (;;) {
    if (!state->received.empty()) {
      Slice slice = std::move(state->received.front());
      state->received.pop_front();
      if (state->received.empty()) state->drop_tail();
      state->buffered.subtract(slice.size());
      state->memory.subtract(slice.size());
      state->consumed += slice.size();
      if (state->connection) state->connection->return_credit(*state);
      co_return slice;
    }
    if (state->in == Half::ended) co_return Slice();
    if (auto error = broken(state->in)) co_return *error;
    if (!co_await state->readable.wait(deadline)) co_return Error(cohive::Errc::timeout, peer_, "reading");
  }
}

void YamuxStream::unread(Slice bytes) {
  if (bytes.empty()) return;
  // Its credit was already returned; what is read again must not be credited twice.
  state_->buffered.add(bytes.size());
  (void)state_->memory.add(bytes.size());
  state_->consumed -= std::min(state_->consumed, bytes.size());
  state_->received.push_front(std::move(bytes));
}

std::uint64_t YamuxStream::receive_quota() const {
  return state_->connection ? state_->connection->receive_quota() : 0;
}

void YamuxStream::expect(Slice region) {
  region.remove_prefix(std::min(region.size(), state_->buffered.amount()));
  state_->expected = region.empty() ? Slice() : std::move(region);
}

Task<Result<>> YamuxStream::write(std::span<const ByteView> buffers, Deadline deadline) {
  const auto state = state_;
  std::size_t left = 0;
  for (ByteView buffer : buffers) left += buffer.size();
  // Half of a message would take the rest of what a relay carries, and be of use to no peer.
  if (state->connection && left > state->connection->send_quota())
    co_return Error(cohive::Errc::limit_exceeded, peer_, "the relay does not carry so much");
  std::size_t index = 0, offset = 0;  // where in `buffers` we are
  std::vector<ByteView> frame;
  state->writing.set(1);
  const auto written = on_exit([&state] { state->writing.set(0); });
  while (left > 0) {
    if (auto error = broken(state->out)) co_return *error;
    if (state->out == Half::ended) co_return Error(cohive::Errc::closed, peer_, "writing after the end");
    YamuxConnection& connection = *state->connection;
    if (state->opening == Opening::unsent && !connection.may_announce()) {
      auto opened = co_await wait_for_backlog(deadline);
      if (!opened) co_return opened.error();
      continue;
    }
    if (state->send_window == 0) {
      // A responder that has finished and grants no credit gave up on our request. (The opener of the stream may well
      // have finished and wait for our answer.)
      if (state->in == Half::ended && state->outbound)
        co_return Error(cohive::Errc::closed, peer_, "the peer stopped reading");
      if (!co_await state->writable.wait(deadline)) co_return Error(cohive::Errc::timeout, peer_, "writing");
      continue;
    }
    if (!connection.may_queue(*state, left)) {
      if (!co_await connection.writable_.wait(deadline)) co_return Error(cohive::Errc::timeout, peer_, "writing");
      continue;
    }
    const std::size_t size = std::min({left, state->send_window, kMaxPayload, connection.queue_limit_});
    COHIVE_ASSERT(size > 0 && index < buffers.size());
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
    connection.note_queueing(*state, size);
    connection.send_frame(kData, connection.opening_flags(*state), state->id, static_cast<std::uint32_t>(size), frame);
    state->send_window -= size;
    left -= size;
    // The turn of other streams, also after the last frame: or else a stream of small writes would fill the queue each
    // time before the streams that were woken with it.
    if (connection.totals_.writing > 1) co_await runtime_.yield();
  }
  co_return ok();
}

void YamuxStream::close_write() noexcept {
  if (state_->out != Half::open || !state_->connection) return;
  state_->out = Half::ended;
  state_->connection->send_control(*state_, kFin);
  if (state_->finished()) state_->connection->forget(state_->id);
}

void YamuxStream::reset() noexcept {
  if (state_->finished() || !state_->connection) return;
  state_->connection->reset_stream(*state_);
}

}  // namespace cohive::transport
