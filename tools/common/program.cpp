#include "common/program.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <iostream>

#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/core/version.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/p2p/announce.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/p2p/initial_peers.hpp"
#include "cohive/p2p/metrics_server.hpp"
#include "cohive/transport/congestion_control.hpp"
#include "common/numbers.hpp"
#include "common/output_file.hpp"
#include "common/settings.hpp"
#include "common/signals.hpp"
#include "common/standard_output.hpp"
#include "core/detail/said_once.hpp"

namespace cohive::tools {
namespace {

std::string one_line(std::string text) {
  const auto end = text.find('\n');
  return end == std::string::npos ? text : text.substr(0, end);
}

std::string program_name, log_file_given;
std::vector<std::string> typed_flags;  // as --name

int fail(const std::string& message, int code) {
  log::flush();  // this line comes last
  std::cerr << program_name << ": " << one_line(message) << std::endl;
  return code;
}

/// A program that has done its work, but whose output is not whole, has failed. The log says which and why.
int with_outputs(int code) {
  std::cout.flush();
  log::flush();
  const bool lost = lost_output() || Trace::any_failed() || log::file_failing();
  return code == 0 && lost ? kFailed : code;
}

/// The arguments in the order that CLI11 wants, the last one first.
std::vector<std::string> dashed_arguments(int argc, char** argv, const CLI::App& app) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  apply_set(app, arguments);
  for (auto& text : arguments) {
    if (text == "--") break;
    if (!text.starts_with("--")) continue;
    const auto name_end = text.begin() + static_cast<std::ptrdiff_t>(std::min(text.find('='), text.size()));
    std::replace(text.begin(), name_end, '_', '-');
    typed_flags.emplace_back(text.begin(), name_end);
  }
  std::ranges::reverse(arguments);
  return arguments;
}

constexpr const char* kBandwidth = "Bandwidth";
constexpr const char* kRouters = "Routers and relays";
constexpr const char* kSettings =
    "Every option may stand in the --config file, too, or in the variable that is named beside it: a flag goes before\n"
    "the file, and the file before the variable. TIME is a number of seconds, or has a unit: 500ms, 30s, 5m, 2h, 1d.";

}  // namespace

int run_program(int argc, char** argv, CLI::App& app, const std::function<int()>& body) {
  catch_signals();
  write_standard_output();
  program_name = app.get_name();
  app.set_version_flag(
      "--version",
      [] {
        return log::format("{} {} ({}, {})", program_name, cohive::version(), cohive::revision(), cohive::compiler());
      },
      "say which version this is, and exit");
  add_help(app);
  add_settings(app);
  app.footer(app.get_footer() + "\n" + kSettings);
  try {
    app.parse(dashed_arguments(argc, argv, app));
    check_variables(app);
    if (log_file_given.empty()) refuse_idle({"--log-file-megabytes"}, "without --log-file");
    return with_outputs(body());
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return with_outputs(app.exit(error));  // --help, --version
    return fail(std::string(error.what()) + " (see " + program_name + " --help)", kBadInput);
  } catch (const Stopped&) {
    log::info("program", "told to stop before the work began");
    return with_outputs(0);
  } catch (...) {
    return report_failure();
  }
}

int report_failure() {
  try {
    throw;
  } catch (const Exit& exit) {
    return fail(exit.message, exit.code);
  } catch (const ErrorException& error) {
    return fail(explain(error.error()), code_for(error.error()));
  } catch (const std::exception& error) {
    return fail(error.what(), kFailed);
  }
}

void refuse_idle(std::initializer_list<const char*> flags, const std::string& why) {
  for (const char* name : flags) {
    const std::string flag(name);
    if (std::ranges::find(typed_flags, flag) != typed_flags.end())
      throw Exit{kBadInput, flag + " does nothing " + why + ": leave it out"};
  }
}

namespace {

bool is_of_the_swarm(const Error& error) {
  const auto& category = error.code().category();
  return category == dht::dht_category() || category == p2p::p2p_category() || error == Errc::timeout ||
         error == Errc::not_found;
}

}  // namespace

bool may_pass(int number) noexcept {
  static constexpr int kPassing[] = {EADDRNOTAVAIL, ENOSPC, EDQUOT, EMFILE, ENFILE, ENOBUFS, ENOMEM};
  return std::ranges::find(kPassing, number) != std::end(kPassing);
}

int code_for(const Error& error) {
  // A peer that is not the one named in the address is the user's mistake; one that does not answer is not.
  if (names_wrong_peer(error) || error == p2p::Errc::identity_in_use) return kBadInput;
  return is_of_the_swarm(error) ? kFailed : code_for_file(error);
}

int code_for_file(const Error& error) {
  return may_pass(error.system().value()) ? kFailed : kBadInput;
}

