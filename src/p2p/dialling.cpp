#include "dialling.hpp"

#include <algorithm>
#include <array>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "host_impl.hpp"

namespace cohive::p2p {
namespace {

using Source = KnownAddress::Source;

constexpr Duration kHeadStart = 250ms;     // before the next address of the peer is tried
constexpr Duration kNearHeadStart = 30ms;  // the same behind an address of this machine or its own network
constexpr std::size_t kMaxParallel = 16;   // per peer
constexpr std::size_t kMaxAddresses = 32;  // per peer and attempt to connect
constexpr std::size_t kMaxNames = 4;       // of these, to be resolved
constexpr std::size_t kMaxFailuresNamed = 3;
constexpr Duration kResolveTimeout = 10s;
constexpr Duration kMaxBackoff = 5min;
constexpr std::size_t kMaxRemembered = 4096;
constexpr int kStrikes = 8;  // failures at one address, whoever was looked for there, before it rests
constexpr Duration kRest = 30s;

bool is_name(const Multiaddr& address) {
  const auto endpoint = address.tcp_endpoint();
  return address.has(Multiaddr::dnsaddr) ||
         (endpoint && endpoint->host_code != Multiaddr::ip4 && endpoint->host_code != Multiaddr::ip6);
}

}  // namespace

std::vector<KnownAddress> dial_order(const std::vector<KnownAddress>& addresses) {
  // proven; this machine; private 6, 4; public 6, 4
  std::array<std::vector<const KnownAddress*>, 6> kinds;
  std::set<Multiaddr> seen;
  for (const auto& known : addresses) {
    const auto endpoint = known.address.tcp_endpoint();
    if (!endpoint || !seen.insert(known.address.without_peer()).second) continue;
    const std::size_t ip4 = endpoint->host_code == Multiaddr::ip6 ? 0 : 1;
    std::size_t kind = 4 + ip4;
    if (known.source == Source::proven) {
      kind = 0;
    } else if (known.address.scope() == Multiaddr::Scope::loopback) {
      kind = 1;
    } else if (known.address.scope() == Multiaddr::Scope::private_) {
      kind = 2 + ip4;
    }
    kinds[kind].push_back(&known);
  }
  std::vector<KnownAddress> result;
  for (const KnownAddress* known : std::exchange(kinds[0], {})) result.push_back(*known);
  for (std::size_t round = 0; result.size() < seen.size(); ++round)
    for (const auto& kind : kinds)
      if (round < kind.size()) result.push_back(*kind[round]);
  return result;
}

// ---- Backoff

template <class Key>
DialBackoff::Failures& DialBackoff::Memory<Key>::at(const Key& key) {
  const auto [at, is_new] = failures.try_emplace(key);
  if (is_new) order.push_back(key);
  if (order.size() > kMaxRemembered) {
    if (order.front() != key) failures.erase(order.front());
    order.pop_front();
  }
  return at->second;
}

void DialBackoff::failed(const PeerId& peer, const Multiaddr& address) {
  Failures& pair = pairs_.at({peer, address});
  const Duration pause = base_ + 1s * (pair.count * pair.count);
  pair.count = std::min(pair.count + 1, 100);
  pair.until = runtime_.now() + std::min<Duration>(pause, kMaxBackoff);
  Failures& all = addresses_.at(address);
  if (all.count >= kStrikes && all.until <= runtime_.now()) all.count = 0;  // it has rested
  if (++all.count >= kStrikes) all.until = runtime_.now() + kRest;
}

void DialBackoff::succeeded(const PeerId& peer, const Multiaddr& address) {
  pairs_.failures.erase({peer, address});
  addresses_.failures.erase(address);
}

bool DialBackoff::blocks(const PeerId& peer, const KnownAddress& known) const {
  const Multiaddr address = known.address.without_peer();
  if (const auto pair = pairs_.failures.find({peer, address});
      pair != pairs_.failures.end() && runtime_.now() < pair->second.until)
    return true;
  if (known.source != Source::told) return false;
  const auto all = addresses_.failures.find(address);
  return all != addresses_.failures.end() && all->second.count >= kStrikes && runtime_.now() < all->second.until;
}

// ---- Race

DialRace::DialRace(Host::Impl& host, PeerId peer, Backoff backoff)
    : host_(host), peer_(peer), backoff_(backoff), changed_(host.runtime, "dialling") {
  host_.races.push_back(this);
}

DialRace::~DialRace() {
  std::erase(host_.races, this);
}

void DialRace::add(const std::vector<KnownAddress>& addresses) {
  for (const auto& known : dial_order(addresses)) {
    if (seen_.size() >= kMaxAddresses) break;
    const Multiaddr address = known.address.without_peer();
    if (!seen_.insert(address).second) continue;
    if (backoff_ == Backoff::respected && host_.backoff.blocks(peer_, known)) {
      ++blocked_;
      host_.metrics.dials_held_back.increment();
    } else {
      waiting_.push_back(address);
    }
  }
  changed_.notify_all();
}

void DialRace::complete() {
  complete_ = true;
  changed_.notify_all();
}

Task<void> DialRace::wait_idle(Deadline deadline) {
  while ((running_ > 0 || !waiting_.empty()) && co_await changed_.wait(deadline)) continue;
}

bool DialRace::may_start() const {
  return !waiting_.empty() && running_ < kMaxParallel;
}

Error DialRace::failure() const {
  if (failures_.size() == 1) return failures_.front();
  if (!failures_.empty()) {
    std::string text;
    for (const auto& failure : failures_) text += (text.empty() ? "" : "; ") + failure.message();
    return Error(Errc::all_dials_failed, peer_, text);
  }
  return Error(blocked_ > 0 ? Errc::dial_backoff : Errc::no_addresses, peer_);
}

Task<Result<>> DialRace::run(Deadline deadline) {
  Nursery dials(host_.runtime, "dial");
  for (;;) {
    if (host_.link_to(peer_)) co_return ok();
    const TimePoint now = host_.runtime.now();
    if (deadline.passed(now)) co_return Error(cohive::Errc::timeout, peer_, "connecting");
    if (may_start() && now >= next_start_) {
      const Multiaddr address = std::move(waiting_.front());
      waiting_.pop_front();
      ++running_;
      ++tried_;
      next_start_ = now + (is_near(address) ? kNearHeadStart : kHeadStart);
      dials.spawn(dial(*this, address, deadline), "dial");
      continue;
    }
    if (complete_ && waiting_.empty() && running_ == 0) co_return failure();
    co_await changed_.wait(may_start() ? deadline.min(Deadline(next_start_)) : deadline);
  }
}

Task<void> DialRace::dial(DialRace& race, Multiaddr address, Deadline deadline) {
  auto result = co_await race.host_.dial_one(race.peer_, address, deadline);
  --race.running_;
  if (!result) {
    if (race.failures_.size() < kMaxFailuresNamed) race.failures_.push_back(result.error());
    race.next_start_ = race.host_.runtime.now();
  }
  race.changed_.notify_all();
}

// ---- The host's side of it

Task<Result<>> Host::Impl::dial_one(PeerId peer, Multiaddr address, Deadline deadline) {
  auto result = co_await address_dials.join({peer, address}, deadline,
                                            [this, peer, address] { return dial_now(*this, peer, address); });
  if (!result) co_return result.error().with_peer(peer);
  co_return ok();
}

Task<Result<>> Host::Impl::dial_now(Impl& self, PeerId peer, Multiaddr address) {
  auto slot = co_await self.dial_slots.acquire(1, self.runtime.after(self.options.connect_timeout));
  if (!slot) co_return Error(cohive::Errc::timeout, peer, "waiting to dial");
  if (self.link_to(peer)) co_return ok();
  struct Active {
    Gauge gauge;
    explicit Active(Gauge g) : gauge(g) { gauge.add(1); }
    ~Active() { gauge.add(-1); }
  } active(self.metrics.dials_active);
  const Deadline limit = self.runtime.after(self.options.dial_timeout);
  auto raw = co_await self.network.dial(address, limit);
  Result<> result = ok();
  if (!raw) {
    result = raw.error();
  } else {
    auto connection =
        co_await within(self.runtime, limit,
                        transport::upgrade(self.runtime, std::move(*raw), transport::Role::initiator, self.identity,
                                           peer, self.options.transport, self.network.plaintext()),
                        "handshake");
    if (!connection) {
      result = connection.error().with_context(address.text());
    } else {
      self.metrics.dials_ok.increment();
      self.backoff.succeeded(peer, address);
      auto adopted = self.adopt(std::move(*connection));
      if (adopted) self.book.add_proven(peer, address);
      co_return adopted;
    }
  }
  self.metrics.dials_failed.increment();
  self.backoff.failed(peer, address);
  co_return result;
}

/// Numeric addresses for names. What a name leads to must be an address that the one who told the name could have told
/// itself, and must not be another peer's.
Task<std::vector<KnownAddress>> Host::Impl::resolve(std::vector<KnownAddress> addresses, PeerId peer,
                                                    Deadline deadline) {
  std::vector<KnownAddress> result, names;
  for (auto& known : addresses) {
    if (!is_name(known.address)) {
      result.push_back(std::move(known));
    } else if (names.size() < kMaxNames && (known.source != Source::told || !known.address.has(Multiaddr::dnsaddr))) {
      names.push_back(std::move(known));
    }
  }
  if (names.empty()) co_return result;
  const Deadline limit = deadline.min(runtime.after(kResolveTimeout));
  std::vector<Task<Result<std::vector<Multiaddr>>>> queries;
  for (const auto& known : names) queries.push_back(network.resolve(known.address, limit));
  auto answers = co_await when_all(runtime, std::move(queries));
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (!answers[i]) {
      log::debug("p2p", "{} of {}: {}", names[i].address.text(), peer, answers[i].error());
      continue;
    }
    for (auto& address : *answers[i]) {
      if (address.peer() && *address.peer() != peer) continue;
      if (names[i].source == Source::told && !acceptable_address(address, names[i].teller)) continue;
      result.push_back({address.without_peer(), names[i].source, names[i].teller});
    }
  }
  co_return result;
}

