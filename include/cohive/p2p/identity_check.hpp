/// \file
/// Whether an identity is in use by another process. Loop thread only.
#pragma once

#include <array>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::p2p {

/// Looks for a peer with the identity `id` at those of the initial peers' addresses that name it, and through the
/// others, under another identity, and connects to it. To be called before a host of this identity listens: whoever
/// answers is another process then.
///
/// Only a peer that proves the identity in a handshake counts. Addresses at which an earlier process was, before it
/// crashed or was restarted, lead nowhere and do no harm. A process that is still ending counts: wait for it. A peer
/// that no other peer can connect to is not found.
/// \returns Errc::identity_in_use with the address at which it answered, else success, also when no initial peer
/// answers
///          or the deadline passes
Task<Result<>> check_identity_is_free(transport::Network& network, PeerId id, std::vector<Multiaddr> initial_peers,
                                      transport::TransportOptions options, Deadline deadline);

/// Takes the addresses that name `self` out of a list of initial peers and returns them: all members of a swarm may
/// share one list, in which each finds itself. Logs one line for each.
std::vector<Multiaddr> take_own_addresses(std::vector<Multiaddr>& initial_peers, const PeerId& self);

/// Tells whether addresses that name a host's own id lead to this very process, from when it listens: a copy of the
/// identity file may have begun to be used elsewhere at the same time. A host answers on a protocol of its own with a
/// number that it has drawn; a process that proves the identity without knowing the number is another one. Behind a
/// router that does not lead a machine back to itself nobody answers, which says nothing.
class OwnAddressCheck {
 public:
  /// To be made before host.start(). Both outlive the check.
  OwnAddressCheck(transport::Network& network, Host& host);
  ~OwnAddressCheck();
  OwnAddressCheck(const OwnAddressCheck&) = delete;

  /// \returns true: this process answers there; false: nobody does, as far as can be told. Errc::identity_in_use:
  /// another
  ///          process has proven the identity.
  Task<Result<bool>> leads_here(Multiaddr address, Deadline deadline);
  /// Asks again and again, with growing pauses, until each of the addresses has led here. Returns the error when
  /// another process has answered at one of them.
  Task<Error> find_another(std::vector<Multiaddr> addresses);

 private:
  Task<void> answer(transport::StreamPtr stream);
  transport::Network& network_;
  Host& host_;
  std::array<std::uint8_t, 16> number_{};
};

}  // namespace cohive::p2p
