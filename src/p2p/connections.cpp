// The connection table: listening, accepting, dialling, and serving the streams of each connection.
// Source: libp2p wire spec, sections 10 and 13.
#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/multistream.hpp"
#include "host_impl.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kStagger = 250ms;         // between the starts of dials to one peer's addresses
constexpr std::size_t kMaxDials = 8;         // addresses tried per peer
constexpr Duration kMaxBackoff = 5min;
constexpr std::size_t kMaxBackoffs = 4096;
constexpr Duration kSurplusGrace = 30s;      // two connections to one peer are kept this long
constexpr Duration kMeasurePeriod = 5s;

/// Loopback and private addresses answer fastest; relayed and odd ones are not dialled.
std::vector<Multiaddr> dial_order(std::vector<Multiaddr> addresses) {
  std::erase_if(addresses, [](const Multiaddr& a) { return !a.tcp_endpoint() && !a.has(Multiaddr::dnsaddr); });
  std::vector<Multiaddr> ordered;
  for (const bool is_public : {false, true})
    for (const auto& address : addresses)
      if ((address.scope() == Multiaddr::Scope::public_) == is_public) ordered.push_back(address);
  if (ordered.size() > kMaxDials) ordered.resize(kMaxDials);
  return ordered;
}

struct PendingInbound {
  Host::Impl& host;
  std::string ip;
  PendingInbound(Host::Impl& h, std::string from) : host(h), ip(std::move(from)) {
    ++host.pending_inbound;
    ++host.pending_per_ip[ip];
  }
  ~PendingInbound() {
    --host.pending_inbound;
    if (--host.pending_per_ip[ip] == 0) host.pending_per_ip.erase(ip);
  }
};

/// Several dials to one peer: the next starts when the one before fails or 250 ms pass; the first success wins.
struct DialRace {
  DialRace(Runtime& runtime, std::size_t count) : changed(runtime, "dial race"), total(count) {}
  Condition changed;
  std::size_t total;
  std::size_t failed = 0;
  bool connected = false;
  Error last;
};

Task<void> race_dial(Host::Impl& self, PeerId peer, Multiaddr address, std::size_t index, Deadline deadline, DialRace& race) {
  const Deadline start = self.runtime.after(kStagger * static_cast<int>(index));
  while (race.failed < index && self.runtime.now() < start.at()) co_await race.changed.wait(start);
  auto result = co_await self.dial_one(peer, address, deadline);
  if (result) {
    race.connected = true;
  } else {
    ++race.failed;
    race.last = result.error();
  }
  race.changed.notify_all();
}

}  // namespace

Result<> Host::Impl::listen() {
  for (const auto& address : options.listen) {
    auto listener = network.listen(address);
    if (!listener) return listener.error();
    listeners.push_back(std::move(*listener));
    tasks.spawn(accept_loop(*this, *listeners.back()), "accept");
  }
  return ok();
}

Task<void> Host::Impl::accept_loop(Impl& self, transport::Listener& listener) {
  for (;;) {
    auto raw = co_await listener.accept();
    if (!raw) co_return;
    const auto endpoint = (*raw)->remote_address().tcp_endpoint();
    std::string ip = endpoint ? endpoint->host : std::string();
    const auto found = self.pending_per_ip.find(ip);
    const std::size_t from_ip = found == self.pending_per_ip.end() ? 0 : found->second;
    if (self.pending_inbound >= self.options.max_pending_inbound || from_ip >= self.options.max_pending_per_ip ||
        self.link_count >= self.options.max_connections) {
      self.metrics.inbound_refused.increment();
      continue;  // dropping the connection closes it
    }
    self.tasks.spawn(welcome(self, std::move(*raw), std::move(ip)), "inbound handshake");
  }
}

Task<void> Host::Impl::welcome(Impl& self, std::unique_ptr<transport::RawConnection> raw, std::string ip) {
  PendingInbound pending(self, std::move(ip));
  const std::string from = raw->remote_address().text();
  auto connection = co_await transport::upgrade(self.runtime, std::move(raw), transport::Role::responder, self.identity,
                                                std::nullopt, self.options.transport, self.network.plaintext());
  if (!connection) {
    self.metrics.inbound_failed.increment();
    log::debug("p2p", "inbound connection from {} failed: {}", from, connection.error());
    co_return;
  }
  self.metrics.inbound_ok.increment();
  (void)self.adopt(std::move(*connection));
}

