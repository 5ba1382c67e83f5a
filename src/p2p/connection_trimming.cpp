// Which connections have to go: leftovers of simultaneous dials, the least useful ones above the high water mark,
// and, at the limit, an idle one for each newcomer.
#include <algorithm>
#include <limits>
#include <tuple>

#include "cohive/core/errors.hpp"
#include "connection_table.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kSurplusGrace = 30s;  // two connections to one peer are kept this long
constexpr Duration kMemberGrace = 15s;   // until a member that has been dialled carries something
// Connections used this lately are not closed to make room: a newcomer gets a few round trips for its first stream. Not
// longer: a peer that is turned away takes us for gone and bans us, one that loses an idle connection dials again.
constexpr Duration kJustUsed = 1s;
constexpr Duration kTrimPeriod = 10s;  // as p2pd

/// \param outer  has the larger networks alone, or all of them
bool is_within(const Networks& networks, const Networks& outer) {
  return networks.block == outer.block && (outer.subnet.empty() || networks.subnet == outer.subnet) &&
         (outer.host.empty() || networks.host == outer.host);
}

}  // namespace

// ---- Room

bool ConnectionTable::below_limit(bool inbound) const {
  const std::size_t most = self_.options.max_connections;
  return size_ < most - (inbound ? most / 8 : 0);
}

