#include "cohive/p2p/host.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"
#include "host_impl.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kSelfLookupPeriod = 10min;
constexpr Duration kAlonePeriod = 1min;  // between attempts to come back when no connection is left
constexpr std::size_t kMaxRejoinDials = 8;
constexpr std::size_t kPingSize = 32;
constexpr std::size_t kMinSendBuffer = 4 * 1024;  // under a cap on upload
constexpr double kBufferedSeconds = 0.1;
constexpr Duration kPingIdle = 60s;

Task<void> serve_ping(Runtime& runtime, transport::StreamPtr stream) {
  transport::StreamReader reader(*stream);
  for (;;) {
    auto request = co_await reader.read_exactly(kPingSize, runtime.after(kPingIdle));
    if (!request) break;
    auto written = co_await stream->write(*request, runtime.after(kPingIdle));
    if (!written) co_return;
    co_await runtime.yield();  // who asks without pause does not keep others waiting
  }
  stream->close_write();
}

/// A machine that allows few open files has fewer connections; each that is being set up takes one, too.
HostOptions fitted(HostOptions options, std::size_t most) {
  const std::size_t wanted = options.max_connections + options.max_pending_inbound + options.max_dials;
  if (wanted <= most) return options;
  const std::size_t before = options.max_connections;
  for (std::size_t* part : {&options.max_connections, &options.max_pending_inbound, &options.max_dials})
    *part = std::max<std::size_t>(1, *part * most / wanted);
  log::warn("p2p", "the limit of open files leaves room for {} connections, not {}", options.max_connections, before);
  return options;
}

}  // namespace

Host::Impl::Impl(Host& facade, transport::Network& net, KeyPair key, HostOptions opts)
    : host(facade),
      network(net),
      runtime(net.runtime()),
      identity(std::move(key)),
      id(identity.peer_id()),
      options(fitted(std::move(opts), net.max_connections())),
      metrics(runtime.metrics()),
      book(runtime, options.max_addresses_per_peer, options.max_known_peers),
      backoff(runtime, options.backoff_base),
      routing(*this),
      dial_slots(runtime, options.max_dials, "dials"),
      lookup_slots(runtime, options.max_lookups, "lookups"),
      address_dials(runtime, "dialling an address"),
      book_dials(runtime, "dialling"),
      searches(runtime, "connecting"),
      finds(runtime, "looking up a peer"),
      given_dials(runtime, "connecting"),
      tasks(runtime, "host"),
      farewells(runtime, "ending connections") {
  // Bytes that wait below the streams delay what is more urgent, under a cap for long.
  if (const double upload = network.limits().upload; upload > 0)
    options.transport.send_buffer = std::min(
        options.transport.send_buffer, std::max(kMinSendBuffer, static_cast<std::size_t>(upload * kBufferedSeconds)));
  handlers[kIdentifyProtocol] = [this](transport::StreamPtr s) { return serve_identify(std::move(s)); };
  handlers[kIdentifyPushProtocol] = [this](transport::StreamPtr s) { return receive_push(std::move(s)); };
  handlers[kPingProtocol] = [this](transport::StreamPtr s) { return serve_ping(runtime, std::move(s)); };
  if (options.routing_server)
    handlers[kKadProtocol] = [this](transport::StreamPtr s) { return routing.serve(std::move(s)); };
}

std::vector<Multiaddr> Host::Impl::addresses() const {
  if (!options.announce.empty()) return options.announce;
  std::vector<Multiaddr> result;
  for (const auto& listener : listeners) {
    const auto some = listener->dialable_addresses();
    result.insert(result.end(), some.begin(), some.end());
  }
  return result;
}

void Host::Impl::notify(const PeerId& peer, bool connected) {
  std::erase_if(subscribers, [](const auto& weak) { return weak.expired(); });
  const auto current = subscribers;
  for (const auto& weak : current)
    if (const auto callback = weak.lock()) (*callback)(peer, connected);
}