/// Dials the addresses in hand.
Task<Result<>> Host::Impl::dial_book(Impl& self, PeerId peer) {
  const Deadline deadline = self.runtime.after(self.options.connect_timeout);
  auto known = self.book.known(peer);
  if (known.empty()) co_return Error(Errc::no_addresses, peer);
  DialRace race(self, peer, DialRace::Backoff::respected);
  race.add(co_await self.resolve(std::move(known), peer, deadline));
  race.complete();
  co_return co_await race.run(deadline);
}

namespace {
constexpr Duration kPatience = 3s;  // with the addresses a lookup found, before it goes on

/// The lookup waits while what it found is tried.
Task<void> feed(Host::Impl& self, DialRace& race, Lookup& lookup, Deadline deadline) {
  for (;;) {
    auto heard = co_await lookup.next(deadline);
    if (heard.empty()) break;
    race.add(co_await self.resolve(std::move(heard), race.peer(), deadline));
    co_await race.wait_idle(deadline.min(self.runtime.after(kPatience)));
  }
  race.complete();
}
}  // namespace

/// The addresses in hand first; when they fail or there are none, whatever peer routing finds.
Task<Result<>> Host::Impl::search(Impl& self, PeerId peer) {
  const Deadline deadline = self.runtime.after(self.options.connect_timeout);
  auto in_hand = co_await self.connect(peer, deadline, Reach::in_hand);
  if (in_hand) co_return ok();
  auto slot = co_await self.lookup_slots.acquire(1, deadline);
  if (!slot) co_return Error(cohive::Errc::timeout, peer, "waiting to look the peer up");
  DialRace race(self, peer, DialRace::Backoff::respected);
  Lookup lookup(self.routing, self, peer, deadline);
  Nursery feeding(self.runtime, "lookup");
  feeding.spawn(feed(self, race, lookup, deadline), "feed the dial race");
  auto result = co_await race.run(deadline);
  if (!result && race.tried() == 0) co_return in_hand;
  co_return result;
}

