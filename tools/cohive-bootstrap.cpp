// cohive-bootstrap: a standalone DHT node, the first address of a swarm.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cohive/core/combine.hpp"
#include "cohive/core/diagnostics.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/dht/members.hpp"
#include "cohive/p2p/identity_check.hpp"
#include "cohive/p2p/initial_peers.hpp"
#include "cohive/p2p/metrics_server.hpp"
#include "common/client.hpp"
#include "common/numbers.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/settings.hpp"
#include "common/signals.hpp"
#include "core/detail/said_once.hpp"

namespace cohive::tools {
namespace {

// Saved peers through which a restarted node tries to come back, beside those it is given.
constexpr std::size_t kMaxSavedInitial = 16;
constexpr Duration kIdentityCheck = std::chrono::seconds(5);  // at most, before the node starts
constexpr Duration kSayHowToJoin = std::chrono::seconds(3);   // at the latest, whether the initial peers answer or not
constexpr Duration kLook = std::chrono::milliseconds(500);    // between two looks whether the swarm is there

struct Options {
  std::vector<std::string> host_maddrs{"/ip4/0.0.0.0/tcp/0"}, announce_maddrs, initial_peers;
  dht::MembersOptions members;
  std::string identity_path, metrics_address, metrics_token_file, state_path, trace_file;
  double state_period = 30;
  bool json = false;
  double refresh_period = 30;
  double wait_for_swarm = -1;       // seconds; negative: any time
  std::size_t memory_budget = 128;  // MiB
  transport::BandwidthLimits limits;
  std::optional<p2p::Reachability> force_reachability;
  bool nat_port_map = true;
  std::string congestion_control;
  std::size_t connections_per_peer = p2p::HostOptions().max_bundled_connections;
  RelayUse relay_use;
  bool use_auto_relay = false;
  RelayService relay_service;
  log::Options log;
};

/// Of the memory that peers may fill, a half is for records and the other for what is on its way.
std::size_t memory_for_records(const Options& options) {
  return (options.memory_budget << 20) / 2;
}

std::string joined(const std::vector<Multiaddr>& addresses, const char* separator) {
  std::string text;
  for (const auto& address : addresses) text += (text.empty() ? "" : separator) + address.text();
  return text;
}

/// Where the metrics and the page are served; empty where they are not.
struct Urls {
  std::string metrics, page;
};

void announce(const Options& options, p2p::Host& host, const Urls& urls) {
  const auto visible = host.visible_addresses();
  if (options.json) {
    nlohmann::json line{{"peer_id", host.id().text()},
                        {"initial_peers", nlohmann::json::array()},
                        {"metrics", urls.metrics},
                        {"page", urls.page}};
    for (const auto& address : visible) line["initial_peers"].push_back(address.text());
    std::cout << line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << "To join this swarm: INITIAL_PEERS=" << joined(visible, ",") << " cohive-train ..." << std::endl;
    if (!urls.page.empty()) std::cout << "Page: " << urls.page << "\nMetrics: " << urls.metrics << std::endl;
  }
  // The wording that scripts around hivemind look for.
  log::info("bootstrap", "Running a DHT instance. To connect other peers to this one, use --initial_peers {}",
            joined(visible, " "));
  log::info("bootstrap", "Full list of visible multiaddresses: {}", joined(visible, " "));
}

Task<void> report(Dht& dht, Duration period) {
  for (;;) {
    log::info("bootstrap", "{} DHT nodes (including this one) are in the local routing table", dht.table_size() + 1);
    log::info("bootstrap", "Local storage contains {} keys", dht.storage_size());
    co_await dht.runtime().sleep_for(period);
    if (dht.table_size() == 0) continue;
    const auto found = co_await dht.get("heartbeat_" + dht::DhtId::random(dht.runtime()).hex(), true);
    if (!found && found.error() != dht::Errc::not_found)
      log::warn("bootstrap", "The swarm does not answer: {}", found.error());
  }
}

// ---- Coming back as before

/// What an earlier run left.
struct EarlierRun {
  dht::SavedState state;
  std::shared_ptr<dht::StateReader> records;  ///< null: none
};

/// A fresh state, where there is no earlier one, is written at once to see that it can be. A damaged file is put aside
/// with one warning.
EarlierRun load_state(Runtime& runtime, const std::string& path, const PeerId& self) {
  auto reader = dht::StateReader::open(path);
  if (reader) {
    EarlierRun run{reader->state(), std::make_shared<dht::StateReader>(std::move(*reader))};
    if (run.state.peer != self) {
      log::warn("bootstrap", "{} is of another identity: its records are taken, its place in the DHT is not", path);
      run.state.node_id = dht::DhtId::random(runtime);
    }
    return run;
  }
  if (reader.error() == Errc::malformed) {
    const std::string aside = path + ".damaged";
    std::error_code ignored;
    std::filesystem::rename(path, aside, ignored);
    log::warn("bootstrap", "{}; starting without it (kept as {})", reader.error().detail(), aside);
  } else if (reader.error() != Errc::not_found) {
    throw Exit{code_for_file(reader.error()), "--state-path: " + reader.error().detail()};
  }
  dht::SavedState fresh{self, dht::DhtId::random(runtime), {}};
  if (auto written = dht::write_state(path, fresh); !written)
    throw Exit{code_for_file(written.error()), "--state-path: " + written.error().detail()};
  return {std::move(fresh), nullptr};
}

/// Takes the records of the earlier run back, piece by piece.
Task<std::size_t> restore_records(Dht& dht, std::shared_ptr<dht::StateReader> reader, const std::string& path) {
  std::size_t kept = 0;
  while (reader) {
    auto records = co_await dht.runtime().offload_io([reader] { return reader->next(); });
    if (records.empty()) break;
    kept += co_await dht.restore(std::move(records));
  }
  if (reader && reader->damaged())
    log::warn("bootstrap", "state file {}: damaged in part; the records that could be read are kept", path);
  co_return kept;
}

/// Writes the state now and then, and once more when `stopping` is set.
/// \param restored  set when the records of the earlier run are back: none of them shall miss in the file
/// \param peers     of an earlier run: the way back for as long as no other peer is known
/// \param failing   whether the last write has failed
Task<void> keep_state(Dht& dht, std::string path, Duration period, std::vector<dht::SavedPeer> peers, Event& restored,
                      Event& stopping, bool& failing) {
  for (bool last = false; !last;) {
    last = co_await stopping.wait(dht.runtime().after(period));
    if (!restored.is_set()) continue;
    auto written = co_await dht.save(path, peers);
    if (!written && !failing) log::warn("bootstrap", "the state is not saved: {}", written.error().detail());
    failing = !written;
  }
}

/// Where to join: the addresses given, and peers of the earlier run.
std::vector<Multiaddr> with_saved_peers(std::vector<Multiaddr> initial, const std::vector<dht::SavedPeer>& peers) {
  for (const auto& peer : peers) {
    if (initial.size() >= kMaxSavedInitial) break;
    initial.push_back(peer.addresses.front().with_peer(peer.peer));
  }
  return initial;
}

// ---- Serving

/// Whether waiting does not help: an initial peer has answered, and is not the one, or refuses this node.
bool is_final(const Error& error) {
  static constexpr dht::Errc kRefusals[] = {dht::Errc::clock_differs, dht::Errc::not_reachable,
                                            dht::Errc::unauthorized};
  return names_wrong_peer(error) ||
         std::ranges::any_of(kRefusals, [&error](dht::Errc code) { return error.caused_by(code); });
}

/// Joins the swarm. When no initial peer answers, the node is there for others meanwhile: two that name each other
/// begin like that. The DHT goes on trying by itself. Ends by an exception only.
/// \param named  whether our user has named peers
Task<void> join(Dht& dht, std::vector<Multiaddr> initial, bool named, double wait_for_swarm, Event& tried) {
  const Deadline limit = wait_for_swarm < 0 ? Deadline::never() : dht.runtime().after(from_seconds(wait_for_swarm));
  const auto joined = co_await dht.start(std::move(initial));
  if (!joined && !named) log::info("bootstrap", "no peer of the earlier run answers: beginning a swarm of its own");
  if (!joined && named) {
    if (is_final(joined.error()) || limit.passed(dht.runtime().now())) throw ErrorException(joined.error());
    log::warn("bootstrap", "no initial peer answers yet: serving meanwhile, and trying again until one does: {}",
              said_once(joined.error().message()));
    tried.set();
    while (dht.table_size() == 0) {
      if (limit.passed(dht.runtime().now())) throw ErrorException(joined.error());
      co_await dht.runtime().sleep_for(kLook);
    }
    log::info("bootstrap", "the swarm is there: {} nodes known", dht.table_size());
  }
  tried.set();
  co_await Event(dht.runtime(), "the end of the program").wait();
}

/// Says how other peers join, as soon as it is known who is there, and reports from then on.
Task<void> show(Dht& dht, const Options& options, const Urls& urls, Event& tried, bool& ready) {
  (void)co_await tried.wait(dht.runtime().after(kSayHowToJoin));
  ready = true;
  announce(options, dht.host(), urls);
  co_await report(dht, from_seconds(options.refresh_period));
}

/// Whatever an earlier run left comes first. Ends by an exception only.
Task<void> serve(Dht& dht, Options options, Urls urls, std::vector<Multiaddr> initial,
                 std::optional<EarlierRun> earlier, Event& restored, bool& ready) {
  const bool named = !initial.empty();
  if (earlier) {
    const auto& peers = earlier->state.peers;
    for (const auto& peer : peers) dht.host().learn_addresses(peer.peer, peer.addresses);
    initial = with_saved_peers(std::move(initial), peers);
    const std::size_t kept = co_await restore_records(dht, std::move(earlier->records), options.state_path);
    if (kept + peers.size() > 0)
      log::info("bootstrap", "{} records and {} peers of an earlier run", kept, peers.size());
  }
  restored.set();
  Event tried(dht.runtime(), "the initial peers");
  (void)co_await race(dht.runtime(), join(dht, std::move(initial), named, options.wait_for_swarm, tried),
                      show(dht, options, urls, tried, ready));
}

/// Throws when one of our own addresses in the list of initial peers leads to another process.
Task<void> watch_own_addresses(p2p::OwnAddressCheck& check, std::vector<Multiaddr> own) {
  throw ErrorException(co_await check.find_another(std::move(own)));
}

/// Both end by an exception only.
Task<void> beside(Runtime& runtime, Task<void> first, Task<void> second) {
  (void)co_await race(runtime, std::move(first), std::move(second));
}

Task<int> run_node(Runtime& runtime, Options options, p2p::HostOptions host_options, KeyPair identity,
                   std::vector<Multiaddr> initial) {
  std::optional<EarlierRun> earlier;
  if (!options.state_path.empty()) earlier = load_state(runtime, options.state_path, identity.peer_id());
  const auto network = transport::limit_bandwidth(transport::make_tcp_network(runtime), options.limits);
  if (!options.identity_path.empty()) {
    const Deadline deadline = runtime.after(kIdentityCheck);
    auto checked = co_await race(
        runtime, wait_for_stop(runtime),
        p2p::check_identity_is_free(*network, identity.peer_id(), initial, host_options.transport, deadline));
    if (checked.index() == 0) co_return 0;
    if (const auto& free = std::get<1>(checked); !free) throw ErrorException(free.error());
  }
  const auto own = p2p::take_own_addresses(initial, identity.peer_id());
  if (!options.trace_file.empty())
    if (auto tracing = Trace::of(runtime).start(options.trace_file, identity.peer_id().text()); !tracing)
      throw Exit{code_for_file(tracing.error()), "--trace: " + tracing.error().detail()};
  const auto traced = on_exit([&runtime] { Trace::of(runtime).stop(); });
  p2p::Host host(*network, identity, host_options);
  std::optional<p2p::OwnAddressCheck> own_check;
  if (!own.empty()) own_check.emplace(*network, host);
  if (auto started = host.start(); !started) throw ErrorException(started.error());
  bool ready = false;
  const auto uncapped = transport::make_tcp_network(runtime);  // the caps are for the swarm
  p2p::MetricsServer metrics(*uncapped, [&ready] { return ready; },
                             {.token = metrics_token(options.metrics_token_file)});
  Urls urls;
  if (!options.metrics_address.empty()) {
    if (auto serving = metrics.start(options.metrics_address); !serving) throw ErrorException(serving.error());
    urls = {metrics.url(), metrics.page_url()};
  }
  DhtOptions dht_options;
  const auto key = co_await member_key(runtime, options.members);
  dht_options.authorizer = dht::make_authorizer(runtime, options.members, identity, key).value();
  if (earlier) dht_options.node_id = earlier->state.node_id;
  dht_options.max_storage_bytes = memory_for_records(options);
  Dht dht(host, dht_options);
  const auto status = Status::of(runtime).add(
      "dht", [&dht] { return nlohmann::json{{"nodes", dht.table_size()}, {"records", dht.storage_size()}}.dump(); });
  runtime.background().spawn(write_diagnostics_at_signal(runtime), "SIGUSR1");
  Event restored(runtime, "records of an earlier run"), stopping(runtime, "the end of the program");
  bool state_lost = false;
  Nursery keeping(runtime, "bootstrap");
  if (!options.state_path.empty())
    keeping.spawn(keep_state(dht, options.state_path, from_seconds(options.state_period), earlier->state.peers,
                             restored, stopping, state_lost),
                  "keep state");
  auto serving =
      serve(dht, std::move(options), std::move(urls), std::move(initial), std::move(earlier), restored, ready);
  if (own_check) serving = beside(runtime, std::move(serving), watch_own_addresses(*own_check, own));
  // Signals are awaited from before the first line is printed: its reader may stop us at once.
  auto outcome = co_await race(runtime, wait_for_stop(runtime), std::move(serving));
  ready = false;
  log::info("bootstrap", "Caught signal {} ({}), shutting down", std::get<0>(outcome),
            ::strsignal(std::get<0>(outcome)));
  stopping.set();
  co_await keeping.join();
  co_await dht.close();
  co_await host.close();
  co_return state_lost ? kFailed : 0;
}

/// The flags of hivemind-dht that say nothing new here: a script that starts it can start this program.
void add_hivemind_flags(CLI::App& app, Options& options) {
  constexpr const char* kGroup = "Flags of hivemind-dht";
  app.add_flag("--use-auto-relay", options.use_auto_relay,
               "be reached through relays when no peer outside can connect: this is done anyway; not with --no-relay")
      ->group(kGroup);
  app.add_flag_callback(
         "--use-ipfs",
         [] {
           throw Exit{kBadInput,
                      "--use-ipfs: the public IPFS network is not used; give --initial-peers whole addresses, as "
                      "/ip4/203.0.113.7/tcp/31337/p2p/<peer id>"};
         },
         "refused: the public IPFS network is not used, addresses are whole")
      ->group(kGroup);
}

/// RSA as hivemind's, so that its tools can read the file.
HeldIdentity load_identity(const std::string& path) {
  if (path.empty()) return {KeyPair::generate_ed25519(), nullptr};
  auto identity = hold_identity(path, KeyType::rsa);
  if (!identity)
    throw Exit{code_for_file(identity.error()),
               "--identity-path: " + explain(identity.error()) +
                   "; give a key file of cohive or hivemind, or a new name for one to be made"};
  return std::move(*identity);
}

int run(const Options& options) {
  log::configure(options.log);
  if (!options.members.members_file.empty() && options.identity_path.empty())
    throw Exit{kBadInput, "--members needs --identity-path: a peer that is listed keeps its identity"};
  refuse_same_files({{"--state-path", options.state_path}, {"--trace", options.trace_file}, {"--log-file", log_file()}},
                    {{"--identity-path", options.identity_path},
                     {"--secret-file", options.members.secret_file},
                     {"--members", options.members.members_file},
                     {"--metrics-token-file", options.metrics_token_file}});
  try_regular_output("--state-path", options.state_path);
  try_output("--trace", options.trace_file);
  if (options.use_auto_relay && options.relay_use.none)
    throw Exit{kBadInput, "--use-auto-relay and --no-relay say the opposite of each other: leave one of them out"};
  p2p::HostOptions host_options;
  host_options.listen = parse_addresses(options.host_maddrs, "--host-maddrs");
  host_options.announce = parse_announced(options.announce_maddrs, options.identity_path);
  host_options.force_reachability = options.force_reachability;
  host_options.nat_port_map = options.nat_port_map;
  host_options.congestion_control = options.congestion_control;
  host_options.max_bundled_connections = options.connections_per_peer;
  host_options.memory_budget = (options.memory_budget << 20) - memory_for_records(options);
  apply(options.relay_use, host_options);
  apply(options.relay_service, host_options);
  const auto initial = parse_initial_peers(initial_peers(options.initial_peers));
  // What cannot be read is told before a key or a state is made.
  dht::check_members(options.members).value();
  (void)metrics_token(options.metrics_token_file);
  const HeldIdentity identity = load_identity(options.identity_path);
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  return runtime->run(run_node(*runtime, options, std::move(host_options), identity.key, initial));
}

void add_swarm_options(CLI::App& app, Options& options) {
  const OptionGroup group(app, "Swarm");
  app.add_option("--host-maddrs", options.host_maddrs, "addresses to listen on (default /ip4/0.0.0.0/tcp/0)");
  app.add_option("--announce-maddrs", options.announce_maddrs,
                 "addresses to tell others instead of the ones listened on");
  app.add_option("--initial-peers", options.initial_peers,
                 "multiaddrs of an existing swarm to join (or $INITIAL_PEERS)")
      ->expected(0, CLI::detail::expected_max_vector_size);  // none, where a script has none to give
  in_seconds(
      app.add_option("--wait-for-swarm", options.wait_for_swarm,
                     "seconds to go on trying when no initial peer answers, serving meanwhile; -1: until one does "
                     "(default -1)"),
      -1, 1e9);
  app.add_option("--identity-path", options.identity_path,
                 "key file; made when missing, keeps the peer id across restarts");
  auto* state = app.add_option("--state-path", options.state_path,
                               "file that keeps records and known peers across restarts; use it with --identity-path");
  in_seconds(app.add_option("--state-period", options.state_period, "seconds between two writes of it (default 30)"),
             0.1, 86400)
      ->needs(state);
  app.add_option("--memory-budget", options.memory_budget,
                 "MiB that peers together may fill of this node's memory (default 128)")
      ->transform(whole(16, 1 << 20));
}

void add_watching_options(CLI::App& app, Options& options) {
  const OptionGroup group(app, "Watching");
  auto* address =
      takes_endpoint(app.add_option("--metrics-address", options.metrics_address,
                                    "host:port for a page, /status, /metrics, /healthz, /readyz and /debug"));
  app.add_option("--metrics-token-file", options.metrics_token_file,
                 "ask for the token in this file before showing anything there")
      ->needs(address);
  app.add_option("--trace", options.trace_file,
                 "write what this node does when to this file, for ui.perfetto.dev (256 MiB at most)");
  in_seconds(app.add_option("--refresh-period", options.refresh_period, "seconds between status lines (default 30)"), 1,
             86400);
  app.add_flag("--json", options.json, "print how to join as one JSON object");
}

}  // namespace
}  // namespace cohive::tools

int main(int argc, char** argv) {
  using namespace cohive::tools;
  Options options;
  CLI::App app("A standalone DHT node: the address by which others join a swarm.", "cohive-bootstrap");
  add_swarm_options(app, options);
  add_member_options(app, options.members.secret_file, options.members.members_file);
  add_watching_options(app, options);
  add_reachability_option(app, options.force_reachability);
  add_port_mapping_option(app, options.nat_port_map);
  add_relay_use_options(app, options.relay_use);
  add_relay_service_options(app, options.relay_service);
  add_bandwidth_options(app, options.limits);
  add_connection_options(app, options.congestion_control, options.connections_per_peer);
  add_log_options(app, options.log);
  add_hivemind_flags(app, options);
  app.footer(
      "Examples:\n"
      "  cohive-bootstrap --host-maddrs /ip4/0.0.0.0/tcp/31337 --identity-path identity.key --state-path state\n"
      "  cohive-bootstrap --initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm... --metrics-address 127.0.0.1:9464\n"
      "  cohive-bootstrap --announce-maddrs /dns4/boot.example.org/tcp/31337 --relay --max-upload 10M\n");
  return run_program(argc, argv, app, [&] { return run(options); });
}
