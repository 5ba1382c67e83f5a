// A relay that carries little, as those of hivemind's daemons do, and hosts that are reached only through it.
#pragma once

#include <memory>
#include <string>

#include "cohive/dht/dht.hpp"
#include "cohive/testing/swarm.hpp"

namespace cohive::averaging {

inline constexpr std::uint64_t kCarried = 128 * 1024;  // bytes in each direction of a circuit

class LimitedRelayHost {
 public:
  explicit LimitedRelayHost(sim::Swarm& swarm) : swarm_(swarm) {
    p2p::RelayServiceOptions limited;
    limited.circuit = {.duration = 2min, .bytes = kCarried};
    host_ = &swarm.add_host_at("3.0.0.1", {.force_reachability = p2p::Reachability::public_, .relay_service = limited});
    dht_ = std::make_unique<Dht>(*host_);
    swarm.run(dht_->start({})).value();
  }
  Multiaddr address() const { return host_->visible_addresses().front(); }
  /// A host behind a router of its own.
  /// \param open  which lets in what answers something that was sent, so that holes can be punched
  p2p::Host& add_hidden(std::size_t number, bool open) {
    const std::string text = std::to_string(number), ip = "192.168.7." + text;
    swarm_.fabric().set_nat(ip, "5.6.7." + text);
    if (open) swarm_.fabric().let_punch(ip);
    p2p::HostOptions options{.force_reachability = p2p::Reachability::private_};
    options.trusted_relays = host_->visible_addresses();
    return swarm_.add_host_at(ip, options);
  }

 private:
  sim::Swarm& swarm_;
  p2p::Host* host_;
  std::unique_ptr<Dht> dht_;
};

}  // namespace cohive::averaging
