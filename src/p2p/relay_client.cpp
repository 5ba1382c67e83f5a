#include "relay_client.hpp"

#include <algorithm>

#include "circuit_connection.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "core/detail/jitter.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kReserveTimeout = 10s;
// What has not answered by then is waited for beside the next ones, so that what is silent holds up no other relay.
constexpr Duration kRelayHeadStart = 1s;       // of a relay that is asked, before the next one is
constexpr Duration kTrustedHeadStart = 3s;     // of dials to those that our user named, before other ones are asked
constexpr Duration kRelayRetry = 3s;           // while a relay is lacking: a lost one is replaced within ten seconds
constexpr Duration kFamilyRetry = 30s;         // while one for peers of the other kind of address alone is
constexpr Duration kLongestRelayRetry = 1min;  // at most, while a relay that our user named cannot be dialled
constexpr int kQuickDials = 3;                 // of such a relay, before the pauses grow: it may just have restarted
constexpr Duration kRefusedPause = 5min;       // before a relay that refused is asked again
constexpr Duration kBrokenPause = 10s;         // before one that did not answer is
constexpr Duration kRenewBefore = 2min;        // as p2pd
constexpr Duration kRenewAgain = 30s;          // where the relay did not answer
constexpr Duration kLook = 1min;               // between looks whether relays are still connected
constexpr Duration kRenewAtLatest = 30min;
constexpr Duration kShortestLife = 1min;  // of a reservation: the relay's clock may differ from ours
constexpr Duration kWalkPause = 30s;      // between walks through peer routing for more relays, at first and at last
constexpr Duration kLongestWalkPause = 10min;
constexpr std::size_t kMaxRefused = 256;
constexpr std::size_t kMaxCircuitAddresses = 4;  // through one relay

/// A circuit that a relay has announced, before we have agreed to it.
class PendingCircuit final : public transport::PendingConnection {
 public:
  PendingCircuit(transport::Upgrader upgrader, transport::StreamPtr stream, CircuitLimit limit, Multiaddr local,
                 Multiaddr remote)
      : upgrader_(std::move(upgrader)),
        stream_(std::move(stream)),
        limit_(limit),
        local_(std::move(local)),
        remote_(std::move(remote)) {}
  const Multiaddr& remote_address() const override { return remote_; }

  Task<Result<transport::ConnectionPtr>> finish() override {
    proto::Stop reply;
    reply.set_type(proto::Stop::STATUS);
    reply.set_status(proto::RELAY_OK);
    const Deadline deadline = stream_->runtime().after(kReserveTimeout);
    CO_TRY(co_await transport::write_message(*stream_, as_bytes(reply.SerializeAsString()), deadline));
    auto raw = std::make_unique<CircuitConnection>(std::move(stream_), limit_, local_, remote_);
    co_return co_await transport::upgrade(upgrader_, std::move(raw), transport::Role::responder, std::nullopt);
  }

 private:
  transport::Upgrader upgrader_;
  transport::StreamPtr stream_;
  CircuitLimit limit_;
  Multiaddr local_, remote_;
};

}  // namespace

RelayClient::RelayClient(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, Dialler& dialler,
                         Identify& identify, PeerRouting& routing, Inbound& inbound, OwnAddresses& own)
    : self_(self),
      table_(table),
      book_(book),
      dialler_(dialler),
      routing_(routing),
      inbound_(inbound),
      own_(own),
      walk_pause_(kWalkPause),
      next_walk_(self.runtime.now()),
      news_(self.runtime, "a relay"),
      answered_(self.runtime, "a relay's answer"),
      tasks_(self.runtime, "relays") {
  subscriptions_.push_back(table.disconnected_signal().subscribe([this](const PeerId& peer) { drop(peer); }));
  subscriptions_.push_back(identify.described().subscribe([this](const PeerId& peer) { consider(peer); }));
  own.add_source([this] {
    std::vector<Multiaddr> result;
    for (const auto& [relay, reservation] : reservations_)
      for (const auto& address : reservation.addresses)
        if (!need_.family || address.first_code() == *need_.family) result.push_back(address);
    return result;
  });
  // A circuit is a stream of this service and keeps the relay's connection open, so it is not counted as auxiliary.
  handlers.add(kStopProtocol, [this](transport::StreamPtr stream) { return accept(std::move(stream)); });
}

RelayClient::~RelayClient() {
  self_.metrics.relays_held.add(-static_cast<double>(reservations_.size()));
}

