// Listens, and takes inbound connections in: room is looked for before the handshake, which costs us more than the
// peer. When too many shake hands at once, the oldest of the network that has most of them goes: peers that connect and
// say nothing keep no other peer out. Source: docs/wire/libp2p.md, sections 10 and 13.
#pragma once

#include <list>

#include "connection_table.hpp"
#include "dialler.hpp"
#include "own_addresses.hpp"

namespace cohive::p2p {

class Inbound {
 public:
  Inbound(Self& self, Dialler& dialler, ConnectionTable& table, OwnAddresses& own);

  /// Binds the listen addresses. A family of addresses that the system lacks is an error only when nothing else is
  /// listened on.
  Result<> start();
  void close();
  /// Takes an inbound connection in, if there is room; else it is dropped, which closes it.
  void admit(std::unique_ptr<transport::PendingConnection> pending);
  bool listening() const noexcept { return !listeners_.empty(); }
  /// The bound addresses, unspecified hosts included.
  std::vector<Multiaddr> bound() const;
  /// The interfaces of this machine have other addresses than a minute ago. OwnAddresses has been notified.
  Signal<>& changed() noexcept { return changed_; }

 private:
  /// An unfinished one. It leaves the list when it ends, or is dropped.
  struct Handshake {
    Handshake(Runtime& runtime, NestedShares::Share taken, Networks from)
        : share(std::move(taken)), networks(std::move(from)), dropped(runtime, "room for inbound handshakes") {}
    std::optional<NestedShares::Share> share;
    Networks networks;
    Event dropped;
  };
  using Handshakes = std::list<std::shared_ptr<Handshake>>;
  static Task<void> is_dropped(Handshake& handshake);
  void drop(Handshakes::iterator handshake);
  static Task<void> accept(Inbound& inbound, transport::ConnectionListener& listener);
  static Task<void> upgrade(Inbound& inbound, std::unique_ptr<transport::PendingConnection> pending,
                            std::shared_ptr<Handshake> handshake);
  std::vector<Multiaddr> dialable() const;
  static Task<void> watch(Inbound& inbound);

  Self& self_;
  Dialler& dialler_;
  ConnectionTable& table_;
  OwnAddresses& own_;
  Signal<> changed_;
  std::vector<std::unique_ptr<transport::ConnectionListener>> listeners_;
  NestedShares pending_shares_;
  Handshakes handshakes_;  // oldest first
  TaskGroup upgrades_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
