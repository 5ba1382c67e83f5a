/// \file
/// The addresses of a swarm's first peers, as people write them into flags and environment variables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace cohive {

/// The words of a text that spaces and commas separate.
std::vector<std::string> split_addresses(std::string_view text);
/// From INITIAL_PEERS, else PL_INITIAL_PEERS, the name Python Lightning uses; empty when neither holds anything.
std::vector<std::string> initial_peers_from_environment();

}  // namespace cohive