void RelayClient::set_need(RelayNeed need) {
  if (need == need_) return;
  const RelayNeed before = std::exchange(need_, need);
  const bool for_more_peers = before.family && !need.family && need.count > 0;
  const bool had = !reservations_.empty();
  if (for_more_peers) {
    news_.notify_all();
  } else {
    tasks_.cancel();
    asked_.clear();
    dialling_ = false;
    walk_pause_ = kWalkPause;
    next_walk_ = self_.runtime.now();
    unreached_.clear();
    self_.metrics.relays_held.add(-static_cast<double>(reservations_.size()));
    reservations_.clear();  // the relays forget them by themselves; until then their circuits are refused
    if (need.count > 0) tasks_.spawn(keep(*this), "keep relays");
  }
  if (had) own_.notify();
}

std::vector<HeldReservation> RelayClient::held() const {
  std::vector<HeldReservation> result;
  for (const auto& [relay, reservation] : reservations_)
    result.push_back({relay, reservation.expires, reservation.limit});
  return result;
}

void RelayClient::drop(const PeerId& relay) {
  if (reservations_.erase(relay) == 0) return;
  self_.metrics.relays_held.add(-1);
  const std::string sentence = log::format("lost the relay {}", relay);
  log::write(log::Level::info, "relay", sentence);
  if (!self_.closed) Failures::of(self_.runtime).note("relay", "lost", sentence);
  own_.notify();
  news_.notify_all();
}

void RelayClient::consider(const PeerId& peer) {
  if (lacking() && table_.find(peer) && table_.find(peer)->serves(kHopProtocol)) news_.notify_all();
}

// ---- Keeping reservations

Task<void> RelayClient::keep(RelayClient& client) {
  for (;;) {
    co_await renew(client);
    co_await fill(client);
    const Deadline look = client.self_.runtime.after(client.lacking() ? client.retry_pause() : kLook);
    (void)co_await client.news_.wait(look.min(Deadline(client.next_turn())));
  }
}

Duration RelayClient::retry_pause() const {
  return need_.family ? kFamilyRetry : kRelayRetry;
}

/// When a reservation is to be renewed, or a relay to be dialled again. A dial that is overdue comes with the next
/// look.
TimePoint RelayClient::next_turn() const {
  const TimePoint now = self_.runtime.now();
  TimePoint next = now + kRenewAtLatest;
  for (const auto& [relay, reservation] : reservations_) next = std::min(next, reservation.renew_at);
  for (const auto& [address, relay] : unreached_)
    if (relay.next > now) next = std::min(next, relay.next);
  return next;
}

/// A relay forgets a reservation with its direct connection, though a circuit to it may be left. One that does not
/// answer in time has not forgotten: what it granted holds until it expires.
Task<void> RelayClient::renew(RelayClient& client) {
  std::vector<PeerId> due, gone;
  for (const auto& [relay, reservation] : client.reservations_) {
    if (!client.table_.direct(relay))
      gone.push_back(relay);
    else if (reservation.renew_at <= client.self_.runtime.now())
      due.push_back(relay);
  }
  for (const auto& relay : gone) client.drop(relay);
  for (const auto& relay : due) {
    const auto renewed = co_await try_reserving(client, relay);
    if (renewed) continue;
    const auto held = client.reservations_.find(relay);
    if (held == client.reservations_.end()) continue;
    const TimePoint now = client.self_.runtime.now();
    if (renewed.error() == Errc::relay_refused || held->second.expires <= now || !client.table_.direct(relay))
      client.drop(relay);
    else
      held->second.renew_at = std::min(now + kRenewAgain, held->second.expires);
  }
}

Task<void> RelayClient::fill(RelayClient& client) {
  if (!client.lacking()) co_return;
  Runtime& runtime = client.self_.runtime;
  if (!client.dialling_ && !client.trusted_to_dial().empty()) {
    client.dialling_ = true;
    client.tasks_.spawn(connect_trusted(client), "dial relays");
  }
  if (client.dialling_) (void)co_await client.answered_.wait(runtime.after(kTrustedHeadStart));
  for (const auto& relay : client.candidates()) {
    if (!client.lacking()) co_return;
    if (client.reservations_.contains(relay) || !client.asked_.insert(relay).second) continue;
    client.tasks_.spawn(ask(client, relay), "ask a relay");
    (void)co_await client.answered_.wait(runtime.after(kRelayHeadStart));
  }
  const TimePoint now = runtime.now();
  if (!client.lacking() || now < client.next_walk_ || client.table_.peers().empty()) co_return;
  if (client.need_.family == Multiaddr::ip6) co_return;  // few peers have IPv6 alone: none is met for their sake
  client.next_walk_ = now + client.walk_pause_;
  client.walk_pause_ = std::min(2 * client.walk_pause_, kLongestWalkPause);
  client.tasks_.spawn(look_for_more(client), "look for relays");
}

