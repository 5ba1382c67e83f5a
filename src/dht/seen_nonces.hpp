// Nonces of signed calls, each of which counts once. They are kept in two generations, of which the older one is
// dropped as a whole when none of its nonces can be used any more: no call looks through those of others, and none is
// forgotten early.
#pragma once

#include <cstdint>
#include <limits>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "cohive/core/crypto.hpp"
#include "cohive/core/peer_id.hpp"
#include "cohive/core/time.hpp"

namespace cohive::dht {

class SeenNonces {
 public:
  /// Nonces of a generation, which lasts for kPeriod or longer: more calls than a node can sign replies to.
  static constexpr std::size_t kMost = 1 << 18;
  static constexpr Duration kPeriod = std::chrono::seconds(120);

  SeenNonces() { crypto::random_bytes(key_); }

  enum class Outcome {
    fresh,  ///< remembered from now on
    seen,   ///< before
    full,   ///< the sender has used more than its share of the room; nothing is remembered
  };
  /// \param valid_until  the wall time up to which the call could be made again
  Outcome add(const PeerId& sender, std::string_view nonce, double valid_until, double wall_time, TimePoint now) {
    if (now - current_.begun >= kPeriod && before_.valid_until < wall_time) {
      before_ = std::move(current_);
      current_ = Generation();
      current_.begun = now;
    }
    const std::uint64_t mark = mark_of(nonce);
    if (current_.contains(mark) || before_.contains(mark)) return Outcome::seen;
    std::size_t& own = current_.senders[sender];
    // The second half is for those who have used little of the first.
    const std::size_t share = kMost / 2 / current_.senders.size();
    if (current_.size >= kMost || (current_.size >= kMost / 2 && own >= share)) return Outcome::full;
    ++own;
    current_.insert(mark);
    current_.valid_until = std::max(current_.valid_until, valid_until);
    return Outcome::fresh;
  }

  std::size_t size() const { return current_.size + before_.size; }
  /// Bytes of the marks.
  std::size_t memory() const { return (current_.slots.size() + before_.slots.size()) * sizeof(std::uint64_t); }

 private:
  /// Marks with linear probing, at most half of the slots in use; 0 is a free one.
  struct Generation {
    std::vector<std::uint64_t> slots;
    std::size_t size = 0;
    double valid_until = -std::numeric_limits<double>::infinity();  // the latest of all
    TimePoint begun{};
    std::unordered_map<PeerId, std::size_t> senders;  // with the nonces of each

    std::size_t slot_of(std::uint64_t mark) const {
      std::size_t at = mark & (slots.size() - 1);
      while (slots[at] != 0 && slots[at] != mark) at = (at + 1) & (slots.size() - 1);
      return at;
    }
    bool contains(std::uint64_t mark) const { return !slots.empty() && slots[slot_of(mark)] == mark; }
    void insert(std::uint64_t mark) {
      if (2 * (size + 1) > slots.size()) grow();
      slots[slot_of(mark)] = mark;
      ++size;
    }
    void grow() {
      const auto old = std::exchange(slots, std::vector<std::uint64_t>(std::max<std::size_t>(1024, 2 * slots.size())));
      for (const std::uint64_t mark : old)
        if (mark != 0) slots[slot_of(mark)] = mark;
    }
  };

  /// 64 bits that no peer can foresee: of a million nonces, two have the same once in thirty million times.
  std::uint64_t mark_of(std::string_view nonce) const {
    const auto digest = crypto::hmac_sha256(key_, as_bytes(nonce));
    std::uint64_t mark = 0;
    for (std::size_t i = 0; i < sizeof mark; ++i) mark = mark << 8 | digest[i];
    return mark == 0 ? 1 : mark;
  }

  crypto::Key32 key_{};
  Generation current_, before_;
};

}  // namespace cohive::dht
