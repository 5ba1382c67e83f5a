// PeerIDs: multihashes and their base58 and CID texts.
#include "cohive/core/peer_id.hpp"

#include "fuzz.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(peer_id)(ByteView input) {
  for (const auto& peer : {PeerId::from_bytes(input), PeerId::from_text(as_text(input))}) {
    if (!peer) continue;
    expect(PeerId::from_text(peer->text()) == peer, "a PeerID survives its text form");
    expect(PeerId::from_bytes(peer->bytes()) == peer, "a PeerID survives its binary form");
  }
}

}  // namespace cohive::fuzz
