// Stores and gets in a swarm of nodes on loopback, all in this process.
#include "cohive/dht/dht.hpp"
#include "bench/bench.hpp"
#include "cohive/core/combine.hpp"

namespace cohive::bench {
namespace {

constexpr std::size_t kWorkers = 16;

struct Node {
  std::unique_ptr<p2p::Host> host;
  std::unique_ptr<Dht> dht;
};

struct Tally {
  std::vector<double> seconds;
  std::size_t failed = 0;
  double wall = 0;
};

Task<void> store_loop(std::vector<Node>& nodes, std::size_t worker, double end, std::size_t& next, Tally& tally) {
  while (now_seconds() < end) {
    const std::size_t number = next++;
    Dht& dht = *nodes[(worker + number) % nodes.size()].dht;
    const double start = now_seconds();
    const bool stored = co_await dht.store("key" + std::to_string(number), static_cast<int>(number), dht.now() + 600);
    tally.seconds.push_back(now_seconds() - start);
    tally.failed += !stored;
  }
}

Task<void> get_loop(std::vector<Node>& nodes, std::size_t worker, double end, std::size_t keys, Tally& tally) {
  for (std::size_t i = worker; now_seconds() < end; i += kWorkers) {
    Dht& dht = *nodes[(i * 7 + worker) % nodes.size()].dht;
    const double start = now_seconds();
    auto found = co_await dht.get("key" + std::to_string(i % keys), true);
    tally.seconds.push_back(now_seconds() - start);
    tally.failed += !found;
  }
}

nlohmann::json summary(const Tally& tally) {
  return {{"per_second", static_cast<double>(tally.seconds.size()) / tally.wall},
          {"p50_ms", percentile_ms(tally.seconds, 0.5)},
          {"p99_ms", percentile_ms(tally.seconds, 0.99)},
          {"failed", tally.failed}};
}

Task<nlohmann::json> measure(Runtime& runtime, Settings settings) {
  const auto network = transport::make_tcp_network(runtime);
  std::vector<Node> nodes;
  std::vector<Multiaddr> initial;
  for (std::size_t i = 0; i < settings.peers; ++i) {
    p2p::HostOptions options;
    options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
    Node node;
    node.host = std::make_unique<p2p::Host>(*network, KeyPair::generate_ed25519(), options);
    node.host->start().value();
    node.dht = std::make_unique<Dht>(*node.host);
    (co_await node.dht->start(initial)).value();
    if (initial.empty()) initial = node.host->visible_addresses();
    nodes.push_back(std::move(node));
  }
  Tally stores, gets;
  std::size_t next = 0;
  double start = now_seconds();
  std::vector<Task<void>> work;
  for (std::size_t i = 0; i < kWorkers; ++i)
    work.push_back(store_loop(nodes, i, start + settings.seconds, next, stores));
  co_await when_all(runtime, std::move(work));
  stores.wall = now_seconds() - start;
  start = now_seconds();
  work.clear();
  for (std::size_t i = 0; i < kWorkers; ++i) work.push_back(get_loop(nodes, i, start + settings.seconds, next, gets));
  co_await when_all(runtime, std::move(work));
  gets.wall = now_seconds() - start;
  co_return nlohmann::json{
      {"benchmark", "dht"}, {"peers", settings.peers}, {"stores", summary(stores)}, {"gets", summary(gets)}};
}

}  // namespace

nlohmann::json dht(const Settings& settings) {
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  return runtime->run(measure(*runtime, settings));
}

}  // namespace cohive::bench
