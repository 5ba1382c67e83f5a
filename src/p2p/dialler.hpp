// Connects to peers whose addresses are known: by the address book, or by an address that our user configured.
#pragma once

#include "cohive/core/sync.hpp"
#include "connection_table.hpp"
#include "dial_backoff.hpp"
#include "dial_race.hpp"
#include "hearsay_dials.hpp"
#include "shared_work.hpp"

namespace cohive::p2p {

class Dialler {
 public:
  Dialler(Self& self, transport::Resolver& resolver, ConnectionTable& table, AddressBook& book);

  /// Connects by the addresses that are known now. Concurrent calls for one peer share the dials.
  Task<Result<>> connect(PeerId peer, Deadline deadline);
  /// Connects to an address that our user configured, see Host::connect: dialled whatever we know about it, and kept
  /// for good once it worked.
  Task<Result<PeerId>> connect_to(Multiaddr address, Deadline deadline);
  /// Connects by one address of our choice, while nothing else connects the peer.
  Task<Result<>> connect_by(PeerId peer, KnownAddress address, Deadline deadline);
  /// Dials an address whether or not the peer is connected, as a circuit's replacement.
  Task<Result<>> dial_in_parallel(PeerId peer, Multiaddr address, transport::Role role, SourcePort from,
                                  Deadline deadline);
  /// Dials an address of a connected peer once more, from another port. The connection is not in the table yet.
  Task<Result<transport::ConnectionPtr>> dial_again(PeerId peer, Multiaddr address);
  /// Opens a stream, connecting first by the addresses that are known now.
  Task<Result<transport::StreamPtr>> open_stream(PeerId peer, std::string protocol, Deadline deadline);
  /// Returns whether nothing can be done before any dial: the host is closed, the peer is ourselves, or it is
  /// connected.
  std::optional<Result<>> settled(const PeerId& peer) const;

  /// A race for a peer whose addresses come one by one. It must not outlive the dialler.
  DialRace race(const PeerId& peer);
  /// Has a race try the addresses that some transport handles now, and what names lead to as their answers come: a
  /// name server that is silent, or a name that somebody has invented, holds no other dial up. What a name leads to
  /// must be an address that its source could have announced itself, and must not be another peer's.
  void add_to(DialRace& race, std::vector<KnownAddress> addresses, Deadline deadline);
  bool held_back(const PeerId& peer, const KnownAddress& known) const {
    return backoff_.blocks(peer, known) || hearsay_.refuses(known);
  }

  /// See Host::refuses.
  bool refuses(const PeerId& peer) const;

  transport::Transport* transport_for(const Multiaddr& address) const {
    return transport::transport_for(self_.transports, address);
  }
  /// Drops all dials; their callers get `reason`.
  void close(const Error& reason);

 private:
  Task<Result<>> dial(PeerId peer, KnownAddress known, SourcePort from, Deadline deadline);
  bool reached_at(const PeerId& peer, const Multiaddr& address) const;
  Task<Result<Semaphore::Units>> slot_for(PeerId peer, Multiaddr address, Deadline deadline);
  Task<Result<transport::ConnectionPtr>> dial_by_transport(PeerId peer, Multiaddr address, SourcePort from,
                                                           Deadline deadline,
                                                           transport::Role role = transport::Role::initiator);
  Result<> take_in(const PeerId& peer, const Multiaddr& address, transport::ConnectionPtr connection);
  static Task<Result<>> dial_now(Dialler& dialler, PeerId peer, Multiaddr address, SourcePort from);
  Task<Result<>> dial_known(PeerId peer, std::vector<KnownAddress> known, Deadline deadline);
  static Task<Result<>> dial_book(Dialler& dialler, PeerId peer);
  static Task<Result<PeerId>> dial_configured(Dialler& dialler, Multiaddr address);
  bool may_resolve(const KnownAddress& known) const;
  static Task<std::vector<KnownAddress>> resolve(Dialler& dialler, KnownAddress name, PeerId peer, Deadline deadline);
  void keep_dialling_direct(const ConnectionEntry& circuit);

  Self& self_;
  transport::Resolver& resolver_;
  ConnectionTable& table_;
  AddressBook& book_;
  DialBackoff backoff_;
  HearsayDials hearsay_;
  Semaphore slots_;
  // What callers wait for; each uses those above it.
  SharedWork<std::pair<PeerId, Multiaddr>, void> address_dials_;
  SharedWork<PeerId, void> book_dials_;
  SharedWork<Multiaddr, PeerId> configured_dials_;
  Subscription added_;
  TaskGroup held_;
};

}  // namespace cohive::p2p
