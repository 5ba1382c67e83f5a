#include "monitor/run_doctor.hpp"

#include <array>
#include <set>

#include "cohive/core/log.hpp"
#include "monitor/collector.hpp"

namespace cohive::tools {
namespace {

/// One step: the warnings that belong to it, or else what is right.
struct Step {
  const char* name;
  std::vector<std::string> kinds;
  std::string fine;
  bool known = true;  ///< false: nothing can be said
};

std::vector<Step> steps_of(const RunView& view) {
  std::set<std::string> agents;
  std::size_t asked = 0, clocks = 0, models = 0;
  for (const PeerView& peer : view.peers) {
    asked += peer.reachable.has_value();
    clocks += peer.clock_ahead.has_value();
    models += !peer.schema_hash.empty();
    if (!peer.agent.empty()) agents.insert(log::quoted(peer.agent, 40));
  }
  std::string software;
  for (const std::string& agent : agents)
    if (software.size() < 120) software += (software.empty() ? "" : ", ") + agent;
  const std::size_t trainers = view.trainers + view.clients;
  return {
      {"trainers",
       {"no_trainers", "ended", "clients"},
       log::format("{} trainers report, {} of them clients", trainers, view.clients)},
      {"progress",
       {"claim", "behind", "stalled"},
       log::format("epoch {}, {:.1f} samples/s", view.epoch, view.samples_per_second),
       trainers > 0},
      {"models", {"model"}, log::format("the {} trainers that tell have one model and optimizer", models), models > 0},
      {"swarm", {"split", "initial_peer"}, log::format("{} nodes, which know each other", view.reachable)},
      {"clocks", {"clock"}, log::format("those of {} peers agree with this one", clocks), clocks > 0},
      {"reachable", {"unreachable"}, log::format("all of {} peers answer", asked), asked > 0},
      {"versions", {"version"}, "the peers run " + software, !software.empty()}};
}

}  // namespace

Task<int> diagnose_run(Dht& dht, std::string run_id, std::vector<Multiaddr> initial,
                       std::function<void(const Finding&)> report) {
  Collector collector(dht, {.run_id = std::move(run_id), .initial_peers = std::move(initial)});
  co_await collector.look();
  if (collector.failed_looks() > 0) {
    report({"trainers", Finding::Status::failed, "the DHT does not answer", "run this command again", {}});
    co_return 1;
  }
  co_await collector.crawl();
  const RunView& view = collector.view();
  int failed = 0;
  for (const Step& step : steps_of(view)) {
    bool fine = true;
    for (const Warning& warning : view.warnings) {
      if (std::ranges::find(step.kinds, warning.kind) == step.kinds.end()) continue;
      report({step.name, Finding::Status::failed, warning.message, "", {{"kind", warning.kind}}});
      fine = false;
      failed = 1;
    }
    if (!fine) continue;
    if (step.known) {
      report({step.name, Finding::Status::ok, step.fine, "", nlohmann::json::object()});
    } else {
      report({step.name, Finding::Status::skipped, "no peer tells", "", nlohmann::json::object()});
    }
  }
  co_return failed;
}

}  // namespace cohive::tools
