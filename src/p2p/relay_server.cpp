#include "relay_server.hpp"

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kHopTimeout = 10s;
constexpr Duration kStopTimeout = 15s;  // for the target to take a circuit; the dialler waits for a minute at most
constexpr std::size_t kMaxAsking = 64;  // requests of one peer that are being read: a round may begin with as many
constexpr int kMaxAddressesGranted = 8;
// A peer renews once in an hour, and comes back after a lost connection. It dials through us much more often.
constexpr AttemptLimits::Limits kReserveLimits{.window = 60s, .per_peer = 8, .per_network = 256, .in_all = 4096};
constexpr AttemptLimits::Limits kConnectLimits{.window = 60s, .per_peer = 120, .per_network = 1200, .in_all = 12000};

/// The block that has most of something, if it is a crowd beside the newcomer's.
std::optional<std::string> crowd_beside(const NestedShares& shares, const Networks& newcomer) {
  auto [largest, count] = shares.blocks.most();
  if (largest == newcomer.block || !is_crowd(count, shares.blocks.of(newcomer.block))) return std::nullopt;
  return std::move(largest);
}

}  // namespace

RelayServer::RelayServer(Self& self, RelayServiceOptions options, Handlers& handlers, ConnectionTable& table,
                         const AddressBook& book, const OwnAddresses& own)
    : self_(self),
      options_(options),
      table_(table),
      book_(book),
      own_(own),
      reserve_limits_(self.runtime, kReserveLimits),
      connect_limits_(self.runtime, kConnectLimits),
      disconnected_(table.disconnected_signal().subscribe([this](const PeerId& peer) { forget(peer); })) {
  // A circuit is a stream of this service and keeps its connection open, so the service counts for itself.
  handlers.add(kHopProtocol, [this](transport::StreamPtr stream) { return serve(std::move(stream)); });
}

RelayServer::~RelayServer() {
  self_.metrics.relay_reservations.add(-static_cast<double>(reservations_.size()));
}

void RelayServer::forget(const PeerId& peer) {
  self_.metrics.relay_reservations.add(-static_cast<double>(reservations_.erase(peer)));
}

void RelayServer::sweep() {
  const TimePoint now = self_.runtime.now();
  const auto gone = std::erase_if(reservations_, [now](const auto& one) { return one.second.expires <= now; });
  self_.metrics.relay_reservations.add(-static_cast<double>(gone));
}

Task<void> RelayServer::refuse(transport::Stream& stream, Status status) {
  self_.metrics.relay_refused.increment();
  proto::Hop reply;
  reply.set_type(proto::Hop::STATUS);
  reply.set_status(status);
  auto sent =
      co_await transport::write_message(stream, as_bytes(reply.SerializeAsString()), self_.runtime.after(kHopTimeout));
  if (sent) stream.close_write();
}

Task<void> RelayServer::serve(transport::StreamPtr stream) {
  std::optional<NetworkShares::Share> asking;
  const std::string peer = stream->peer().binary();
  if (asking_.of(peer) >= kMaxAsking) {
    self_.metrics.streams_refused.increment();
    co_return;  // dropping the stream resets it
  }
  asking.emplace(asking_, peer);
  stream->set_begun(true);
  auto request = co_await read_relay_message<proto::Hop>(*stream, self_.runtime.after(kHopTimeout));
  if (!request) {
    const bool bad = request.error() == cohive::Errc::malformed || request.error() == cohive::Errc::limit_exceeded;
    if (bad) co_await refuse(*stream, Status::MALFORMED_MESSAGE);
    co_return;
  }
  stream->set_begun(false);
  // A chain of relays could be made to end where it began.
  if (stream->remote_address().is_circuit()) co_return co_await refuse(*stream, Status::PERMISSION_DENIED);
  sweep();
  switch (request->type()) {
    case proto::Hop::RESERVE:
      co_return co_await reserve(*stream);
    case proto::Hop::CONNECT:
      break;
    default:
      co_return co_await refuse(*stream, Status::MALFORMED_MESSAGE);
  }
  Status why = Status::MALFORMED_MESSAGE;
  const Networks networks = networks_of(stream->remote_address());
  if (!connect_limits_.take(stream->peer(), networks.block))
    co_return co_await refuse(*stream, Status::RESOURCE_LIMIT_EXCEEDED);
  const auto target = find_target(*stream, *request, why);
  if (!target) co_return co_await refuse(*stream, why);
  const NetworkShares::Share of_source(sources_, peer), of_target(targets_, (*target)->connection->peer().binary());
  const NestedShares::Share of_network(source_networks_, networks);
  ++circuits_;
  self_.metrics.relay_circuits.add(1);
  const auto done = on_exit([this] {
    --circuits_;
    self_.metrics.relay_circuits.add(-1);
  });
  asking.reset();  // from now on it counts as a circuit
  auto stop = co_await call(*this, *target, stream->peer());
  if (!stop) {
    log::debug("relay", "no circuit to {}: {}", (*target)->connection->peer(), stop.error());
    co_return co_await refuse(*stream, Status::CONNECTION_FAILED);
  }
  proto::Hop reply;
  reply.set_type(proto::Hop::STATUS);
  reply.set_status(Status::RELAY_OK);
  set_limit(reply, options_.circuit);
  auto sent =
      co_await transport::write_message(*stream, as_bytes(reply.SerializeAsString()), self_.runtime.after(kHopTimeout));
  if (!sent) co_return;
  self_.metrics.relay_connected.increment();
  co_await carry(*stream, **stop, networks);
}