/// Dials some of the peers that our user named, others every time, unless one of them is connected.
Task<void> Host::Impl::rejoin(Impl& self) {
  auto given = self.book.given();
  if (std::any_of(given.begin(), given.end(), [&](const PeerId& peer) { return self.link_to(peer); })) co_return;
  std::shuffle(given.begin(), given.end(), self.runtime.random());
  std::vector<Task<Result<>>> dials;
  for (const auto& peer : given)
    if (dials.size() < kMaxRejoinDials)
      dials.push_back(self.connect(peer, self.runtime.after(kAlonePeriod), Reach::in_hand));
  if (!dials.empty()) co_await when_all(self.runtime, std::move(dials));
}

/// Looks ourselves up now and then, so that those near us know us. Whoever has lost everyone comes back soon; a group
/// that has lost the rest of the swarm, and knows only itself, with the next lookup.
Task<void> Host::Impl::keep_in_touch(Impl& self) {
  TimePoint next_lookup = self.runtime.now() + kSelfLookupPeriod;
  for (;;) {
    // Not all of a swarm at the same moment.
    co_await self.runtime.sleep_for(from_seconds(to_seconds(kAlonePeriod) * (0.75 + self.runtime.random_unit() / 2)));
    const bool alone = self.peers.empty();
    if (!alone && self.runtime.now() < next_lookup) continue;
    co_await rejoin(self);
    if (self.peers.empty()) continue;
    next_lookup = self.runtime.now() + kSelfLookupPeriod;
    co_await self.routing.look_up_self();
  }
}

Task<Result<std::vector<Multiaddr>>> Host::Impl::find(Impl& self, PeerId peer) {
  const Deadline deadline = self.runtime.after(self.options.connect_timeout);
  auto slot = co_await self.lookup_slots.acquire(1, deadline);
  if (!slot) co_return Error(cohive::Errc::timeout, peer, "waiting to look the peer up");
  Lookup lookup(self.routing, self, peer, deadline);
  std::vector<Multiaddr> result;
  for (auto& heard : co_await lookup.next(deadline)) result.push_back(std::move(heard.address));
  if (result.empty()) co_return Error(Errc::no_addresses, peer);
  co_return result;
}

void Host::Impl::end_waits() {
  const Error reason(Errc::host_closed);
  given_dials.close(reason);
  finds.close(reason);
  searches.close(reason);
  book_dials.close(reason);
  address_dials.close(reason);
}

/// Whoever is writing an answer goes on while there is something to send.
Task<void> Host::Impl::wind_up(Impl& self, LinkPtr link, Deadline deadline) {
  co_await link->connection->flush(deadline);
  self.let_go(link, Error(Errc::host_closed), deadline);
}

Host::Host(transport::Network& network, KeyPair identity, HostOptions options)
    : impl_(std::make_unique<Impl>(*this, network, std::move(identity), std::move(options))) {}

Host::~Host() {
  impl_->closed = true;
  impl_->end_waits();
  impl_->tasks.cancel();
  impl_->farewells.cancel();
  for (auto& [id, peer] : impl_->peers)
    for (auto& link : peer.links) link->tasks.cancel();
  impl_->metrics.connections.add(-static_cast<double>(impl_->link_count));
  impl_->metrics.peers.add(-static_cast<double>(impl_->peers.size()));
}

Result<> Host::start() {
  auto listening = impl_->listen();
  if (!listening) return listening.error();
  impl_->tasks.spawn(Impl::keep_in_touch(*impl_), "keep in touch");
  if (!impl_->runtime.simulated()) impl_->tasks.spawn(Impl::measure(*impl_), "traffic metrics");
  return ok();
}

Task<void> Host::close() {
  if (impl_->closed) co_return;
  impl_->closed = true;
  for (auto& listener : impl_->listeners) listener->close();
  impl_->end_waits();
  const Deadline deadline = impl_->runtime.after(kFarewell);
  std::vector<Task<void>> ends;
  for (auto& [id, peer] : impl_->peers)
    for (auto& link : peer.links) ends.push_back(Impl::wind_up(*impl_, link, deadline));
  co_await when_all(impl_->runtime, std::move(ends));
  impl_->tasks.cancel();
  co_await impl_->farewells.join();
}

