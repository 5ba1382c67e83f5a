// cohive-monitor: how a training run is doing, read from the DHT without taking part.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cohive/core/log.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/errors.hpp"
#include "common/client.hpp"
#include "common/program.hpp"

namespace cohive::tools {
namespace {

struct Options {
  std::vector<std::string> initial_peers;
  std::string run_id = "cohive_run";
  bool once = false, json = false;
  double interval = 5;
  ClientMember member;
  log::Options log{log::Level::warn, log::Format::text};
};

struct PeerProgress {
  std::string peer;
  std::uint64_t epoch = 0, samples = 0;
  double samples_per_second = 0, age = 0;
  bool client = false;
};

/// A progress record (docs/wire/hivemind.md, section 4.4); nothing for a goodbye or nonsense.
std::optional<PeerProgress> parse(const msgpack::Value& value, double now) {
  const auto* map = value.get_if<msgpack::Map>();
  if (!map) return std::nullopt;
  const auto field = [map](const char* name) { return map->find(name); };
  const auto *peer = field("peer_id"), *epoch = field("epoch"), *samples = field("samples_accumulated"),
             *rate = field("samples_per_second"), *time = field("time"), *client = field("client_mode");
  if (!peer || !epoch || !samples || !rate || !time || !client) return std::nullopt;
  const auto* id = peer->get_if<msgpack::Bin>();
  if (!id || !epoch->as_uint() || !samples->as_uint() || !rate->as_number() || !time->as_number()) return std::nullopt;
  const auto peer_id = PeerId::from_bytes(as_bytes(id->data));
  const double speed = *rate->as_number(), age = now - *time->as_number();
  if (!peer_id || !std::isfinite(speed) || speed < 0 || !std::isfinite(age)) return std::nullopt;
  return PeerProgress{peer_id->text(), *epoch->as_uint(), *samples->as_uint(), speed, age, client->truthy()};
}

void print(const Options& options, const std::vector<PeerProgress>& peers) {
  std::uint64_t epoch = 0, samples = 0;
  std::size_t clients = 0;
  double rate = 0;
  for (const auto& peer : peers) clients += peer.client;
  for (const auto& peer : peers) {
    // As trainers see it: clients follow the epoch, they do not set it.
    if (!peer.client || clients == peers.size()) epoch = std::max(epoch, peer.epoch);
    rate += peer.samples_per_second;
  }
  for (const auto& peer : peers)
    if (peer.epoch == epoch) samples += peer.samples;
  if (options.json) {
    nlohmann::json line{{"run_id", options.run_id},
                        {"peers", peers.size()},
                        {"clients", clients},
                        {"epoch", epoch},
                        {"samples_accumulated", samples},
                        {"samples_per_second", rate},
                        {"trainers", nlohmann::json::array()}};
    for (const auto& peer : peers)
      line["trainers"].push_back({{"peer_id", peer.peer},
                                  {"epoch", peer.epoch},
                                  {"samples_accumulated", peer.samples},
                                  {"samples_per_second", peer.samples_per_second},
                                  {"age_seconds", peer.age},
                                  {"client_mode", peer.client}});
    std::cout << line.dump() << std::endl;
    return;
  }
  std::cout << options.run_id << ": " << peers.size() << " peers (" << clients << " clients), epoch " << epoch << ", "
            << samples << " samples accumulated, " << log::format("{:.1f}", rate) << " samples/s" << std::endl;
}

/// Prints a line now and then; ends after the first when that was asked for.
Task<int> watch(Dht& dht, const Options& options) {
  for (;;) {
    auto found = co_await dht.get(options.run_id + "_progress", true);
    std::vector<PeerProgress> peers;
    if (!found && found.error() != dht::Errc::not_found)
      log::warn("monitor", "the progress of the run cannot be read: {}", found.error());
    if (found)
      for (const auto& [subkey, stored] : found->entries())
        if (auto peer = parse(stored.value, dht.now())) peers.push_back(std::move(*peer));
    print(options, peers);
    if (options.once) co_return 0;
    co_await dht.runtime().sleep_for(from_seconds(options.interval));
  }
}

int run(const Options& options) {
  log::configure(options.log);
  auto initial = swarm_addresses(options.initial_peers);
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  const auto ended = runtime->run(
      run_as_client(*runtime, std::move(initial), options.member, true, [&options](Dht& dht) { return watch(dht, options); }));
  return ended.value_or(0);
}

}  // namespace
}  // namespace cohive::tools

int main(int argc, char** argv) {
  using namespace cohive::tools;
  Options options;
  CLI::App app("Shows peers, epoch and speed of a training run.", "cohive-monitor");
  app.add_option("--initial-peers", options.initial_peers, "multiaddrs of the swarm (or $INITIAL_PEERS)");
  app.add_option("--run-id", options.run_id, "the run to watch (default cohive_run)");
  app.add_option("--interval", options.interval, "seconds between two lines (default 5)")
      ->check(CLI::Range(0.1, 86400.0));
  app.add_flag("--once", options.once, "print one line and exit");
  app.add_flag("--json", options.json, "one JSON object per line");
  add_client_member_options(app, options.member);
  add_log_options(app, options.log);
  return run_program(argc, argv, app, [&] { return run(options); });
}