// ---- Reservations

RelayServer::Status RelayServer::grant(const transport::Stream& stream) {
  const Networks networks = networks_of(stream.remote_address());
  if (!reserve_limits_.take(stream.peer(), networks.block)) return Status::RESERVATION_REFUSED;
  const TimePoint expires = self_.runtime.now() + options_.reservation;
  if (const auto found = reservations_.find(stream.peer()); found != reservations_.end()) {
    found->second.expires = expires;
    return Status::RELAY_OK;
  }
  if (!table_.direct(stream.peer())) return Status::PERMISSION_DENIED;
  if (!networks_.has_room(networks, options_.max_reservations_per_network) || !has_place(stream.peer(), networks))
    return Status::RESERVATION_REFUSED;
  reservations_.emplace(stream.peer(), Reservation{expires, networks_.take(networks), table_.protect(stream.peer())});
  self_.metrics.relay_reservations.add(1);
  return Status::RELAY_OK;
}

/// Half of the places are kept for peers that cannot be dialled. Peers with a public address of their own ask for
/// the sake of peers with the other kind of IP address, and there may be many of them.
bool RelayServer::has_room_for(const PeerId& peer) const {
  const auto known = book_.addresses(peer);
  const bool dialable = std::any_of(known.begin(), known.end(), is_public_host);
  return reservations_.size() < (dialable ? (options_.max_reservations + 1) / 2 : options_.max_reservations);
}

/// When all places are taken, the block that has most, and many, gives up the one that was renewed longest ago: its
/// owner keeps no other network out. A newcomer of that block has to wait.
bool RelayServer::has_place(const PeerId& peer, const Networks& networks) {
  if (has_room_for(peer)) return true;
  const auto crowd = crowd_beside(networks_, networks);
  if (!crowd) return false;
  auto oldest = reservations_.end();
  for (auto at = reservations_.begin(); at != reservations_.end(); ++at)
    if (at->second.share.networks.block == *crowd &&
        (oldest == reservations_.end() || at->second.expires < oldest->second.expires))
      oldest = at;
  if (oldest == reservations_.end()) return false;
  reservations_.erase(oldest);
  self_.metrics.relay_reservations.add(-1);
  return true;
}

Task<void> RelayServer::reserve(transport::Stream& stream) {
  const Status status = grant(stream);
  if (status != Status::RELAY_OK) co_return co_await refuse(stream, status);
  self_.metrics.relay_reserved.increment();
  const auto expire = static_cast<std::uint64_t>(self_.runtime.wall_time() + to_seconds(options_.reservation));
  proto::Hop reply;
  reply.set_type(proto::Hop::STATUS);
  auto* reservation = reply.mutable_reservation();
  reservation->set_expire(expire);
  const auto scope = stream.remote_address().scope();
  for (const auto& address : own_.announced())
    if (!address.is_circuit() && acceptable_address(address, scope) && reservation->addrs_size() < kMaxAddressesGranted)
      reservation->add_addrs(address.with_peer(self_.id).binary());
  reservation->set_voucher(make_voucher(self_.identity, stream.peer(), expire));
  set_limit(reply, options_.circuit);
  reply.set_status(Status::RELAY_OK);
  auto sent =
      co_await transport::write_message(stream, as_bytes(reply.SerializeAsString()), self_.runtime.after(kHopTimeout));
  if (sent) stream.close_write();
}

// ---- Circuits