const PeerId& Host::id() const noexcept {
  return impl_->id;
}
const KeyPair& Host::identity() const noexcept {
  return impl_->identity;
}
Runtime& Host::runtime() const noexcept {
  return impl_->runtime;
}
const HostOptions& Host::options() const noexcept {
  return impl_->options;
}
Traffic Host::traffic() const {
  Traffic sum = impl_->past_traffic;
  for (const auto& [id, peer] : impl_->peers)
    for (const auto& link : peer.links) Impl::add_traffic(sum, *link);
  return sum;
}
transport::BandwidthLimits Host::limits() const {
  return impl_->network.limits();
}
TaskGroup& Host::tasks() noexcept {
  return impl_->tasks;
}
std::vector<Multiaddr> Host::addresses() const {
  return impl_->addresses();
}

std::vector<Multiaddr> Host::visible_addresses() const {
  std::vector<Multiaddr> result;
  for (const auto& address : impl_->addresses()) result.push_back(address.with_peer(impl_->id));
  return result;
}

Task<Result<PeerId>> Host::connect(Multiaddr address, Deadline deadline) {
  if (impl_->closed) co_return Error(Errc::host_closed);
  const auto peer = address.peer();
  if (!peer && !address.has(Multiaddr::dnsaddr)) co_return Error(Errc::missing_peer_id, address.text());
  if (peer && *peer == impl_->id) co_return Error(Errc::dial_to_self, *peer);
  if (peer && impl_->link_to(*peer)) {
    impl_->book.add_given(*peer, address);
    co_return *peer;
  }
  auto result = co_await impl_->given_dials.join(
      address, deadline, [self = impl_.get(), address] { return Impl::connect_to(*self, address); });
  if (!result && result.error() == cohive::Errc::timeout) co_return result.error().with_context(address.text());
  co_return result;
}

Task<Result<>> Host::connect(PeerId peer, Deadline deadline) {
  return impl_->connect(peer, deadline, Reach::peer_routing);
}

void Host::disconnect(const PeerId& peer) {
  const auto found = impl_->peers.find(peer);
  if (found == impl_->peers.end()) return;
  for (const auto& link : std::vector<LinkPtr>(found->second.links))
    impl_->let_go(link, Error(cohive::Errc::closed, peer), impl_->runtime.after(kFarewell));
}

bool Host::connected(const PeerId& peer) const {
  return impl_->link_to(peer) != nullptr;
}

Task<Result<transport::StreamPtr>> Host::open_stream(PeerId peer, std::string protocol, Deadline deadline) {
  return impl_->open_stream(peer, std::move(protocol), deadline, Reach::peer_routing);
}

void Host::set_handler(std::string protocol, StreamHandler handler) {
  const auto [at, inserted] = impl_->handlers.emplace(std::move(protocol), std::move(handler));
  if (!inserted) throw std::invalid_argument("handler for protocol " + at->first + " already set");
  impl_->schedule_push();
}

void Host::remove_handler(const std::string& protocol) {
  if (impl_->handlers.erase(protocol) > 0) impl_->schedule_push();
}

std::optional<Multiaddr> Host::remote_address(const PeerId& peer) const {
  const LinkPtr link = impl_->link_to(peer);
  return link ? std::optional(link->connection->remote_address()) : std::nullopt;
}

std::optional<PeerInfo> Host::peer(const PeerId& id) const {
  PeerInfo info;
  info.id = id;
  info.addresses = impl_->book.addresses(id);
  if (const auto found = impl_->peers.find(id); found != impl_->peers.end()) {
    const Peer& peer = found->second;
    if (peer.protocols) info.protocols.assign(peer.protocols->begin(), peer.protocols->end());
    info.agent = peer.agent;
    info.connected = true;
    LinkPtr link = impl_->link_to(id);
    if (!link) link = peer.links.back();
    info.outbound = link->connection->outbound();
    info.round_trip = link->connection->round_trip();
    if (info.addresses.empty()) info.addresses = {link->connection->remote_address()};
  } else if (info.addresses.empty()) {
    return std::nullopt;
  }
  return info;
}

std::vector<PeerInfo> Host::peers() const {
  std::vector<PeerInfo> result;
  for (const auto& [id, peer] : impl_->peers) result.push_back(*this->peer(id));
  return result;
}

void Host::learn_addresses(const PeerId& peer, const std::vector<Multiaddr>& addresses) {
  if (peer != impl_->id) impl_->book.add_hearsay(peer, addresses, Multiaddr::Scope::loopback);
}

