// A crowd of peers of one owner: each has an identity and an address of its own, a connection to the victim, and on it
// a call that it has begun and never asks for whole, renewed every few seconds.
//   crowd VICTIM SOURCE...   VICTIM: /ip6/.../tcp/... of the victim; SOURCE: addresses of this machine to connect from
// Prints a line whenever the number of its connections has changed.
#include <iostream>

#include "cohive/core/combine.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/transport/multistream.hpp"
#include "cohive/transport/network.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive {
namespace {

constexpr Duration kRenew = 5s, kPatience = 10s;
const std::string kMethod = "DHTProtocol.rpc_find";

struct Crowd {
  Runtime& runtime;
  transport::Network& network;
  Multiaddr victim;
  std::size_t held = 0;
};

Task<void> be_one_of(Crowd& crowd, Multiaddr source) {
  for (;;) {
    auto raw = co_await crowd.network.dial(crowd.victim, source, crowd.runtime.after(kPatience));
    if (raw) {
      transport::Upgrader upgrader(crowd.runtime, KeyPair::generate_ed25519(), {});
      auto connection =
          co_await transport::upgrade(upgrader, std::move(*raw), transport::Role::initiator, std::nullopt);
      if (connection) ++crowd.held;
      while (connection && !(*connection)->closed()) {
        auto stream = (*connection)->open_stream();
        if (!stream) break;
        auto agreed = co_await transport::select_one_of(**stream, {kMethod}, crowd.runtime.after(kPatience));
        if (agreed) (void)co_await (*stream)->write(Bytes{0x20, 1}, crowd.runtime.after(kPatience));
        co_await crowd.runtime.sleep_for(kRenew);
      }
      if (connection) --crowd.held;
    }
    co_await crowd.runtime.sleep_for(1s);
  }
}

Task<void> tell(Crowd& crowd) {
  for (std::size_t told = 0;; co_await crowd.runtime.sleep_for(200ms))
    if (crowd.held != std::exchange(told, crowd.held)) std::cout << crowd.held << std::endl;
}

}  // namespace
}  // namespace cohive

int main(int argc, char** argv) {
  using namespace cohive;
  const auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  const auto network = transport::make_tcp_network(*runtime);
  Crowd crowd{*runtime, *network, Multiaddr::from_text(argv[1]).value()};
  std::vector<Task<void>> tasks;
  for (int i = 2; i < argc; ++i) tasks.push_back(be_one_of(crowd, Multiaddr::from_ip_tcp(argv[i], 0).value()));
  tasks.push_back(tell(crowd));
  runtime->run(when_all(*runtime, std::move(tasks)));
}
