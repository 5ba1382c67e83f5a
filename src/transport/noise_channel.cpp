#include "noise_channel.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::transport {

namespace {
constexpr std::size_t kLengthSize = 2;
constexpr std::size_t kTag = crypto::Aead::kTagSize;
constexpr std::size_t kFullRecord = kLengthSize + 65535;
constexpr std::size_t kModestRead = 4 * kMinRead;  // a reader of no more at once keeps no block between reads
constexpr std::size_t kSmallRecords = 4 * 1024;    // records between full ones: full ones do not lack what they take
constexpr std::size_t kMaxRead = 2 * kFullRecord + kSmallRecords;  // larger reads leave the processor's cache
constexpr std::size_t kPlaceFrom = 32 * 1024;                      // smaller records are not worth a question
constexpr std::size_t kMaxUsedInputs = 4;                          // blocks kept for reuse by one busy connection
constexpr std::size_t kMaxSpareInputs = 8;
constexpr Duration kQuiet = 1s;  // after which a peer that has sent much is taken for one that sends nothing more

/// Receive blocks of the smallest size that are free.
thread_local std::vector<Slice> spare_inputs;
}  // namespace

NoiseChannel::NoiseChannel(Runtime& runtime, std::unique_ptr<RawConnection> raw, std::optional<Keys> keys, Bytes early)
    : SecureChannel(std::move(raw)), runtime_(runtime), read_size_(kMinRead) {
  if (keys) {
    seal_.emplace(keys->send, keys->cipher);
    open_.emplace(keys->receive, keys->cipher);
  }
  if (!early.empty()) {
    reserve(early.size());
    std::copy(early.begin(), early.end(), input_.mutable_data());
    end_ = early.size();
  }
}

/// Puts the current block aside and takes a block with `needed` bytes in all from begin_ that no slice given out
/// shares.
void NoiseChannel::reserve(std::size_t needed) {
  const std::size_t kept = end_ - begin_;
  const std::size_t wanted = std::max(needed, read_size_);
  Slice fresh;
  for (auto& used : used_inputs_) {
    if (!used.unique() || used.size() < wanted) continue;
    fresh = std::move(used);
    used = std::move(used_inputs_.back());
    used_inputs_.pop_back();
    break;
  }
  if (fresh.empty() && wanted == kMinRead && !spare_inputs.empty()) {
    fresh = std::move(spare_inputs.back());
    spare_inputs.pop_back();
  }
  if (fresh.empty()) fresh = Slice::uninitialised(wanted);
  if (kept) std::memcpy(fresh.mutable_data(), input_.data() + begin_, kept);
  retire_input();
  input_ = std::move(fresh);
  begin_ = 0;
  end_ = kept;
}

/// Keeps large blocks of a busy connection; an idle one keeps nothing.
void NoiseChannel::retire_input() {
  if (read_size_ < kMaxRead) {
    used_inputs_.clear();
  } else if (input_.size() >= kMaxRead) {
    if (used_inputs_.size() == kMaxUsedInputs) used_inputs_.erase(used_inputs_.begin());
    used_inputs_.push_back(std::move(input_));
  }
  input_ = Slice();
}

/// The next bytes may come at any time: until then the block serves other connections.
void NoiseChannel::release_input() {
  used_inputs_.clear();
  if (input_.size() == kMinRead && input_.unique() && spare_inputs.size() < kMaxSpareInputs)
    spare_inputs.push_back(std::move(input_));
  input_ = Slice();
  begin_ = end_ = 0;
  read_size_ = kMinRead;
}

/// A complete record from the buffer, or nullopt when more bytes are needed.
std::optional<Result<Slice>> NoiseChannel::next_record() {
  if (!placed_.empty()) return std::exchange(placed_, Slice());
  const std::size_t available = end_ - begin_;
  if (!open_) {
    if (available == 0) return std::nullopt;
    Slice all = input_.sub(begin_, available);
    begin_ = end_;
    return all;
  }
  if (available < kLengthSize) return std::nullopt;
  std::uint8_t* record = input_.mutable_data() + begin_;
  const std::size_t length = static_cast<std::size_t>(record[0]) << 8 | record[1];
  if (length < kTag) return Error(Errc::decryption_failed, "shorter than its tag");
  if (available < kLengthSize + length) return std::nullopt;
  auto plain = open_record({record + kLengthSize, length});
  if (!plain) return Error(Errc::decryption_failed);
  begin_ += kLengthSize + length;
  return std::move(*plain);
}

