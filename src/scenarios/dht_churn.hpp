// A simulated DHT swarm whose nodes come and go while others store and get, on virtual time. For cohive-bench dht-sim
// and for the tests of the DHT.
#pragma once

#include <cstdint>

#include "cohive/core/time.hpp"

namespace cohive::sim {

struct ChurnOptions {
  std::size_t nodes = 100;
  std::uint64_t seed = 1;
  double replaced_per_minute = 0.05;  ///< of the nodes: killed without a word, and replaced by newcomers
  Duration duration = 5min;           ///< of virtual time, once the swarm stands
  double stores_per_second = 2;       ///< by nodes chosen at random
  double gets_per_second = 20;        ///< of records that live, by nodes chosen at random
  Duration lifetime = 5min;           ///< of a record
  /// Of a node; idle ones make room.
  std::size_t max_connections = 64;
  std::size_t max_known_peers = 512;  ///< whose addresses a node keeps
};

struct ChurnReport {
  std::size_t stores = 0, stores_failed = 0;
  std::size_t gets = 0, gets_failed = 0;
  std::size_t joined = 0, left = 0, joins_failed = 0;
  double hops = 0;                ///< mean, of gets that asked the network
  double calls_per_get = 0;       ///< find calls of these gets
  double messages_per_operation;  ///< everything that nodes call each other for, joining included
  double table_size = 0;          ///< mean, nodes known to a node
  double connections = 0;         ///< mean, per node
  double wire_bytes_per_node_second = 0;
  double memory_bytes_per_node = 0;           ///< growth of this process
  double build_seconds = 0, run_seconds = 0;  ///< of real time

  double success() const { return gets ? 1 - static_cast<double>(gets_failed) / static_cast<double>(gets) : 0; }
};

ChurnReport run_churn(const ChurnOptions& options);

}  // namespace cohive::sim
