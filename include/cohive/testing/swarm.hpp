/// \file
/// A small simulated swarm for tests: hosts on virtual time, one machine each. Everything on the thread of the test.
///
///   sim::Swarm swarm({.latency = 40ms});
///   p2p::Host &first = swarm.add_host(), &second = swarm.add_host();
///   swarm.run(first.connect(second.visible_addresses().front(), swarm.after(5s))).value();
#pragma once

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/transport/sim_network.hpp"

namespace cohive::sim {

/// What a simulated swarm is like. The same options give the same events in the same order.
struct SwarmOptions {
  std::uint64_t seed = 1;   ///< of all that is random
  Duration latency = 10ms;  ///< one way, of every link
  bool plaintext = true;    ///< connections are neither encrypted nor authenticated, which saves time
  std::optional<transport::SimLink> link = std::nullopt;  ///< in place of latency alone
};

/// Hosts on a simulated network, and the clock they go by.
class Swarm {
 public:
  /// Begins without hosts, at the virtual time at which a SimRuntime begins.
  explicit Swarm(SwarmOptions options = {})
      : runtime_(options.seed),
        fabric_(runtime_, options.link.value_or(transport::SimLink{.latency = options.latency})),
        options_(options) {}
  /// Ends the hosts. Ends the process with a sentence when peers have filled more of one than its memory budget, or
  /// when what they had filled is not given back.
  ~Swarm() {
    hosts_.clear();
    runtime_.run_ready();
    for (const MemoryBudget& budget : budgets_) {
      if (budget.highest() <= budget.total() && budget.held() == 0) continue;
      std::fprintf(stderr, "memory budget of a simulated host: %zu bytes of %zu at the worst moment, %zu at its end\n",
                   budget.highest(), budget.total(), budget.held());
      std::abort();
    }
  }

  /// Adds a started host with an identity that follows from its number.
  p2p::Host& add_host(p2p::HostOptions options = {}, bool listening = true) {
    return add_host_on(fabric_.add_machine(), std::move(options), listening);
  }
  /// Adds one with an address of the caller's choice, or one of each family; those of add_host() are private ones of
  /// IPv4.
  p2p::Host& add_host_at(const std::string& ip, p2p::HostOptions options = {}, const std::string& other = {}) {
    if (options.listen.empty())
      for (const auto& one : {ip, other})
        if (!one.empty()) options.listen.push_back(Multiaddr::from_ip_tcp(one, 4001).value());
    return add_host_on(fabric_.add_machine(ip, other), std::move(options), true);
  }
  /// Limits the lines of hosts that are added from now on.
  void set_limits(transport::BandwidthLimits limits) { limits_ = limits; }
  /// Returns "10.0.0.<number>", the address of a host, numbered from 1 in the order of add_host.
  static std::string ip(std::size_t number) {
    return "10." + std::to_string(number >> 16 & 255) + "." + std::to_string(number >> 8 & 255) + "." +
           std::to_string(number & 255);
  }

  /// Lets virtual time pass until the task is done, and returns its result.
  template <class T>
  T run(Task<T> task) {
    return runtime_.run(std::move(task));
  }
  /// Lets virtual time pass.
  void pass(Duration duration) { runtime_.run_for(duration); }
  /// Returns the deadline that is so far away.
  Deadline after(Duration duration) { return runtime_.after(duration); }

  /// Ends all hosts and says what they left behind; empty when nothing, as it should be.
  std::string left_behind() {
    hosts_.clear();
    runtime_.run_for(1min);
    std::string result;
    for (const auto& task : runtime_.tasks()) result += task.group + "/" + task.name + ": " + task.waiting_for + "\n";
    if (fabric_.open_connections() > 0) result += std::to_string(fabric_.open_connections()) + " connections\n";
    return result;
  }

  /// The clock and the loop.
  SimRuntime& runtime() { return runtime_; }
  /// The network: its links, lines, cuts and killed machines.
  transport::SimFabric& fabric() { return fabric_; }
  /// A host, numbered from 0 in the order of add_host().
  p2p::Host& host(std::size_t index) { return *hosts_[index]; }
  /// Ends a host; the numbers of the others stay.
  void remove_host(std::size_t index) { hosts_[index].reset(); }
  /// How many hosts were added.
  std::size_t size() const { return hosts_.size(); }

 private:
  p2p::Host& add_host_on(std::unique_ptr<transport::Network> machine, p2p::HostOptions options, bool listening) {
    machines_.push_back(transport::limit_bandwidth(std::move(machine), limits_));
    const auto number = static_cast<std::uint32_t>(machines_.size());
    Bytes seed(32, static_cast<std::uint8_t>(options_.seed));
    std::memcpy(seed.data(), &number, sizeof number);
    if (options.listen.empty() && listening) options.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()};
    options.transport.plaintext = options_.plaintext;
    hosts_.push_back(std::make_unique<p2p::Host>(*machines_.back(), KeyPair::ed25519_from_seed(seed), options));
    hosts_.back()->start().value();
    budgets_.push_back(hosts_.back()->memory());
    return *hosts_.back();
  }

  SimRuntime runtime_;
  transport::SimFabric fabric_;
  SwarmOptions options_;
  transport::BandwidthLimits limits_;
  std::vector<std::unique_ptr<transport::Network>> machines_;
  std::vector<std::unique_ptr<p2p::Host>> hosts_;
  std::vector<MemoryBudget> budgets_;  // of all hosts there ever were
};

}  // namespace cohive::sim
