#include "common/client.hpp"

#include <chrono>

#include "cohive/core/combine.hpp"
#include "cohive/p2p/identity_check.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/settings.hpp"
#include "common/signals.hpp"

namespace cohive::tools {
namespace {

constexpr Duration kIdentityCheck = std::chrono::seconds(5);  // at most, before the swarm is joined

Task<int> join_and_work(Dht& dht, std::vector<Multiaddr> initial, bool signed_records,
                        std::function<Task<int>(Dht&)> work) {
  if (signed_records) dht.add_validator(co_await dht::make_rsa_validator(dht.runtime()));
  if (auto joined = co_await dht.start(std::move(initial)); !joined) throw ErrorException(joined.error());
  co_return co_await work(dht);
}

}  // namespace

void add_client_member_options(CLI::App& app, ClientMember& member) {
  add_member_options(app, member.members.secret_file, member.members.members_file);
  const OptionGroup group(app, kMembers);
  app.add_option("--identity-path", member.identity_path, "key file of a peer that --members lists; made when missing");
}

Task<std::shared_ptr<dht::RsaSignatureValidator>> member_key(Runtime& runtime, const dht::MembersOptions& members) {
  if (members.secret_file.empty() && members.members_file.empty()) co_return nullptr;
  co_return co_await dht::make_rsa_validator(runtime);
}

Task<std::optional<int>> run_as_client(Runtime& runtime, std::vector<Multiaddr> initial, ClientMember member,
                                       bool signed_records, std::function<Task<int>(Dht&)> work) {
  refuse_same_files({{"--log-file", log_file()}}, {{"--identity-path", member.identity_path},
                                                   {"--secret-file", member.members.secret_file},
                                                   {"--members", member.members.members_file}});
  dht::check_members(member.members).value();  // before a key is made
  const auto network = transport::make_tcp_network(runtime);
  p2p::HostOptions host_options;
  host_options.routing_server = false;
  const HeldIdentity identity = member.identity_path.empty() ? HeldIdentity{KeyPair::generate_ed25519(), nullptr}
                                                             : hold_identity(member.identity_path).value();
  if (!member.identity_path.empty()) {
    auto checked = co_await race(runtime, wait_for_stop(runtime),
                                 p2p::check_identity_is_free(*network, identity.key.peer_id(), initial,
                                                             host_options.transport, runtime.after(kIdentityCheck)));
    if (checked.index() == 0) co_return std::nullopt;
    if (const auto& free = std::get<1>(checked); !free) throw ErrorException(free.error());
  }
  p2p::Host host(*network, identity.key, host_options);
  if (auto started = host.start(); !started) throw ErrorException(started.error());
  DhtOptions dht_options;
  dht_options.client_mode = true;
  const auto key = co_await member_key(runtime, member.members);
  dht_options.authorizer = dht::make_authorizer(runtime, member.members, identity.key, key).value();
  Dht dht(host, dht_options);
  auto outcome = co_await race(runtime, wait_for_stop(runtime),
                               join_and_work(dht, std::move(initial), signed_records, std::move(work)));
  co_await dht.close();
  co_await host.close();
  co_return outcome.index() == 1 ? std::optional(std::get<1>(outcome)) : std::nullopt;
}

std::vector<Multiaddr> swarm_addresses(const std::vector<std::string>& given) {
  auto addresses = parse_initial_peers(initial_peers(given));
  if (addresses.empty()) throw Exit{kBadInput, "give the swarm's address with --initial-peers or $INITIAL_PEERS"};
  return addresses;
}

}  // namespace cohive::tools
