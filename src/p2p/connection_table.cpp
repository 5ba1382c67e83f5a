#include "connection_table.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/multistream.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kSimultaneous = 3s;   // connections to one peer this close were dialled by both sides at once
constexpr std::size_t kBundles = 2;      // with one peer: each side may have begun one at the same time
constexpr std::size_t kMaxClosing = 64;  // at once, of a host that goes on; further peers are cut off

/// The same connections, of which those of the kind `bundle` come first.
std::vector<ConnectionEntryPtr> bundles_first(std::vector<ConnectionEntryPtr> connections) {
  std::ranges::partition(connections, [](const auto& one) { return one->kind == ConnectionKind::bundle; });
  return connections;
}

constexpr int kRankOfBundles = 3;

/// Which of several connections to one peer is preferred: the one of the highest rank.
int rank_of(const ConnectionEntry& entry) {
  if (entry.kind == ConnectionKind::bundle) return kRankOfBundles;
  if (is_relayed(entry)) return 0;
  return entry.kind == ConnectionKind::member ? 1 : 2;
}

void add_traffic(Traffic& sum, const ConnectionEntry& entry) {
  if (entry.kind == ConnectionKind::bundle) return;  // what carries it counts
  const auto stats = entry.connection->stats();
  sum.bytes_in += stats.bytes_in;
  sum.bytes_delivered += stats.bytes_out - std::min<std::uint64_t>(stats.bytes_out, stats.undelivered);
}

}  // namespace

Task<Result<transport::StreamPtr>> open_on(ConnectionEntryPtr entry, std::string protocol, Deadline deadline) {
  CO_TRY(auto stream, entry->connection->open_stream());
  entry->used = stream->runtime().now();
  CO_TRY(co_await transport::select_one_of(*stream, {std::move(protocol)}, deadline));
  co_return stream;
}

ConnectionTable::ConnectionTable(Self& self, Handlers& handlers, AddressBook& book)
    : self_(self),
      handlers_(handlers),
      book_(book),
      tasks_(self.runtime, "connections"),
      closing_(self.runtime, "ending connections") {}

void ConnectionTable::stop() {
  tasks_.cancel();
  closing_.cancel();
  for (auto& [id, peer] : peers_)
    for (auto& entry : peer.connections) entry->tasks.cancel();
}

ConnectionTable::~ConnectionTable() {
  stop();
  self_.metrics.connections.add(-static_cast<double>(size_));
  self_.metrics.peers.add(-static_cast<double>(peers_.size()));
}

// ---- What comes in

Result<ConnectionEntryPtr> ConnectionTable::add(transport::ConnectionPtr connection, Networks networks,
                                                ConnectionKind kind) {
  const PeerId peer_id = connection->peer();
  if (self_.closed) return Error(Errc::host_closed);
  if (peer_id == self_.id) return Error(Errc::dial_to_self);
  const ConnectedPeer* known = find(peer_id);
  const auto same = [kind](const ConnectionEntryPtr& one) { return one->kind == kind; };
  const auto before = known ? static_cast<std::size_t>(std::ranges::count_if(known->connections, same)) : 0;
  if (before >= most_of(kind) || !shares_.has_room(networks, self_.options.max_connections_per_ip) ||
      !make_room(kind, !connection->outbound(), networks))
    return Error(Errc::too_many_connections, peer_id);
  const auto entry =
      std::make_shared<ConnectionEntry>(self_.runtime, std::move(connection), shares_.take(std::move(networks)), kind);
  ConnectedPeer& peer = peers_[peer_id];
  const bool first = peer.connections.empty();
  peer.connections.push_back(entry);
  keep_one_ordinary(peer);
  if (kind != ConnectionKind::bundle) {
    ++size_;
    self_.metrics.connections.add(1);
  }
  if (first) {
    self_.metrics.peers.add(1);
    book_.on_connected(peer_id);
    log::debug("p2p", "connected to {} at {}", peer_id, entry->connection->remote_address().text());
  } else {
    surplus_.insert(peer_id);
    if (!std::exchange(closing_surplus_, true)) tasks_.spawn(close_surplus(*this), "close surplus connections");
  }
  tasks_.spawn(serve(*this, entry), "connection");
  if (size_ > self_.options.high_water && !std::exchange(trimming_, true)) tasks_.spawn(trim(*this), "trim");
  added_.emit(entry);
  if (first) connected_.emit(peer_id);
  return entry;
}

std::size_t ConnectionTable::most_of(ConnectionKind kind) const {
  switch (kind) {
    case ConnectionKind::member:
      return self_.options.max_bundled_connections;
    case ConnectionKind::bundle:
      return kBundles;
    case ConnectionKind::ordinary:
      break;
  }
  return self_.options.max_connections_per_peer;
}