Result<> Host::Impl::adopt(transport::ConnectionPtr connection) {
  const PeerId peer_id = connection->peer();
  if (closed) return Error(Errc::host_closed);
  if (peer_id == id) return Error(Errc::dial_to_self);
  if (link_count >= options.max_connections) return Error(Errc::too_many_connections, peer_id);
  auto link = std::make_shared<Link>(runtime, std::move(connection));
  Peer& peer = peers[peer_id];
  const bool first = peer.links.empty();
  peer.links.push_back(link);
  ++link_count;
  metrics.connections.add(1);
  if (first) {
    metrics.peers.add(1);
    book.set_connected(peer_id, {});
    log::debug("p2p", "connected to {} at {}", peer_id, link->connection->remote_address().text());
  } else {
    tasks.spawn(close_surplus(*this, peer_id), "close surplus connection");
  }
  tasks.spawn(run_link(*this, link), "connection");
  link->tasks.spawn(identify_peer(*this, link), "identify");
  return ok();
}

Task<void> Host::Impl::run_link(Impl& self, LinkPtr link) {
  for (;;) {
    auto stream = co_await link->connection->accept_stream();
    if (!stream) break;
    link->tasks.spawn(serve_stream(self, std::move(*stream)), "inbound stream");
  }
  log::debug("p2p", "connection to {} ended: {}", link->connection->peer(), link->connection->close_reason());
  self.drop_link(link);
}

void Host::Impl::drop_link(const LinkPtr& link) {
  const PeerId peer_id = link->connection->peer();
  link->connection->close(Error(cohive::Errc::closed, peer_id));
  link->tasks.cancel();
  const auto found = peers.find(peer_id);
  if (found == peers.end() || std::erase(found->second.links, link) == 0) return;
  count_bytes(*link);
  --link_count;
  metrics.connections.add(-1);
  if (!found->second.links.empty()) return;
  const bool was_identified = found->second.identified;
  peers.erase(found);
  metrics.peers.add(-1);
  book.on_disconnected(peer_id);
  if (was_identified) notify(peer_id, false);
}

Task<void> Host::Impl::serve_stream(Impl& self, transport::StreamPtr stream) {
  auto protocol = co_await transport::answer_selection(
      *stream, [&self](std::string_view name) { return self.handlers.contains(std::string(name)); },
      self.runtime.after(self.options.negotiation_timeout));
  if (!protocol) co_return;
  const auto handler = self.handlers.find(*protocol);
  if (handler == self.handlers.end()) co_return;
  stream->set_protocol(*protocol);
  const StreamHandler function = handler->second;  // the handler may be removed while it runs
  co_await function(std::move(stream));
}

/// Both sides may have dialled at the same time. What is not used after a while goes.
Task<void> Host::Impl::close_surplus(Impl& self, PeerId peer_id) {
  co_await self.runtime.sleep_for(kSurplusGrace);
  const auto found = self.peers.find(peer_id);
  if (found == self.peers.end()) co_return;
  auto links = found->second.links;
  for (std::size_t i = 0; i + 1 < links.size(); ++i) {
    const auto stats = links[i]->connection->stats();
    if (stats.streams_in + stats.streams_out == 0) links[i]->connection->close(Error(cohive::Errc::closed, peer_id, "surplus"));
  }
}

LinkPtr Host::Impl::link_to(const PeerId& peer) const {
  const auto found = peers.find(peer);
  if (found == peers.end()) return nullptr;
  for (auto link = found->second.links.rbegin(); link != found->second.links.rend(); ++link)
    if (!(*link)->connection->closed()) return *link;
  return nullptr;
}

// ---- Dialling

bool Host::Impl::in_backoff(const Multiaddr& address) const {
  const auto found = backoffs.find(address);
  return found != backoffs.end() && runtime.now() < found->second.until;
}

void Host::Impl::note_dial(const Multiaddr& address, bool success) {
  (success ? metrics.dials_ok : metrics.dials_failed).increment();
  if (success) {
    backoffs.erase(address);
    return;
  }
  if (backoffs.size() >= kMaxBackoffs)
    std::erase_if(backoffs, [now = runtime.now()](const auto& item) { return item.second.until <= now; });
  if (backoffs.size() >= kMaxBackoffs) return;
  Backoff& backoff = backoffs[address];
  const Duration pause = options.backoff_base + 1s * (backoff.failures * backoff.failures);
  backoff.failures = std::min(backoff.failures + 1, 100);
  backoff.until = runtime.now() + std::min<Duration>(pause, kMaxBackoff);
}