/// Only a peer that has asked for it is called, on its own connection: no address is ever dialled for a peer.
Result<ConnectionEntryPtr> RelayServer::find_target(const transport::Stream& stream, const proto::Hop& request,
                                                    Status& why) {
  const PeerId& source = stream.peer();
  const auto refused = [&](Status status) {
    why = status;
    return Error(Errc::relay_refused, source);
  };
  const auto target = PeerId::from_bytes(as_bytes(request.peer().id()));
  if (!target || *target == source) return refused(Status::MALFORMED_MESSAGE);
  const auto found = reservations_.find(*target);
  const ConnectionEntryPtr entry = table_.direct(*target);
  if (found == reservations_.end() || found->second.expires <= self_.runtime.now() || !entry)
    return refused(Status::NO_RESERVATION);
  const Networks networks = networks_of(stream.remote_address());
  if (sources_.of(source.binary()) >= options_.max_circuits_per_peer ||
      targets_.of(target->binary()) >= options_.max_circuits_per_peer ||
      !source_networks_.has_room(networks, options_.max_circuits_per_network) ||
      (circuits_ >= options_.max_circuits && !make_room_for_circuit(networks)))
    return refused(Status::RESOURCE_LIMIT_EXCEEDED);
  return entry;
}

/// Asks the target to take a circuit; the stream behind its consent.
Task<Result<transport::StreamPtr>> RelayServer::call(RelayServer& relay, ConnectionEntryPtr target, PeerId source) {
  const Deadline deadline = relay.self_.runtime.after(kStopTimeout);
  CO_TRY(auto stream, co_await open_on(std::move(target), kStopProtocol, deadline));
  proto::Stop request;
  request.set_type(proto::Stop::CONNECT);
  request.mutable_peer()->set_id(source.binary());
  set_limit(request, relay.options_.circuit);
  CO_TRY(co_await transport::write_message(*stream, as_bytes(request.SerializeAsString()), deadline));
  CO_TRY(const auto reply, co_await read_relay_message<proto::Stop>(*stream, deadline));
  if (reply.type() != proto::Stop::STATUS || reply.status() != Status::RELAY_OK)
    co_return Error(Errc::relay_refused, stream->peer());
  co_return stream;
}

/// How a circuit stands: both directions end together, unless one has ended in order.
struct RelayServer::Circuit {
  transport::Stream& dialler;
  transport::Stream& target;
  Deadline end;
  std::string block;  // of the dialler
  TimePoint used;     // when it carried something last
  bool ending = false;

  void reset() {
    ending = true;
    dialler.reset();
    target.reset();
  }
};

/// When all places are taken, the block that has most, and many, gives up the circuit that was idle longest.
bool RelayServer::make_room_for_circuit(const Networks& networks) {
  const auto crowd = crowd_beside(source_networks_, networks);
  Circuit* idlest = nullptr;
  for (Circuit* circuit : carried_)
    if (crowd && circuit->block == *crowd && !circuit->ending && (!idlest || circuit->used < idlest->used))
      idlest = circuit;
  if (!idlest) return false;
  idlest->reset();
  return true;
}

Task<void> RelayServer::carry(transport::Stream& dialler, transport::Stream& target, Networks networks) {
  const Deadline end =
      options_.circuit.duration > 0s ? self_.runtime.after(options_.circuit.duration) : Deadline::never();
  Circuit circuit{dialler, target, end, std::move(networks.block), self_.runtime.now()};
  carried_.push_back(&circuit);
  const auto done = on_exit([&] { std::erase(carried_, &circuit); });
  for (transport::Stream* stream : {&dialler, &target}) stream->limit_window(options_.buffer);
  std::vector<Task<void>> directions;
  directions.push_back(pump(*this, dialler, target, circuit));
  directions.push_back(pump(*this, target, dialler, circuit));
  co_await when_all(self_.runtime, std::move(directions));
}

Task<void> RelayServer::pump(RelayServer& relay, transport::Stream& from, transport::Stream& to, Circuit& circuit) {
  Runtime& runtime = relay.self_.runtime;
  const bool limited = relay.options_.circuit.bytes > 0;
  std::uint64_t left = relay.options_.circuit.bytes;
  for (;;) {
    auto bytes = co_await from.read(circuit.end);
    if (bytes && bytes->empty()) co_return to.close_write();
    // At the limit both ends are told: a half that merely ended would leave calls hanging.
    if (!bytes || (limited && bytes->size() > left)) break;
    left -= bytes->size();
    const Deadline limit = circuit.end.min(runtime.after(kCircuitStall));
    auto sent = co_await to.write(ByteView(bytes->data(), bytes->size()), limit);
    if (!sent) break;
    circuit.used = runtime.now();
    relay.self_.metrics.relay_bytes.increment(static_cast<double>(bytes->size()));
    co_await runtime.yield();
  }
  circuit.reset();
}

}  // namespace cohive::p2p
