#include "bundle.hpp"

#include <algorithm>
#include <cstring>

#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/transport/errors.hpp"
#include "core/detail/assertion.hpp"

namespace cohive::p2p {
namespace {

enum : std::uint8_t { kChunk = 0, kAcknowledgement = 1, kEnd = 2 };

constexpr std::size_t kTypeSize = 1, kNumberSize = 8, kLengthSize = 4;
constexpr Duration kAcknowledgeAfter = 10ms;  // so many acknowledgements at most: a hundred per second
constexpr Duration kWatchPeriod = 1s;
// A chunk that is not acknowledged by then goes over another lane, too, where there is one. If that brings it, and
// nothing has come over the first one, that lane is given up: a path that takes bytes and delivers none would hold all
// of them up until its connection notices, 40 seconds later.
constexpr int kStalledPeriods = 3;
// After so long without the next chunk, although later ones have come, none is to be expected.
constexpr int kMissingPeriods = 20;
constexpr int kUnreadPeriods = 30;  // without an acknowledgement
// So many chunks may be on their way whatever is left of the memory budget, so that no bundle stands still: as much as
// a connection may have queued.
constexpr std::size_t kUncharged = 4;

template <class T>
void append_big_endian(Bytes& bytes, T value) {
  for (std::size_t i = sizeof(T); i-- > 0;) bytes.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

std::uint64_t big_endian(ByteView bytes) {
  std::uint64_t value = 0;
  for (const std::uint8_t byte : bytes) value = value << 8 | byte;
  return value;
}

/// The bytes of a chunk as they come. Small pieces are copied together, as each would keep a block of memory of its
/// own, large ones stay where they are.
class ChunkPieces {
 public:
  /// \param left  bytes of the chunk that have not come, these included
  void add(Slice piece, std::size_t left) {
    if (piece.size() >= kCopiedBelow) {
      in_block_ = false;
      return pieces_.push_back(std::move(piece));
    }
    if (block_.empty()) block_ = Slice::uninitialised(left);
    std::memcpy(block_.mutable_data() + used_, piece.data(), piece.size());
    const std::size_t size = piece.size() + (in_block_ ? pieces_.back().size() : 0);
    used_ += piece.size();
    if (in_block_) pieces_.pop_back();
    pieces_.push_back(block_.sub(used_ - size, size));
    in_block_ = true;
  }
  std::vector<Slice> take() { return std::move(pieces_); }

 private:
  static constexpr std::size_t kCopiedBelow = 4096;  // streams collect what is smaller in blocks of so much
  std::vector<Slice> pieces_;
  Slice block_;
  std::size_t used_ = 0;   // of it
  bool in_block_ = false;  // the last piece ends where it is used up to
};

}  // namespace

Bundle::Bundle(Runtime& runtime, const PeerId& peer, std::shared_ptr<const MemoryBudget::Account> account)
    : runtime_(runtime),
      peer_(peer),
      sent_memory_(account),
      sendable_(runtime, "chunk to send"),
      room_(runtime, "room in a bundle"),
      memory_(std::move(account)),
      readable_(runtime, "chunk of a bundle"),
      unacknowledged_(runtime, "chunk to acknowledge"),
      ended_(runtime, "end of a bundle"),
      tasks_(runtime, "bundle") {
  tasks_.spawn(acknowledge(*this), "acknowledgements");
  tasks_.spawn(watch(*this), "watch over lanes");
}

Bundle::~Bundle() {
  close();
}

Error Bundle::violation(std::string what) const {
  return Error(transport::Errc::muxer_violation, peer_, "bundle: " + std::move(what));
}

// ---- Lanes

std::uint64_t Bundle::add_lane(transport::StreamPtr stream) {
  const std::uint64_t number = next_lane_++;
  if (failure_) return number;
  stream->hint_bulk_receive();
  auto lane = std::make_shared<Lane>(Lane{number, std::move(stream)});
  lanes_.push_back(lane);
  tasks_.spawn(send(*this, lane), "lane to send");
  tasks_.spawn(receive(*this, lane), "lane to receive");
  return number;
}

std::size_t Bundle::lanes() const noexcept {
  return static_cast<std::size_t>(std::ranges::count(lanes_, false, [](const auto& one) { return one->retiring; }));
}

void Bundle::drop_lane(std::uint64_t number) {
  const LanePtr lane = find_lane(number);
  if (lane && !lane->retiring && lanes() > 1) retire(*lane);
}

/// Returns null when the lane has ended.
Bundle::LanePtr Bundle::find_lane(std::uint64_t id) const {
  const auto found = std::ranges::find(lanes_, id, [](const auto& one) { return one->id; });
  return found == lanes_.end() ? nullptr : *found;
}

void Bundle::retire(Lane& lane) {
  lane.retiring = true;
  sendable_.notify_all();
}

/// Ends a lane over which both sides have sent all that they wanted to, and all of ours was read.
void Bundle::end_if_done(const LanePtr& lane) {
  if (lane->ended || !lane->in_ended || !lane->out_ended || lane->unacknowledged > 0) return;
  lane->ended = true;
  std::erase(lanes_, lane);
  if (lanes_.empty()) fail(Error(cohive::Errc::closed, peer_, "all connections of the bundle have ended"));
}

/// After an error. What the lane carried goes over the others.
void Bundle::end_lane(const LanePtr& lane) {
  if (std::exchange(lane->ended, true)) return;
  std::erase(lanes_, lane);
  lane->stream->reset();
  for (std::size_t i = 0; i < sent_.size(); ++i) {
    if (sent_[i].lane != lane->id) continue;
    sent_[i].lane = 0;
    to_send_.insert(first_sent_ + i);
  }
  acknowledged_ = 0;  // it may have carried the last acknowledgement, or the end
  acknowledgement_due_ = read_ > 0;
  end_sent_ = false;
  if (lanes_.empty()) return fail(Error(cohive::Errc::closed, peer_, "all connections of the bundle have ended"));
  sendable_.notify_all();
}

void Bundle::fail(Error reason) noexcept {
  if (failure_) return;
  failure_ = std::move(reason);
  for (const auto& lane : std::exchange(lanes_, {})) {
    lane->ended = true;
    lane->stream->reset();
  }
  to_send_.clear();
  sent_.clear();
  sent_memory_.release();
  ahead_.clear();
  memory_.release();
  ended_.set();
  for (Condition* waiters : {&sendable_, &room_, &readable_, &unacknowledged_}) waiters->notify_all();
}

void Bundle::close() noexcept {
  fail(Error(cohive::Errc::closed, peer_));
}

/// One look a second: at the oldest chunk that the peer has not acknowledged, and at the one that we wait for.
Task<void> Bundle::watch(Bundle& bundle) {
  // The oldest chunk was sent once more, as its lane had not brought it.
  struct Trial {
    std::uint64_t chunk, lane;
    bool through = false;  // the last look found the chunk acknowledged
  };
  std::uint64_t first = 0, next = 0, acknowledged = 0;
  int stalled = 0, missing = 0;
  bool repeat = false;
  std::optional<Trial> trial;
  while (!bundle.failure_) {
    co_await bundle.runtime_.sleep_for(kWatchPeriod);
    stalled = !bundle.sent_.empty() && bundle.first_sent_ == first ? stalled + 1 : 0;
    missing = !bundle.ahead_.empty() && bundle.next_ == next ? missing + 1 : 0;
    first = bundle.first_sent_;
    next = bundle.next_;
    // No violation: the peer's machine may have slept with the chunk in its hand.
    if (missing > kMissingPeriods)
      bundle.fail(
          Error(cohive::Errc::timeout, bundle.peer_, "bundle: chunk " + std::to_string(next) + " did not come"));
    if (stalled > kUnreadPeriods)
      bundle.fail(
          Error(cohive::Errc::timeout, bundle.peer_, "bundle: chunk " + std::to_string(first) + " was not read"));
    if (bundle.failure_) co_return;
    if (std::exchange(acknowledged, bundle.acknowledged_) != bundle.acknowledged_) {
      repeat = true;
    } else if (std::exchange(repeat, false)) {
      bundle.acknowledge_over_all();
    }
    if (trial && bundle.first_sent_ > trial->chunk && std::exchange(trial->through, true)) {
      const LanePtr lane = bundle.find_lane(std::exchange(trial, std::nullopt)->lane);
      if (lane && !lane->heard && bundle.lanes_.size() > 1) bundle.end_lane(lane);
    }
    if (stalled == 0 || stalled % kStalledPeriods != 0) continue;
    if (const LanePtr lane = bundle.send_again(static_cast<std::size_t>(stalled / kStalledPeriods)))
      trial = Trial{bundle.first_sent_, lane->id};
  }
}

/// Has the oldest chunk go once more over its lane, and over another one, which changes from one attempt to the next.
/// The peer acknowledges what comes twice over the lane that brings it. Returns the chunk's lane; null where there is
/// no other one.
Bundle::LanePtr Bundle::send_again(std::size_t attempt) {
  COHIVE_ASSERT(!sent_.empty());
  const LanePtr suspect = find_lane(sent_.front().lane);
  std::vector<LanePtr> others(lanes_);
  std::erase_if(others, [&](const LanePtr& one) { return one == suspect || one->retiring; });
  if (!suspect || others.empty()) return nullptr;
  suspect->heard = false;
  for (const LanePtr& lane : {suspect, others[attempt % others.size()]}) lane->again = first_sent_;
  sendable_.notify_all();
  return suspect;
}

/// The last acknowledgement is repeated when no other has followed it: it may have gone over a lane that brings
/// nothing.
void Bundle::acknowledge_over_all() {
  if (lanes_.size() < 2) return;
  for (const LanePtr& lane : lanes_) lane->acknowledges = true;
  sendable_.notify_all();
}

// ---- What we send

Task<Result<>> Bundle::write_all(std::span<const ByteView> buffers) {
  std::size_t left = 0;
  for (const ByteView buffer : buffers) left += buffer.size();
  std::size_t index = 0, offset = 0;
  while (left > 0) {
    const std::size_t size = std::min(left, kMostChunk);
    std::size_t charged = 0;
    while (!failure_ && !end_wanted_ && !take_room(size, charged)) co_await room_.wait();
    if (failure_) co_return *failure_;
    if (end_wanted_) co_return Error(cohive::Errc::closed, peer_, "writing after the end");
    Slice chunk = Slice::uninitialised(size);
    for (std::size_t have = 0; have < chunk.size();) {
      const std::size_t take = std::min(chunk.size() - have, buffers[index].size() - offset);
      if (take > 0) std::memcpy(chunk.mutable_data() + have, buffers[index].data() + offset, take);
      have += take;
      offset += take;
      if (offset < buffers[index].size()) continue;
      ++index;
      offset = 0;
    }
    left -= chunk.size();
    append_chunk(std::move(chunk), charged);
  }
  co_return ok();
}

/// Takes room for one more chunk; false, and nothing is taken, while there is none. A peer that acknowledges nothing
/// pays for what waits for it.
/// \param charged  set to what the budget has given
bool Bundle::take_room(std::size_t size, std::size_t& charged) {
  // Few wait: what is more urgent follows behind them.
  if (to_send_.size() >= std::max<std::size_t>(2, lanes()) || sent_.size() >= kWindow) return false;
  charged = sent_memory_.add_spare(size) ? size : 0;
  return charged > 0 || sent_.size() < kUncharged;
}

void Bundle::append_chunk(Slice bytes, std::size_t charged) {
  COHIVE_ASSERT(!bytes.empty() && bytes.size() <= kMostChunk && sent_.size() < kWindow);
  bytes_unacknowledged_ += bytes.size();
  to_send_.insert(first_sent_ + sent_.size());
  sent_.push_back({std::move(bytes), charged});
  sendable_.notify_one();
}

void Bundle::end_writing() noexcept {
  if (std::exchange(end_wanted_, true)) return;
  sendable_.notify_one();
}

bool Bundle::has_work(const Lane& lane) const {
  return lane.acknowledges || lane.again || acknowledgement_due_ || !to_send_.empty() || (end_wanted_ && !end_sent_);
}

/// Takes a chunk whenever its lane has room: a fast lane carries more of them.
Task<void> Bundle::send(Bundle& bundle, LanePtr lane) {
  while (!lane->ended) {
    if (lane->retiring) {
      lane->stream->close_write();
      lane->out_ended = true;
      bundle.sendable_.notify_one();  // what woke this lane is for another one
      co_return bundle.end_if_done(lane);
    }
    if (!bundle.has_work(*lane)) {
      co_await bundle.sendable_.wait();
      continue;
    }
    Result<> sent = ok();
    if (std::exchange(lane->acknowledges, false)) {
      sent = co_await bundle.send_number(*lane, kAcknowledgement, bundle.read_);
    } else if (std::exchange(bundle.acknowledgement_due_, false)) {
      bundle.acknowledged_ = bundle.read_;
      sent = co_await bundle.send_number(*lane, kAcknowledgement, bundle.read_);
    } else if (const auto again = std::exchange(lane->again, std::nullopt)) {
      sent = co_await bundle.send_chunk(*lane, *again);
    } else if (!bundle.to_send_.empty()) {
      const std::uint64_t number = *bundle.to_send_.begin();
      bundle.to_send_.erase(bundle.to_send_.begin());
      bundle.room_.notify_one();
      sent = co_await bundle.send_chunk(*lane, number);
    } else {
      bundle.end_sent_ = true;
      sent = co_await bundle.send_number(*lane, kEnd, bundle.first_sent_ + bundle.sent_.size());
    }
    if (!sent) bundle.end_lane(lane);
  }
}

Task<Result<>> Bundle::send_chunk(Lane& lane, std::uint64_t number) {
  if (number < first_sent_) co_return ok();  // acknowledged meanwhile
  COHIVE_ASSERT(number - first_sent_ < sent_.size());
  Sent& chunk = sent_[number - first_sent_];
  if (chunk.lane == 0) {  // or else another lane carries it, too
    chunk.lane = lane.id;
    ++lane.unacknowledged;
    to_send_.erase(number);
  }
  const Slice bytes = chunk.bytes;  // the acknowledgement may come before write() returns
  Bytes header{kChunk};
  append_big_endian(header, number);
  append_big_endian(header, static_cast<std::uint32_t>(bytes.size()));
  const ByteView parts[] = {header, bytes.view()};
  co_return co_await lane.stream->write(std::span<const ByteView>(parts), Deadline::never());
}

Task<Result<>> Bundle::send_number(Lane& lane, std::uint8_t type, std::uint64_t number) {
  Bytes record{type};
  append_big_endian(record, number);
  const ByteView parts[] = {record};
  co_return co_await lane.stream->write(std::span<const ByteView>(parts), Deadline::never());
}

// ---- What we receive

Task<void> Bundle::receive(Bundle& bundle, LanePtr lane) {
  while (!lane->ended) {
    const auto received = co_await bundle.receive_record(*lane);
    if (received && lane->in_ended) {
      bundle.retire(*lane);
      co_return bundle.end_if_done(lane);
    }
    if (received) continue;
    const bool broken =
        received.error() == transport::Errc::muxer_violation || received.error() == cohive::Errc::limit_exceeded;
    broken ? bundle.fail(received.error()) : bundle.end_lane(lane);
  }
}

/// A chunk is charged from its first byte on: whoever begins one may never end it.
Task<Result<>> Bundle::receive_record(Lane& lane) {
  Bytes header;
  std::size_t wanted = kTypeSize + kNumberSize, charged = 0;
  ChunkPieces payload;
  const auto given_back = on_exit([this, &charged] {
    if (!failure_) memory_.subtract(charged);
  });
  for (std::size_t left = 0; header.size() < wanted || left > 0;) {
    CO_TRY(Slice bytes, co_await lane.stream->read(Deadline::never()));
    if (bytes.empty() && header.empty()) {
      lane.in_ended = true;
      co_return ok();
    }
    if (lane.ended || bytes.empty()) co_return Error(cohive::Errc::end_of_stream, peer_);
    lane.heard = true;
    if (header.empty() && bytes.data()[0] == kChunk) wanted = kTypeSize + kNumberSize + kLengthSize;
    if (header.size() < wanted) {
      const std::size_t take = std::min(wanted - header.size(), bytes.size());
      header.insert(header.end(), bytes.data(), bytes.data() + take);
      bytes.remove_prefix(take);
      if (header.size() == wanted && header[0] == kChunk) {
        left = big_endian(ByteView(header).last(kLengthSize));
        if (left == 0 || left > kMostChunk) co_return violation("a chunk of " + std::to_string(left) + " bytes");
        if (!memory_.add(left)) co_return Error(cohive::Errc::limit_exceeded, peer_, "memory for a bundle");
        charged = left;
      }
    }
    if (left > 0 && !bytes.empty()) {
      const std::size_t take = std::min(left, bytes.size());
      payload.add(bytes.sub(0, take), left);
      bytes.remove_prefix(take);
      left -= take;
    }
    if (!bytes.empty()) lane.stream->unread(std::move(bytes));
  }
  const std::uint64_t number = big_endian(ByteView(header).subspan(kTypeSize, kNumberSize));
  if (header[0] == kChunk) co_return take_chunk(lane, number, payload.take(), charged);
  if (header[0] == kAcknowledgement) co_return take_acknowledgement(number);
  if (header[0] == kEnd) co_return take_end(number);
  co_return violation("a record of type " + std::to_string(header[0]));
}

/// \param charged  of the caller, for these bytes; 0 afterwards where the bundle keeps them
Result<> Bundle::take_chunk(Lane& lane, std::uint64_t number, std::vector<Slice> bytes, std::size_t& charged) {
  if (number >= read_ + kWindow || (end_ && number >= *end_))
    return violation("chunk " + std::to_string(number) + " is far ahead");
  if (number < next_ || ahead_.contains(number)) {
    // It came over another lane, too, or the peer has not heard that it is here: by an acknowledgement over this lane
    // the peer learns both.
    lane.acknowledges = true;
    sendable_.notify_all();
    return ok();
  }
  charged = 0;
  ahead_.emplace(number, std::move(bytes));
  if (number != next_) return ok();
  for (auto at = ahead_.begin(); at != ahead_.end() && at->first == next_; at = ahead_.erase(at), ++next_) {
    std::size_t whole = 0;
    for (Slice& slice : at->second) {
      whole += slice.size();
      ready_.push_back(std::move(slice));
    }
    ready_chunks_.emplace_back(next_, whole);
  }
  readable_.notify_all();
  return ok();
}

/// Acknowledgements may overtake one another on their lanes.
Result<> Bundle::take_acknowledgement(std::uint64_t number) {
  if (number > first_sent_ + sent_.size()) return violation("acknowledges chunks that were never sent");
  if (number <= first_sent_) return ok();
  std::size_t charged = 0;
  while (first_sent_ < number && !failure_) {
    const Sent chunk = std::move(sent_.front());
    sent_.pop_front();
    to_send_.erase(first_sent_++);
    bytes_unacknowledged_ -= chunk.bytes.size();
    charged += chunk.charged;
    if (const LanePtr lane = find_lane(chunk.lane)) {
      --lane->unacknowledged;
      end_if_done(lane);  // which may be the last one
    }
  }
  sent_memory_.subtract(charged);
  room_.notify_all();
  return ok();
}

Result<> Bundle::take_end(std::uint64_t number) {
  const std::uint64_t least = ahead_.empty() ? next_ : ahead_.rbegin()->first + 1;
  if (number < least || (end_ && *end_ != number)) return violation("ends before chunks that it has sent");
  end_ = number;
  readable_.notify_all();
  return ok();
}

Task<void> Bundle::wait_readable() {
  while (!failure_ && ready_.empty() && !(end_ && next_ == *end_)) co_await readable_.wait();
}

Task<Result<std::size_t>> Bundle::read_some(MutableBytes into) {
  co_await wait_readable();
  if (ready_.empty() && failure_) co_return *failure_;
  std::size_t count = 0;
  while (count < into.size() && !ready_.empty()) {
    Slice& slice = ready_.front();
    const std::size_t take = std::min(into.size() - count, slice.size());
    std::memcpy(into.data() + count, slice.data(), take);
    count += take;
    slice.remove_prefix(take);
    if (slice.empty()) ready_.pop_front();
  }
  if (!failure_) memory_.subtract(count);
  for (std::size_t left = count; left > 0;) {
    auto& [number, unread] = ready_chunks_.front();
    const std::size_t take = std::min(left, unread);
    left -= take;
    unread -= take;
    if (unread > 0) break;
    read_ = number + 1;
    ready_chunks_.pop_front();
  }
  if (read_ > acknowledged_) unacknowledged_.notify_one();
  co_return count;
}

Task<void> Bundle::acknowledge(Bundle& bundle) {
  while (!bundle.failure_) {
    if (bundle.read_ <= bundle.acknowledged_) {
      co_await bundle.unacknowledged_.wait();
      continue;
    }
    co_await bundle.runtime_.sleep_for(kAcknowledgeAfter);
    if (bundle.read_ <= bundle.acknowledged_) continue;
    bundle.acknowledgement_due_ = true;
    bundle.sendable_.notify_one();
  }
}

}  // namespace cohive::p2p
