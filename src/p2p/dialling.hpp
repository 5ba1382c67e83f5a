// Which addresses of a peer are dialled, in which order, how many at once, and when again after a failure.
// Source: libp2p wire spec, section 10.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "address_book.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::p2p {

/// What can be dialled of `addresses`, without duplicates, in the order of trying: those that worked before, then the
/// kinds of networks in turn, each by IPv6 and IPv4 alternately, so that one kind that leads nowhere costs little time.
std::vector<KnownAddress> dial_order(const std::vector<KnownAddress>& addresses);

/// Remembers failed dials: per peer and address, so that nobody can spoil another peer's address; and per address, so
/// that strangers who name it for many peers cannot aim us at a machine. Bounded; the oldest memories go first.
class DialBackoff {
 public:
  DialBackoff(Runtime& runtime, Duration base) : runtime_(runtime), base_(base) {}
  void failed(const PeerId& peer, const Multiaddr& address);
  void succeeded(const PeerId& peer, const Multiaddr& address);
  bool blocks(const PeerId& peer, const KnownAddress& known) const;

 private:
  struct Failures {
    int count = 0;
    TimePoint until{};
  };
  template <class Key>
  struct Memory {
    std::map<Key, Failures> failures;
    std::deque<Key> order;
    Failures& at(const Key& key);
  };
  Runtime& runtime_;
  Duration base_;
  Memory<std::pair<PeerId, Multiaddr>> pairs_;
  Memory<Multiaddr> addresses_;
};

/// Dials the addresses of one peer until one answers. The next one starts when the one before fails or has had its
/// head start. Lives in the coroutine that runs it.
class DialRace {
 public:
  enum class Backoff { respected, ignored };
  DialRace(Host::Impl& host, PeerId peer, Backoff backoff);
  ~DialRace();
  DialRace(const DialRace&) = delete;
  DialRace& operator=(const DialRace&) = delete;

  /// More addresses to try, also while it runs; what was tried already or is too much is left out.
  void add(const std::vector<KnownAddress>& addresses);
  /// Nothing will be added any more: once all have failed, the race is lost.
  void complete();
  /// Waits until nothing is being dialled or about to be.
  Task<void> wait_idle(Deadline deadline);
  /// Ends when the peer is connected, by whatever way.
  Task<Result<>> run(Deadline deadline);

  const PeerId& peer() const noexcept { return peer_; }
  /// The peer may have become connected by another way.
  void check() { changed_.notify_all(); }
  /// How many addresses were dialled.
  std::size_t tried() const noexcept { return tried_; }

 private:
  static Task<void> dial(DialRace& race, Multiaddr address, Deadline deadline);
  bool may_start() const;
  Error failure() const;

  Host::Impl& host_;
  PeerId peer_;
  Backoff backoff_;
  Condition changed_;
  std::deque<Multiaddr> waiting_;
  std::set<Multiaddr> seen_;
  std::size_t running_ = 0;
  std::size_t tried_ = 0;
  std::size_t blocked_ = 0;
  bool complete_ = false;
  TimePoint next_start_{};
  std::vector<Error> failures_;  ///< the first few
};

}  // namespace cohive::p2p