Task<Result<>> Host::Impl::dial_one(PeerId peer, Multiaddr address, Deadline deadline) {
  const Deadline limit = deadline.min(runtime.after(options.dial_timeout));
  auto raw = co_await network.dial(address, limit);
  if (!raw) {
    note_dial(address, false);
    co_return raw.error().with_peer(peer);
  }
  auto connection = co_await within(
      runtime, limit,
      transport::upgrade(runtime, std::move(*raw), transport::Role::initiator, identity, peer, options.transport,
                         network.plaintext()),
      "handshake");
  note_dial(address, connection.has_value());
  if (!connection) co_return connection.error().with_context(address.text());
  co_return adopt(std::move(*connection));
}

Task<Result<>> Host::Impl::dial_addresses(PeerId peer, std::vector<Multiaddr> addresses, bool respect_backoff, Deadline deadline) {
  std::vector<Multiaddr> targets;
  for (const auto& address : addresses) {
    auto resolved = co_await network.resolve(address, deadline);
    if (!resolved && addresses.size() == 1) co_return resolved.error();
    if (resolved) targets.insert(targets.end(), resolved->begin(), resolved->end());
  }
  targets = dial_order(std::move(targets));
  if (targets.empty()) co_return Error(Errc::no_addresses, peer);
  if (respect_backoff) {
    std::erase_if(targets, [this](const Multiaddr& a) { return in_backoff(a.without_peer()); });
    if (targets.empty()) co_return Error(Errc::dial_backoff, peer);
  }
  DialRace race(runtime, targets.size());
  TaskGroup dialling(runtime, "dial");
  for (std::size_t i = 0; i < targets.size(); ++i)
    dialling.spawn(race_dial(*this, peer, targets[i].without_peer(), i, deadline, race), "dial");
  while (!race.connected && race.failed < race.total) {
    if (!co_await race.changed.wait(deadline)) co_return Error(cohive::Errc::timeout, peer, "connecting");
  }
  if (race.connected) co_return ok();
  co_return race.last;
}

/// Known addresses first; when they fail or there are none, whatever peer routing finds.
Task<Result<>> Host::Impl::dial_known(PeerId peer, Deadline deadline) {
  const auto known = book.addresses(peer);
  Result<> result = Error(Errc::no_addresses, peer);
  if (!known.empty()) {
    result = co_await dial_addresses(peer, known, true, deadline);
    if (result) co_return result;
  }
  auto found = co_await routing.find(peer, deadline);
  if (!found) co_return known.empty() ? found.error() : result.error();
  std::vector<Multiaddr> fresh;
  for (const auto& address : *found)
    if (std::find(known.begin(), known.end(), address) == known.end()) fresh.push_back(address);
  if (link_to(peer)) co_return ok();
  if (fresh.empty()) co_return result;
  co_return co_await dial_addresses(peer, std::move(fresh), true, deadline);
}

Task<void> Host::Impl::run_dial(Impl& self, PeerId peer, std::shared_ptr<PendingDial> pending) {
  pending->result = co_await self.dial_known(peer, self.runtime.after(self.options.connect_timeout));
  self.dials.erase(peer);
  pending->done.set();
}

Task<Result<>> Host::Impl::connect(PeerId peer, Deadline deadline) {
  if (closed) co_return Error(Errc::host_closed);
  if (peer == id) co_return Error(Errc::dial_to_self, peer);
  if (link_to(peer)) co_return ok();
  std::shared_ptr<PendingDial> pending;
  if (const auto found = dials.find(peer); found != dials.end()) {
    pending = found->second;
  } else {
    pending = std::make_shared<PendingDial>(runtime);
    dials.emplace(peer, pending);
    tasks.spawn(run_dial(*this, peer, pending), "dial");
  }
  if (!co_await pending->done.wait(deadline)) co_return Error(cohive::Errc::timeout, peer, "connecting");
  co_return pending->result;
}

// ---- Metrics

void Host::Impl::count_bytes(Link& link) {
  const auto stats = link.connection->stats();
  metrics.bytes_in.increment(static_cast<double>(stats.bytes_in - link.counted.bytes_in));
  metrics.bytes_out.increment(static_cast<double>(stats.bytes_out - link.counted.bytes_out));
  link.counted = stats;
}

Task<void> Host::Impl::measure(Impl& self) {
  for (;;) {
    co_await self.runtime.sleep_for(kMeasurePeriod);
    for (auto& [id, peer] : self.peers)
      for (auto& link : peer.links) self.count_bytes(*link);
    self.metrics.routing_peers.set(static_cast<double>(self.routing.size()));
  }
}

}  // namespace cohive::p2p
