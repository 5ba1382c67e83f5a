#include "cohive/p2p/host.hpp"

#include <algorithm>
#include <utility>

#include "bundles.hpp"
#include "circuit_room.hpp"
#include "circuit_transport.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/announce.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/congestion_control.hpp"
#include "hole_punching.hpp"
#include "host_status.hpp"
#include "inbound.hpp"
#include "peer_routing.hpp"
#include "ping.hpp"
#include "port_mapping.hpp"
#include "reachability_state.hpp"
#include "relay_client.hpp"
#include "relay_server.hpp"
#include "transport_kinds.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kUnmapping = 1s;  // for the router to forget our ports
constexpr Duration kMeasurePeriod = 5s;

/// The lowest cap of each direction.
transport::BandwidthLimits lowest_limits(const transport::Transports& transports) {
  transport::BandwidthLimits lowest;
  const auto lower = [](double& limit, double other) {
    if (other > 0 && (limit <= 0 || other < limit)) limit = other;
  };
  for (const auto& transport : transports) {
    lower(lowest.upload, transport->limits().upload);
    lower(lowest.download, transport->limits().download);
  }
  return lowest;
}

Connectivity over(transport::Network& network, const HostOptions& options) {
  Connectivity result;
  for (const TransportKind& kind : kTransports) result.transports.push_back(kind.over(network));
  result.resolver = transport::make_resolver(network.runtime());
  if (options.nat_port_map && !options.listen.empty()) result.port_mappers = make_port_mappers(network.runtime());
  return result;
}

}  // namespace

/// The parts of a host; each uses the ones above it.
struct Host::Impl {
  Impl(Runtime& runtime, Connectivity ways, KeyPair identity, HostOptions options)
      : connectivity(std::move(ways)),
        self(runtime, std::move(identity), std::move(options), connectivity.transports),
        handlers(self),
        book(runtime, self.options.max_addresses_per_peer, self.options.max_known_peers),
        own(self),
        table(self, handlers, book),
        dialler(self, *connectivity.resolver, table, book),
        inbound(self, dialler, table, own),
        identify(self, handlers, table, book, own),
        routing(self, handlers, table, book, dialler, identify, own),
        port_mappings(self, inbound, own, connectivity.port_mappers),
        reachability(self, handlers, connectivity, table, inbound, identify, own),
        relays(self, handlers, table, book, dialler, identify, routing, inbound, own),
        bundles(self, handlers, table, dialler, identify, lowest_limits(self.transports)),
        status(self, table, own, reachability, relays),
        tasks(runtime, "host") {
    serve_ping(handlers, runtime);
    self.memory.set_cut([this](const PeerId& peer) { table.cut_off(peer); });
    self.transports.push_back(make_circuit_transport(self, table, dialler));
    if (self.options.hole_punching)
      punching.emplace(self, handlers, table, book, dialler, identify, inbound, own,
                       [this] { return reachability.observed(); });
    if (self.options.relay_service) relay_server.emplace(self, *self.options.relay_service, handlers, table, book, own);
    private_or_not = reachability.changed().subscribe([this](Reachability) { seek_relays(); });
    mapped = port_mappings.changed().subscribe([this] {
      reachability.ask_again();
      seek_relays();
    });
    suspected = reachability.suspecting().subscribe([this] { seek_relays(); });
    announced = own.changed().subscribe([this] { seek_relays(); });
    moved = inbound.changed().subscribe([this] { routing.look_up_self(); });
    bundled = table.added_signal().subscribe([this](const ConnectionEntryPtr& entry) {
      if (entry->kind == ConnectionKind::member) choose_congestion_control(entry->connection->peer());
    });
    described = identify.described().subscribe([this](const PeerId& peer) { choose_congestion_control(peer); });
  }
  ~Impl() {
    self.closed = true;
    self.memory.set_cut(nullptr);  // accounts may outlive us
    end_waits();
    table.stop();
  }

