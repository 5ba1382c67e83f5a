/// \file
/// Single questions to one peer, for programs that find out why peers cannot meet. A host asks all of this by itself
/// when it needs it. Loop thread only.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohive/p2p/host.hpp"

namespace cohive::p2p {

/// What a peer says of itself and of us (identify). All texts are the peer's: quote them before printing.
struct PeerDescription {
  std::string agent;                   ///< its program
  std::vector<std::string> protocols;  ///< that it serves
  std::vector<Multiaddr> addresses;    ///< at which it says that it can be dialled
  std::optional<Multiaddr> observed;   ///< where our connection comes from, as it sees it
};
/// Asks a peer for its description. Errors: those of opening a stream, Errc::timeout, Errc::malformed.
Task<Result<PeerDescription>> describe(Host& host, PeerId peer, Deadline deadline);

/// The outcome of asking a peer to dial us back (AutoNAT).
struct DialBack {
  /// How the peer answered.
  enum class Outcome {
    reached,  ///< at `address`
    failed,   ///< the peer tried and could not connect
    refused,  ///< the peer did not try
  };
  Outcome outcome;                   ///< how the peer answered
  std::optional<Multiaddr> address;  ///< where it has reached us, as it says
  std::string text;                  ///< of the peer
};
/// \param addresses  where to dial; the peer replaces their host by the one at which it sees us
Task<Result<DialBack>> ask_dial_back(Host& host, PeerId peer, std::vector<Multiaddr> addresses, Deadline deadline);

/// Asks a relay for a reservation, which ends with the connection to the relay.
/// \returns what the relay would carry; Errc::relay_refused when it reserves nothing
Task<Result<CircuitLimit>> ask_reservation(Host& host, PeerId relay, Deadline deadline);

/// The protocol of ask_dial_back(), as peers name it in their descriptions.
extern const std::string kDialBackProtocol;
/// The same of ask_reservation().
extern const std::string kRelayProtocol;

}  // namespace cohive::p2p
