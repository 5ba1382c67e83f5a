#include "bundles.hpp"

#include <algorithm>
#include <cstring>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "core/detail/median.hpp"

namespace cohive::p2p {
namespace {

constexpr std::array<std::uint8_t, 1> kTaken{1}, kRefused{0};

constexpr Duration kLook = 1s;       // while something is transferred
constexpr Duration kQuietLook = 5s;  // once nothing was for some looks
constexpr int kQuietLooks = 10;
constexpr double kBusy = 256 * 1024;  // bytes per second; less says nothing of the link
constexpr Duration kLongPath = 5ms;   // a shorter one is filled by one connection
constexpr std::size_t kLooks = 3;     // of a transfer: the first or the last one may see a part of it
constexpr Duration kLossesCount = 30s;
constexpr Duration kRenewalRest = 30s;    // after a connection with new keys was not to be had
constexpr double kBuffers = 1024 * 1024;  // bytes on their way that the buffers of a connection may not hold

std::uint64_t delivered(const transport::ConnectionStats& stats) {
  return stats.bytes_out - std::min<std::uint64_t>(stats.bytes_out, stats.undelivered);
}

/// As the kernel measures it; where it does not tell, as pings do.
transport::PathState path_of(const transport::Connection& connection) {
  const transport::PathState path = connection.stats().path;
  if (path.round_trip > Duration::zero()) return path;
  return {connection.round_trip(), connection.round_trip(), {}};
}

}  // namespace

Bundles::Bundles(Self& self, Handlers& handlers, ConnectionTable& table, Dialler& dialler, Identify& identify,
                 transport::BandwidthLimits limits)
    : self_(self), table_(table), dialler_(dialler), tasks_(self.runtime, "bundles") {
  if (self.options.max_bundled_connections < 2) return;
  handlers.add(kBundleProtocol, [this](transport::StreamPtr stream) { return accept(std::move(stream)); });
  if (limits.upload <= 0 && limits.download <= 0)
    subscriptions_.push_back(identify.described().subscribe([this](const PeerId& peer) { begin(peer); }));
  subscriptions_.push_back(table.disconnected_signal().subscribe([this](const PeerId& peer) {
    opened_.erase(peer);
    accepted_.erase(peer);
  }));
}

// ---- When

/// The connection of a peer that a bundle may begin with; null: this side does not begin one.
ConnectionEntryPtr Bundles::candidate(const PeerId& peer) const {
  const ConnectedPeer* found = table_.find(peer);
  if (!found || !is_cohive(*found) || !found->serves(kBundleProtocol)) return nullptr;
  ConnectionEntryPtr entry = table_.best_of_its_own(peer);
  if (!entry || !entry->connection->outbound() || is_relayed(*entry)) return nullptr;
  return entry->connection->remote_address().scope() == Multiaddr::Scope::loopback ? nullptr : entry;
}

void Bundles::begin(const PeerId& peer) {
  if (!candidate(peer) || !tended_.insert(peer).second) return;
  tasks_.spawn(tend(*this, peer), "growth of bundles");
}

/// Follows the transfers of a peer, and has as many connections carry them as help.
Task<void> Bundles::tend(Bundles& bundles, PeerId peer) {
  const auto end = on_exit([&] { bundles.tended_.erase(peer); });
  LaneGrowth growth(bundles.self_.options.max_bundled_connections);
  Measuring measuring;
  while (const auto load = co_await bundles.measure(peer, measuring)) {
    const std::size_t lanes = bundles.lanes(peer);
    const std::size_t wanted = growth.after(*load, lanes, bundles.self_.runtime.now());
    if (wanted == lanes) continue;
    log::debug("p2p", "{} connections to {} carry {:.1f} MB/s: {} from now on", lanes, peer, load->rate / 1e6, wanted);
    if (wanted < lanes) {
      bundles.shrink(peer, wanted);
    } else if (const auto grew = co_await bundles.grow(peer, wanted); !grew) {
      log::debug("p2p", "no further connection to {}: {}", peer, grew.error());
      growth.rest(bundles.self_.runtime.now());
    }
  }
}

/// Waits for a transfer that lasts; nullopt when this side has no bundle to begin any more.
Task<std::optional<LaneGrowth::Load>> Bundles::measure(PeerId peer, Measuring& measuring) {
  std::vector<double> rates, round_trips;
  transport::PathState path;
  for (int quiet = 0; rates.size() < kLooks;) {
    co_await self_.runtime.sleep_for(quiet < kQuietLooks ? kLook : kQuietLook);
    co_await renew_keys(peer, measuring);
    const ConnectionEntryPtr carrier = candidate(peer);
    if (!carrier) co_return std::nullopt;
    table_.close_spare_members(peer);
    path = measuring.path_now(*carrier->connection);
    const double rate = measuring.rate_since(carried(peer), path, self_.runtime.now());
    const bool counts = rate >= kBusy && path.round_trip >= kLongPath;
    quiet = counts ? 0 : quiet + 1;
    if (!counts) {
      rates.clear();
      round_trips.clear();
      continue;
    }
    rates.push_back(rate);
    round_trips.push_back(to_seconds(path.round_trip));
  }
  const double rate = median(rates);
  const bool held_back = !path.lost || rate * to_seconds(path.shortest) >= kBuffers ||
                         (measuring.lost && self_.runtime.now() - *measuring.lost < kLossesCount);
  co_return LaneGrowth::Load{rate, from_seconds(median(round_trips)), path.shortest, held_back};
}

/// What all connections with a peer have carried.
Bundles::Carried Bundles::carried(const PeerId& peer) const {
  Carried sum;
  const ConnectedPeer* found = table_.find(peer);
  if (!found) return sum;
  for (const auto& entry : found->connections) {
    if (entry->kind == ConnectionKind::bundle) continue;
    const auto stats = entry->connection->stats();
    sum.in += stats.bytes_in;
    sum.out += delivered(stats);
    sum.lost += stats.path.lost.value_or(0);
  }
  return sum;
}

/// The shortest ping is remembered, as the kernel remembers its shortest round trip.
transport::PathState Bundles::Measuring::path_now(const transport::Connection& connection) {
  transport::PathState path = path_of(connection);
  if (path.lost || path.shortest <= Duration::zero()) return path;
  path.shortest = shortest = std::min(shortest, path.shortest);
  return path;
}

double Bundles::Measuring::rate_since(const Carried& carried, const transport::PathState& path, TimePoint now) {
  const Carried then = std::exchange(before, carried);
  const TimePoint last = std::exchange(looked, now);
  // A connection that has ended took its count with it.
  if (last == TimePoint::min() || carried.in < then.in || carried.out < then.out || now <= last) return 0;
  // What a full queue drops says that there is no room, not that a path loses packets.
  if (carried.lost > then.lost && !LaneGrowth::is_queueing(path.round_trip, path.shortest)) lost = now;
  return static_cast<double>(std::max(carried.in - then.in, carried.out - then.out)) / to_seconds(now - last);
}

/// The bundle with a peer that this side has begun; null: there is none.
std::shared_ptr<Bundle> Bundles::opened(const PeerId& peer) const {
  const auto found = opened_.find(peer);
  auto bundle = found == opened_.end() ? nullptr : found->second.bundle.lock();
  return bundle && !bundle->ended().is_set() ? bundle : nullptr;
}

std::size_t Bundles::lanes(const PeerId& peer) const {
  const auto bundle = opened(peer);
  return bundle ? std::max<std::size_t>(1, bundle->lanes()) : 1;
}

// ---- More and fewer connections

Task<Result<>> Bundles::grow(PeerId peer, std::size_t wanted) {
  const ConnectionEntryPtr carrier = candidate(peer);
  if (!carrier) co_return Error(cohive::Errc::closed, peer);
  const Multiaddr address = carrier->connection->remote_address();
  if (!opened(peer)) CO_TRY(co_await open(peer, carrier));
  // Where one end has no room for them, each new connection may take the place of another one.
  for (std::size_t tries = wanted - std::min(wanted, lanes(peer)); tries > 0; --tries)
    CO_TRY(co_await extend(peer, address));
  if (lanes(peer) < wanted) co_return Error(Errc::too_many_connections, peer, "some have ended while others came");
  co_return ok();
}

/// Asks for a lane on a connection.
Task<Result<transport::StreamPtr>> Bundles::ask(PeerId peer, ConnectionEntryPtr carrier, Id id) {
  const Deadline deadline = self_.runtime.after(self_.options.negotiation_timeout);
  CO_TRY(auto stream, co_await open_on(carrier, kBundleProtocol, deadline));
  stream->count_begun(carrier->lanes);
  CO_TRY(co_await stream->write(ByteView(id), deadline));
  Bytes answer;
  {
    transport::StreamReader reader(*stream);
    CO_TRY(answer, co_await reader.read_exactly(1, deadline));
  }
  if (answer.front() != kTaken[0]) co_return Error(Errc::too_many_connections, peer, "the peer takes no lane");
  co_return std::move(stream);
}

Task<bool> Bundles::begin_early(PeerId peer) {
  const ConnectionEntryPtr carrier = tended_.contains(peer) ? candidate(peer) : nullptr;
  if (!carrier || opened(peer) || path_of(*carrier->connection).round_trip < kLongPath) co_return false;
  const auto begun = co_await open(peer, carrier);
  if (!begun) log::debug("p2p", "no bundle with {}: {}", peer, begun.error());
  co_return begun.has_value();
}

Task<Result<>> Bundles::open(PeerId peer, ConnectionEntryPtr carrier) {
  if (!opening_.insert(peer).second) co_return Error(Errc::too_many_connections, peer, "a bundle is being opened");
  const auto done = on_exit([&] { opening_.erase(peer); });
  Id id;
  self_.runtime.random_bytes(id);
  CO_TRY(auto stream, co_await ask(peer, carrier, id));
  co_return hold(opened_, id, std::move(carrier), std::move(stream), transport::Role::initiator);
}

Task<Result<>> Bundles::extend(PeerId peer, Multiaddr address) {
  if (!table_.has_room_for_member()) co_return Error(Errc::too_many_connections, peer);
  CO_TRY(auto connection, co_await dialler_.dial_again(peer, address));
  CO_TRY(const auto entry, table_.add(std::move(connection), {}, ConnectionKind::member));
  const auto found = opened_.find(peer);
  if (found == opened_.end()) co_return Error(cohive::Errc::closed, peer);
  const Held held = found->second;
  CO_TRY(auto stream, co_await ask(peer, entry, held.id));
  const auto bundle = held.bundle.lock();
  if (!bundle || bundle->ended().is_set()) co_return Error(cohive::Errc::closed, peer, "the bundle has ended");
  add_lane(held, *entry, std::move(stream));
  co_return ok();
}

/// The newest lanes go first. The connections that are left over are closed as surplus.
void Bundles::shrink(const PeerId& peer, std::size_t wanted) {
  const auto bundle = opened(peer);
  const ConnectedPeer* found = table_.find(peer);
  if (!bundle || !found) return;
  for (auto at = found->connections.rbegin(); at != found->connections.rend() && bundle->lanes() > wanted; ++at)
    if ((*at)->lane != 0 && (*at)->bundle.lock() == bundle) bundle->drop_lane(std::exchange((*at)->lane, 0));
}

bool Bundles::has_worn_keys(const ConnectionEntry& entry) const {
  const auto stats = entry.connection->stats();
  return std::max(stats.bytes_in, stats.bytes_out) >= self_.options.transport.max_key_bytes / 2;
}

/// A connection gets no new keys: once they are worn it ends, as soon as no stream is open on it, or later with all
/// that are. A lane is a stream that stays open, so another connection takes its place in time.
Task<void> Bundles::renew_keys(PeerId peer, Measuring& measuring) {
  const auto bundle = opened(peer);
  const ConnectedPeer* found = table_.find(peer);
  if (!bundle || !found || self_.runtime.now() < measuring.renewal) co_return;
  const auto at = std::ranges::find_if(found->connections, [&](const ConnectionEntryPtr& entry) {
    return entry->lane != 0 && entry->bundle.lock() == bundle && has_worn_keys(*entry);
  });
  if (at == found->connections.end()) co_return;
  const ConnectionEntryPtr worn = *at;
  if (bundle->lanes() < self_.options.max_bundled_connections) {
    const auto extended = co_await extend(peer, worn->connection->remote_address());
    if (!extended) {
      log::debug("p2p", "no connection to {} in place of one whose keys are worn: {}", peer, extended.error());
      measuring.renewal = self_.runtime.now() + kRenewalRest;
    }
  }
  if (bundle->lanes() > 1) bundle->drop_lane(std::exchange(worn->lane, 0));
}

void Bundles::add_lane(const Held& held, ConnectionEntry& carrier, transport::StreamPtr stream) {
  carrier.bundle = held.bundle;
  carrier.bundle_entry = held.entry;
  stream->count_begun(carrier.lanes);
  carrier.lane = held.bundle.lock()->add_lane(std::move(stream));
}

/// Makes a bundle of a first lane, and a connection of the bundle.
Result<> Bundles::hold(std::map<PeerId, Held>& held, Id id, ConnectionEntryPtr carrier, transport::StreamPtr stream,
                       transport::Role role) {
  const PeerId peer = carrier->connection->peer();
  const Multiaddr remote = carrier->connection->remote_address();
  auto bundle = std::make_shared<Bundle>(self_.runtime, peer, self_.memory.account(peer, remote));
  auto raw = std::make_unique<BundleConnection>(bundle, carrier->connection->local_address(), remote);
  TRY(const auto entry,
      table_.add(transport::multiplex(self_.upgrader, std::move(raw), role, peer, carrier->connection->security()), {},
                 ConnectionKind::bundle));
  entry->bundle = bundle;
  held[peer] = {id, bundle, entry};
  add_lane(held[peer], *carrier, std::move(stream));
  return ok();
}

// ---- The other side

Task<void> Bundles::accept(transport::StreamPtr stream) {
  const PeerId peer = stream->peer();
  const Deadline deadline = self_.runtime.after(self_.options.negotiation_timeout);
  Id id;
  {
    transport::StreamReader reader(*stream);
    const auto bytes = co_await reader.read_exactly(id.size(), deadline);
    if (!bytes) co_return;
    std::ranges::copy(*bytes, id.begin());
  }
  ConnectionEntryPtr carrier;
  if (const ConnectedPeer* found = table_.find(peer))
    for (const auto& entry : found->connections)
      if (entry->kind != ConnectionKind::bundle && entry->connection->remote_address() == stream->remote_address())
        carrier = entry;
  if (!carrier) co_return;
  const auto known = accepted_.find(peer);
  const auto bundle = known == accepted_.end() ? nullptr : known->second.bundle.lock();
  const bool further = bundle && !bundle->ended().is_set() && known->second.id == id;
  const bool full = further && bundle->lanes() >= self_.options.max_bundled_connections;
  const bool twice = *carrier->lanes > 0 && further;
  if (carrier->connection->outbound() || is_relayed(*carrier) || full || twice) {
    (void)co_await stream->write(ByteView(kRefused), deadline);
    co_return;
  }
  if (!co_await stream->write(ByteView(kTaken), deadline)) co_return;
  if (further) {
    table_.make_member(carrier);
    const auto still = accepted_.find(peer);
    if (still != accepted_.end() && still->second.id == id && still->second.bundle.lock())
      add_lane(still->second, *carrier, std::move(stream));
    co_return;
  }
  if (bundle) bundle->close();  // the peer has forgotten it
  if (const auto held = hold(accepted_, id, carrier, std::move(stream), transport::Role::responder); !held)
    log::debug("p2p", "no bundle with {}: {}", peer, held.error());
}

}  // namespace cohive::p2p
