// A simulated swarm of DHT nodes for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "cohive/core/combine.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/metrics.hpp"
#include "cohive/testing/swarm.hpp"

namespace cohive::dht {

inline const DhtOptions kNoCaching{.cache_locally = false, .cache_nearest = 0, .cache_on_store = false};

class DhtSwarm : public ::testing::Test {
 protected:
  Dht& add(DhtOptions options = {}) {
    p2p::HostOptions host_options;
    host_options.routing_server = !options.client_mode;
    auto& host = swarm.add_host(host_options, !options.client_mode);
    nodes.push_back(std::make_unique<Dht>(host, options));
    std::vector<Multiaddr> initial;
    if (nodes.size() > 1) initial = {swarm.host(0).visible_addresses().front()};
    auto started = swarm.run(nodes.back()->start(initial));
    EXPECT_TRUE(started) << started.error();
    return *nodes.back();
  }
  void add_many(int count, DhtOptions options = {}) {
    for (int i = 0; i < count; ++i) add(options);
  }
  double in(double seconds) { return nodes[0]->now() + seconds; }
  Result<GetResult> get(Dht& node, Key key, bool latest = false) { return swarm.run(node.get(std::move(key), latest)); }
  Result<> store(Dht& node, Key key, msgpack::Value value, double expiration) {
    return swarm.run(node.store(std::move(key), std::move(value), expiration));
  }
  Result<> store(Dht& node, Key key, msgpack::Value subkey, msgpack::Value value, double expiration) {
    return swarm.run(node.store(std::move(key), std::move(subkey), std::move(value), expiration));
  }
  /// Requests of this kind that all nodes together have answered.
  double served(const char* kind) { return CallMetrics(swarm.runtime().metrics(), kind).served.value(); }
  /// "10.0.0.x" of a node, for the fabric.
  static std::string ip_of(std::size_t node) { return sim::Swarm::ip(node + 1); }

  sim::Swarm swarm{{.seed = 11}};
  std::vector<std::unique_ptr<Dht>> nodes;
};

}  // namespace cohive::dht
