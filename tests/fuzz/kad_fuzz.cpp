// Kademlia peer routing, as server and as client. Input: mode, then the message (with its length put in front) or raw
// bytes.
#include "cohive/core/varint.hpp"
#include "two_hosts.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(kad)(ByteView bytes) {
  static const PeerId wanted = KeyPair::ed25519_from_seed(Bytes(32, 77)).peer_id();
  Input input(bytes);
  const int mode = input.byte() % 4;
  std::string message;
  if (mode < 2) append_varint(message, input.rest().size());
  message += as_text(input.rest());
  TwoHosts hosts;
  if (mode % 2 == 0) {
    hosts.send("/ipfs/kad/1.0.0", as_bytes(message));
  } else {
    hosts.answer("/ipfs/kad/1.0.0", as_bytes(message));
    (void)hosts.swarm.run(hosts.peer.find_peer(wanted, hosts.swarm.after(20s)));
  }
  hosts.finish();
}

}  // namespace cohive::fuzz