std::string explain(const Error& error) {
  if (names_wrong_peer(error)) return said_once(error.message()) + "; correct what follows /p2p/ in the address";
  if (error == Errc::in_use) return error.message() + "; give each process an identity file of its own";
  if (is_of_the_swarm(error))
    return "cannot join the swarm: " + said_once(error.message()) +
           "; check that the node runs and can be reached from here";
  const bool code_says_little = error == Errc::invalid_argument || error == Errc::malformed || error == Errc::io;
  return code_says_little && !error.detail().empty() ? error.detail() : error.message();
}

void add_log_options(CLI::App& app, log::Options& options) {
  const OptionGroup group(app, "Log");
  const auto output = std::make_shared<log::Output>();
  app.add_option_function<std::string>(
         "--log-format", [&options](const std::string& text) { options.format = *log::format_from_text(text); },
         "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->envname("COHIVE_LOG_FORMAT");
  app.add_option_function<std::string>(
         "--log-level",
         [&options, output](const std::string& text) {
           if (!log::set_levels(options, *output, text))
             throw CLI::ValidationError("--log-level",
                                        "trace, debug, info, warn, error or off, and levels of modules, as "
                                        "info,averaging=debug, not '" +
                                            text + "'");
         },
         "trace, debug, info, warn, error or off; with levels of modules: info,averaging=debug")
      ->envname("COHIVE_LOG_LEVEL");
  app.add_option("--log-file", output->file, "write the log to this file, too")->envname("COHIVE_LOG_FILE");
  app.add_option_function<double>(
         "--log-file-megabytes",
         [output](double megabytes) { output->file_bytes = static_cast<std::size_t>(megabytes * 1e6); },
         "of one file, before a new one is begun and the old one renamed (default 10; 3 old ones are kept)")
      ->transform(real(0.01, 1e6))
      ->envname("COHIVE_LOG_FILE_MEGABYTES");
  app.parse_complete_callback([output] {
    try_output("--log-file", log_file_given = output->file);
    log::set_output(*output);
  });
}

const std::string& log_file() {
  return log_file_given;
}

CLI::Option* takes_endpoint(CLI::Option* option) {
  return option->check([](const std::string& address) {
    const auto endpoint = p2p::parse_metrics_address(address);
    return address.empty() || endpoint ? std::string() : endpoint.error().detail();
  });
}

std::string metrics_token(const std::string& path) {
  return path.empty() ? std::string() : p2p::read_token(path).value();
}

void add_member_options(CLI::App& app, std::string& secret_file, std::string& members_file) {
  const OptionGroup group(app, kMembers);
  auto* secret =
      app.add_option("--secret-file", secret_file,
                     "members of the swarm are those that know the secret in this file; strangers get nothing");
  app.add_option(
         "--members", members_file,
         "members of the swarm are those whose peer ids are in this file, one a line, read again when it changes; "
         "needs --identity-path")
      ->excludes(secret);
}

void add_bandwidth_options(CLI::App& app, transport::BandwidthLimits& limits) {
  const OptionGroup group(app, kBandwidth);
  const auto add = [&app](const std::string& flag, double& limit, const std::string& what) {
    app.add_option_function<std::string>(
           flag,
           [&limit, flag](const std::string& text) {
             const auto rate = read_rate(text);
             if (!rate)
               throw CLI::ValidationError(flag, "bytes per second, for example 500K or 10M, not " + shown(text));
             limit = *rate;
           },
           what)
        ->type_name("RATE");
  };
  add("--max-upload", limits.upload, "bytes per second to send at most, for example 500K or 10M (default: no limit)");
  add("--max-download", limits.download, "the same for what is received");
}

void add_connection_options(CLI::App& app, std::string& congestion_control, std::size_t& connections_per_peer) {
  const OptionGroup group(app, kBandwidth);
  app.add_option("--congestion-control", congestion_control,
                 "the kernel's algorithm for connections to other cohive peers, for example cubic; kernel: leave it to "
                 "the kernel (default: bbr where the kernel has it)")
      ->check([](const std::string& given) {
        const auto chosen = transport::choose_congestion_control(given);
        return chosen ? std::string() : chosen.error().detail();
      });
  app.add_option("--connections-per-peer", connections_per_peer,
                 "connections to one cohive peer that carry its bytes together, at most (default 16; 1: never several)")
      ->transform(whole(1, 64));
}

void add_reachability_option(CLI::App& app, std::optional<p2p::Reachability>& forced) {
  const OptionGroup group(app, kRouters);
  app.add_option_function<std::string>(
         "--force-reachability", [&forced](const std::string& text) { forced = p2p::reachability_from_text(text); },
         "public or private: whether peers outside can connect, when that is known (default: peers are asked)")
      ->check(CLI::IsMember({"public", "private"}));
}

void add_port_mapping_option(CLI::App& app, bool& nat_port_map) {
  const OptionGroup group(app, kRouters);
  app.add_flag_callback(
      "--no-nat-port-map", [&nat_port_map] { nat_port_map = false; },
      "do not ask the router to forward the ports listened on");
}

void add_relay_use_options(CLI::App& app, RelayUse& use) {
  const OptionGroup group(app, kRouters);
  app.add_flag("--no-relay", use.none, "when no peer outside can connect, do without relays");
  app.add_option("--trusted-relays", use.trusted,
                 "multiaddrs of relays to be reached through then (default: connected peers that relay)");
}

void add_relay_service_options(CLI::App& app, RelayService& service) {
  constexpr std::uint64_t kMostServed = 1'000'000;
  const OptionGroup group(app, "Serving as a relay");
  auto& bounds = service.bounds;
  auto* relay = app.add_flag("--relay", service.offered, "carry connections to peers that cannot be dialled");
  app.add_option("--relay-reservations", bounds.max_reservations, "peers served at most (default 256)")
      ->transform(whole(0, kMostServed))
      ->needs(relay);
  app.add_option("--relay-reservations-per-network", bounds.max_reservations_per_network,
                 "of one IPv4 address or IPv6 /64 (default 32)")
      ->transform(whole(0, kMostServed))
      ->needs(relay);
  app.add_option("--relay-circuits", bounds.max_circuits, "connections carried at most (default 256)")
      ->transform(whole(0, kMostServed))
      ->needs(relay);
  app.add_option("--relay-circuits-per-peer", bounds.max_circuits_per_peer, "to or from one peer (default 64)")
      ->transform(whole(0, kMostServed))
      ->needs(relay);
  app.add_option("--relay-megabytes", service.megabytes,
                 "MiB that one connection carries in each direction (default 4096, 0: any number)")
      ->transform(real(0, 1e9))
      ->needs(relay);
  app.add_option("--relay-minutes", service.minutes, "minutes that one connection lasts (default 30, 0: any time)")
      ->transform(real(0, 1e6))
      ->needs(relay);
}

void apply(const RelayUse& use, p2p::HostOptions& host) {
  if (use.none && !use.trusted.empty())
    throw Exit{kBadInput, "--trusted-relays and --no-relay say the opposite of each other: leave one of them out"};
  host.use_relay = !use.none;
  host.trusted_relays = parse_addresses(use.trusted, "--trusted-relays");
  for (const auto& address : host.trusted_relays)
    if (!address.peer() || address.is_circuit())
      throw Exit{kBadInput, "--trusted-relays: " + address.text() + " must end with /p2p/<peer id of the relay>"};
}

void apply(const RelayService& service, p2p::HostOptions& host) {
  if (!service.offered) return;
  host.relay_service = service.bounds;
  host.relay_service->circuit.bytes = static_cast<std::uint64_t>(service.megabytes * 1024 * 1024);
  // The limit is told in whole seconds.
  host.relay_service->circuit.duration = std::chrono::seconds(static_cast<std::int64_t>(service.minutes * 60));
}

std::vector<std::string> each_address(const std::vector<std::string>& given) {
  std::string all;
  for (const auto& text : given) all += text + " ";
  return split_addresses(all);
}

std::vector<Multiaddr> parse_addresses(const std::vector<std::string>& texts, const std::string& flag) {
  std::vector<Multiaddr> result;
  for (const auto& text : each_address(texts)) {
    auto address = Multiaddr::from_text(text);
    if (!address)
      throw Exit{kBadInput, flag + ": " + explain(address.error()) + "; write for example /ip4/203.0.113.7/tcp/31337"};
    result.push_back(std::move(*address));
  }
  return result;
}

std::vector<Multiaddr> parse_announced(const std::vector<std::string>& texts, const std::string& identity_path) {
  auto addresses = parse_addresses(texts, "--announce-maddrs");
  std::optional<PeerId> self;
  const bool names_peer =
      std::ranges::any_of(addresses, [](const Multiaddr& address) { return address.peer().has_value(); });
  if (names_peer && std::filesystem::exists(identity_path))
    self = load_or_create_identity(identity_path).value().peer_id();
  for (const auto& address : addresses) {
    auto checked = p2p::check_announced(address, self);
    if (checked && address.peer() && !self)
      checked = Error(Errc::invalid_argument, address.text() +
                                                  " cannot be announced: it ends with a peer id, and the key "
                                                  "of this peer is yet to be made; leave the id out");
    if (!checked) throw Exit{kBadInput, "--announce-maddrs: " + checked.error().detail()};
  }
  return addresses;
}

std::vector<Multiaddr> parse_initial_peers(const std::vector<std::string>& texts) {
  auto result = parse_addresses(texts, "--initial-peers");
  for (const auto& address : result)
    if (!address.peer() && !address.has(Multiaddr::dnsaddr))
      throw Exit{kBadInput, "--initial-peers: " + address.text() + " must end with /p2p/<peer id>"};
  return result;
}

std::vector<std::string> initial_peers(const std::vector<std::string>& given) {
  return given.empty() ? initial_peers_from_environment() : each_address(given);
}

}  // namespace cohive::tools
