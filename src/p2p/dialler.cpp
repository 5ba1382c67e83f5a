#include "dialler.hpp"

#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/errors.hpp"
#include "dial_failures.hpp"
#include "dial_order.hpp"

namespace cohive::p2p {
namespace {

using Source = KnownAddress::Source;

constexpr std::size_t kMaxNames = 4;  // of the addresses of a peer, to be resolved
constexpr Duration kResolveTimeout = 10s;

}  // namespace

Dialler::Dialler(Self& self, transport::Resolver& resolver, ConnectionTable& table, AddressBook& book)
    : self_(self),
      resolver_(resolver),
      table_(table),
      book_(book),
      backoff_(self.runtime, self.options.backoff_base),
      hearsay_(self.runtime),
      slots_(self.runtime, self.options.max_dials, "dials"),
      address_dials_(self.runtime, "dialling an address"),
      book_dials_(self.runtime, "dialling"),
      configured_dials_(self.runtime, "connecting"),
      added_(table.added_signal().subscribe([this](const ConnectionEntryPtr& entry) {
        if (is_relayed(*entry)) keep_dialling_direct(*entry);
      })),
      held_(self.runtime, "dials beside circuits") {
  prepare_dial_failures(self.runtime);
}

/// A dial from the listening port that the peer's firewall drops is half of a hole: ours lets in what the peer sends
/// back when it punches. Given up, it would leave an entry in our router that lets the peer's dial in and drops the
/// answer, and so spoils the pair of ports.
void Dialler::keep_dialling_direct(const ConnectionEntry& circuit) {
  auto dials = address_dials_.hold([&peer = circuit.connection->peer()](const auto& key) {
    return key.first == peer && is_public_host(key.second);
  });
  if (dials.empty() || self_.closed) return;
  held_.spawn(
      [](Runtime& runtime, Duration limit, std::vector<std::shared_ptr<const void>>) -> Task<void> {
        co_await runtime.sleep_for(limit);
      }(self_.runtime, self_.options.dial_timeout, std::move(dials)),
      "dials beside a circuit");
}

void Dialler::close(const Error& reason) {
  held_.cancel();
  configured_dials_.close(reason);
  book_dials_.close(reason);
  address_dials_.close(reason);
}

// ---- One address

Task<Result<>> Dialler::dial(PeerId peer, KnownAddress known, SourcePort from, Deadline deadline) {
  const Multiaddr address = known.address;
  auto admitted = co_await hearsay_.begin(peer, std::move(known), deadline);
  if (!admitted) {
    self_.metrics.dials_held_back.increment();
    co_return admitted.error();
  }
  auto result = co_await address_dials_.join(
      {peer, address}, deadline, [this, peer, address, from] { return dial_now(*this, peer, address, from); });
  if (!result) co_return result.error().with_peer(peer);
  if (reached_at(peer, address)) admitted->answered();
  co_return ok();
}

/// Whether the peer answered there, and was not connected by another way meanwhile.
bool Dialler::reached_at(const PeerId& peer, const Multiaddr& address) const {
  const ConnectedPeer* found = table_.find(peer);
  return found && std::ranges::any_of(found->connections, [&](const auto& entry) {
           return entry->connection->outbound() && entry->connection->remote_address() == address;
         });
}

Task<Result<Semaphore::Units>> Dialler::slot_for(PeerId peer, Multiaddr address, Deadline deadline) {
  // A circuit's relay may have to be dialled meanwhile, which takes a slot of its own.
  if (address.is_circuit()) co_return Semaphore::Units();
  auto slot = co_await slots_.acquire(1, deadline);
  if (!slot) co_return Error(cohive::Errc::timeout, peer, "waiting to dial " + address.text());
  co_return slot;
}

Task<Result<transport::ConnectionPtr>> Dialler::dial_by_transport(PeerId peer, Multiaddr address, SourcePort from,
                                                                  Deadline deadline, transport::Role role) {
  transport::Transport* transport = transport_for(address);
  if (!transport) co_return Error(transport::Errc::address_unsupported, peer, address.text());
  co_return co_await transport->dial(
      address,
      {.expected = peer, .deadline = deadline, .from_listen_port = from == SourcePort::listening, .role = role});
}

Result<> Dialler::take_in(const PeerId& peer, const Multiaddr& address, transport::ConnectionPtr connection) {
  TRY(table_.add(std::move(connection)));
  book_.add_verified(peer, address);
  return ok();
}

Task<Result<>> Dialler::dial_now(Dialler& dialler, PeerId peer, Multiaddr address, SourcePort from) {
  Self& self = dialler.self_;
  CO_TRY(const auto slot, co_await dialler.slot_for(peer, address, self.runtime.after(self.options.connect_timeout)));
  if (dialler.table_.connected(peer)) co_return ok();
  self.metrics.dials_active.add(1);
  const auto inactive = on_exit([gauge = self.metrics.dials_active]() mutable { gauge.add(-1); });
  TraceSpan span(self.runtime, "dial", "dial");
  if (span) {
    span.note("peer", peer.text());
    span.note("address", address.text());
  }
  auto connection =
      co_await dialler.dial_by_transport(peer, address, from, self.runtime.after(self.options.dial_timeout));
  if (!connection) {
    span.note("error", connection.error().message());
    self.metrics.dials_failed.increment();
    const DialFailure cause = note_dial_failure(self.runtime, peer, address, connection.error());
    dialler.backoff_.failed(peer, address,
                            is_local_failure(connection.error()) ? DialBackoff::Cause::local
                            : cause == DialFailure::refused      ? DialBackoff::Cause::refused
                                                                 : DialBackoff::Cause::other);
    co_return connection.error();
  }
  self.metrics.dials_ok.increment();
  dialler.backoff_.succeeded(peer, address);
  co_return dialler.take_in(peer, address, std::move(*connection));
}

// ---- One peer

std::optional<Result<>> Dialler::settled(const PeerId& peer) const {
  if (self_.closed) return Result<>(Error(Errc::host_closed));
  if (peer == self_.id) return Result<>(Error(Errc::dial_to_self, peer));
  if (table_.connected(peer)) return ok();
  return std::nullopt;
}

DialRace Dialler::race(const PeerId& peer) {
  return DialRace(self_, table_, peer, [this, peer](KnownAddress known, Deadline deadline, SourcePort from) {
    return dial(peer, std::move(known), from, deadline);
  });
}

Task<Result<>> Dialler::dial_known(PeerId peer, std::vector<KnownAddress> known, Deadline deadline) {
  auto race = this->race(peer);
  race.hold_back([this, peer](const KnownAddress& one) { return held_back(peer, one); });
  add_to(race, std::move(known), deadline);
  race.complete();
  co_return co_await race.run(deadline);
}

Task<Result<>> Dialler::dial_book(Dialler& dialler, PeerId peer) {
  auto known = dialler.book_.known(peer);
  if (known.empty()) co_return Error(Errc::no_addresses, peer);
  const Deadline deadline = dialler.self_.runtime.after(dialler.self_.options.connect_timeout);
  co_return co_await dialler.dial_known(peer, std::move(known), deadline);
}

Task<Result<>> Dialler::connect(PeerId peer, Deadline deadline) {
  if (auto now = settled(peer)) co_return *now;
  auto result = co_await book_dials_.join(peer, deadline, [this, peer] { return dial_book(*this, peer); });
  if (!result) co_return result.error().with_peer(peer);
  co_return ok();
}

bool Dialler::refuses(const PeerId& peer) const {
  const auto known = book_.known(peer);
  return !table_.connected(peer) &&
         std::ranges::any_of(known, [&](const KnownAddress& one) { return backoff_.refused(peer, one); }) &&
         std::ranges::all_of(known, [&](const KnownAddress& one) { return backoff_.blocks(peer, one); });
}

Task<Result<>> Dialler::connect_by(PeerId peer, KnownAddress address, Deadline deadline) {
  if (auto now = settled(peer)) co_return *now;
  co_return co_await dial_known(peer, {std::move(address)}, deadline);
}

Task<Result<>> Dialler::dial_in_parallel(PeerId peer, Multiaddr address, transport::Role role, SourcePort from,
                                         Deadline deadline) {
  CO_TRY(const auto slot, co_await slot_for(peer, address, deadline));
  CO_TRY(auto connection, co_await dial_by_transport(peer, address, from, deadline, role));
  co_return take_in(peer, address, std::move(connection));
}

Task<Result<transport::ConnectionPtr>> Dialler::dial_again(PeerId peer, Multiaddr address) {
  const Deadline deadline = self_.runtime.after(self_.options.dial_timeout);
  CO_TRY(const auto slot, co_await slot_for(peer, address, deadline));
  co_return co_await dial_by_transport(peer, address, SourcePort::any, deadline);
}

Task<Result<transport::StreamPtr>> Dialler::open_stream(PeerId peer, std::string protocol, Deadline deadline) {
  return table_.open_stream(peer, std::move(protocol), deadline,
                            [this, peer, deadline] { return connect(peer, deadline); });
}

// ---- Names

bool Dialler::may_resolve(const KnownAddress& known) const {
  // A dnsaddr leads to further names: a dnsaddr that a peer announces is not followed.
  if (known.address.first_code() == Multiaddr::dnsaddr) return known.source != Source::announced;
  return self_.endpoint(known.address).has_value();
}

void Dialler::add_to(DialRace& race, std::vector<KnownAddress> addresses, Deadline deadline) {
  const Deadline limit = deadline.min(self_.runtime.after(kResolveTimeout));
  std::vector<KnownAddress> numeric;
  std::size_t names = 0;
  for (auto& known : addresses) {
    if (transport_for(known.address)) {
      numeric.push_back(std::move(known));
    } else if (transport::is_name(known.address) && names < kMaxNames && may_resolve(known)) {
      ++names;
      race.add_later(resolve(*this, std::move(known), race.peer(), limit));
    }
  }
  race.add(numeric);
}

Task<std::vector<KnownAddress>> Dialler::resolve(Dialler& dialler, KnownAddress name, PeerId peer, Deadline deadline) {
  const bool announced = name.source == Source::announced;
  auto query = announced ? dialler.resolver_.resolve_announced(name.address, deadline)
                         : dialler.resolver_.resolve(name.address, deadline);
  auto answer = co_await std::move(query);
  std::vector<KnownAddress> result;
  if (!answer) {
    log::debug("p2p", "{} of {}: {}", name.address.text(), peer, answer.error());
    co_return result;
  }
  for (auto& address : *answer) {
    if ((address.peer() && *address.peer() != peer) || !dialler.transport_for(address)) continue;
    if (announced && !acceptable_address(address, name.heard_from)) continue;
    result.push_back({address.without_peer(), name.source, name.heard_from, name.teller});
  }
  co_return result;
}

// ---- Addresses of our user

Task<Result<PeerId>> Dialler::connect_to(Multiaddr address, Deadline deadline) {
  if (self_.closed) co_return Error(Errc::host_closed);
  const auto peer = address.peer();
  if (!peer && !address.has(Multiaddr::dnsaddr)) co_return Error(Errc::missing_peer_id, address.text());
  if (peer && *peer == self_.id) co_return Error(Errc::dial_to_self, *peer);
  if (peer && table_.connected(*peer)) {
    book_.add_configured(*peer, address);
    co_return *peer;
  }
  auto result =
      co_await configured_dials_.join(address, deadline, [this, address] { return dial_configured(*this, address); });
  if (!result && result.error() == cohive::Errc::timeout) co_return result.error().with_context(address.text());
  co_return result;
}

Task<Result<PeerId>> Dialler::dial_configured(Dialler& dialler, Multiaddr address) {
  const Deadline deadline = dialler.self_.runtime.after(dialler.self_.options.connect_timeout);
  std::vector<Multiaddr> targets{address};
  if (!dialler.transport_for(address)) {
    if (!transport::is_name(address)) co_return Error(transport::Errc::address_unsupported, address.text());
    auto resolved = co_await dialler.resolver_.resolve(address, deadline);
    if (!resolved) co_return resolved.error();
    targets = std::move(*resolved);
  }
  // A dnsaddr may name its peer, or several, only in what it resolves to.
  std::vector<std::pair<PeerId, std::vector<KnownAddress>>> peers;
  bool unsupported = false;
  for (const auto& target : targets) {
    const auto peer = target.peer() ? target.peer() : address.peer();
    if (!peer || (address.peer() && *peer != *address.peer())) continue;
    unsupported |= !dialler.transport_for(target);
    if (!dialler.transport_for(target)) continue;
    auto at = std::find_if(peers.begin(), peers.end(), [&](const auto& one) { return one.first == *peer; });
    if (at == peers.end()) at = peers.insert(peers.end(), {*peer, {}});
    at->second.push_back({target.without_peer(), Source::configured, Multiaddr::Scope::loopback});
  }
  if (peers.empty())
    co_return unsupported ? Error(transport::Errc::address_unsupported, address.text())
                          : Error(Errc::missing_peer_id, address.text());
  Error failure;
  for (const auto& [peer, addresses] : peers) {
    if (peer == dialler.self_.id) {
      failure = Error(Errc::dial_to_self, peer);
      continue;
    }
    auto race = dialler.race(peer);
    race.add(addresses);
    race.complete();
    auto connected = co_await race.run(deadline);
    if (connected) {
      dialler.book_.add_configured(peer, address);
      co_return peer;
    }
    failure = connected.error();
  }
  co_return failure;
}

}  // namespace cohive::p2p
