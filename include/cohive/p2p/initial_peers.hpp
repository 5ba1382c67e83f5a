/// \file
/// The addresses of a swarm's first peers, as people write them into flags and environment variables.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cohive/core/result.hpp"

namespace cohive {

/// The words of a text that spaces and commas separate.
std::vector<std::string> split_addresses(std::string_view text);
/// From INITIAL_PEERS, else PL_INITIAL_PEERS, the name Python Lightning uses; empty when neither holds anything.
std::vector<std::string> initial_peers_from_environment();
/// Tells whether joining failed because another peer answered than an address names: trying again does not help.
/// Joining fails with one error that quotes those of all addresses.
bool names_wrong_peer(const Error& error);

}  // namespace cohive
