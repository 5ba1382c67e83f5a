// What is wrong with a run, step by step, as a client of its DHT sees it.
#pragma once

#include "cohive/dht/dht.hpp"
#include "dht/doctor.hpp"

namespace cohive::tools {

/// Reports the steps trainers, progress, swarm, clocks, reachable and versions. Yields 0 when nothing is wrong.
Task<int> diagnose_run(Dht& dht, std::string run_id, std::vector<Multiaddr> initial,
                       std::function<void(const Finding&)> report);

}  // namespace cohive::tools
