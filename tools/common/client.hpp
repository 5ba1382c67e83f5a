// Programs that look into a swarm without taking part in it: a DHT client on a host that nobody can dial.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohive/dht/dht.hpp"

namespace cohive::tools {

/// Joins the swarm and runs `work` until it ends or a signal comes: nothing then. A node that cannot join throws.
/// \param signed_records  whether `work` is to read records under signatures
Task<std::optional<int>> run_as_client(Runtime& runtime, std::vector<Multiaddr> initial, bool signed_records,
                                       std::function<Task<int>(Dht&)> work);

/// parse_initial_peers of --initial-peers or the environment; Exit with code 2 when there are none.
std::vector<Multiaddr> swarm_addresses(const std::vector<std::string>& given);

}  // namespace cohive::tools
