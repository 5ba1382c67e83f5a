#include "hole_punching.hpp"

#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr int kRounds = 3;
constexpr std::size_t kMaxPunchStreams = 2;  // of one peer, as go-libp2p
constexpr std::size_t kMaxPunchAddresses = 8;
constexpr Duration kPunchTimeout = 5s;
constexpr Duration kMessageTimeout = 15s;
constexpr Duration kDescribeTimeout = 15s;
constexpr Duration kPause = 2s;  // between rounds
constexpr Duration kLongestTrip = 4s;
// Each attempt dials a few addresses that the peer names.
constexpr AttemptLimits::Limits kPunchLimits{.window = 60s, .per_peer = 9, .per_network = 60, .in_all = 240};
// A peer may name any machine. A dozen honest peers behind one address need no more dials than 24, while a host that is
// lied to sends a machine that is no peer one in two and a half seconds. A network of machines gets four times as many,
// as where dials go by hearsay.
constexpr AttemptLimits::Limits kTargetLimits{
    .window = 60s, .per_peer = 72, .per_network = 96, .in_all = 960, .per_part = 24};

/// The way there is direct, and leads out: a peer must not have us scan our own network.
bool leads_out(const Multiaddr& address) {
  return is_public_host(address) && !transport::is_name(address);
}

std::string connect_message(const std::vector<Multiaddr>& addresses) {
  proto::HolePunch message;
  message.set_type(proto::HolePunch::CONNECT);
  for (const auto& address : addresses) message.add_observed_addrs(address.binary());
  return message.SerializeAsString();
}

}  // namespace

HolePunching::HolePunching(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, Dialler& dialler,
                           Identify& identify, const Inbound& inbound, const OwnAddresses& own, Observed observed)
    : self_(self),
      handlers_(handlers),
      table_(table),
      book_(book),
      dialler_(dialler),
      inbound_(inbound),
      own_(own),
      observed_(std::move(observed)),
      limits_(self.runtime, kPunchLimits),
      targets_(self.runtime, kTargetLimits),
      described_(self.runtime, "a peer to describe itself"),
      tasks_(self.runtime, "hole punching") {
  subscriptions_.push_back(identify.described().subscribe([this](const PeerId&) { described_.notify_all(); }));
  subscriptions_.push_back(table.added_signal().subscribe([this](const ConnectionEntryPtr& entry) {
    if (is_relayed(*entry) && !entry->connection->outbound() && !self_.closed)
      tasks_.spawn(replace(*this, entry), "replace a circuit");
  }));
}

void HolePunching::start() {
  // Without a port to dial from there is no hole to be had.
  if (inbound_.listening())
    handlers_.add(
        kHolePunchProtocol, [this](transport::StreamPtr stream) { return answer(std::move(stream)); },
        kMaxPunchStreams);
}

bool HolePunching::is_target(const Multiaddr& address) const {
  const auto endpoint = self_.endpoint(address);
  return endpoint && endpoint->punchable && leads_out(address);
}

std::vector<Multiaddr> HolePunching::targets_of(const proto::HolePunch& message) const {
  std::vector<Multiaddr> result;
  for (const auto& binary : message.observed_addrs()) {
    auto address = Multiaddr::from_bytes(as_bytes(binary));
    if (address && is_target(*address) && result.size() < kMaxPunchAddresses) result.push_back(address->without_peer());
  }
  return result;
}

std::vector<Multiaddr> HolePunching::own_addresses() const {
  std::vector<Multiaddr> result;
  const auto add = [this, &result](const std::vector<Multiaddr>& some) {
    for (const auto& address : some)
      if (is_target(address) && result.size() < kMaxPunchAddresses &&
          std::find(result.begin(), result.end(), address) == result.end())
        result.push_back(address);
  };
  add(own_.announced());
  add(observed_());
  return result;
}

