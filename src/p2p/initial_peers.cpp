#include "cohive/p2p/initial_peers.hpp"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "cohive/transport/errors.hpp"

namespace cohive {

std::vector<std::string> split_addresses(std::string_view text) {
  std::string spaced(text);
  std::replace(spaced.begin(), spaced.end(), ',', ' ');
  std::istringstream words(spaced);
  std::vector<std::string> result;
  for (std::string word; words >> word;) result.push_back(word);
  return result;
}

std::vector<std::string> initial_peers_from_environment() {
  for (const char* name : {"INITIAL_PEERS", "PL_INITIAL_PEERS"})
    if (const char* text = std::getenv(name); text && *text) return split_addresses(text);
  return {};
}

bool names_wrong_peer(const Error& error) {
  return error.caused_by(transport::Errc::peer_mismatch);
}

}  // namespace cohive