Task<void> ConnectionTable::serve(ConnectionTable& table, ConnectionEntryPtr entry) {
  for (;;) {
    auto stream = co_await entry->connection->accept_stream();
    if (!stream) break;
    entry->used = table.self_.runtime.now();
    (*stream)->count_begun(entry->begun);
    entry->tasks.spawn(table.handlers_.serve(std::move(*stream), entry->auxiliary), "inbound stream");
  }
  const PeerId peer = entry->connection->peer();
  const Error reason = entry->connection->close_reason();
  log::debug("p2p", "connection to {} ended: {}", peer, reason);
  if (reason == transport::Errc::muxer_violation) table.self_.reputation.report(peer, Offence::malformed);
  table.abort(entry, Error(cohive::Errc::closed, peer));
}

// ---- What is there

ConnectedPeer* ConnectionTable::find(const PeerId& peer) {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}
const ConnectedPeer* ConnectionTable::find(const PeerId& peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : &found->second;
}

const PeerId& ConnectionTable::dialler(const ConnectionEntry& entry) const {
  return entry.connection->outbound() ? self_.id : entry.connection->peer();
}

/// Whether a connection shows that a bundle is lost: the side that has begun the bundle has dialled again since, as if
/// there was none, and not for one more lane of it. Our side of the bundle may take half a minute to notice.
bool ConnectionTable::is_outdated_by(const ConnectionEntry& bundle, const ConnectionEntry& newer) const {
  return newer.kind == ConnectionKind::ordinary && !is_relayed(newer) && newer.opened - bundle.opened > kSimultaneous &&
         dialler(newer) == dialler(bundle) && newer.bundle_entry.lock().get() != &bundle;
}

/// A bundle rather than a single connection, and that rather than a circuit. Both sides choose the same one: when they
/// dialled each other at the same time, the one that the smaller PeerID dialled; otherwise the newest, since a peer
/// that dials has lost the one before.
ConnectionEntryPtr ConnectionTable::best(const PeerId& peer) const {
  return best_below(peer, kRankOfBundles + 1);
}

ConnectionEntryPtr ConnectionTable::best_of_its_own(const PeerId& peer) const {
  return best_below(peer, kRankOfBundles);
}

ConnectionEntryPtr ConnectionTable::best_below(const PeerId& peer, int rank) const {
  const ConnectedPeer* found = find(peer);
  if (!found) return nullptr;
  ConnectionEntryPtr kept;
  for (auto at = found->connections.rbegin(); at != found->connections.rend(); ++at) {
    const ConnectionEntryPtr& entry = *at;
    if (entry->connection->closed() || rank_of(*entry) >= rank) continue;
    if (kept && rank_of(*kept) != rank_of(*entry)) {
      const bool outdated = entry->kind == ConnectionKind::bundle && is_outdated_by(*entry, *kept);
      if (rank_of(*entry) > rank_of(*kept) && !outdated) kept = entry;
      continue;
    }
    if (!kept || (kept->opened - entry->opened <= kSimultaneous && dialler(*entry) < dialler(*kept))) kept = entry;
  }
  return kept;
}

ConnectionEntryPtr ConnectionTable::direct(const PeerId& peer) const {
  ConnectionEntryPtr entry = best(peer);
  return entry && !is_relayed(*entry) ? entry : nullptr;
}

Task<Result<transport::StreamPtr>> ConnectionTable::open_stream(PeerId peer, std::string protocol, Deadline deadline,
                                                                Connect connect) {
  ConnectionEntryPtr entry;
  for (int attempt = 0; !entry && attempt < 2; ++attempt) {  // it may go away at this very moment
    auto connected = co_await connect();
    if (!connected) co_return connected.error();
    entry = best(peer);
  }
  if (!entry) co_return Error(cohive::Errc::closed, peer);
  auto stream = entry->connection->open_stream();
  if (!stream) co_return stream.error();
  entry->used = self_.runtime.now();
  (*stream)->set_protocol(protocol);
  const ConnectedPeer* known = find(peer);
  if (known && known->serves(protocol)) co_return transport::select_lazily(std::move(*stream), protocol);
  const Deadline limit = deadline.min(self_.runtime.after(self_.options.negotiation_timeout));
  auto agreed = co_await transport::select_one_of(**stream, {protocol}, limit);
  if (!agreed) co_return agreed.error();
  co_return std::move(*stream);
}

// ---- The end of connections

void ConnectionTable::make_member(const ConnectionEntryPtr& entry) {
  entry->kind = ConnectionKind::member;
  if (const ConnectedPeer* peer = find(entry->connection->peer())) keep_one_ordinary(*peer);
}

/// A bundle goes on without the connection that it began with. The oldest of its members is then the one that streams
/// and the next bundle begin on, and that is closed last.
void ConnectionTable::keep_one_ordinary(const ConnectedPeer& peer) {
  ConnectionEntryPtr heir;
  for (const auto& entry : peer.connections) {
    if (entry->kind == ConnectionKind::bundle || is_relayed(*entry)) continue;
    if (entry->kind == ConnectionKind::ordinary) return;
    if (!heir) heir = entry;
  }
  if (heir) heir->kind = ConnectionKind::ordinary;
}

