// The loop side of a Swarm: host, DHT and signing key. Everything in it but `thread` lives on the loop's thread.
#pragma once

#include <functional>
#include <memory>

#include "cohive/core/keys.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/core/signal.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/p2p/identity_check.hpp"
#include "cohive/p2p/metrics_server.hpp"
#include "cohive/train/swarm.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::train {

struct Membership {
  explicit Membership(SwarmOptions opts);
  ~Membership();

  Runtime& runtime() { return thread->runtime(); }
  /// Runs the task made by `make()` on the loop and waits for it. Never from the loop thread.
  template <class F>
  auto call(F make) {
    return thread->run(std::move(make));
  }
  /// Runs `function()` on the loop and waits for it.
  template <class F>
  void on_loop(F function) {
    call([&function]() -> Task<void> {
      return [](F& work) -> Task<void> {
        work();
        co_return;
      }(function);
    });
  }

  SwarmOptions options;
  HeldIdentity identity;  ///< held as long as the host lives
  std::unique_ptr<RuntimeThread> thread;
  std::unique_ptr<transport::Network> network;
  std::unique_ptr<p2p::Host> host;
  std::unique_ptr<p2p::OwnAddressCheck> own_addresses;  ///< where the initial peers name this peer
  std::unique_ptr<Dht> dht;
  std::shared_ptr<dht::RsaSignatureValidator> key;
  std::shared_ptr<dht::Authorizer> authorizer;          ///< of a swarm with members
  std::unique_ptr<transport::Network> metrics_network;  ///< without the caps, which are for the swarm
  std::unique_ptr<p2p::MetricsServer> metrics_server;
  Subscription status;  ///< of the DHT
  bool ready = false;

 private:
  Result<> open();
  bool wanted() const;
  Result<> call_patiently(std::function<Task<Result<>>()> make);
  p2p::HostOptions host_options() const;
  Result<> know_members();
  void open_network();
  Result<> check_own_addresses(const std::vector<Multiaddr>& own);
  Result<> check_identity(const std::vector<Multiaddr>& initial, const p2p::HostOptions& host_options);
  Result<> join(const std::vector<Multiaddr>& initial);
  Task<void> close();
};

}  // namespace cohive::train
