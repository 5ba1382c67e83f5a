// Circuit relay v2, the peer that cannot be dialled: keeps reservations with relays and takes circuits from them.
// Source: docs/wire/libp2p.md, sections 6.3 to 6.5.
#pragma once

#include <map>
#include <set>

#include "circuit_message.hpp"
#include "cohive/p2p/reachability.hpp"
#include "identify.hpp"
#include "inbound.hpp"
#include "peer_routing.hpp"

namespace cohive::p2p {

/// How many relays are needed, and for which peers.
struct RelayNeed {
  std::size_t count = 0;
  /// Only for peers with this kind of IP address alone, as its multiaddr code; nullopt: for all peers.
  std::optional<std::uint32_t> family{};

  friend bool operator==(const RelayNeed&, const RelayNeed&) = default;
};

class RelayClient {
 public:
  RelayClient(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, Dialler& dialler,
              Identify& identify, PeerRouting& routing, Inbound& inbound, OwnAddresses& own);
  ~RelayClient();
  void close() { tasks_.cancel(); }

  /// What relays are needed for changes. Reservations that no longer serve are let go.
  void set_need(RelayNeed need);
  std::vector<HeldReservation> held() const;

 private:
  struct Reservation {
    TimePoint expires, renew_at;
    CircuitLimit limit;
    std::vector<Multiaddr> addresses;  ///< ours through the relay
    Subscription protection;
  };

  /// A relay that our user named and that could not be dialled.
  struct Unreached {
    int failures = 0;
    TimePoint next{};  ///< when it is dialled again
  };

  static Task<void> keep(RelayClient& client);
  static Task<void> renew(RelayClient& client);
  static Task<void> fill(RelayClient& client);
  static Task<void> ask(RelayClient& client, PeerId relay);
  static Task<void> connect_trusted(RelayClient& client);
  static Task<void> look_for_more(RelayClient& client);
  static Task<Result<>> try_reserving(RelayClient& client, PeerId relay);
  static Task<Result<Reservation>> reserve(RelayClient& client, PeerId relay, Deadline deadline);
  std::vector<PeerId> candidates();
  Result<Reservation> take(const ConnectionEntry& relay, const proto::Hop& reply) const;
  std::vector<Multiaddr> addresses_through(const ConnectionEntry& relay, const proto::RelayReservation& granted) const;
  void drop(const PeerId& relay);
  void consider(const PeerId& peer);
  std::vector<Multiaddr> trusted_to_dial();
  void note_dial(const Multiaddr& trusted, const Result<PeerId>& dialled);
  Duration retry_pause() const;
  TimePoint next_turn() const;
  bool lacking() const { return reservations_.size() < need_.count; }
  bool serves_family(const PeerId& relay) const;
  Task<void> accept(transport::StreamPtr stream);

  Self& self_;
  ConnectionTable& table_;
  AddressBook& book_;
  Dialler& dialler_;
  PeerRouting& routing_;
  Inbound& inbound_;
  OwnAddresses& own_;
  RelayNeed need_;
  std::map<PeerId, Reservation> reservations_;
  std::map<Multiaddr, Unreached> unreached_;
  std::map<PeerId, TimePoint> refused_;  ///< relays that were no help, and until when they are left alone
  Duration walk_pause_;                  ///< after the next walk through peer routing for relays; doubled with each
  TimePoint next_walk_;
  std::vector<Subscription> subscriptions_;
  std::set<PeerId> asked_;  ///< relays that have not answered yet
  bool dialling_ = false;   ///< relays that our user named
  Condition news_;          ///< a relay has come or gone
  Condition answered_;      ///< one has, or all dials have ended
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