/// Takes a connection out of the table; false when it is out already.
/// \param parted  one side has ended it
bool ConnectionTable::unregister(EntryRef entry, bool parted) {
  const PeerId peer_id = entry->connection->peer();
  const auto found = peers_.find(peer_id);
  if (found == peers_.end() || std::erase(found->second.connections, entry) == 0) return false;
  count_bytes(*entry);
  add_traffic(past_traffic_, *entry);
  {
    const NestedShares::Share given_back = std::move(entry->share);
  }
  if (entry->kind != ConnectionKind::bundle) {
    --size_;
    self_.metrics.connections.add(-1);
    found->second.parted = parted;
  }
  keep_one_ordinary(found->second);
  if (!found->second.connections.empty()) return true;
  const bool lost = !found->second.parted;
  peers_.erase(found);
  self_.metrics.peers.add(-1);
  book_.on_disconnected(peer_id);
  disconnected_.emit(peer_id);
  if (lost) lost_.emit(peer_id);
  return true;
}

/// After an error. The connection is closed at once.
void ConnectionTable::abort(EntryRef entry, const Error& reason) {
  if (!unregister(entry, entry->connection->ended_by_peer())) return;
  entry->connection->close(reason);
  entry->tasks.cancel();
}

/// Ends a connection that works: it leaves the table at once, and what was written before still reaches the peer.
void ConnectionTable::close_gracefully(EntryRef entry, Error reason, Deadline deadline) {
  if (!unregister(entry, true)) return;
  entry->tasks.cancel();
  if (!self_.closed && closing_.size() >= kMaxClosing) return entry->connection->close(std::move(reason));
  closing_.spawn(finish(*this, entry, std::move(reason), deadline), "farewell");
}

/// What is written to a bundle needs the connections that carry it until its own end.
Task<void> ConnectionTable::finish(ConnectionTable& table, ConnectionEntryPtr entry, Error reason, Deadline deadline) {
  const auto carried = entry->carried();
  const auto bundle = entry->bundle.lock();
  if (carried && bundle && carried->connection->closed()) co_await bundle->ended().wait(deadline);
  co_await entry->connection->finish(std::move(reason), deadline);
  table.count_bytes(*entry);
}

void ConnectionTable::disconnect(const PeerId& peer) {
  const ConnectedPeer* found = find(peer);
  if (!found) return;
  for (const auto& entry : bundles_first(found->connections))
    close_gracefully(entry, Error(cohive::Errc::closed, peer), self_.runtime.after(kFarewell));
}

void ConnectionTable::cut_off(const PeerId& peer) {
  if (self_.closed || !cutting_.insert(peer).second) return;
  Failures::of(self_.runtime)
      .warn("p2p", "memory", "over_budget",
            log::format("cutting {} off: it fills most of the memory that peers may fill", peer));
  tasks_.spawn(cut(*this, peer), "cut a peer off");
}

/// What fails with the connection is told that it is closed: a service might take another error for the peer's fault.
Task<void> ConnectionTable::cut(ConnectionTable& table, PeerId peer) {
  co_await table.self_.runtime.yield();
  table.cutting_.erase(peer);
  const ConnectedPeer* found = table.find(peer);
  if (!found) co_return;
  for (const auto& entry : std::vector(found->connections))
    table.abort(entry, Error(cohive::Errc::closed, peer, "memory that peers may fill"));
}

/// A service that is writing an answer goes on while there is something to send.
Task<void> ConnectionTable::drain(ConnectionTable& table, ConnectionEntryPtr entry, Deadline deadline) {
  co_await entry->connection->flush(deadline);
  table.close_gracefully(entry, Error(Errc::host_closed), deadline);
}

Task<void> ConnectionTable::close(Deadline deadline) {
  for (const bool of_bundles : {true, false}) {
    std::vector<Task<void>> ends;
    for (auto& [id, peer] : peers_)
      for (auto& entry : peer.connections)
        if ((entry->kind == ConnectionKind::bundle) == of_bundles) ends.push_back(drain(*this, entry, deadline));
    co_await when_all(self_.runtime, std::move(ends));
  }
  tasks_.cancel();
  co_await closing_.join();
}

// ---- Bytes

Traffic ConnectionTable::traffic() const {
  Traffic sum = past_traffic_;
  for (const auto& [id, peer] : peers_)
    for (const auto& entry : peer.connections) add_traffic(sum, *entry);
  return sum;
}

void ConnectionTable::count_bytes() {
  for (auto& [id, peer] : peers_)
    for (auto& entry : peer.connections) count_bytes(*entry);
}

void ConnectionTable::count_bytes(ConnectionEntry& entry) {
  if (entry.kind == ConnectionKind::bundle) return;
  const auto stats = entry.connection->stats();
  self_.metrics.bytes_in.increment(static_cast<double>(stats.bytes_in - entry.counted_in));
  self_.metrics.bytes_out.increment(static_cast<double>(stats.bytes_out - entry.counted_out));
  entry.counted_in = stats.bytes_in;
  entry.counted_out = stats.bytes_out;
}

}  // namespace cohive::p2p