Task<Result<>> Host::Impl::connect(PeerId peer, Deadline deadline, Reach reach) {
  if (closed) co_return Error(Errc::host_closed);
  if (peer == id) co_return Error(Errc::dial_to_self, peer);
  if (link_to(peer)) co_return ok();
  Result<> result = ok();
  if (reach == Reach::in_hand) {
    result = co_await book_dials.join(peer, deadline, [this, peer] { return dial_book(*this, peer); });
  } else {
    result = co_await searches.join(peer, deadline, [this, peer] { return search(*this, peer); });
  }
  if (!result) co_return result.error().with_peer(peer);
  co_return ok();
}

/// An address given by our user: dialled whatever we know about it, and not forgotten once it worked.
Task<Result<PeerId>> Host::Impl::connect_to(Impl& self, Multiaddr address) {
  const Deadline deadline = self.runtime.after(self.options.connect_timeout);
  std::vector<Multiaddr> targets{address};
  if (is_name(address)) {
    auto resolved = co_await self.network.resolve(address, deadline);
    if (!resolved) co_return resolved.error();
    targets = std::move(*resolved);
  }
  // A dnsaddr may name its peer, or several, only in what it resolves to.
  std::vector<std::pair<PeerId, std::vector<KnownAddress>>> peers;
  for (const auto& target : targets) {
    const auto peer = target.peer() ? target.peer() : address.peer();
    if (!peer || (address.peer() && *peer != *address.peer())) continue;
    auto at = std::find_if(peers.begin(), peers.end(), [&](const auto& one) { return one.first == *peer; });
    if (at == peers.end()) at = peers.insert(peers.end(), {*peer, {}});
    at->second.push_back({target.without_peer(), Source::given, Multiaddr::Scope::loopback});
  }
  if (peers.empty()) co_return Error(Errc::missing_peer_id, address.text());
  Error failure;
  for (const auto& [peer, addresses] : peers) {
    if (peer == self.id) {
      failure = Error(Errc::dial_to_self, peer);
      continue;
    }
    DialRace race(self, peer, DialRace::Backoff::ignored);
    race.add(addresses);
    race.complete();
    auto connected = co_await race.run(deadline);
    if (connected) {
      self.book.add_given(peer, address);
      co_return peer;
    }
    failure = connected.error();
  }
  co_return failure;
}

}  // namespace cohive::p2p
