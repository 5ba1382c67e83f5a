// A service of two methods and its caller, as two hosts of one program: a call with one request and one reply, and a
// streaming call. Python's hivemind calls such methods too (its requests and replies are serialised protobufs).
// CMakeLists.txt beside this file says how to build it.
#include <iostream>

#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/try.hpp"
#include "cohive/rpc/rpc.hpp"

using namespace cohive;

Task<Result<std::string>> echo(PeerId, std::string request) {
  if (request.empty()) co_return Error(Errc::invalid_argument, "nothing to echo");
  co_return request;
}

Task<Result<>> echo_all(Runtime& runtime, rpc::ServerStream& call) {
  for (;;) {
    CO_TRY(const auto request, co_await call.receive(runtime.after(10s)));  // a silent caller does not hold us
    if (!request) co_return ok();
    CO_TRY(co_await call.send(request->view(), runtime.after(10s)));
  }
}

Task<Result<>> talk(p2p::Host& caller, p2p::Host& server) {
  const Deadline end = caller.runtime().after(10s);
  CO_TRY(co_await caller.connect(server.visible_addresses().front(), end));
  CO_TRY(const auto reply, co_await rpc::call_unary(caller, server.id(), "Echo.rpc_echo", "hello", end));
  std::cout << reply << "\n";

  CO_TRY(const auto call, co_await rpc::open_call(caller, server.id(), "Echo.rpc_echo_all", end));
  for (const char* word : {"one", "two"}) CO_TRY(co_await call->send(as_bytes(word), end));
  CO_TRY(co_await call->finish(end));
  for (;;) {
    CO_TRY(const auto word, co_await call->receive(end));
    if (!word) break;
    std::cout << as_text(word->view()) << "\n";
  }

  const auto refused = co_await rpc::call_unary(caller, server.id(), "Echo.rpc_echo", "", end);
  if (refused) co_return Error(Errc::internal, "an empty request was echoed");
  std::cout << refused.error() << "\n";  // the handler's own words, and the peer
  co_return ok();
}

int main() {
  const auto runtime = make_runtime();
  const auto network = transport::make_tcp_network(*runtime);
  p2p::Host server(*network, KeyPair::generate_ed25519(),
                   {.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()}});
  p2p::Host caller(*network, KeyPair::generate_ed25519());
  rpc::Server service(server);
  service.add_unary("Echo.rpc_echo", echo);
  service.add_streaming("Echo.rpc_echo_all", [&](rpc::ServerStream& call) { return echo_all(*runtime, call); });
  server.start().value();
  const auto done = runtime->run(talk(caller, server));
  if (!done) std::cerr << done.error() << "\n";
  return done ? 0 : 1;
}
