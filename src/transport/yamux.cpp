#include "yamux.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/transport/errors.hpp"
#include "yamux_stream.hpp"

namespace cohive::transport {
namespace {

using namespace yamux;
using Half = YamuxStreamState::Half;
using Opening = YamuxStreamState::Opening;
using Holder = YamuxStreamState::Holder;

constexpr std::size_t kMaxUnacknowledged = 256;  // go-yamux's backlog
constexpr std::size_t kMaxControlQueue = 256 * 1024;
constexpr std::size_t kMinQueue = 8 * 1024, kFirstQueue = 64 * 1024;
constexpr std::size_t kBulkFrame = 16 * 1024;     // from here on a stream is no short question or answer
constexpr std::size_t kBulkWindow = 1024 * 1024;  // at least, for a stream that is known to carry much
constexpr std::size_t kFewBytes = 2 * 1024;
// Bytes of all streams that may go ahead of the turns of others between two flushes: fewer than a flush takes, or a
// queue that is longer than its limit would never be short enough for a turn.
constexpr std::size_t kMostAhead = 32 * 1024;
constexpr std::size_t kReserve = 512;   // of what a relay carries, for pings and the ends of streams
constexpr Duration kQueueTime = 100ms;  // what waits below the streams delays the next stream by as much
constexpr int kProbeEvery = 4;          // intervals between pings on a busy connection, for the round trip
constexpr double kResetBurst = 16;      // seconds
constexpr Duration kOrphanTime = 60s;   // a peer gets this long to end a stream that we ended
// What a stream that a peer opens takes before a byte comes on it: its state, and the task that serves it.
constexpr std::size_t kStreamMemory = 4 * 1024;

/// What is left for streams of what the network below carries, without the headers of frames and records.
std::uint64_t for_streams(std::uint64_t carried, std::uint64_t taken) {
  if (carried == RawConnection::kUnlimited) return carried;
  return carried > taken ? (carried - taken) / 33 * 32 : 0;
}

}  // namespace

YamuxConnection::YamuxConnection(Runtime& runtime, std::unique_ptr<SecureChannel> channel, Role role,
                                 const PeerId& peer, std::string_view security,
                                 std::shared_ptr<const TransportOptions> options,
                                 std::shared_ptr<const MemoryBudget::Account> account)
    : runtime_(runtime),
      channel_(std::move(channel)),
      role_(role),
      peer_(peer),
      security_(security),
      options_(std::move(options)),
      account_(std::move(account)),
      next_id_(role == Role::initiator ? 1 : 2),
      acceptable_(runtime, "inbound stream"),
      writable_(runtime, "connection output"),
      openable_(runtime, "stream backlog"),
      closed_(runtime, "connection end"),
      ended_(runtime, "the peer's end of the connection"),
      queue_limit_(std::min(kFirstQueue, options_->send_buffer)),
      last_received_(runtime.now()),
      keepalive_(
          runtime, [](void* self) { static_cast<YamuxConnection*>(self)->check_alive(); }, this),
      tasks_(runtime, "yamux") {
  channel_->place_with([this](ByteView first, std::size_t size) { return place(first, size); });
  tasks_.spawn(read_loop(), "yamux reader");
  if (options_->keepalive_interval > 0s) check_alive();
}

YamuxConnection::~YamuxConnection() {
  close(Error(cohive::Errc::closed, peer_));
  pending_.clear();
}

Error YamuxConnection::violation(std::string what) const {
  return Error(Errc::muxer_violation, peer_, std::move(what));
}

// ---- Opening, accepting, closing

Result<StreamPtr> YamuxConnection::open_stream() {
  if (closed()) return reason_;
  if (remote_gone_) return Error(cohive::Errc::closed, peer_, "the peer accepts no more streams");
  if (next_id_ >= 0xfffffffe) return Error(Errc::too_many_streams, peer_, "stream numbers are used up");
  auto state = std::make_shared<YamuxStreamState>(runtime_, *this, totals_, next_id_, true, options_->initial_window);
  state->memory = MemoryBudget::Charge(account_);
  next_id_ += 2;
  streams_.emplace(state->id, state);
  return StreamPtr(std::make_unique<YamuxStream>(runtime_, std::move(state), peer_, remote_address()));
}

Task<Result<StreamPtr>> YamuxConnection::accept_stream() {
  for (;;) {
    if (!pending_.empty()) {
      StreamPtr stream = std::move(pending_.front());
      pending_.pop_front();
      static_cast<YamuxStream&>(*stream).mark_accepted();
      co_return stream;
    }
    if (closed()) co_return reason_;
    co_await acceptable_.wait();
  }
}

Task<void> YamuxConnection::wait_closed() {
  co_await closed_.wait();
}

Task<void> YamuxConnection::flush(Deadline deadline) {
  while (!closed() && channel_->queued() > 0) {
    if (!co_await writable_.wait(deadline)) co_return;
  }
}

/// Reads to the peer's end: a socket closed while bytes still come takes back what the peer has not received yet.
Task<void> YamuxConnection::finish(Error reason, Deadline deadline) {
  if (!closed()) {
    send_frame(kGoAway, 0, 0, 0);
    end_streams(reason);
  }
  bool in_time = true;
  while (in_time && !ended_.is_set() && channel_->queued() > 0) in_time = co_await writable_.wait(deadline);
  if (in_time && !ended_.is_set()) {
    channel_->raw().end_writing();
    co_await ended_.wait(deadline);
  }
  close(std::move(reason));
}

void YamuxConnection::close(Error reason) noexcept {
  end_streams(std::move(reason));
  if (ended_.is_set()) return;
  ended_.set();
  writable_.notify_all();
  channel_->close();
  tasks_.cancel();
}

void YamuxConnection::end_streams(Error reason) noexcept {
  if (closed()) return;
  reason_ = std::move(reason);
  closed_.set();
  // Users of a stream care that the connection is lost; why comes second.
  const Error lost = reason_ == cohive::Errc::closed
                         ? reason_
                         : Error(cohive::Errc::closed, peer_,
                                 reason_.with_context("connection lost").detail() + ": " + reason_.code().message());
  auto streams = std::move(streams_);
  streams_.clear();
  for (auto& [id, stream] : streams) {
    COHIVE_ASSERT(stream->connection == this && stream->id == id);
    stream->failure = lost;
    stream->leave();
    stream->readable.notify_all();
    stream->writable.notify_all();
  }
  COHIVE_ASSERT(totals_.inbound == 0 && totals_.outbound == 0 && totals_.buffered == 0 && totals_.granted_extra == 0);
  acceptable_.notify_all();
  writable_.notify_all();
  openable_.notify_all();
  keepalive_.disarm();
}

ConnectionStats YamuxConnection::stats() const {
  return {channel_->bytes_in(), channel_->bytes_out(),         totals_.inbound,
          totals_.outbound,     channel_->raw().undelivered(), channel_->raw().path()};
}

// ---- Sending

bool YamuxConnection::may_announce() const noexcept {
  return totals_.unacknowledged < kMaxUnacknowledged;
}

std::uint16_t YamuxConnection::opening_flags(YamuxStreamState& stream) {
  if (stream.opening != Opening::unsent) return 0;
  stream.opening = Opening::sent;
  stream.unacknowledged.set(1);
  return kSyn;
}

void YamuxConnection::send_frame(std::uint8_t type, std::uint16_t flags, std::uint32_t id, std::uint32_t length,
                                 std::span<const ByteView> payload) {
  const auto header = Header{0, type, flags, id, length}.bytes();
  std::vector<ByteView> parts;
  parts.reserve(payload.size() + 1);
  parts.push_back(header);
  parts.insert(parts.end(), payload.begin(), payload.end());
  channel_->append(parts);
  if (!closed() && !std::exchange(flushing_, true)) tasks_.spawn(flush_output(), "yamux writer");
}

void YamuxConnection::send_control(YamuxStreamState& stream, std::uint16_t flags, std::uint32_t delta) {
  // A stream that never sent anything and is dropped is unknown to the peer: nothing to tell.
  if (stream.opening == Opening::unsent && (flags & kRst)) return;
  send_frame(kWindowUpdate, static_cast<std::uint16_t>(flags | opening_flags(stream)), stream.id, delta);
}

bool YamuxConnection::may_widen(const YamuxStreamState& stream) const {
  return stream.window_limit < std::min(options_->max_window, stream.most_window) &&
         totals_.granted_extra + stream.window_limit <= options_->max_buffered / 2;
}

void YamuxConnection::widen(YamuxStreamState& stream, std::size_t window) {
  COHIVE_ASSERT(window >= stream.window_limit);  // what was granted is not taken back
  stream.window_limit = std::min({window, options_->max_window, stream.most_window});
  COHIVE_ASSERT(stream.window_limit >= options_->initial_window);
  stream.granted_extra.set(stream.window_limit - options_->initial_window);
  widest_ = std::max(widest_, stream.window_limit);
}

/// What one stream has learned of the link serves later ones: otherwise each spends a round trip per doubling. A
/// stream shows by the size of its frames that it carries much.
void YamuxConnection::widen_early(YamuxStreamState& stream, std::size_t frame) {
  if (frame >= kBulkFrame && stream.holder == Holder::application) grant(stream, widest_);
}

void YamuxConnection::hint_bulk_receive(YamuxStreamState& stream) {
  if (stream.opening == Opening::unsent && !may_announce()) return;
  grant(stream, std::max(widest_, kBulkWindow));
}

void YamuxConnection::grant(YamuxStreamState& stream, std::size_t window) {
  if (stream.window_limit >= window || stream.in != Half::open || !may_widen(stream)) return;
  const std::size_t before = stream.window_limit;
  const std::size_t room = options_->max_buffered / 2 - totals_.granted_extra;
  widen(stream, std::min(window, before + room));
  stream.receive_window += stream.window_limit - before;
  send_control(stream, 0, static_cast<std::uint32_t>(stream.window_limit - before));
}

/// Grants new credit once half the window is used up; grows the window when that took less than four round trips,
/// unless the application is what is slow: more would only wait here longer.
void YamuxConnection::return_credit(YamuxStreamState& stream) {
  if (stream.consumed < stream.window_limit / 2 || stream.in != Half::open) return;
  const TimePoint now = runtime_.now();
  const bool kept_up = stream.buffered.amount() < std::max(stream.window_limit / 4, options_->initial_window);
  if (kept_up && now - stream.last_update < std::max<Duration>(round_trip_ * 4, 1ms) && may_widen(stream))
    widen(stream, stream.window_limit * 2);
  stream.last_update = now;
  const std::size_t target = stream.window_limit - std::min(stream.window_limit, stream.buffered.amount());
  stream.consumed = 0;
  if (stream.receive_window >= target) return;
  COHIVE_ASSERT(target <= stream.window_limit);
  const std::size_t delta = target - stream.receive_window;
  stream.receive_window = target;
  send_control(stream, 0, static_cast<std::uint32_t>(delta));
}

/// Runs while there is something to write: idle connections have no task for it.
Task<void> YamuxConnection::flush_output() {
  while (channel_->queued() > 0) {
    const Deadline limit =
        channel_->raw().has_own_write_timeout() ? Deadline::never() : runtime_.after(options_->write_timeout);
    const TimePoint begun = runtime_.now();
    const std::uint64_t sent = channel_->bytes_out();
    auto flushed = co_await within(runtime_, limit, channel_->flush(), "writing to the connection");
    if (!flushed) {
      close(flushed.error().with_peer(peer_));
      co_return;
    }
    adapt_queue(channel_->bytes_out() - sent, runtime_.now() - begun);
    ++flushes_;
    ahead_ = 0;
    // One turn each, first come first served.
    writable_.notify_all();
  }
  flushing_ = false;
}

/// Keeps the queue as long as what the link carries in kQueueTime: a small request behind a large transfer over a home
/// uplink waits no longer than that, and a fast link still gets large writes.
void YamuxConnection::adapt_queue(std::size_t bytes, Duration took) {
  if (bytes < queue_limit_ / 2 && took < kQueueTime) return;  // there was not enough to say how fast the link is
  const double fits = static_cast<double>(bytes) * to_seconds(kQueueTime) / std::max(to_seconds(took), 1e-9);
  const std::size_t most = std::min(queue_limit_ * 2, options_->send_buffer);
  queue_limit_ = fits < static_cast<double>(most) ? static_cast<std::size_t>(fits) : most;
  queue_limit_ = std::max(queue_limit_, std::min(kMinQueue, options_->send_buffer));
}

/// Whether a stream with so much left to write may append now. A few bytes, a request or its answer, do not wait for
/// the turns of streams that transfer much. But a stream that writes few bytes again and again transfers much, too:
/// only so many of them go ahead in the time of one flush.
bool YamuxConnection::may_queue(const YamuxStreamState& stream, std::size_t left) const noexcept {
  if (channel_->queued() < queue_limit_) return true;
  const std::size_t before = stream.ahead_in == flushes_ ? stream.ahead_bytes : 0;
  return before + left <= kFewBytes && ahead_ < most_ahead();
}

/// Counts what a stream is about to append, if that goes ahead of the turns of others.
void YamuxConnection::note_queueing(YamuxStreamState& stream, std::size_t size) noexcept {
  if (channel_->queued() < queue_limit_) return;
  if (std::exchange(stream.ahead_in, flushes_) != flushes_) stream.ahead_bytes = 0;
  stream.ahead_bytes += size;
  ahead_ += kHeaderSize + size;
}

std::size_t YamuxConnection::most_ahead() const noexcept {
  return std::min(kMostAhead, queue_limit_ / 2);
}

/// What may wait to be written while the peer does nothing wrong: what writers append up to the limit, the frame of the
/// last one that may exceed it, what goes ahead of their turns, and control frames.
std::size_t YamuxConnection::most_queued() const noexcept {
  return options_->send_buffer + SecureChannel::kMaxAppend + kMostAhead + kMaxControlQueue;
}

std::uint64_t YamuxConnection::send_quota() const {
  return for_streams(channel_->raw().send_quota(), kReserve + channel_->queued());
}

std::uint64_t YamuxConnection::receive_quota() const {
  return for_streams(channel_->raw().receive_quota(), kReserve);
}

/// A connection that ends early, while no stream is open, disturbs no caller. One without keys is a bundle, which moves
/// on to fresh connections in time (p2p/bundles.hpp).
bool YamuxConnection::keys_are_worn() const {
  if (!channel_->encrypts()) return false;
  const std::uint64_t most = std::max(channel_->bytes_in(), channel_->bytes_out());
  return most >= options_->max_key_bytes || (most >= options_->max_key_bytes / 2 && open_streams() == 0);
}

/// Opening streams and resetting them, or having us reset them, costs a peer nothing, and us a task each.
bool YamuxConnection::may_reset() {
  const double rate = options_->max_resets_per_second;
  return resets_.take_one(runtime_.now(), rate, rate * kResetBurst);
}

/// Pings a silent peer, and a busy one now and then for the round trip. A timer instead of a task, because a node with
/// thousands of connections pays for each of them.
void YamuxConnection::check_alive() {
  const TimePoint now = runtime_.now();
  if (keys_are_worn()) return close(Error(cohive::Errc::closed, peer_, "a new connection gets new keys"));
  if (std::exchange(probing_, false)) {
    // Behind much data a pong may take longer; a peer that sends anything is alive. Under a cap or in a circuit the
    // ping may not have left.
    const bool may_wait = channel_->raw().has_own_write_timeout() && channel_->queued() > 0;
    if (ping_open_ && last_received_ <= ping_sent_ && !may_wait) return close(Error(Errc::keepalive_timeout, peer_));
  } else {
    sweep_orphans();
    const bool silent = now - last_received_ >= options_->keepalive_interval;
    if (silent || ping_value_ == 0 || now - ping_sent_ >= options_->keepalive_interval * kProbeEvery) {
      ping_sent_ = now;
      ping_open_ = probing_ = true;
      send_frame(kPing, kSyn, 0, ++ping_value_);
      keepalive_.arm(now + options_->keepalive_timeout);
      return;
    }
  }
  keepalive_.arm(std::max(last_received_, ping_sent_) + options_->keepalive_interval);
}

// ---- The end of streams

void YamuxConnection::forget(std::uint32_t id) {
  const auto found = streams_.find(id);
  if (found == streams_.end()) return;
  const State stream = std::move(found->second);
  COHIVE_ASSERT(stream->connection == this);
  streams_.erase(found);
  const bool awaited = stream->unacknowledged.amount() > 0;
  stream->leave();
  if (awaited) openable_.notify_one();
}

/// The handle is gone. An unfinished stream is reset; one that we ended may still be ended by the peer in its own time.
/// A peer that opens and ends streams at once has us reset them, which costs it less than resetting them itself.
/// \param begun  no whole request had come
void YamuxConnection::release(YamuxStreamState& stream, bool begun) {
  stream.discard_received();
  if (stream.out == Half::open) {
    if (begun && !stream.outbound && !may_reset()) flooded_ = true;
    return reset_stream(stream);
  }
  stream.holder = Holder::none;
  stream.orphaned_at = runtime_.now();
}

void YamuxConnection::reset_stream(YamuxStreamState& stream) {
  stream.reset();
  stream.readable.notify_all();
  stream.writable.notify_all();
  send_control(stream, kRst);
  forget(stream.id);
}

void YamuxConnection::sweep_orphans() {
  const TimePoint limit = runtime_.now() - kOrphanTime;
  std::vector<State> overdue;
  for (const auto& [id, stream] : streams_)
    if (stream->holder == Holder::none && stream->orphaned_at < limit) overdue.push_back(stream);
  for (const State& stream : overdue) reset_stream(*stream);
}

// ---- Receiving

Task<void> YamuxConnection::read_loop() {
  for (;;) {
    auto bytes = co_await channel_->receive();
    if (!bytes) {
      close(bytes.error().with_peer(peer_));
      co_return;
    }
    if (bytes->empty()) {
      close(Error(cohive::Errc::closed, peer_, "the peer ended the connection"));
      co_return;
    }
    last_received_ = runtime_.now();
    if (closed()) {
      // No peer that keeps to its windows has more on the way.
      dropped_ += bytes->size();
      if (dropped_ <= options_->max_buffered) continue;
      close(Error(cohive::Errc::limit_exceeded, peer_, "bytes after the end"));
      co_return;
    }
    if (auto error = on_bytes(std::move(*bytes))) {
      log::debug("transport", "closing a connection: {}", *error);
      close(std::move(*error));
      co_return;
    }
  }
}

/// Where the payload of a record goes that is one frame, as ours are, if its stream expects it somewhere.
Slice YamuxConnection::place(ByteView first, std::size_t size) const {
  if (header_have_ > 0 || payload_left_ > 0) return {};
  const Header header = Header::parse(first.data());
  if (header.version != 0 || header.type != kData || header.length != size - header_bytes_.size()) return {};
  const auto found = streams_.find(header.id);
  if (found == streams_.end() || found->second->expected.size() < header.length) return {};
  return found->second->expected.sub(0, header.length);
}

std::optional<Error> YamuxConnection::on_bytes(Slice bytes) {
  while (!bytes.empty()) {
    if (payload_left_ > 0) {
      const std::size_t count = std::min(payload_left_, bytes.size());
      payload_left_ -= count;
      if (auto error = on_payload(bytes.sub(0, count))) return error;
      bytes.remove_prefix(count);
      if (payload_left_ == 0) {
        const State stream = std::exchange(payload_stream_, nullptr);
        const auto flags = std::exchange(late_flags_, std::uint16_t{0});
        if (stream && stream->connection) on_flags(stream, flags);
      }
      continue;
    }
    const std::size_t count = std::min(header_bytes_.size() - header_have_, bytes.size());
    std::memcpy(header_bytes_.data() + header_have_, bytes.data(), count);
    header_have_ += count;
    COHIVE_ASSERT(header_have_ <= header_bytes_.size());
    bytes.remove_prefix(count);
    if (header_have_ < header_bytes_.size()) return std::nullopt;
    header_have_ = 0;
    if (auto error = on_header(Header::parse(header_bytes_.data()))) return error;
  }
  return std::nullopt;
}

std::optional<Error> YamuxConnection::on_header(const Header& header) {
  if (header.version != 0) return violation("frame version " + std::to_string(header.version));
  switch (header.type) {
    case kData:
    case kWindowUpdate:
      return on_stream_frame(header);
    case kPing:
      return on_ping(header);
    case kGoAway:
      if (header.length != 0) return Error(cohive::Errc::closed, peer_, "the peer went away with an error");
      remote_gone_ = true;
      return std::nullopt;
    default:
      return violation("frame type " + std::to_string(header.type));
  }
}

std::optional<Error> YamuxConnection::on_ping(const Header& header) {
  if (header.flags & kSyn) {
    // A peer that floods us with pings and reads nothing gets no unbounded queue of answers.
    if (channel_->queued() > most_queued()) return violation("ping flood");
    send_frame(kPing, kAck, 0, header.length);
  } else if ((header.flags & kAck) && ping_open_ && header.length == ping_value_) {
    ping_open_ = false;
    round_trip_ = runtime_.now() - ping_sent_;
  }
  return std::nullopt;
}

std::optional<Error> YamuxConnection::on_stream_frame(const Header& header) {
  if (header.id == 0) return violation("stream 0");
  if (header.flags & kSyn) {
    if (auto error = on_syn(header)) return error;
  }
  const auto found = streams_.find(header.id);
  const State stream = found == streams_.end() ? nullptr : found->second;
  if (header.type == kData) {
    if (stream) {
      if (header.length > stream->receive_window) return violation("stream window exceeded");
      stream->receive_window -= header.length;
      widen_early(*stream, header.length);
    } else if (header.length > options_->max_window) {
      return violation("frame too long");
    }
    payload_left_ = header.length;
    payload_stream_ = stream;
    // The application let go of the stream and the peer still sends: it should stop, and hear so.
    if (stream && stream->holder == Holder::none && header.length > 0) {
      reset_stream(*stream);
      return std::nullopt;
    }
  } else if (stream && header.length > 0) {
    constexpr std::size_t kMaxSendWindow = 0xffffffff;
    stream->send_window = std::min(stream->send_window + header.length, kMaxSendWindow);
    stream->writable.notify_all();
  }
  // A FIN takes effect behind the payload of its own frame.
  const bool late = payload_left_ > 0 && !(header.flags & kRst);
  late_flags_ = late ? header.flags & kFin : 0;
  if (stream && !stream->outbound && (header.flags & kRst) && !may_reset()) return violation("reset flood");
  if (stream) on_flags(stream, static_cast<std::uint16_t>(late ? header.flags & ~kFin : header.flags));
  return std::nullopt;
}

std::optional<Error> YamuxConnection::on_syn(const Header& header) {
  const bool odd = header.id & 1;
  if (odd == (role_ == Role::initiator)) return violation("stream id of the wrong parity");
  if (streams_.contains(header.id)) return violation("stream opened twice");
  if (channel_->queued() > most_queued()) return violation("stream flood");
  const bool surplus =
      pending_.size() >= options_->max_pending_streams || totals_.inbound >= options_->max_inbound_streams;
  if (flooded_ || (surplus && !may_reset())) return violation("reset flood");
  MemoryBudget::Charge charge(account_);
  if (surplus || !charge.add(kStreamMemory)) {  // that others leave no memory is not held against the peer
    send_frame(kWindowUpdate, kRst, header.id, 0);
    return std::nullopt;
  }
  auto state = std::make_shared<YamuxStreamState>(runtime_, *this, totals_, header.id, false, options_->initial_window);
  state->memory = MemoryBudget::Charge(account_);
  state->own = std::move(charge);
  streams_.emplace(header.id, state);
  send_frame(kWindowUpdate, kAck, header.id, 0);
  pending_.push_back(std::make_unique<YamuxStream>(runtime_, std::move(state), peer_, remote_address()));
  acceptable_.notify_one();
  return std::nullopt;
}

void YamuxConnection::on_flags(const State& stream, std::uint16_t flags) {
  if ((flags & kAck) && stream->opening == Opening::sent) {
    stream->opening = Opening::acknowledged;
    stream->unacknowledged.set(0);
    openable_.notify_one();
  }
  if (!(flags & (kRst | kFin))) return;
  if (flags & kRst) {
    stream->reset();
  } else if (stream->in == Half::open) {
    stream->in = Half::ended;
  }
  stream->readable.notify_all();
  stream->writable.notify_all();
  if (!stream->finished()) return;
  forget(stream->id);
  // Opening and resetting streams in quick succession leaves nothing for the application to look at.
  if ((flags & kRst) && stream->holder == Holder::backlog)
    std::erase_if(pending_, [&](const StreamPtr& one) { return static_cast<YamuxStream&>(*one).is(*stream); });
}

std::optional<Error> YamuxConnection::on_payload(Slice bytes) {
  if (!payload_stream_ || payload_stream_->in != Half::open) return std::nullopt;
  YamuxStreamState& stream = *payload_stream_;
  if (totals_.buffered + bytes.size() > options_->max_buffered) {
    log::debug("transport", "resetting a stream of {}: {} bytes wait to be read on the connection", peer_.text(),
               totals_.buffered);
    reset_stream(stream);
    return std::nullopt;
  }
  if (!stream.memory.add(bytes.size())) {
    log::debug("transport", "resetting a stream of {}: no memory is left for what strangers send", peer_.text());
    reset_stream(stream);
    return std::nullopt;
  }
  stream.store(std::move(bytes));
  stream.readable.notify_all();
  return std::nullopt;
}

}  // namespace cohive::transport
