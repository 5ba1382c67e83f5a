/// \file
/// Swarm: a process's membership in a swarm: host, DHT, identity, metrics. Several runs share one. It runs the event
/// loop on a thread of its own and is used from any other thread.
///
///   cohive::Swarm swarm({.initial_peers = {"/ip4/.../p2p/..."}});
///   cohive::Optimizer optimizer(swarm, torch_optimizer, {.run_id = "my_run", .target_batch_size = 4096});
///
/// Without initial peers it starts a new swarm; visible_addresses() and join_line() tell other peers how to join.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohive/core/runtime.hpp"
#include "cohive/core/time.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive {

namespace train {
struct Membership;
}

/// Names and defaults are those of hivemind.DHT and HivemindStrategy.
struct SwarmOptions {
  std::vector<std::string> initial_peers;  ///< multiaddrs with /p2p; empty: $INITIAL_PEERS, then $PL_INITIAL_PEERS
  bool peers_from_environment = true;      ///< false: an empty list of initial peers begins a swarm
  std::vector<std::string> host_maddrs = {"/ip4/0.0.0.0/tcp/0"};  ///< to listen on
  std::vector<std::string> announce_maddrs;                       ///< to tell other peers instead
  std::string identity_path;                                      ///< key file, made when missing; empty: a fresh key
  bool client_mode = false;                                       ///< only dial out, as behind a strict firewall
  /// When peers outside cannot dial this one, be reached through relays, and punch holes from there (docs/relay.md).
  bool use_relay = true;
  bool relay_service = false;               ///< relay other peers' connections (docs/relay.md)
  std::vector<std::string> trusted_relays;  ///< multiaddrs with /p2p; besides them, connected peers that relay
  std::string force_reachability;           ///< "public" or "private", where it is known; empty: find out
  bool nat_port_map = true;                 ///< have the router forward the ports of host_maddrs (docs/connectivity.md)
  std::string metrics_address;         ///< "host:port" of a page, /status, /metrics (metrics_server.hpp); empty: none
  std::string trace_file;              ///< for a trace of what this peer does (core/trace.hpp); empty: none
  std::string metrics_token_file;      ///< with a token to ask for before anything is shown there; empty: none
  bool diagnostics_at_signal = false;  ///< at each SIGUSR1 the tasks and the last lines of the log are logged
  double max_upload = 0;               ///< bytes per second of all connections together; 0: no limit
  double max_download = 0;             ///< the same
  std::size_t connections_per_peer = 16;  ///< to a cohive peer, at most: HostOptions::max_bundled_connections
  std::string congestion_control;         ///< as HostOptions has it; empty: BBR between cohive peers, if it is there
  Duration bootstrap_timeout = 15s;       ///< one attempt to join through the initial peers
  /// How long to go on trying when no initial peer answers, with growing pauses and one line in the log for each
  /// attempt; 0: one attempt. Duration::max(): until it succeeds.
  Duration wait_for_swarm = 0s;
  /// False: when no initial peer answers, be there alone with a warning; the DHT goes on trying by itself.
  bool ensure_bootstrap_success = true;
  /// Options of the DHT. SwarmOptions decides those that it names itself: client_mode, authorizer, bootstrap_timeout.
  DhtOptions dht = {};
  std::vector<std::shared_ptr<dht::RecordValidator>> validators = {};  ///< that the DHT begins with
  std::shared_ptr<dht::RsaSignatureValidator> key = {};                ///< signs this peer's records; null: a fresh one
  /// False: records that name an owner are neither signed nor checked, as a hivemind DHT without validators has it,
  /// until a validator of that kind is added. Runs need it.
  bool check_owners = true;
  /// Gives this peer its token in a moderated swarm and judges the tokens of other peers; null: an open swarm. It is
  /// called on the loop's thread.
  std::shared_ptr<dht::Authorizer> authorizer;
  /// A swarm with members (docs/security.md): peers that know the secret in this file, readable by its owner only ...
  std::string secret_file;
  /// ... or the peers whose ids are in this one, which is read again when it changes; it needs identity_path.
  std::string members_file;
  /// Asked between attempts and while one goes on, on the constructing thread: true gives the joining up (Ctrl+C).
  std::function<bool()> give_up = {};
};

/// Thread-safe. The constructor throws ErrorException with one sentence: impossible options, addresses in use, no
/// initial peer that answers.
class Swarm {
 public:
  /// Joins the swarm, or begins one. Throws ErrorException where that fails.
  explicit Swarm(SwarmOptions options = {});
  /// Leaves the swarm. Runs must have ended.
  ~Swarm();
  Swarm(const Swarm&) = delete;

  /// Returns the addresses by which other peers join.
  std::vector<std::string> visible_addresses() const;
  /// "INITIAL_PEERS=<addresses>": what joining peers put in front of their command.
  std::string join_line() const;
  /// Returns the base58 text of this process's id, as it stands behind /p2p/ in addresses.
  std::string peer_id() const;
  /// Returns the options that the constructor was given.
  const SwarmOptions& options() const noexcept;
  /// Where metrics are served, "http://host:port/metrics"; empty when they are not.
  std::string metrics_url() const;
  /// Where a browser on this machine finds the page about this peer, "http://host:port/"; empty when it is not served.
  std::string page_url() const;

  /// Returns the loop; its functions but post() and submit() are for its own thread.
  Runtime& runtime() const noexcept;
  /// Returns the node of the DHT, which lives on the loop's thread.
  Dht& dht() const noexcept;
  /// Runs the task made by `make()` on the loop, blocks the calling thread, which is not the loop's, and returns its
  /// result; an exception of it comes through: `swarm.call([&] { return swarm.dht().get(key); })`.
  template <class F>
  auto call(F make) const {
    return runtime().submit(std::move(make)).get();
  }

  /// For runs and for tests: what lives on the loop's thread.
  train::Membership& membership() noexcept { return *membership_; }

 private:
  std::unique_ptr<train::Membership> membership_;
};

}  // namespace cohive
