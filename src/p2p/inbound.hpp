// Listens, and takes inbound connections in: room is looked for before the handshake, which costs us more than the
// peer. Source: libp2p wire spec, sections 10 and 13.
#pragma once

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

 private:
  static Task<void> accept(Inbound& inbound, transport::ConnectionListener& listener);
  static Task<void> upgrade(Inbound& inbound, std::unique_ptr<transport::PendingConnection> pending,
                            std::string network);
  std::vector<Multiaddr> dialable() const;

  Self& self_;
  Dialler& dialler_;
  ConnectionTable& table_;
  std::vector<std::unique_ptr<transport::ConnectionListener>> listeners_;
  NetworkShares pending_shares_;
  TaskGroup upgrades_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
