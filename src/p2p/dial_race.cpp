#include "dial_race.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/p2p/errors.hpp"
#include "dial_order.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxParallel = 16;   // per peer
constexpr std::size_t kMaxAddresses = 32;  // per peer and attempt to connect
constexpr std::size_t kMaxPortsOfAHost =
    2;  // of those that are hearsay: a peer has one, and another one after a restart
constexpr std::size_t kMaxFailuresNamed = 3;

}  // namespace

DialRace::DialRace(Self& self, ConnectionTable& table, PeerId peer, Dial dial)
    : self_(self),
      table_(table),
      peer_(peer),
      dial_(std::move(dial)),
      changed_(self.runtime, "dialling"),
      connected_(table.added_signal().subscribe([this](const ConnectionEntryPtr& entry) {
        if (entry->connection->peer() == peer_) changed_.notify_all();
      })),
      tasks_(self.runtime, "dial race") {}

void DialRace::add(const std::vector<KnownAddress>& addresses) {
  for (const auto& known : dial_order(addresses)) {
    if (seen_.size() >= kMaxAddresses) break;
    const Multiaddr address = known.address.without_peer();
    if (!seen_.insert(address).second) continue;
    if (is_one_too_many(known) || (held_back_ && held_back_(known))) {
      ++blocked_;
      self_.metrics.dials_held_back.increment();
    } else {
      waiting_.push_back(known);
      waiting_.back().address = address;
    }
  }
  changed_.notify_all();
}

void DialRace::add_later(Task<std::vector<KnownAddress>> addresses) {
  ++looked_up_;
  tasks_.spawn(take(*this, std::move(addresses)), "names of a peer");
}

Task<void> DialRace::take(DialRace& race, Task<std::vector<KnownAddress>> addresses) {
  const auto found = co_await std::move(addresses);
  --race.looked_up_;
  race.add(found);
}

bool DialRace::is_one_too_many(const KnownAddress& known) {
  if (known.source != KnownAddress::Source::announced || known.address.is_circuit()) return false;
  return ++hearsay_hosts_[networks_of(known.address).host] > kMaxPortsOfAHost;
}

void DialRace::complete() {
  complete_ = true;
  changed_.notify_all();
}

Task<void> DialRace::wait_idle(Deadline deadline) {
  while (!idle())
    if (!co_await changed_.wait(deadline)) break;
}

bool DialRace::may_start() const {
  return !waiting_.empty() && running_ < kMaxParallel;
}

/// A peer that is reached through a relay, too, is likely to be behind an address translator. A dial that it drops
/// would leave a half-open entry in ours, which spoils the pair of listening ports for hole punching for minutes. A
/// relay that has nothing but the other kind of IP address is there for peers of that kind.
SourcePort DialRace::source_port(const Multiaddr& address) const {
  const auto other = address.first_code() == Multiaddr::ip4 ? Multiaddr::ip6 : Multiaddr::ip4;
  const bool relayed = std::any_of(seen_.begin(), seen_.end(), [other](const Multiaddr& one) {
    return one.is_circuit() && one.first_code() != other;
  });
  return relayed ? SourcePort::any : SourcePort::listening;
}

Error DialRace::failure() const {
  if (failures_.size() == 1) return failures_.front();
  if (!failures_.empty()) {
    std::string text;
    for (const auto& failure : failures_) text += (text.empty() ? "" : "; ") + failure.message();
    Error all(Errc::all_dials_failed, peer_, text);
    for (const auto& failure : failures_) all = all.with_cause(failure);
    return all;
  }
  return Error(blocked_ > 0 ? Errc::dial_backoff : Errc::no_addresses, peer_);
}

Task<Result<>> DialRace::run(Deadline deadline) {
  for (;;) {
    if (table_.connected(peer_)) co_return ok();
    const TimePoint now = self_.runtime.now();
    if (deadline.passed(now)) co_return Error(cohive::Errc::timeout, peer_, "connecting");
    if (may_start() && now >= next_start_) {
      KnownAddress known = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
      ++tried_;
      next_start_ = now + head_start(known.address);
      tasks_.spawn(dial(*this, std::move(known), deadline), "dial");
      continue;
    }
    if (complete_ && idle()) co_return failure();
    co_await changed_.wait(may_start() ? deadline.min(Deadline(next_start_)) : deadline);
  }
}

Task<void> DialRace::dial(DialRace& race, KnownAddress known, Deadline deadline) {
  const SourcePort from = race.source_port(known.address);
  auto result = co_await race.dial_(std::move(known), deadline, from);
  --race.running_;
  if (!result) {
    if (race.failures_.size() < kMaxFailuresNamed) race.failures_.push_back(result.error());
    race.next_start_ = race.self_.runtime.now();
  }
  race.changed_.notify_all();
}

}  // namespace cohive::p2p
