#include "inbound.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kInterfacePeriod = 1min;  // between looks at the addresses of this machine

}  // namespace

Inbound::Inbound(Self& self, Dialler& dialler, ConnectionTable& table, OwnAddresses& own)
    : self_(self),
      dialler_(dialler),
      table_(table),
      own_(own),
      upgrades_(self.runtime, "inbound handshakes"),
      tasks_(self.runtime, "listening") {
  own.add_source([this] { return dialable(); });
}

Result<> Inbound::start() {
  std::optional<Error> lacking;
  for (const auto& address : self_.options.listen) {
    transport::Transport* transport = dialler_.transport_for(address);
    if (!transport) return Error(transport::Errc::address_unsupported, address.text());
    auto listener = transport->listen(address);
    if (!listener && listener.error() == transport::Errc::address_unsupported) {
      lacking = listener.error();
      continue;
    }
    if (!listener) return listener.error();
    listeners_.push_back(std::move(*listener));
    tasks_.spawn(accept(*this, *listeners_.back()), "accept");
  }
  if (lacking && listeners_.empty()) return *lacking;
  if (lacking) log::info("p2p", "not listening everywhere: {}", *lacking);
  if (!listeners_.empty()) tasks_.spawn(watch(*this), "own addresses");
  return ok();
}

void Inbound::close() {
  for (auto& listener : listeners_) listener->close();
  tasks_.cancel();
  upgrades_.cancel();
}

std::vector<Multiaddr> Inbound::bound() const {
  std::vector<Multiaddr> result;
  for (const auto& listener : listeners_) result.push_back(listener->address());
  return result;
}

std::vector<Multiaddr> Inbound::dialable() const {
  std::vector<Multiaddr> result;
  for (const auto& listener : listeners_) {
    const auto some = listener->dialable_addresses();
    result.insert(result.end(), some.begin(), some.end());
  }
  return result;
}

/// Connections may outlive a change of addresses, as when IPv6 gets a new prefix or a VPN begins: nothing else would
/// have us tell their peers.
Task<void> Inbound::watch(Inbound& inbound) {
  for (auto before = inbound.dialable();;) {
    co_await inbound.self_.runtime.sleep_for(kInterfacePeriod);
    auto now = inbound.dialable();
    if (now == before) continue;
    before = std::move(now);
    inbound.own_.notify();
    inbound.changed_.emit();
  }
}

Task<void> Inbound::accept(Inbound& inbound, transport::ConnectionListener& listener) {
  for (;;) {
    auto pending = co_await listener.accept();
    if (!pending) co_return;
    inbound.admit(std::move(*pending));
  }
}

void Inbound::admit(std::unique_ptr<transport::PendingConnection> pending) {
  const HostOptions& options = self_.options;
  Networks networks = networks_of(pending->remote_address());
  if (!table_.has_room_for(networks)) {
    self_.metrics.inbound_refused.increment();
    return;
  }
  if (pending_shares_.subnets.of(networks.subnet) >= options.max_pending_per_ip) {
    drop(std::ranges::find_if(handshakes_, [&](const auto& one) { return one->networks.subnet == networks.subnet; }));
  } else if (!pending_shares_.has_room(networks, options.max_pending_per_ip)) {
    drop(std::ranges::find_if(handshakes_, [&](const auto& one) { return one->networks.block == networks.block; }));
  } else if (handshakes_.size() >= options.max_pending_inbound) {
    drop(oldest_of_the_largest(handshakes_, [](const auto& one) -> const Networks& { return one->networks; }));
  }
  auto handshake = std::make_shared<Handshake>(self_.runtime, pending_shares_.take(networks), std::move(networks));
  handshakes_.push_back(handshake);
  upgrades_.spawn(upgrade(*this, std::move(pending), std::move(handshake)), "inbound handshake");
}

void Inbound::drop(Handshakes::iterator handshake) {
  if (handshake == handshakes_.end()) return;
  self_.metrics.inbound_refused.increment();
  (*handshake)->share.reset();
  (*handshake)->dropped.set();
  handshakes_.erase(handshake);
}

Task<void> Inbound::is_dropped(Handshake& handshake) {
  co_await handshake.dropped.wait();
}

Task<void> Inbound::upgrade(Inbound& inbound, std::unique_ptr<transport::PendingConnection> pending,
                            std::shared_ptr<Handshake> handshake) {
  const auto end = on_exit([&] { inbound.handshakes_.remove(handshake); });
  HostMetrics& metrics = inbound.self_.metrics;
  const std::string from = pending->remote_address().text();
  auto ended = co_await race(inbound.self_.runtime, pending->finish(), is_dropped(*handshake));
  if (ended.index() == 1) co_return;
  auto& connection = std::get<0>(ended);
  if (!connection) {
    metrics.inbound_failed.increment();
    log::debug("p2p", "inbound connection from {} failed: {}", from, connection.error());
    co_return;
  }
  auto added = inbound.table_.add(std::move(*connection), handshake->networks);
  (added ? metrics.inbound_ok : metrics.inbound_refused).increment();
  if (!added) log::debug("p2p", "inbound connection from {} refused: {}", from, added.error());
}

}  // namespace cohive::p2p
