// AutoNAT, the serving side: dials peers back, so that they learn whether they can be reached.
//   peer -> DIAL {id, addresses};  we dial its observed host at these ports, under another identity and from another
//   port;  we -> DIAL_RESPONSE {OK and the address, or why not}.
// Only the host that the peer speaks from is ever dialled, at most so often, and never inside private networks.
// Source: docs/wire/libp2p.md, sections 6.1 and 13.
#pragma once

#include "attempt_limits.hpp"
#include "autonat_message.hpp"
#include "dialler.hpp"
#include "own_addresses.hpp"

namespace cohive::p2p {

class AutoNatServer {
 public:
  AutoNatServer(Self& self, Handlers& handlers, const Connectivity& ways, const OwnAddresses& own);

  /// Offers the service or not: a host that cannot be reached itself says nothing about other hosts.
  void offer(bool offered);

 private:
  Task<void> serve(transport::StreamPtr stream);
  Task<DialBackResponse> answer(ByteView request, PeerId peer, Multiaddr observed);
  bool is_blocked(const Multiaddr& observed) const;
  Task<std::optional<Multiaddr>> dial_back(PeerId peer, std::vector<Multiaddr> candidates, TimePoint end);
  struct DialBack;
  static Task<void> try_some(AutoNatServer& server, PeerId peer, DialBack& state, TimePoint end);
  transport::Transport* stranger_for(const Multiaddr& address);

  Self& self_;
  Handlers& handlers_;
  const Connectivity& ways_;
  const OwnAddresses& own_;
  AttemptLimits limits_;
  transport::Transports strangers_;  ///< under an identity that no peer knows; made with the first request
  bool offered_ = false;
};

}  // namespace cohive::p2p
