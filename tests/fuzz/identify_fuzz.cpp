// Identify messages, pushed and asked for. Input: mode, then the message (with its length put in front) or raw bytes.
#include "cohive/core/varint.hpp"
#include "two_hosts.hpp"

namespace cohive::fuzz {

COHIVE_FUZZ_TARGET(identify)(ByteView bytes) {
  Input input(bytes);
  const int mode = input.byte() % 4;
  std::string message;
  if (mode < 2) append_varint(message, input.rest().size());
  message += as_text(input.rest());
  TwoHosts hosts;
  if (mode % 2 == 0) {
    hosts.send("/ipfs/id/push/1.0.0", as_bytes(message));
  } else {
    hosts.answer("/ipfs/id/1.0.0", as_bytes(message));
    hosts.stranger.disconnect(hosts.peer.id());
    hosts.swarm.pass(1s);
    (void)hosts.swarm.run(hosts.peer.connect(hosts.stranger.visible_addresses().front(), hosts.swarm.after(20s)));
  }
  hosts.swarm.pass(15s);
  (void)hosts.peer.peers();
  hosts.finish();
}

}  // namespace cohive::fuzz
