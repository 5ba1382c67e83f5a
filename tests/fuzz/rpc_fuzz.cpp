// Unary and streaming calls, as callee and as caller. Input: mode, then the other side's bytes.
#include "cohive/rpc/rpc.hpp"

#include "two_hosts.hpp"

namespace cohive::fuzz {
namespace {

Task<Result<std::string>> repeat(PeerId, std::string request) {
  co_return request;
}

Task<Result<>> repeat_all(rpc::ServerStream& stream) {
  for (;;) {
    auto request = co_await stream.receive(Deadline::never());
    if (!request) co_return request.error();
    if (!*request) co_return ok();
    if (auto sent = co_await stream.send((*request)->view(), Deadline::never()); !sent) co_return sent;
  }
}

Task<void> call_streaming(p2p::Host& host, PeerId peer, Deadline deadline) {
  auto call = co_await rpc::open_call(host, peer, "Test.rpc_stream", deadline);
  if (!call || !co_await (*call)->send(as_bytes("request"), deadline)) co_return;
  (void)co_await (*call)->finish(deadline);
  for (;;) {
    const auto reply = co_await (*call)->receive(deadline);
    if (!reply || !*reply) co_return;
  }
}

}  // namespace

COHIVE_FUZZ_TARGET(rpc)(ByteView bytes) {
  Input input(bytes);
  const int mode = input.byte() % 4;
  TwoHosts hosts;
  const Deadline deadline = hosts.swarm.after(20s);
  if (mode < 2) {
    rpc::Server server(hosts.peer);
    server.add_unary("Test.rpc_unary", repeat);
    server.add_streaming("Test.rpc_stream", repeat_all);
    hosts.send(mode == 0 ? "Test.rpc_unary" : "Test.rpc_stream", input.rest());
  } else if (mode == 2) {
    hosts.answer("Test.rpc_unary", input.rest());
    (void)hosts.swarm.run(rpc::call_unary(hosts.peer, hosts.stranger.id(), "Test.rpc_unary", "request", deadline));
  } else {
    hosts.answer("Test.rpc_stream", input.rest());
    hosts.swarm.run(call_streaming(hosts.peer, hosts.stranger.id(), deadline));
  }
  hosts.finish();
}

}  // namespace cohive::fuzz
