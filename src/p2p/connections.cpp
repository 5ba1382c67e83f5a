// The connection table: listening, accepting, opening and serving the streams of each connection.
// Source: libp2p wire spec, sections 10 and 13.
#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "cohive/transport/multistream.hpp"
#include "host_impl.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kSimultaneous = 3s;   // connections to one peer this close were dialled by both sides at once
constexpr Duration kSurplusGrace = 30s;  // two connections to one peer are kept this long
// Connections used this lately are not closed to make room: a newcomer gets a few round trips for its first stream. Not
// longer: who is turned away takes us for gone and bans us, who loses an idle connection dials again.
constexpr Duration kJustUsed = 1s;
constexpr Duration kMeasurePeriod = 5s;
constexpr std::size_t kMaxFarewells = 64;  // at once, of a host that goes on; further peers are cut off

/// How many streams of the services below one peer may have open here.
std::size_t service_limit(const std::string& protocol) {
  if (protocol == kKadProtocol) return 32;
  if (protocol == kIdentifyProtocol) return 16;
  if (protocol == kPingProtocol || protocol == kIdentifyPushProtocol) return 4;
  return 0;  // others count for themselves
}

/// What an attacker has one of: an IPv4 address, an IPv6 /64 network. Empty for this machine, which is trusted.
std::string network_of(const Multiaddr& address) {
  if (address.scope() == Multiaddr::Scope::loopback) return {};
  const auto parts = address.components();
  if (parts.empty()) return {};
  const auto& value = parts[0].value;
  if (parts[0].code == Multiaddr::ip6 && value.size() == 16) return to_string(ByteView(value).first(8));
  return to_string(value);
}

/// Counts what comes from one network for as long as it lives.
void count(std::unordered_map<std::string, std::size_t>& table, const std::string& network) {
  if (!network.empty()) ++table[network];
}
void discount(std::unordered_map<std::string, std::size_t>& table, const std::string& network) {
  const auto found = table.find(network);
  if (found != table.end() && --found->second == 0) table.erase(found);
}
std::size_t counted(const std::unordered_map<std::string, std::size_t>& table, const std::string& network) {
  const auto found = table.find(network);
  return found == table.end() ? 0 : found->second;
}

struct PendingInbound {
  Host::Impl& host;
  std::string ip;
  PendingInbound(Host::Impl& h, std::string from) : host(h), ip(std::move(from)) {
    ++host.pending_inbound;
    count(host.pending_per_ip, ip);
  }
  ~PendingInbound() {
    --host.pending_inbound;
    discount(host.pending_per_ip, ip);
  }
};

struct ServiceStream {
  Host::Impl& host;
  std::pair<PeerId, std::string> key;
  ServiceStream(Host::Impl& h, PeerId peer, std::string protocol) : host(h), key(peer, std::move(protocol)) {
    ++host.service_streams[key];
  }
  ~ServiceStream() {
    const auto found = host.service_streams.find(key);
    if (--found->second == 0) host.service_streams.erase(found);
  }
};

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
    std::string ip = network_of((*raw)->remote_address());
    if (self.pending_inbound >= self.options.max_pending_inbound ||
        counted(self.pending_per_ip, ip) >= self.options.max_pending_per_ip ||
        counted(self.links_per_ip, ip) >= self.options.max_connections_per_ip ||
        (!self.has_room(true) && !self.longest_idle())) {
      self.metrics.inbound_refused.increment();
      continue;  // dropping the connection closes it
    }
    self.tasks.spawn(welcome(self, std::move(*raw), std::move(ip)), "inbound handshake");
  }
}

Task<void> Host::Impl::welcome(Impl& self, std::unique_ptr<transport::RawConnection> raw, std::string ip) {
  PendingInbound pending(self, ip);
  const std::string from = raw->remote_address().text();
  auto connection = co_await transport::upgrade(self.runtime, std::move(raw), transport::Role::responder, self.identity,
                                                std::nullopt, self.options.transport, self.network.plaintext());
  if (!connection) {
    self.metrics.inbound_failed.increment();
    log::debug("p2p", "inbound connection from {} failed: {}", from, connection.error());
    co_return;
  }
  auto adopted = self.adopt(std::move(*connection), std::move(ip));
  (adopted ? self.metrics.inbound_ok : self.metrics.inbound_refused).increment();
  if (!adopted) log::debug("p2p", "inbound connection from {} refused: {}", from, adopted.error());
}

bool Host::Impl::has_room(bool inbound) const {
  return link_count < options.max_connections - (inbound ? options.max_connections / 8 : 0);
}

