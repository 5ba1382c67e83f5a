// Why addresses could not be dialled, in few words: the same in the log, in the status and as a label of the counter.
#pragma once

#include <array>

#include "cohive/core/metrics.hpp"
#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::p2p {

enum class DialFailure {
  timeout,        ///< no answer in time
  refused,        ///< the machine is there, and no program listens
  unreachable,    ///< the network says that there is no way
  handshake,      ///< the other side is no libp2p peer, or did not finish the handshake
  peer_mismatch,  ///< another peer answered
  relay,          ///< the relay refused, or did not reach the peer
  other
};
inline constexpr std::array kDialFailures = {"timeout",       "refused", "unreachable", "handshake",
                                             "peer_mismatch", "relay",   "other"};
DialFailure cause_of_dial_failure(const Multiaddr& address, const Error& error);
/// Tells whether this machine could not even try: it has no network, no such kind of address, or nothing left to open
/// a socket with.
bool is_local_failure(const Error& error);

/// Makes the counters: a rate of failures needs their zeros.
void prepare_dial_failures(Runtime& runtime);
/// Logs, counts and remembers a failure. Returns its cause.
DialFailure note_dial_failure(Runtime& runtime, const PeerId& peer, const Multiaddr& address, const Error& error);

}  // namespace cohive::p2p
