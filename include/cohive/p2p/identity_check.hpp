/// \file
/// Whether an identity is in use in a swarm already. Loop thread only.
#pragma once

#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::p2p {

/// Looks for a peer with the identity `id` through the initial peers, under another identity, and connects to it. To be
/// called before a host of this identity listens.
///
/// Only a peer that proves the identity in a handshake counts. Addresses at which an earlier process was, before it
/// crashed or was restarted, lead nowhere and do no harm. A process that is still ending counts: wait for it. A peer that
/// no other peer can connect to is not found.
/// \returns Errc::identity_in_use with the address at which it answered, else success, also when no initial peer answers
///          or the deadline passes
Task<Result<>> check_identity_is_free(transport::Network& network, PeerId id, std::vector<Multiaddr> initial_peers,
                                      transport::TransportOptions options, Deadline deadline);

}  // namespace cohive::p2p