/// The connection that nobody will miss, if there is one.
LinkPtr Host::Impl::longest_idle() const {
  const TimePoint limit = runtime.now() - kJustUsed;
  LinkPtr result;
  for (const auto& [id, peer] : peers)
    for (const auto& link : peer.links)
      if (link->used <= limit && (!result || link->used < result->used) && link->idle()) result = link;
  return result;
}

bool Host::Impl::make_room(bool inbound) {
  if (has_room(inbound)) return true;
  const LinkPtr victim = longest_idle();
  if (!victim) return false;
  metrics.closed_for_room.increment();
  let_go(victim, Error(cohive::Errc::closed, victim->connection->peer(), "idle, and others needed the room"),
         runtime.after(kFarewell));
  return true;
}

Result<> Host::Impl::adopt(transport::ConnectionPtr connection, std::string ip) {
  const PeerId peer_id = connection->peer();
  if (closed) return Error(Errc::host_closed);
  if (peer_id == id) return Error(Errc::dial_to_self);
  const auto known = peers.find(peer_id);
  if ((known != peers.end() && known->second.links.size() >= options.max_connections_per_peer) ||
      counted(links_per_ip, ip) >= options.max_connections_per_ip || !make_room(!connection->outbound()))
    return Error(Errc::too_many_connections, peer_id);
  auto link = std::make_shared<Link>(runtime, std::move(connection));
  link->ip = std::move(ip);
  count(links_per_ip, link->ip);
  Peer& peer = peers[peer_id];
  const bool first = peer.links.empty();
  peer.links.push_back(link);
  ++link_count;
  metrics.connections.add(1);
  if (first) {
    metrics.peers.add(1);
    book.on_connected(peer_id);
    log::debug("p2p", "connected to {} at {}", peer_id, link->connection->remote_address().text());
  } else {
    surplus.insert(peer_id);
    if (!std::exchange(closing_surplus, true)) tasks.spawn(close_surplus(*this), "close surplus connections");
  }
  tasks.spawn(run_link(*this, link), "connection");
  link->tasks.spawn(identify_peer(*this, link), "identify");
  for (DialRace* race : races)
    if (race->peer() == peer_id) race->check();
  return ok();
}

Task<void> Host::Impl::run_link(Impl& self, LinkPtr link) {
  for (;;) {
    auto stream = co_await link->connection->accept_stream();
    if (!stream) break;
    link->used = self.runtime.now();
    link->tasks.spawn(serve_stream(self, std::move(*stream)), "inbound stream");
  }
  log::debug("p2p", "connection to {} ended: {}", link->connection->peer(), link->connection->close_reason());
  self.drop_link(link, Error(cohive::Errc::closed, link->connection->peer()));
}

/// After an error. The connection is closed at once.
void Host::Impl::drop_link(const LinkPtr& link, const Error& reason) {
  if (!take_out(link)) return;
  link->connection->close(reason);
  link->tasks.cancel();
}

/// Ends a connection that works: it leaves the table at once, and what was written before still reaches the peer.
void Host::Impl::let_go(const LinkPtr& link, Error reason, Deadline deadline) {
  if (!take_out(link)) return;
  link->tasks.cancel();
  if (!closed && farewells.size() >= kMaxFarewells) return link->connection->close(std::move(reason));
  farewells.spawn(finish_link(*this, link, std::move(reason), deadline), "farewell");
}

Task<void> Host::Impl::finish_link(Impl& self, LinkPtr link, Error reason, Deadline deadline) {
  co_await link->connection->finish(std::move(reason), deadline);
  self.count_bytes(*link);
}

/// Takes a connection out of the table; false when it is out already.
bool Host::Impl::take_out(const LinkPtr& link) {
  const PeerId peer_id = link->connection->peer();
  const auto found = peers.find(peer_id);
  if (found == peers.end() || std::erase(found->second.links, link) == 0) return false;
  count_bytes(*link);
  add_traffic(past_traffic, *link);
  discount(links_per_ip, link->ip);
  --link_count;
  metrics.connections.add(-1);
  if (!found->second.links.empty()) return true;
  const bool was_identified = found->second.identified;
  peers.erase(found);
  metrics.peers.add(-1);
  book.on_disconnected(peer_id);
  if (was_identified) notify(peer_id, false);
  return true;
}

Task<void> Host::Impl::serve_stream(Impl& self, transport::StreamPtr stream) {
  auto protocol = co_await transport::answer_selection(
      *stream, [&self](std::string_view name) { return self.handlers.contains(std::string(name)); },
      self.runtime.after(self.options.negotiation_timeout));
  if (!protocol) co_return;
  const auto handler = self.handlers.find(*protocol);
  if (handler == self.handlers.end()) co_return;
  stream->set_protocol(*protocol);
  std::optional<ServiceStream> counted_stream;
  if (const std::size_t limit = service_limit(*protocol)) {
    counted_stream.emplace(self, stream->peer(), *protocol);
    if (self.service_streams[counted_stream->key] > limit) {
      self.metrics.streams_refused.increment();
      co_return;  // dropping the stream resets it
    }
  }
  const StreamHandler function = handler->second;  // the handler may be removed while it runs
  co_await function(std::move(stream));
}