std::vector<Multiaddr> Host::observed_addresses() const {
  std::vector<Multiaddr> result;
  for (const auto& [id, peer] : impl_->peers)
    if (peer.observed && std::find(result.begin(), result.end(), *peer.observed) == result.end())
      result.push_back(*peer.observed);
  return result;
}

std::shared_ptr<void> Host::on_peer(PeerEvent callback) {
  auto shared = std::make_shared<PeerEvent>(std::move(callback));
  impl_->subscribers.push_back(shared);
  return shared;
}

Task<Result<std::vector<Multiaddr>>> Host::find_peer(PeerId peer, Deadline deadline) {
  if (impl_->closed) co_return Error(Errc::host_closed);
  const bool connected = impl_->link_to(peer) != nullptr;
  std::vector<Multiaddr> known;
  for (auto& one : impl_->book.known(peer))
    if (connected || !impl_->backoff.blocks(peer, one)) known.push_back(std::move(one.address));
  if (!known.empty()) co_return known;
  co_return co_await impl_->finds.join(peer, deadline, [self = impl_.get(), peer] { return Impl::find(*self, peer); });
}

Task<Result<>> Host::reach(PeerId peer, PeerId teller, Deadline deadline) {
  auto connected = co_await impl_->connect(peer, deadline, Reach::in_hand);
  if (connected || impl_->closed || peer == impl_->id) co_return connected;
  if (!teller.empty() && teller != peer && !deadline.passed(impl_->runtime.now())) {
    const auto reply = co_await impl_->routing.ask(teller, peer.binary(), deadline);
    if (reply) impl_->routing.learn(teller, *reply);
    // Those that have just failed are not dialled again.
    if (reply && impl_->book.knows(peer)) co_return co_await impl_->connect(peer, deadline, Reach::in_hand);
  }
  if (impl_->book.knows(peer)) co_return connected;
  co_return co_await impl_->connect(peer, deadline, Reach::peer_routing);
}

Task<Result<>> Host::bootstrap(std::vector<Multiaddr> addresses, Deadline deadline) {
  if (addresses.empty()) co_return ok();
  for (const auto& address : addresses)
    if (!address.peer() && !address.has(Multiaddr::dnsaddr)) co_return Error(Errc::missing_peer_id, address.text());
  std::vector<Task<Result<PeerId>>> dials;
  for (const auto& address : addresses) dials.push_back(connect(address, deadline));
  auto results = co_await when_all(impl_->runtime, std::move(dials));
  std::string failures;
  bool connected = false;
  for (std::size_t i = 0; i < results.size(); ++i) {
    connected |= results[i].has_value();
    if (!results[i])
      failures += (failures.empty() ? "" : "; ") + addresses[i].text() + ": " + results[i].error().message();
  }
  if (!connected) co_return Error(Errc::bootstrap_failed, failures);
  for (const auto& address : addresses)  // those that did not answer may be the ones that help later
    if (address.peer() && *address.peer() != impl_->id) impl_->book.add_given(*address.peer(), address);
  impl_->tasks.spawn([](Impl& self) -> Task<void> { co_await self.routing.look_up_self(); }(*impl_), "self lookup");
  co_return ok();
}

Task<Result<Duration>> ping(Host& host, PeerId peer, Deadline deadline) {
  auto stream = co_await host.open_stream(peer, kPingProtocol, deadline);
  if (!stream) co_return stream.error();
  // Negotiation must not count: it is over before the clock starts.
  Bytes sent(kPingSize);
  TimePoint start{};
  for (int round = 0; round < 2; ++round) {
    host.runtime().random_bytes(sent);
    start = host.runtime().now();
    auto written = co_await (*stream)->write(sent, deadline);
    if (!written) co_return written.error();
    transport::StreamReader reader(**stream);
    auto echoed = co_await reader.read_exactly(kPingSize, deadline);
    if (!echoed) co_return echoed.error();
    if (*echoed != sent) co_return Error(Errc::ping_mismatch, peer);
  }
  (*stream)->close_write();
  co_return host.runtime().now() - start;
}

}  // namespace cohive::p2p