/// By the specification the peer that dialled the circuit begins the handshake. go-libp2p before 0.41, thus p2pd, has
/// it the other way round, and later ones come back to that in the last round. Peers of our kind settle it themselves.
transport::Role HolePunching::role(const PeerId& peer, End end, bool last) const {
  using transport::Role;
  const ConnectedPeer* known = table_.find(peer);
  if (known && is_cohive(*known)) return Role::initiator;
  const bool reversed = (known && known->agent.starts_with("p2pd/")) || (last && end == End::called);
  return (end == End::dialler) != reversed ? Role::initiator : Role::responder;
}

void HolePunching::count(const PeerId& peer, bool punched) {
  (punched ? self_.metrics.punches_ok : self_.metrics.punches_failed).increment();
  log::debug("p2p", "{} {} directly", punched ? "connected to" : "could not connect to", peer);
}

/// How the dials of one round stand.
struct Dials {
  std::size_t running;
  Event done;
};

/// Dials all at once; true as soon as the peer is connected directly, whichever of both has done it.
Task<bool> HolePunching::dial_all(HolePunching& punching, PeerId peer, std::vector<Multiaddr> addresses,
                                  transport::Role role, SourcePort from) {
  const auto held_back = std::erase_if(addresses, [&](const Multiaddr& address) {
    const Networks target = networks_of(address);
    return !punching.targets_.take(peer, target.block, target.subnet);
  });
  punching.self_.metrics.dials_held_back.increment(static_cast<double>(held_back));
  Dials dials{addresses.size(), Event(punching.self_.runtime, "hole punching")};
  const auto added = punching.table_.added_signal().subscribe([&dials, peer](const ConnectionEntryPtr& entry) {
    if (entry->connection->peer() == peer && !is_relayed(*entry)) dials.done.set();
  });
  auto one = [](Dialler& dialler, PeerId to, Multiaddr address, transport::Role as, SourcePort port, Deadline limit,
                Dials& state) -> Task<void> {
    (void)co_await dialler.dial_in_parallel(to, std::move(address), as, port, limit);
    if (--state.running == 0) state.done.set();
  };
  const Deadline deadline = punching.self_.runtime.after(kPunchTimeout);
  Nursery nursery(punching.self_.runtime, "hole punching");
  for (auto& address : addresses)
    nursery.spawn(one(punching.dialler_, peer, std::move(address), role, from, deadline, dials), "punch");
  // Also without any dial of ours, the peer's may come through.
  (void)co_await dials.done.wait(deadline);
  co_return punching.table_.direct(peer) != nullptr;
}

// ---- The called end

Task<bool> HolePunching::wait_until_described(HolePunching& punching, PeerId peer) {
  const Deadline deadline = punching.self_.runtime.after(kDescribeTimeout);
  for (;;) {
    const ConnectedPeer* known = punching.table_.find(peer);
    if (!known) co_return false;
    if (known->protocols) co_return true;
    if (!co_await punching.described_.wait(deadline)) co_return false;
  }
}

Task<void> HolePunching::replace(HolePunching& punching, ConnectionEntryPtr circuit) {
  const PeerId peer = circuit->connection->peer();
  if (!punching.busy_.insert(peer).second) co_return;
  const auto done = on_exit([&punching, &peer] { punching.busy_.erase(peer); });
  // Where many circuits come at once, the later ones are replaced in the minutes after.
  const std::string network = network_of(circuit->connection->remote_address());
  for (;; co_await punching.self_.runtime.sleep_for(kPunchLimits.window / 4)) {
    if (punching.table_.direct(peer) || circuit->connection->closed()) co_return;
    if (punching.limits_.take(peer, network)) break;
  }
  if (!co_await wait_until_described(punching, peer)) co_return;

  std::vector<Multiaddr> open;
  for (const auto& address : punching.book_.addresses(peer))
    if (punching.self_.endpoint(address) && leads_out(address) && open.size() < kMaxPunchAddresses)
      open.push_back(address);
  // From any port: a dial that the peer's router drops must not spoil the punching to come, see DialRace.
  if (!open.empty() && co_await dial_all(punching, peer, std::move(open), transport::Role::initiator, SourcePort::any))
    co_return punching.count(peer, true);

  const ConnectedPeer* known = punching.table_.find(peer);
  if (!known || !known->serves(kHolePunchProtocol) || !punching.inbound_.listening()) co_return;
  for (int round = 1; round <= kRounds; ++round) {
    if (circuit->connection->closed() || punching.own_addresses().empty()) co_return;
    const bool punched = co_await punch(punching, circuit, round == kRounds);
    if (punched || punching.table_.direct(peer)) {
      log::debug("p2p", "the way to {} was open at attempt {} to punch it", peer, round);
      co_return punching.count(peer, true);
    }
    co_await punching.self_.runtime.sleep_for(kPause);
  }
  punching.count(peer, false);
}

