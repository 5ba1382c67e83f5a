// What the programs share: parsing options, one-line errors with exit codes, logging options, joining a swarm.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "cohive/core/log.hpp"
#include "cohive/core/multiaddr.hpp"
#include "cohive/core/result.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/transport/network.hpp"

namespace cohive::tools {

inline constexpr int kFailed = 1;    ///< the swarm cannot be reached, the machine lacks something, or the run failed
inline constexpr int kBadInput = 2;  ///< flags, files or addresses of the user: the same command fails again

/// Ends the program with one line on stderr.
struct Exit {
  int code;
  std::string message;
};

/// Parses the arguments, "_" and "-" being alike in the names of flags, and runs `body`, turning Exit, ErrorException
/// and parse errors into one line on stderr and an exit code. Adds --version, --config and a variable for each option
/// (settings.hpp). `app` has all its options by then, and a footer with examples.
/// Signals are caught (signals.hpp); the exit code tells of output that was lost, too.
int run_program(int argc, char** argv, CLI::App& app, const std::function<int()>& body);
/// Prints the exception that is being handled as one line on stderr, and returns the exit code for it.
int report_failure();
/// Refuses flags that were typed although nothing looks at them: "--name does nothing <why>: leave it out", Exit with
/// code 2. What a file or a variable says is left alone: it may be for other commands, or other programs. For `body`.
void refuse_idle(std::initializer_list<const char*> flags, const std::string& why);

/// The groups of options below stand under headings of their own in --help.
/// Adds --log-format, --log-level, --log-file and --log-file-megabytes.
void add_log_options(CLI::App& app, log::Options& options);
/// What --log-file was given; empty for nothing.
const std::string& log_file();
/// Makes the option, --metrics-address, refuse what is no host:port before anything begins.
CLI::Option* takes_endpoint(CLI::Option* option);
/// What --metrics-token-file names; empty for no file. Throws ErrorException.
std::string metrics_token(const std::string& path);
/// Adds --max-upload and --max-download.
void add_bandwidth_options(CLI::App& app, transport::BandwidthLimits& limits);
/// Adds --congestion-control and --connections-per-peer.
void add_connection_options(CLI::App& app, std::string& congestion_control, std::size_t& connections_per_peer);
/// Adds --no-relay and --trusted-relays, which exclude each other: how a peer that cannot be dialled is reached.
struct RelayUse {
  bool none = false;
  std::vector<std::string> trusted;
};
void add_relay_use_options(CLI::App& app, RelayUse& use);
/// Adds --relay and the bounds of what is relayed.
struct RelayService {
  bool offered = false;
  p2p::RelayServiceOptions bounds;
  double megabytes = 4096, minutes = 30;  ///< of a circuit; 0: no limit
};
void add_relay_service_options(CLI::App& app, RelayService& service);
/// The options of a host that these add up to; Exit with code 2 for bad addresses, or relays that are not to be used.
void apply(const RelayUse& use, p2p::HostOptions& host);
void apply(const RelayService& service, p2p::HostOptions& host);
/// Adds --no-nat-port-map.
void add_port_mapping_option(CLI::App& app, bool& nat_port_map);
/// Adds --force-reachability.
void add_reachability_option(CLI::App& app, std::optional<p2p::Reachability>& forced);
/// Adds --secret-file and --members, under this heading.
inline constexpr const char* kMembers = "Members";
void add_member_options(CLI::App& app, std::string& secret_file, std::string& members_file);
/// The addresses in these texts, of which one may hold several, with spaces or commas between them.
std::vector<std::string> each_address(const std::vector<std::string>& given);
/// The same as multiaddrs, each valid, or Exit with code 2.
std::vector<Multiaddr> parse_addresses(const std::vector<std::string>& texts, const std::string& flag);
/// Those of --announce-maddrs, of which each must be one that peers can dial: p2p/announce.hpp.
/// \param identity_path  of the peer; a key file that is there already says which id an address may end with
std::vector<Multiaddr> parse_announced(const std::vector<std::string>& texts, const std::string& identity_path);
/// The same as parse_addresses, and every one must end with /p2p/<id>.
std::vector<Multiaddr> parse_initial_peers(const std::vector<std::string>& texts);
/// From --initial-peers, else INITIAL_PEERS, else PL_INITIAL_PEERS; split at spaces and commas.
std::vector<std::string> initial_peers(const std::vector<std::string>& given);
/// Exit code for an error of starting: 1 when the swarm is unreachable or the machine lacks something, else 2. A
/// service manager starts a program again after 1, and does not after 2.
int code_for(const Error& error);
/// The same of a file that cannot be read or written, where nothing depends on the swarm.
int code_for_file(const Error& error);
/// Tells whether an errno means that the machine lacks room, files or an address now, and may have them later.
bool may_pass(int number) noexcept;
/// What went wrong and what to do about it, for a person.
std::string explain(const Error& error);

}  // namespace cohive::tools