bool ConnectionTable::has_room_for(const Networks& networks) const {
  return shares_.has_room(networks, self_.options.max_connections_per_ip) &&
         (below_limit(true) || replaceable(networks, true));
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

/// The connection that will be missed least, for one of `networks`: that of a peer that has misbehaved; else a
/// member of a bundle; else one that is idle, of the crowd first, then of any unprotected peer, at last of a protected
/// one; else one of the crowd that is in use. Of several the one that was idle longest. A newcomer of the block that
/// has most, and many, takes the place of one of that block. Null when all are in use and there is no crowd.
/// \param any  one that may go will do
ConnectionEntryPtr ConnectionTable::replaceable(const Networks& networks, bool any) const {
  const bool some_are_banned = self_.reputation.banned() > 0;
  const TimePoint limit = self_.runtime.now() - kJustUsed;
  const bool many = is_crowd(shares_.blocks.highest(), 0);  // of one block; else there is no crowd to look for
  const auto [largest, count] = many ? shares_.blocks.most() : std::pair<std::string, std::size_t>();
  const Networks crowd = many ? crowd_beside(networks, largest, count) : Networks();
  const bool confined = many && largest == networks.block;
  ConnectionEntryPtr result;
  std::pair best(std::numeric_limits<int>::max(), TimePoint::max());
  for (const auto& [id, peer] : peers_) {
    for (const auto& entry : peer.connections) {
      if (entry->kind == ConnectionKind::bundle) continue;
      const bool spare = entry->kind == ConnectionKind::member;  // the rest of its bundle goes on
      // Most entries of a full table end here: one that was used later than the best one is no better, whatever it is.
      const int least = some_are_banned ? -2 : spare ? -1 : crowd.empty() ? 1 : 0;
      if (std::pair(least, entry->used) >= best) continue;
      const bool idle = entry->last_used() <= limit && !entry->serves_a_call();
      if (!idle && !spare && !some_are_banned && crowd.empty()) continue;
      const bool guarded = is_protected(id);
      const bool banned = some_are_banned && !guarded && self_.reputation.is_banned(id);
      if (confined && !banned && entry->share.networks.block != largest) continue;
      const bool crowded = !guarded && !crowd.empty() && is_within(entry->share.networks, crowd);
      if (!banned && !idle && !crowded && !spare) continue;
      if (any) return entry;
      const int rank = banned ? -2 : spare ? -1 : !idle ? 3 : guarded ? 2 : crowded ? 0 : 1;
      if (std::pair(rank, entry->last_used()) >= best) continue;
      result = entry;
      best = {rank, entry->last_used()};
    }
  }
  return result;
}

/// How many connections the networks of one level have, of those within `outer`.
NetworkCounts ConnectionTable::counts_within(const Networks& outer, std::string Networks::* level) const {
  NetworkCounts counts;
  for (const auto& [id, peer] : peers_)
    for (const auto& entry : peer.connections)
      if (is_within(entry->share.networks, outer)) ++counts[entry->share.networks.*level];
  return counts;
}

/// The network that has most connections, if it has many and several times as many as the newcomer's: one owner of a
/// block who fills the host keeps no other peer out. Where the newcomer is of that block, the same of its subnets, and
/// of the addresses of the subnet. Empty when there is none.
/// \param largest  the block that has most connections: `count`
Networks ConnectionTable::crowd_beside(const Networks& newcomer, std::string largest, std::size_t count) const {
  Networks crowd;
  std::size_t own = shares_.blocks.of(newcomer.block);
  for (const auto level : {&Networks::block, &Networks::subnet, &Networks::host}) {
    if (level != &Networks::block) {
      const auto counts = counts_within(crowd, level);
      const auto ours = counts.find(newcomer.*level);
      own = ours == counts.end() ? 0 : ours->second;
      std::tie(largest, count) = largest_of(counts);
    }
    if (largest.empty()) return {};
    crowd.*level = largest;
    if (largest != newcomer.*level) return is_crowd(count, own) ? crowd : Networks{};
  }
  return {};
}

bool ConnectionTable::make_room(ConnectionKind kind, bool inbound, const Networks& networks) {
  if (kind == ConnectionKind::bundle || below_limit(inbound)) return true;
  if (kind == ConnectionKind::member) return false;  // it would be the first to go for the next one
  const ConnectionEntryPtr victim = replaceable(networks, false);
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

/// Down to the low water mark, if so many are idle, old enough and not protected. Those of valued peers stay unless
/// they alone are more: newcomers have their time, and would else take the place of all that is known of the swarm.
void ConnectionTable::trim_once() {
  const TimePoint limit = self_.runtime.now() - self_.options.trim_grace;
  std::vector<ConnectionEntryPtr> idle, valued;
  std::size_t of_valued = 0;
  for (const auto& [id, peer] : peers_) {
    if (protected_->contains(id)) continue;
    const bool is_valued = valued_ && valued_(id);
    for (const auto& entry : peer.connections) {
      if (entry->kind == ConnectionKind::bundle) continue;
      of_valued += is_valued;
      if (entry->opened <= limit && !entry->in_use()) (is_valued ? valued : idle).push_back(entry);
    }
  }
  const auto too_many = [low = self_.options.low_water](std::size_t count) { return count - std::min(count, low); };
  close_longest_unused(std::move(idle), too_many(size_));
  close_longest_unused(std::move(valued), too_many(of_valued));
}

void ConnectionTable::close_longest_unused(std::vector<ConnectionEntryPtr> entries, std::size_t count) {
  std::ranges::sort(entries, {}, [](const auto& entry) { return entry->last_used(); });
  if (entries.size() > count) entries.resize(count);
  for (const auto& entry : entries) {
    self_.metrics.closed_trimmed.increment();
    close_gracefully(entry, Error(cohive::Errc::closed, entry->connection->peer(), "trimmed"),
                     self_.runtime.after(kFarewell));
  }
}

// ---- Several connections to one peer

/// A circuit that a direct connection has replaced goes by either side. Of two connections that the same side dialled,
/// only that side knows which one it prefers.
bool ConnectionTable::may_close(const ConnectionEntry& entry, const ConnectionEntry& kept) const {
  if (entry.kind == ConnectionKind::bundle || entry.last_used() + kSurplusGrace > self_.runtime.now() || entry.in_use())
    return false;
  if (is_relayed(entry) && !is_relayed(kept)) return true;
  return dialler(entry) == self_.id || dialler(entry) != dialler(kept);
}

void ConnectionTable::close_spare_members(const PeerId& peer) {
  const ConnectedPeer* found = find(peer);
  if (!found) return;
  for (const auto& entry : std::vector(found->connections)) {
    const bool spare = entry->kind == ConnectionKind::member && *entry->lanes == 0 && !entry->in_use();
    if (!spare || !entry->connection->outbound() || entry->opened + kMemberGrace > self_.runtime.now()) continue;
    close_gracefully(entry, Error(cohive::Errc::closed, peer, "surplus"), self_.runtime.after(kFarewell));
  }
}

/// Closes what is left over of simultaneous dials, once it is not used any more.
Task<void> ConnectionTable::close_surplus(ConnectionTable& table) {
  while (!table.surplus_.empty()) {
    co_await table.self_.runtime.sleep_for(kSurplusGrace);
    for (const PeerId& peer : std::set<PeerId>(table.surplus_)) {
      const ConnectedPeer* found = table.find(peer);
      const auto with_socket = [](const auto& one) { return one->kind != ConnectionKind::bundle; };
      if (!found || std::ranges::count_if(found->connections, with_socket) < 2) {
        table.surplus_.erase(peer);
        continue;
      }
      const ConnectionEntryPtr kept = table.best_of_its_own(peer);
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
