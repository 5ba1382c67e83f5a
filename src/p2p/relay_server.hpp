// Circuit relay v2, the relay: carries bytes between peers of which one cannot be dialled.
//   reserve:  peer -> RESERVE;  relay -> STATUS with expiry, our addresses, a voucher and the limit of its circuits.
//   connect:  dialler -> CONNECT(target);  relay -> target, on a stream of its own: CONNECT(dialler);  target ->
//   STATUS;
//             relay -> dialler: STATUS;  from then on both streams are one circuit.
// Source: docs/wire/libp2p.md, sections 6.3 and 13.
#pragma once

#include <unordered_map>

#include "address_book.hpp"
#include "attempt_limits.hpp"
#include "circuit_message.hpp"
#include "connection_table.hpp"
#include "own_addresses.hpp"

namespace cohive::p2p {

class RelayServer {
 public:
  RelayServer(Self& self, RelayServiceOptions options, Handlers& handlers, ConnectionTable& table,
              const AddressBook& book, const OwnAddresses& own);
  ~RelayServer();

  std::size_t reservations() const noexcept { return reservations_.size(); }

 private:
  using Status = proto::RelayStatus;
  struct Reservation {
    TimePoint expires;
    NestedShares::Share share;
    Subscription protection;
  };
  struct Circuit;

  Task<void> serve(transport::StreamPtr stream);
  Task<void> reserve(transport::Stream& stream);
  Status grant(const transport::Stream& stream);
  bool has_room_for(const PeerId& peer) const;
  bool has_place(const PeerId& peer, const Networks& networks);
  bool make_room_for_circuit(const Networks& networks);
  Result<ConnectionEntryPtr> find_target(const transport::Stream& stream, const proto::Hop& request, Status& why);
  static Task<Result<transport::StreamPtr>> call(RelayServer& relay, ConnectionEntryPtr target, PeerId source);
  Task<void> carry(transport::Stream& dialler, transport::Stream& target, Networks networks);
  static Task<void> pump(RelayServer& relay, transport::Stream& from, transport::Stream& to, Circuit& circuit);
  Task<void> refuse(transport::Stream& stream, Status status);
  void forget(const PeerId& peer);
  void sweep();

  Self& self_;
  RelayServiceOptions options_;
  ConnectionTable& table_;
  const AddressBook& book_;
  const OwnAddresses& own_;
  AttemptLimits reserve_limits_, connect_limits_;
  NestedShares networks_;                     ///< of reservations
  NestedShares source_networks_;              ///< of circuits
  NetworkShares sources_, targets_, asking_;  ///< of circuits, by peer
  std::unordered_map<PeerId, Reservation> reservations_;
  std::size_t circuits_ = 0;
  std::vector<Circuit*> carried_;  ///< those that stand
  Subscription disconnected_;
};

}  // namespace cohive::p2p