  /// A dial-back that fails takes a while to say so: where it is likely to fail, relays are there before. Peers that
  /// merely do not listen want no calls, unless our user says that they are private.
  void seek_relays() { relays.set_need(needed_relays()); }
  RelayNeed needed_relays() const {
    const bool wanted = inbound.listening() || self.options.force_reachability;
    if (!self.options.use_relay || !wanted) return {};
    const std::size_t most = self.options.wanted_relays;
    const bool has_ip4 = is_open(Multiaddr::ip4), has_ip6 = is_open(Multiaddr::ip6);
    const bool doubted = !has_ip4 && !has_ip6 && (is_doubtful(Multiaddr::ip4) || is_doubtful(Multiaddr::ip6));
    const bool reached = reachability.current() == Reachability::public_
                             ? !doubted
                             : reachability.current() != Reachability::private_ && !reachability.suspected();
    if (!reached) return {.count = most};
    // Peers outside connect to us, but not those that have the other kind of IP address alone. A relay of both kinds
    // lets them in. Most peers have IPv4, so that without it we need relays like a hidden peer. Where our user says at
    // which addresses we are reached, these are all.
    if (has_ip4 == has_ip6 || !self.options.announce.empty()) return {};
    if (has_ip4) return {.count = std::min<std::size_t>(1, most), .family = Multiaddr::ip6};
    return {.count = most, .family = Multiaddr::ip4};
  }
  /// A translator of such addresses may let in none but the peers that we have dialled.
  bool is_doubtful(std::uint32_t family) const {
    return reachability.translated(family) && port_mappings.current().empty();
  }
  /// Whether peers outside can connect to us at such an address, as far as it is known.
  bool is_open(std::uint32_t family) const {
    const auto announces = own.announced();
    return !is_doubtful(family) && std::ranges::any_of(announces, [family](const Multiaddr& address) {
      return is_public_host(address) && address.first_code() == family;
    });
  }

  /// Of connections to a peer that has just described itself: BBR, which takes more than its share beside CUBIC, is for
  /// those between cohive peers alone.
  void choose_congestion_control(const PeerId& peer) {
    const ConnectedPeer* found = table.find(peer);
    if (!found || congestion_control.empty() || !is_cohive(*found)) return;
    for (const auto& entry : found->connections) entry->connection->set_congestion_control(congestion_control);
  }

  void end_waits() {
    const Error reason(Errc::host_closed);
    private_or_not = suspected = mapped = announced = moved = described = bundled = nullptr;
    if (punching) punching->close();
    bundles.close();
    relays.close();
    reachability.close();
    routing.close(reason);
    dialler.close(reason);
  }

  static Task<void> measure(Impl& impl) {
    std::size_t refused = 0, cut_off = 0;  // of the budget, as far as they are counted: hosts may share a counter
    for (;;) {
      co_await impl.self.runtime.sleep_for(kMeasurePeriod);
      impl.table.count_bytes();
      impl.status.measure();
      impl.self.metrics.routing_peers.set(static_cast<double>(impl.routing.table_size()));
      impl.self.metrics.known_peers.set(static_cast<double>(impl.book.size()));
      const MemoryBudget& memory = impl.self.memory;
      impl.self.metrics.memory_held.set(static_cast<double>(memory.held()));
      impl.self.metrics.memory_highest.set(static_cast<double>(memory.highest()));
      impl.self.metrics.memory_refused.increment(
          static_cast<double>(memory.refused() - std::exchange(refused, memory.refused())));
      impl.self.metrics.memory_cut_off.increment(
          static_cast<double>(memory.cut_off() - std::exchange(cut_off, memory.cut_off())));
      impl.self.metrics.banned.set(static_cast<double>(impl.self.reputation.banned()));
    }
  }

  Connectivity connectivity;
  Self self;
  Handlers handlers;
  AddressBook book;
  OwnAddresses own;
  ConnectionTable table;
  Dialler dialler;
  Inbound inbound;
  Identify identify;
  PeerRouting routing;
  PortMappings port_mappings;
  ReachabilityState reachability;
  RelayClient relays;
  Bundles bundles;
  HostStatus status;
  std::optional<RelayServer> relay_server;
  std::optional<HolePunching> punching;
  std::optional<std::weak_ptr<MemberCheck>> member_check;  ///< nullopt: the swarm is open
  std::string congestion_control;  ///< of connections to cohive peers; empty: the kernel's choice
  Subscription private_or_not, suspected, mapped, announced, moved, described, bundled;
  TaskGroup tasks;
};

Host::Host(transport::Network& network, KeyPair identity, HostOptions options)
    : Host(network.runtime(), over(network, options), std::move(identity), options) {}
Host::Host(Runtime& runtime, Connectivity connectivity, KeyPair identity, HostOptions options)
    : impl_(std::make_unique<Impl>(runtime, std::move(connectivity), std::move(identity), std::move(options))) {}
