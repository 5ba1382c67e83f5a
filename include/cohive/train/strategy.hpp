/// \file
/// Strategy: a trainer's membership in a swarm. It runs the event loop on its own thread and is used from the
/// trainer's.
///
///   cohive::Strategy strategy({.run_id = "my_run", .initial_peers = {"/ip4/.../p2p/..."}});
///   cohive::Optimizer optimizer(strategy, torch_optimizer, {.target_batch_size = 4096});
///   ... loss.backward(); optimizer.step(batch_size);
///
/// Without initial peers it starts a new swarm; visible_addresses() and join_line() tell others how to join.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/dht/dht.hpp"
#include "cohive/p2p/initial_peers.hpp"

namespace cohive {

namespace train {
struct Session;
}

struct StrategyOptions {
  std::string run_id = "cohive_run";       ///< one name per training run; no "."
  std::vector<std::string> initial_peers;  ///< multiaddrs with /p2p; empty: $INITIAL_PEERS, then $PL_INITIAL_PEERS
  std::vector<std::string> host_maddrs = {"/ip4/0.0.0.0/tcp/0"};
  std::vector<std::string> announce_maddrs;
  std::string identity_path;          ///< empty: a fresh identity each time
  bool client_mode = false;           ///< only dial out, as behind a strict firewall
  std::string metrics_address;        ///< "host:port" to serve /metrics, /healthz, /readyz; empty: none
  transport::BandwidthLimits limits;  ///< of all that this process sends and receives
};

/// Thread-safe for the trainer's threads. Errors at construction are ErrorException with one clear sentence.
class Strategy {
 public:
  explicit Strategy(StrategyOptions options);
  ~Strategy();
  Strategy(const Strategy&) = delete;

  std::vector<std::string> visible_addresses() const;
  /// "INITIAL_PEERS=<addresses>": what others put in front of their command.
  std::string join_line() const;
  std::string peer_id() const;
  const StrategyOptions& options() const noexcept;
  /// Where metrics are served, "http://host:port/metrics"; empty when they are not.
  std::string metrics_url() const;

  train::Session& session() noexcept { return *session_; }

 private:
  std::unique_ptr<train::Session> session_;
};

}  // namespace cohive