Task<bool> HolePunching::punch(HolePunching& punching, ConnectionEntryPtr circuit, bool last) {
  Runtime& runtime = punching.self_.runtime;
  const PeerId peer = circuit->connection->peer();
  const Deadline deadline = runtime.after(kMessageTimeout);
  auto agree = [](HolePunching& self, ConnectionEntryPtr on, Deadline limit,
                  Duration& trip) -> Task<Result<std::vector<Multiaddr>>> {
    CO_TRY(auto stream, co_await open_on(std::move(on), kHolePunchProtocol, limit));
    const TimePoint asked = self.self_.runtime.now();
    CO_TRY(co_await transport::write_message(*stream, as_bytes(connect_message(self.own_addresses())), limit));
    CO_TRY(const auto reply, co_await read_relay_message<proto::HolePunch>(*stream, limit));
    trip = std::min(self.self_.runtime.now() - asked, kLongestTrip);
    if (reply.type() != proto::HolePunch::CONNECT) co_return Error(cohive::Errc::malformed, stream->peer(), "dcutr");
    proto::HolePunch sync;
    sync.set_type(proto::HolePunch::SYNC);
    CO_TRY(co_await transport::write_message(*stream, as_bytes(sync.SerializeAsString()), limit));
    stream->close_write();
    co_return self.targets_of(reply);
  };
  Duration trip{};
  auto targets = co_await agree(punching, circuit, deadline, trip);
  if (!targets || targets->empty()) {
    if (!targets) log::debug("p2p", "no hole punching: {}", targets.error());
    co_return false;
  }
  co_await runtime.sleep_for(trip / 2);
  co_return co_await dial_all(punching, peer, std::move(*targets), punching.role(peer, End::called, last));
}

// ---- The end that dialled the circuit

bool HolePunching::dialled_by_circuit(const PeerId& peer) const {
  const ConnectedPeer* known = table_.find(peer);
  return known && std::any_of(known->connections.begin(), known->connections.end(),
                              [](const auto& entry) { return is_relayed(*entry) && entry->connection->outbound(); });
}

Task<void> HolePunching::answer(transport::StreamPtr stream) {
  const PeerId peer = stream->peer();
  const Deadline deadline = self_.runtime.after(kMessageTimeout);
  if (!stream->remote_address().is_circuit() || !dialled_by_circuit(peer) ||
      !limits_.take(peer, network_of(stream->remote_address())))
    co_return;
  const auto request = co_await read_relay_message<proto::HolePunch>(*stream, deadline);
  if (!request || request->type() != proto::HolePunch::CONNECT) co_return;
  auto targets = targets_of(*request);
  auto sent = co_await transport::write_message(*stream, as_bytes(connect_message(own_addresses())), deadline);
  if (!sent || targets.empty()) co_return;
  const auto sync = co_await read_relay_message<proto::HolePunch>(*stream, deadline);
  if (!sync || sync->type() != proto::HolePunch::SYNC) co_return;
  stream->close_write();
  if (table_.direct(peer)) co_return;
  const bool punched = co_await dial_all(*this, peer, std::move(targets), role(peer, End::dialler, false));
  if (punched) count(peer, true);
}

}  // namespace cohive::p2p
