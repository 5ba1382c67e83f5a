// Which connections have to go: leftovers of simultaneous dials, the least useful ones above the high water mark,
// and, at the limit, an idle one for each newcomer.
#include <algorithm>

#include "cohive/core/errors.hpp"
#include "connection_table.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kSurplusGrace = 30s;  // two connections to one peer are kept this long
// Connections used this lately are not closed to make room: a newcomer gets a few round trips for its first stream. Not
// longer: a peer that is turned away takes us for gone and bans us, one that loses an idle connection dials again.
constexpr Duration kJustUsed = 1s;
constexpr Duration kTrimPeriod = 10s;  // as p2pd
constexpr std::size_t kCrowd = 8, kCrowdRatio = 4;  // connections of one network that may have to go for another's

}  // namespace

// ---- Room

bool ConnectionTable::below_limit(bool inbound) const {
  const std::size_t most = self_.options.max_connections;
  return size_ < most - (inbound ? most / 8 : 0);
}

bool ConnectionTable::has_room_for(const std::string& network) const {
  return shares_.of(network) < self_.options.max_connections_per_ip && (below_limit(true) || replaceable(network));
}

Subscription ConnectionTable::protect(const PeerId& peer) {
  auto& weak = (*protected_)[peer];
  if (auto held = weak.lock()) return held;
  Subscription token(protected_.get(), [map = protected_, peer](void*) { map->erase(peer); });
  weak = token;
  return token;
}

bool ConnectionTable::is_protected(const PeerId& peer) const {
  return protected_->contains(peer) || (valued_ && valued_(peer));
}

/// The connection that will be missed least, for one of `network`: that of a peer that has misbehaved, else unprotected
/// peers first, of these the one that was idle longest. Null when all are in use and no network has far more than its
/// share.
ConnectionEntryPtr ConnectionTable::replaceable(const std::string& network) const {
  if (auto shunned = of_a_shunned_peer()) return shunned;
  const TimePoint limit = self_.runtime.now() - kJustUsed;
  ConnectionEntryPtr result;
  bool result_protected = false;
  for (const auto& [id, peer] : peers_) {
    const bool guarded = is_protected(id);
    if (result && guarded && !result_protected) continue;
    for (const auto& entry : peer.connections) {
      const bool better = !result || (result_protected && !guarded) || entry->used < result->used;
      if (entry->used > limit || !better || entry->in_use()) continue;
      result = entry;
      result_protected = guarded;
    }
  }
  return result ? result : of_the_largest(network);
}

ConnectionEntryPtr ConnectionTable::of_a_shunned_peer() const {
  ConnectionEntryPtr result;
  for (const auto& [id, peer] : peers_) {
    if (!self_.reputation.is_shunned(id) || is_protected(id)) continue;
    for (const auto& entry : peer.connections)
      if (!result || entry->used < result->used) result = entry;
  }
  return result;
}

/// A peer of the network that has most, though it is in use, if that network has many and several times as many as the
/// newcomer's: one address that fills the host with open streams keeps no other peer out.
ConnectionEntryPtr ConnectionTable::of_the_largest(const std::string& network) const {
  const auto [largest, count] = shares_.most();
  if (network.empty() || largest == network || count < std::max(kCrowd, kCrowdRatio * (shares_.of(network) + 1)))
    return nullptr;
  ConnectionEntryPtr result;
  for (const auto& [id, peer] : peers_) {
    if (is_protected(id)) continue;
    for (const auto& entry : peer.connections)
      if (entry->share.network() == largest && (!result || entry->used < result->used)) result = entry;
  }
  return result;
}

bool ConnectionTable::make_room(bool inbound, const std::string& network) {
  if (below_limit(inbound)) return true;
  const ConnectionEntryPtr victim = replaceable(network);
  if (!victim) return false;
  self_.metrics.closed_for_room.increment();
  close_gracefully(victim, Error(cohive::Errc::closed, victim->connection->peer(), "idle, and others needed the room"),
                   self_.runtime.after(kFarewell));
  return true;
}

// ---- Water marks

Task<void> ConnectionTable::trim(ConnectionTable& table) {
  while (table.size_ > table.self_.options.high_water) {
    table.trim_once();
    co_await table.self_.runtime.sleep_for(kTrimPeriod);
  }
  table.trimming_ = false;
}

/// Down to the low water mark, if so many are idle, old enough and not protected.
void ConnectionTable::trim_once() {
  const TimePoint limit = self_.runtime.now() - self_.options.trim_grace;
  std::vector<ConnectionEntryPtr> idle;
  for (const auto& [id, peer] : peers_) {
    if (is_protected(id)) continue;
    for (const auto& entry : peer.connections)
      if (entry->opened <= limit && !entry->in_use()) idle.push_back(entry);
  }
  std::sort(idle.begin(), idle.end(), [](const auto& a, const auto& b) { return a->used < b->used; });
  for (const auto& entry : idle) {
    if (size_ <= self_.options.low_water) return;
    self_.metrics.closed_trimmed.increment();
    close_gracefully(entry, Error(cohive::Errc::closed, entry->connection->peer(), "trimmed"),
                     self_.runtime.after(kFarewell));
  }
}

// ---- Several connections to one peer

/// A circuit that a direct connection has replaced goes by either side. Of two connections that the same side dialled, only that side knows which one it prefers.
bool ConnectionTable::may_close(const ConnectionEntry& entry, const ConnectionEntry& kept) const {
  if (entry.used + kSurplusGrace > self_.runtime.now() || entry.in_use()) return false;
  if (is_relayed(entry) && !is_relayed(kept)) return true;
  return dialler(entry) == self_.id || dialler(entry) != dialler(kept);
}

/// Closes what is left over of simultaneous dials, once it is not used any more.
Task<void> ConnectionTable::close_surplus(ConnectionTable& table) {
  while (!table.surplus_.empty()) {
    co_await table.self_.runtime.sleep_for(kSurplusGrace);
    for (const PeerId& peer : std::set<PeerId>(table.surplus_)) {
      const ConnectedPeer* found = table.find(peer);
      if (!found || found->connections.size() < 2) {
        table.surplus_.erase(peer);
        continue;
      }
      const ConnectionEntryPtr kept = table.best(peer);
      for (const auto& entry : std::vector(found->connections)) {
        if (entry == kept || !kept || !table.may_close(*entry, *kept)) continue;
        table.self_.metrics.closed_surplus.increment();
        table.close_gracefully(entry, Error(cohive::Errc::closed, peer, "surplus"),
                               table.self_.runtime.after(kFarewell));
      }
    }
  }
  table.closing_surplus_ = false;
}

}  // namespace cohive::p2p