Host::~Host() = default;

Result<> Host::start() {
  if (!runtime().simulated()) {
    TRY(impl_->congestion_control, transport::choose_congestion_control(impl_->self.options.congestion_control));
  }
  auto listening = impl_->inbound.start();
  if (!listening) return listening.error();
  auto announced = fill_ports(impl_->self.options.announce, id(), impl_->inbound.bound(),
                              [this](const Multiaddr& address) { return impl_->self.endpoint(address); });
  if (!announced) return announced.error();
  impl_->self.options.announce = std::move(*announced);
  if (impl_->punching) impl_->punching->start();
  impl_->routing.start();
  impl_->port_mappings.start();
  impl_->reachability.start();
  impl_->seek_relays();
  if (!runtime().simulated()) impl_->tasks.spawn(Impl::measure(*impl_), "traffic metrics");
  return ok();
}

Task<void> Host::close() {
  if (std::exchange(impl_->self.closed, true)) co_return;
  impl_->inbound.close();
  impl_->end_waits();
  impl_->tasks.cancel();
  std::vector<Task<void>> last;
  last.push_back(impl_->port_mappings.close(runtime().after(kUnmapping)));
  last.push_back(impl_->table.close(runtime().after(kFarewell)));
  co_await when_all(runtime(), std::move(last));
  impl_->identify.close();
}

// ---- What it is

const PeerId& Host::id() const noexcept {
  return impl_->self.id;
}
const KeyPair& Host::identity() const noexcept {
  return impl_->self.identity;
}
Runtime& Host::runtime() const noexcept {
  return impl_->self.runtime;
}
const HostOptions& Host::options() const noexcept {
  return impl_->self.options;
}
Reachability Host::reachability() const noexcept {
  return impl_->reachability.current();
}
Subscription Host::on_reachability(std::function<void(Reachability)> callback) {
  return impl_->reachability.changed().subscribe(std::move(callback));
}
Task<Result<Reachability>> Host::wait_for_reachability(Deadline deadline) {
  return impl_->reachability.wait(deadline);
}
std::vector<PortMapping> Host::port_mappings() const {
  return impl_->port_mappings.current();
}
std::vector<HeldReservation> Host::relays() const {
  return impl_->relays.held();
}
Reputation& Host::reputation() const noexcept {
  return impl_->self.reputation;
}
MemoryBudget& Host::memory() const noexcept {
  return impl_->self.memory;
}
Subscription Host::serve_members_only(MemberCheck check) {
  auto shared = std::make_shared<MemberCheck>(std::move(check));
  impl_->member_check = shared;
  return shared;
}
Task<Result<>> Host::check_member(PeerId peer, bool calls_us, Deadline deadline) {
  if (!impl_->member_check) co_return ok();
  const auto check = impl_->member_check->lock();
  if (!check) co_return Error(Errc::host_closed);
  co_return co_await (*check)(peer, calls_us, deadline);
}
Traffic Host::traffic() const {
  return impl_->table.traffic();
}

transport::BandwidthLimits Host::limits() const {
  return lowest_limits(impl_->self.transports);
}

std::vector<Multiaddr> Host::addresses() const {
  return impl_->own.announced();
}

std::vector<Multiaddr> Host::visible_addresses() const {
  std::vector<Multiaddr> result;
  for (const auto& address : addresses()) result.push_back(address.with_peer(id()));
  return result;
}

// ---- Peers

Task<Result<PeerId>> Host::connect(Multiaddr address, Deadline deadline) {
  return impl_->dialler.connect_to(std::move(address), deadline);
}
Task<Result<>> Host::connect(PeerId peer, Deadline deadline) {
  return impl_->routing.connect(peer, deadline);
}
Task<Result<>> Host::connect_via(PeerId peer, PeerId referrer, Deadline deadline) {
  return impl_->routing.connect_via(peer, referrer, deadline);
}
Task<Result<std::vector<Multiaddr>>> Host::find_peer(PeerId peer, Deadline deadline) {
  return impl_->routing.find(peer, deadline);
}
Subscription Host::on_lost(std::function<void(const PeerId&)> callback) {
  return impl_->table.lost_signal().subscribe(std::move(callback));
}

