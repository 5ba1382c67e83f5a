// Programs that look into a swarm without taking part in it: a DHT client on a host that cannot be dialled.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cohive/dht/dht.hpp"
#include "cohive/dht/members.hpp"

namespace cohive::tools {

/// How a client is a member of a swarm with members; a fresh identity where it is not told one.
struct ClientMember {
  dht::MembersOptions members;
  std::string identity_path;
};
/// Adds --secret-file, --members and --identity-path.
void add_client_member_options(CLI::App& app, ClientMember& member);
/// Makes the key that signs calls among members; null for an open swarm.
Task<std::shared_ptr<dht::RsaSignatureValidator>> member_key(Runtime& runtime, const dht::MembersOptions& members);

/// Joins the swarm and runs `work` until it ends or a signal comes: nothing then. A node that cannot join throws.
/// \param signed_records  whether `work` is to read records under signatures
Task<std::optional<int>> run_as_client(Runtime& runtime, std::vector<Multiaddr> initial, ClientMember member,
                                       bool signed_records, std::function<Task<int>(Dht&)> work);

/// parse_initial_peers of --initial-peers or the environment; Exit with code 2 when there are none.
std::vector<Multiaddr> swarm_addresses(const std::vector<std::string>& given);

}  // namespace cohive::tools
