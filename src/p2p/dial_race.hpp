// Several addresses of one peer dialled at once. Source: docs/wire/libp2p.md, section 10; RFC 8305.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "connection_table.hpp"

namespace cohive::p2p {

/// The port that a dial comes from: one that we listen on, where the transport does that, or any.
enum class SourcePort { listening, any };

/// Dials the addresses of one peer until one answers. The next one starts when the one before fails or has had its
/// head start. Lives in the coroutine that runs it.
class DialRace {
 public:
  /// \param from  the source port: see source_port()
  using Dial = std::function<Task<Result<>>(KnownAddress, Deadline, SourcePort from)>;
  DialRace(Self& self, ConnectionTable& table, PeerId peer, Dial dial);
  DialRace(const DialRace&) = delete;
  DialRace& operator=(const DialRace&) = delete;

  /// More addresses to try, also while it runs; what was tried already or is too much is left out.
  void add(const std::vector<KnownAddress>& addresses);
  /// Adds the addresses that a task yields once it has ended. It is dropped when the race is over.
  void add_later(Task<std::vector<KnownAddress>> addresses);
  /// Addresses that are not to be tried now.
  using HeldBack = std::function<bool(const KnownAddress&)>;
  void hold_back(HeldBack held_back) { held_back_ = std::move(held_back); }
  /// Nothing will be added any more, but for what add_later() was told of: once all have failed, the race is lost.
  void complete();
  /// Returns whether nothing is being dialled, looked up or about to be; waits for that.
  bool idle() const noexcept { return running_ == 0 && looked_up_ == 0 && waiting_.empty(); }
  Task<void> wait_idle(Deadline deadline);
  /// Ends when the peer is connected, by whatever way.
  Task<Result<>> run(Deadline deadline);

  const PeerId& peer() const noexcept { return peer_; }
  /// How many addresses were dialled.
  std::size_t tried() const noexcept { return tried_; }

 private:
  static Task<void> dial(DialRace& race, KnownAddress known, Deadline deadline);
  static Task<void> take(DialRace& race, Task<std::vector<KnownAddress>> addresses);
  bool may_start() const;
  bool is_one_too_many(const KnownAddress& known);
  SourcePort source_port(const Multiaddr& address) const;
  Error failure() const;

  Self& self_;
  ConnectionTable& table_;
  PeerId peer_;
  Dial dial_;
  HeldBack held_back_;
  Condition changed_;
  Subscription connected_;  ///< the peer may become connected by another way
  std::deque<KnownAddress> waiting_;
  std::set<Multiaddr> seen_;
  std::map<std::string, std::size_t> hearsay_hosts_;  ///< announced addresses of each host
  std::size_t running_ = 0;
  std::size_t looked_up_ = 0;  ///< tasks of add_later() that have not ended
  std::size_t tried_ = 0;
  std::size_t blocked_ = 0;
  bool complete_ = false;
  TimePoint next_start_{};
  std::vector<Error> failures_;  ///< the first few
  Nursery tasks_;                ///< last: they work on the members above
};

}  // namespace cohive::p2p
