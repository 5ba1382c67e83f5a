// Upload slots of a donor: so many states go out at once, one to each peer, and half of them to one network at most, so
// that no machine keeps newcomers from all donors. A client that reads too slowly loses its slot.
#pragma once

#include <string>

#include "cohive/averaging/live_tensors.hpp"
#include "cohive/core/peer_id.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/p2p/host.hpp"
#include "p2p/detail/network_shares.hpp"

namespace cohive::averaging {

/// How long a call waits for a slot: the newcomer had better ask another donor then.
inline constexpr Duration kUploadTurn = 5s;

class Uploads {
 public:
  explicit Uploads(p2p::Host& host, std::size_t slots)
      : host_(host), slots_(slots), changed_(host.runtime(), "state uploads") {}

  class [[nodiscard]] Slot {
   public:
    Slot() = default;
    Slot(Uploads& owner, const PeerId& peer, std::string network);
    Slot(Slot&& other) noexcept;
    Slot& operator=(Slot&&) = delete;
    ~Slot();
    explicit operator bool() const noexcept { return owner_ != nullptr; }

   private:
    Uploads* owner_ = nullptr;
    p2p::NetworkShares::Share peer_, network_;
  };
  /// Waits for one; empty when the deadline passed. To be asked for when the request has been read.
  Task<Slot> acquire(PeerId peer, Deadline deadline);

 private:
  bool has_room(const PeerId& peer, const std::string& network) const;

  p2p::Host& host_;
  const std::size_t slots_;
  std::size_t taken_ = 0;
  p2p::NetworkShares peers_, networks_;
  Condition changed_;
};

/// How long a state that its model has left behind is kept for one that reads it: a download has ten minutes by
/// default.
inline constexpr Duration kKeptTime = 30min;
/// Tells whether the reader has taken longer. Null: there is none.
bool holds_too_long(Runtime& runtime, const StateReader* reader);

/// Whether a reader keeps up: at least kLeastRate bytes a second on average, looked at once a minute.
class ReaderPace {
 public:
  explicit ReaderPace(Runtime& runtime) : runtime_(runtime), since_(runtime.now()) {}
  /// False when the reader is too slow.
  bool sent(std::size_t bytes);

 private:
  Runtime& runtime_;
  TimePoint since_;
  std::size_t bytes_ = 0;
};

}  // namespace cohive::averaging