void Host::disconnect(const PeerId& peer) {
  impl_->table.disconnect(peer);
}
bool Host::connected(const PeerId& peer) const {
  return impl_->table.connected(peer);
}
bool Host::refuses(const PeerId& peer) const {
  return impl_->dialler.refuses(peer);
}
Subscription Host::protect(const PeerId& peer) {
  return impl_->table.protect(peer);
}

std::optional<Multiaddr> Host::remote_address(const PeerId& peer) const {
  const ConnectionEntryPtr entry = impl_->table.best(peer);
  return entry ? std::optional(entry->connection->remote_address()) : std::nullopt;
}

bool Host::runs_cohive(const PeerId& id) const {
  const ConnectedPeer* const peer = impl_->table.find(id);
  return peer && is_cohive(*peer);
}

std::optional<PeerInfo> Host::peer(const PeerId& id) const {
  PeerInfo info;
  info.id = id;
  info.addresses = impl_->book.addresses(id);
  if (const ConnectedPeer* peer = impl_->table.find(id)) {
    if (peer->protocols) info.protocols.assign(peer->protocols->begin(), peer->protocols->end());
    info.agent = peer->agent;
    info.connected = true;
    ConnectionEntryPtr entry = impl_->table.best(id);
    if (!entry) entry = peer->connections.back();
    info.outbound = entry->connection->outbound();
    info.security = entry->connection->security();
    info.round_trip = entry->connection->round_trip();
    if (info.addresses.empty()) info.addresses = {entry->connection->remote_address()};
  } else if (info.addresses.empty()) {
    return std::nullopt;
  }
  return info;
}

std::vector<PeerInfo> Host::peers() const {
  std::vector<PeerInfo> result;
  for (const auto& [id, peer] : impl_->table.peers()) result.push_back(*this->peer(id));
  return result;
}

void Host::learn_addresses(const PeerId& peer, const std::vector<Multiaddr>& addresses) {
  if (peer != id()) impl_->book.add_hearsay(peer, addresses, Multiaddr::Scope::loopback);
}

std::vector<Multiaddr> Host::observed_addresses() const {
  std::vector<Multiaddr> result;
  for (const auto& [id, peer] : impl_->table.peers())
    if (peer.observed && std::find(result.begin(), result.end(), *peer.observed) == result.end())
      result.push_back(*peer.observed);
  return result;
}

Task<Result<>> Host::bootstrap(std::vector<Multiaddr> addresses, Deadline deadline) {
  if (addresses.empty()) co_return ok();
  for (const auto& address : addresses)
    if (!address.peer() && !address.has(Multiaddr::dnsaddr)) co_return Error(Errc::missing_peer_id, address.text());
  std::vector<Task<Result<PeerId>>> dials;
  for (const auto& address : addresses) dials.push_back(connect(address, deadline));
  auto results = co_await when_all(runtime(), std::move(dials));
  std::string failures;
  bool connected = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    connected |= results[i].has_value();
    if (!results[i])
      failures += (failures.empty() ? "" : "; ") + addresses[i].text() + ": " + results[i].error().message();
  }
  if (!connected) {
    Error none(Errc::bootstrap_failed, failures);
    for (const auto& result : results) none = none.with_cause(result.error());
    co_return none;
  }
  for (const auto& address : addresses)  // peers that did not answer may be the ones that help later
    if (address.peer() && *address.peer() != id()) impl_->book.add_configured(*address.peer(), address);
  impl_->routing.look_up_self();
  co_return ok();
}

// ---- Streams

Task<Result<>> Host::ensure_capacity(PeerId peer, std::uint64_t bytes, Transfer transfer, Deadline deadline) {
  CO_TRY(co_await connect(peer, deadline));
  const CircuitRoom where{impl_->self, impl_->table, impl_->book, impl_->dialler};
  co_return co_await p2p::ensure_capacity(where, peer, bytes, transfer, deadline);
}
Task<bool> Host::spread_streams(PeerId peer) {
  return impl_->bundles.begin_early(peer);
}
Task<Result<transport::StreamPtr>> Host::open_stream(PeerId peer, std::string protocol, Deadline deadline) {
  return impl_->routing.open_stream(peer, std::move(protocol), deadline);
}
void Host::set_handler(std::string protocol, StreamHandler handler) {
  impl_->handlers.add(std::move(protocol), std::move(handler));
}
void Host::remove_handler(const std::string& protocol) {
  impl_->handlers.remove(protocol);
}

}  // namespace cohive::p2p