/// Peers that a walk connects to say what they serve; relays among them are candidates from then on.
Task<void> RelayClient::look_for_more(RelayClient& client) {
  log::debug("relay", "looking for relays among peers that are not connected yet");
  co_await client.routing_.refresh_random_bucket();
  client.news_.notify_all();
}

Task<void> RelayClient::ask(RelayClient& client, PeerId relay) {
  (void)co_await try_reserving(client, relay);
  client.asked_.erase(relay);
  client.answered_.notify_all();
}

/// Connects to the relays that our user named; they are candidates from then on.
Task<void> RelayClient::connect_trusted(RelayClient& client) {
  const auto trusted = client.trusted_to_dial();
  std::vector<Task<Result<PeerId>>> dials;
  for (const auto& address : trusted)
    dials.push_back(client.dialler_.connect_to(address, client.self_.runtime.after(kReserveTimeout)));
  const auto dialled = co_await when_all(client.self_.runtime, std::move(dials));
  for (std::size_t i = 0; i < trusted.size(); ++i) client.note_dial(trusted[i], dialled[i]);
  client.dialling_ = false;
  client.answered_.notify_all();
}

/// Those that are not connected, without the ones that have just failed.
std::vector<Multiaddr> RelayClient::trusted_to_dial() {
  std::vector<Multiaddr> result;
  for (const auto& address : self_.options.trusted_relays) {
    if (address.peer() && table_.direct(*address.peer())) {
      unreached_.erase(address);
      continue;
    }
    const auto failed = unreached_.find(address);
    if (failed == unreached_.end() || failed->second.next <= self_.runtime.now()) result.push_back(address);
  }
  return result;
}

/// All peers of a relay lose it at the same moment, and had better not dial it at the same moments.
void RelayClient::note_dial(const Multiaddr& trusted, const Result<PeerId>& dialled) {
  if (dialled) {
    unreached_.erase(trusted);
    return;
  }
  log::debug("relay", "trusted relay: {}", dialled.error());
  Unreached& relay = unreached_[trusted];
  const int doublings = std::clamp(++relay.failures - kQuickDials, 0, 5);
  const Duration pause = std::min(retry_pause() * (1 << doublings), kLongestRelayRetry);
  relay.next = self_.runtime.now() + detail::jittered(self_.runtime, pause);
}

/// Whether the peers that we need the relay for reach it.
bool RelayClient::serves_family(const PeerId& relay) const {
  if (!need_.family) return true;
  const auto addresses = book_.addresses(relay);
  return std::any_of(addresses.begin(), addresses.end(), [this](const Multiaddr& address) {
    return is_public_host(address) && address.first_code() == *need_.family;
  });
}

/// Connected relays: the ones that our user named first, then the nearest; last those that have answered no ping yet.
std::vector<PeerId> RelayClient::candidates() {
  const TimePoint now = self_.runtime.now();
  std::erase_if(refused_, [now](const auto& one) { return one.second <= now; });
  const auto is_trusted = [this](const PeerId& peer) {
    const auto& trusted = self_.options.trusted_relays;
    return std::any_of(trusted.begin(), trusted.end(), [&](const Multiaddr& one) { return one.peer() == peer; });
  };
  std::vector<std::tuple<bool, Duration, PeerId>> found;
  for (const auto& [id, peer] : table_.peers()) {
    if (refused_.contains(id) || reservations_.contains(id)) continue;
    const ConnectionEntryPtr entry = table_.direct(id);
    const bool trusted = is_trusted(id);
    if (!entry || !(trusted || peer.serves(kHopProtocol)) || !serves_family(id)) continue;
    const Duration trip = entry->connection->round_trip();
    found.emplace_back(!trusted, trip > Duration::zero() ? trip : Duration::max(), id);
  }
  std::sort(found.begin(), found.end());
  std::vector<PeerId> result;
  for (const auto& [other, distance, id] : found) result.push_back(id);
  return result;
}

Task<Result<>> RelayClient::try_reserving(RelayClient& client, PeerId relay) {
  auto granted = co_await reserve(client, relay, client.self_.runtime.after(kReserveTimeout));
  if (!granted) {
    log::debug("relay", "no reservation with {}: {}", relay, granted.error());
    const bool held = client.reservations_.contains(relay) && granted.error() != Errc::relay_refused;
    if (!held && client.refused_.size() < kMaxRefused)
      client.refused_.insert_or_assign(
          relay, client.self_.runtime.now() + (granted.error() == Errc::relay_refused ? kRefusedPause : kBrokenPause));
    co_return granted.error();
  }
  const bool known = client.reservations_.contains(relay);
  if (!known && !client.lacking()) co_return ok();  // others were faster; the relay forgets it by itself
  const bool moved = !known || client.reservations_.at(relay).addresses != granted->addresses;
  if (!known) {
    client.self_.metrics.relays_held.add(1);
    log::info("relay", "peers can reach this node through {} ({} bytes a connection)", relay,
              granted->limit.bytes > 0 ? std::to_string(granted->limit.bytes) : "any number of");
  }
  client.reservations_.insert_or_assign(relay, std::move(*granted));
  if (moved) client.own_.notify();
  co_return ok();
}