const PeerId& Host::Impl::dialler(const Link& link) const {
  return link.connection->outbound() ? id : link.connection->peer();
}

/// The connection to open streams on. Both sides choose the same one: when they dialled each other at the same time,
/// the one that the smaller PeerID dialled; otherwise the newest, since a peer that dials has lost the one before.
LinkPtr Host::Impl::link_to(const PeerId& peer) const {
  const auto found = peers.find(peer);
  if (found == peers.end()) return nullptr;
  LinkPtr kept;
  for (auto at = found->second.links.rbegin(); at != found->second.links.rend(); ++at) {
    const LinkPtr& link = *at;
    if (link->connection->closed()) continue;
    if (!kept || (kept->opened - link->opened <= kSimultaneous && dialler(*link) < dialler(*kept))) kept = link;
  }
  return kept;
}

/// Of two connections that the same side dialled, only that side knows which one it prefers.
bool Host::Impl::may_close(const Link& link, const Link& kept) const {
  if (link.used + kSurplusGrace > runtime.now() || !link.idle()) return false;
  return dialler(link) == id || dialler(link) != dialler(kept);
}

/// Closes what is left over of simultaneous dials, once nobody uses it.
Task<void> Host::Impl::close_surplus(Impl& self) {
  while (!self.surplus.empty()) {
    co_await self.runtime.sleep_for(kSurplusGrace);
    for (const PeerId& peer : std::set<PeerId>(self.surplus)) {
      const auto found = self.peers.find(peer);
      if (found == self.peers.end() || found->second.links.size() < 2) {
        self.surplus.erase(peer);
        continue;
      }
      const LinkPtr kept = self.link_to(peer);
      for (const auto& link : std::vector<LinkPtr>(found->second.links)) {
        if (link == kept || !kept || !self.may_close(*link, *kept)) continue;
        self.metrics.closed_surplus.increment();
        self.let_go(link, Error(cohive::Errc::closed, peer, "surplus"), self.runtime.after(kFarewell));
      }
    }
  }
  self.closing_surplus = false;
}

Task<Result<transport::StreamPtr>> Host::Impl::open_stream(PeerId peer, std::string protocol, Deadline deadline,
                                                           Reach reach) {
  for (int attempt = 0;; ++attempt) {
    auto connected = co_await connect(peer, deadline, reach);
    if (!connected) co_return connected.error();
    const LinkPtr link = link_to(peer);
    if (!link) {
      if (attempt == 0) continue;  // it went away at this very moment
      co_return Error(cohive::Errc::closed, peer);
    }
    auto stream = link->connection->open_stream();
    if (!stream) co_return stream.error();
    link->used = runtime.now();
    (*stream)->set_protocol(protocol);
    const auto known = peers.find(peer);
    if (known != peers.end() && known->second.serves(protocol))
      co_return transport::select_lazily(std::move(*stream), protocol);
    const Deadline limit = deadline.min(runtime.after(options.negotiation_timeout));
    auto agreed = co_await transport::select_one_of(**stream, {protocol}, limit);
    if (!agreed) co_return agreed.error();
    co_return std::move(*stream);
  }
}

// ---- Metrics

void Host::Impl::count_bytes(Link& link) {
  const auto stats = link.connection->stats();
  metrics.bytes_in.increment(static_cast<double>(stats.bytes_in - link.counted.bytes_in));
  metrics.bytes_out.increment(static_cast<double>(stats.bytes_out - link.counted.bytes_out));
  link.counted = stats;
}

void Host::Impl::add_traffic(Traffic& sum, const Link& link) {
  const auto stats = link.connection->stats();
  sum.bytes_in += stats.bytes_in;
  sum.bytes_delivered += stats.bytes_out - std::min<std::uint64_t>(stats.bytes_out, stats.undelivered);
}

Task<void> Host::Impl::measure(Impl& self) {
  for (;;) {
    co_await self.runtime.sleep_for(kMeasurePeriod);
    for (auto& [id, peer] : self.peers)
      for (auto& link : peer.links) self.count_bytes(*link);
    self.metrics.routing_peers.set(static_cast<double>(self.routing.size()));
    self.metrics.known_peers.set(static_cast<double>(self.book.size()));
  }
}

}  // namespace cohive::p2p