/// Decrypts in place, or where its reader wants a large record: it need not be copied there then.
std::optional<Slice> NoiseChannel::open_record(MutableBytes sealed) {
  const std::size_t size = sealed.size() - kTag, at = static_cast<std::size_t>(sealed.data() - input_.data());
  if (!place_ || size < kPlaceFrom) {
    if (!open_->open(received_++, {}, sealed, sealed.data())) return std::nullopt;
    return input_.sub(at, size);
  }
  Slice placed;
  const auto destination = [&](ByteView first) -> std::uint8_t* {
    placed = place_(first, size);
    if (placed.empty()) return nullptr;
    const std::size_t head = size - placed.size();
    std::memcpy(placed.mutable_data(), first.data() + head, first.size() - head);
    return placed.mutable_data() + first.size() - head;
  };
  if (!open_->open(received_++, sealed, destination)) return std::nullopt;
  placed_ = std::move(placed);
  return input_.sub(at, size - placed_.size());
}

Task<Result<bool>> NoiseChannel::read_more() {
  if (begin_ == end_ && drained_) {
    bool is_quiet = read_size_ <= kModestRead;
    if (!is_quiet)
      is_quiet = !co_await within(runtime_, runtime_.after(kQuiet), raw_->wait_readable(), "bytes of a peer");
    if (is_quiet) {
      release_input();
      co_await raw_->wait_readable();
    }
  }
  std::size_t wanted = 1;
  if (open_ && end_ - begin_ >= kLengthSize) {
    const std::uint8_t* record = input_.data() + begin_;
    wanted = kLengthSize + (static_cast<std::size_t>(record[0]) << 8 | record[1]);
  }
  const bool fits = begin_ + wanted <= input_.size() && end_ < input_.size();
  if (begin_ == end_ && input_.unique() && input_.size() >= wanted && input_.size() <= 4 * read_size_) {
    begin_ = end_ = 0;  // no reader holds a slice of the block any more
  } else if (begin_ == end_ || !fits) {
    reserve(wanted);
  }
  const std::size_t room = input_.size() - end_;
  auto count = co_await raw_->read_some({input_.mutable_data() + end_, room});
  if (!count) co_return count.error();
  end_ += *count;
  bytes_in_ += *count;
  turn_ += *count;
  drained_ = *count < room;
  if (turn_ >= kReadTurn) {
    turn_ = 0;
    co_await runtime_.yield();
  }
  read_size_ =
      *count == room ? std::min(read_size_ * 4, kMaxRead) : std::max(kMinRead, std::min(read_size_, *count * 4));
  co_return *count > 0;
}

Task<Result<Slice>> NoiseChannel::receive() {
  if (!unread_.empty()) co_return std::exchange(unread_, Slice());
  for (;;) {
    while (auto record = next_record()) {
      if (!*record) co_return record->error();
      if (!(*record)->empty()) co_return std::move(**record);
    }
    auto more = co_await read_more();
    if (!more) co_return more.error();
    if (*more) continue;
    if (begin_ != end_) co_return Error(cohive::Errc::end_of_stream, "encrypted record cut off");
    co_return Slice();
  }
}

void NoiseChannel::append(std::span<const ByteView> parts) {
  std::size_t plain = 0;
  for (ByteView part : parts) plain += part.size();
  if (!seal_) {
    std::uint8_t* at = extend(plain);
    for (ByteView part : parts) at = std::copy(part.begin(), part.end(), at);
    return;
  }
  const std::size_t sealed = plain + kTag;
  std::uint8_t* at = extend(kLengthSize + sealed);
  at[0] = static_cast<std::uint8_t>(sealed >> 8);
  at[1] = static_cast<std::uint8_t>(sealed);
  seal_->seal(sent_++, {}, parts, at + kLengthSize);
}

}  // namespace cohive::transport