Task<Result<RelayClient::Reservation>> RelayClient::reserve(RelayClient& client, PeerId relay, Deadline deadline) {
  const ConnectionEntryPtr entry = client.table_.direct(relay);
  if (!entry) co_return Error(cohive::Errc::closed, relay);
  CO_TRY(auto stream, co_await open_on(entry, kHopProtocol, deadline));
  CO_TRY(const auto reply, co_await request_reservation(*stream, deadline));
  if (!client.table_.direct(relay)) co_return Error(cohive::Errc::closed, relay);
  co_return client.take(*entry, reply);
}

Result<RelayClient::Reservation> RelayClient::take(const ConnectionEntry& relay, const proto::Hop& reply) const {
  const PeerId& id = relay.connection->peer();
  // Peers that dial us may ask for the voucher one day; relays need not give one.
  if (reply.reservation().has_voucher()) TRY(check_voucher(as_bytes(reply.reservation().voucher()), id, self_.id));
  const double seconds = static_cast<double>(reply.reservation().expire()) - self_.runtime.wall_time();
  const Duration life = from_seconds(std::clamp(seconds, to_seconds(kShortestLife), to_seconds(24h)));
  Reservation result;
  const TimePoint now = self_.runtime.now();
  result.expires = now + life;
  result.renew_at = now + std::min(life > 2 * kRenewBefore ? life - kRenewBefore : life / 2, kRenewAtLatest);
  result.limit = limit_of(reply.limit());
  result.addresses = addresses_through(relay, reply.reservation());
  result.protection = table_.protect(id);
  return result;
}

/// At the addresses that the relay names, or else where we dialled it.
std::vector<Multiaddr> RelayClient::addresses_through(const ConnectionEntry& relay,
                                                      const proto::RelayReservation& granted) const {
  const PeerId& id = relay.connection->peer();
  const Multiaddr& remote = relay.connection->remote_address();
  std::vector<Multiaddr> result;
  const auto add = [&](const Multiaddr& address) {
    const bool usable = self_.endpoint(address) && acceptable_address(address, remote.scope());
    if (!usable || result.size() >= kMaxCircuitAddresses) return;
    Multiaddr circuit = circuit_through(address, id);
    if (std::find(result.begin(), result.end(), circuit) == result.end()) result.push_back(std::move(circuit));
  };
  for (const auto& binary : granted.addrs())
    if (const auto address = Multiaddr::from_bytes(as_bytes(binary)); address && !address->is_circuit())
      if (!address->peer() || *address->peer() == id) add(address->without_peer());
  if (result.empty() && relay.connection->outbound()) add(remote);
  if (result.empty())
    for (const auto& address : book_.addresses(id)) add(address);
  return result;
}

// ---- Circuits to us

Task<void> RelayClient::accept(transport::StreamPtr stream) {
  const Deadline deadline = self_.runtime.after(kReserveTimeout);
  stream->set_begun(true);
  auto request = co_await read_relay_message<proto::Stop>(*stream, deadline);
  stream->set_begun(false);
  const ConnectionEntryPtr relay = table_.direct(stream->peer());
  const bool expected = relay && reservations_.contains(stream->peer()) && !stream->remote_address().is_circuit();
  if (request && request->type() == proto::Stop::CONNECT && expected) {
    Multiaddr through = circuit_through(stream->remote_address(), stream->peer());
    // The id of the dialler is what the handshake proves, not what the relay says.
    inbound_.admit(std::make_unique<PendingCircuit>(self_.circuit_upgrader, std::move(stream),
                                                    limit_of(request->limit()), relay->connection->local_address(),
                                                    std::move(through)));
    co_return;
  }
  if (!request && request.error() != cohive::Errc::malformed) co_return;
  proto::Stop reply;
  reply.set_type(proto::Stop::STATUS);
  reply.set_status(expected ? proto::MALFORMED_MESSAGE : proto::PERMISSION_DENIED);
  auto sent = co_await transport::write_message(*stream, as_bytes(reply.SerializeAsString()), deadline);
  if (sent) stream->close_write();
}

}  // namespace cohive::p2p
