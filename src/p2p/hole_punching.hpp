// Replaces circuits by direct connections (DCUtR). A dialled B through a relay:
//   B dials A's public addresses;  when that fails, on a stream over the circuit:
//   B -> CONNECT(B's addresses);  A -> CONNECT(A's addresses);  B -> SYNC, and half a round trip later both dial.
// Both dial from the port that they listen on, so that each opens its address translator for the other.
// Source: docs/wire/libp2p.md, section 6.6.
#pragma once

#include <set>

#include "attempt_limits.hpp"
#include "circuit_message.hpp"
#include "identify.hpp"
#include "inbound.hpp"

namespace cohive::p2p {

inline const std::string kHolePunchProtocol = "/libp2p/dcutr";

class HolePunching {
 public:
  /// \param observed  the addresses at which peers outside see the ports that we listen on
  using Observed = std::function<std::vector<Multiaddr>()>;
  HolePunching(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, Dialler& dialler,
               Identify& identify, const Inbound& inbound, const OwnAddresses& own, Observed observed);
  /// To be called once the host listens.
  void start();
  void close() { tasks_.cancel(); }

 private:
  /// Which end of the circuit we are: the one that dialled it, or the one that was called and begins to punch.
  enum class End { dialler, called };
  static Task<void> replace(HolePunching& punching, ConnectionEntryPtr circuit);
  static Task<bool> wait_until_described(HolePunching& punching, PeerId peer);
  static Task<bool> punch(HolePunching& punching, ConnectionEntryPtr circuit, bool last);
  Task<void> answer(transport::StreamPtr stream);
  static Task<bool> dial_all(HolePunching& punching, PeerId peer, std::vector<Multiaddr> addresses,
                             transport::Role role, SourcePort from = SourcePort::listening);
  bool dialled_by_circuit(const PeerId& peer) const;
  transport::Role role(const PeerId& peer, End end, bool last) const;
  bool is_target(const Multiaddr& address) const;
  std::vector<Multiaddr> targets_of(const proto::HolePunch& message) const;
  std::vector<Multiaddr> own_addresses() const;
  void count(const PeerId& peer, bool punched);

  Self& self_;
  Handlers& handlers_;
  ConnectionTable& table_;
  AddressBook& book_;
  Dialler& dialler_;
  const Inbound& inbound_;
  const OwnAddresses& own_;
  Observed observed_;
  AttemptLimits limits_;   ///< of attempts, by the peer and the relay's network
  AttemptLimits targets_;  ///< of dials, by the peer that named the address, and by the network and the host of that
  std::set<PeerId> busy_;
  Condition described_;
  std::vector<Subscription> subscriptions_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
