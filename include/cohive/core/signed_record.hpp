/// \file
/// Signed peer records: a peer's own statement of its addresses. Source: docs/wire/libp2p.md, section 1.6.
#pragma once

#include <vector>

#include "cohive/core/keys.hpp"
#include "cohive/core/multiaddr.hpp"

namespace cohive {

/// The addresses of a peer, as the peer itself has signed them.
struct PeerRecord {
  PeerId peer;                       ///< that the addresses are of
  std::uint64_t sequence = 0;        ///< Unix nanoseconds, strictly rising per peer
  std::vector<Multiaddr> addresses;  ///< at which the peer listens
};

/// The serialised envelope around a peer record.
std::string make_signed_peer_record(const KeyPair& key, std::uint64_t sequence,
                                    const std::vector<Multiaddr>& addresses);
/// Verifies signature and owner; addresses that do not parse are left out, and those after the 128th.
Result<PeerRecord> open_signed_peer_record(ByteView envelope);

}  // namespace cohive
