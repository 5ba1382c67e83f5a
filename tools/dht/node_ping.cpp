#include "dht/node_ping.hpp"

#include <cmath>

#include "cohive/core/errors.hpp"
#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"

namespace cohive::tools {

Task<Result<NodePing>> ping_node(p2p::Host& host, PeerId peer, Deadline deadline) {
  Runtime& runtime = host.runtime();
  const double sent = runtime.wall_time();
  proto::PingRequest request;
  request.mutable_peer();
  const auto bytes =
      co_await rpc::call_unary(host, peer, "DHTProtocol.rpc_ping", request.SerializeAsString(), deadline);
  const double received = runtime.wall_time();
  if (!bytes) co_return bytes.error();
  proto::PingResponse reply;
  if (!reply.ParseFromString(*bytes)) co_return Error(Errc::malformed, peer, "reply to a ping");
  NodePing ping{.node_id = dht::DhtId::from_bytes(as_bytes(reply.peer().node_id())), .seconds = received - sent};
  const double theirs = reply.dht_time();
  // The reply was written at some moment between the two.
  if (theirs != 0 && std::isfinite(theirs))
    ping.clock_ahead = theirs < sent ? theirs - sent : theirs > received ? theirs - received : 0;
  co_return ping;
}

}  // namespace cohive::tools
