// Stores and gets in a swarm of nodes on loopback: as many event loops as cores, each with its share of the nodes.
#include "cohive/dht/dht.hpp"

#include <atomic>
#include <barrier>
#include <thread>

#include "bench/bench.hpp"
#include "cohive/core/combine.hpp"

namespace cohive::bench {
namespace {

constexpr std::size_t kWorkers = 16;  // operations under way at once, on all loops together

struct LoopNode {
  std::unique_ptr<p2p::Host> host;
  std::unique_ptr<Dht> dht;
};

struct Tally {
  std::vector<double> seconds;
  std::size_t failed = 0;
  double wall = 0;
  double processor = 0;  // of the whole process, meanwhile

  void add(const Tally& other) {
    seconds.insert(seconds.end(), other.seconds.begin(), other.seconds.end());
    failed += other.failed;
    wall = std::max(wall, other.wall);
    processor = std::max(processor, other.processor);
  }
};

/// What the loops share.
struct SwarmOfLoops {
  explicit SwarmOfLoops(std::size_t loop_count) : loops(loop_count), meeting(static_cast<std::ptrdiff_t>(loop_count)) {}
  const std::size_t loops;
  std::barrier<> meeting;
  std::vector<Multiaddr> initial;     // of the first node, from the first meeting on
  std::atomic<std::size_t> keys = 0;  // stored
};

/// Waits for the other loops; the nodes of this one go on.
Task<void> meet(Runtime& runtime, SwarmOfLoops& swarm) {
  co_await runtime.offload([&swarm] {
    swarm.meeting.arrive_and_wait();
    return true;
  });
}

Task<void> store_loop(std::vector<LoopNode>& nodes, std::size_t worker, double end, SwarmOfLoops& swarm, Tally& tally) {
  while (now_seconds() < end) {
    const std::size_t number = swarm.keys++;
    Dht& dht = *nodes[(worker + number) % nodes.size()].dht;
    const double start = now_seconds();
    const auto stored = co_await dht.store("key" + std::to_string(number), static_cast<int>(number), dht.now() + 600);
    tally.seconds.push_back(now_seconds() - start);
    tally.failed += !stored;
  }
}

Task<void> get_loop(std::vector<LoopNode>& nodes, std::size_t worker, double end, std::size_t keys, Tally& tally) {
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
          {"processor_us", 1e6 * tally.processor / static_cast<double>(tally.seconds.size())},
          {"failed", tally.failed}};
}

struct Share {
  Tally stores, gets;
};

Task<std::vector<LoopNode>> start_nodes(transport::Network& network, std::size_t index, std::size_t peers,
                                        SwarmOfLoops& swarm) {
  Runtime& runtime = network.runtime();
  std::vector<LoopNode> nodes;
  if (index > 0) co_await meet(runtime, swarm);  // the first node of all comes first
  for (std::size_t number = index; number < peers; number += swarm.loops) {
    p2p::HostOptions options;
    options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
    LoopNode node;
    node.host = std::make_unique<p2p::Host>(network, KeyPair::generate_ed25519(), options);
    node.host->start().value();
    node.dht = std::make_unique<Dht>(*node.host);
    (co_await node.dht->start(swarm.initial)).value();
    if (number == 0) {
      swarm.initial = node.host->visible_addresses();
      co_await meet(runtime, swarm);
    }
    nodes.push_back(std::move(node));
  }
  co_await meet(runtime, swarm);
  co_return nodes;
}

Task<Share> run_share(Runtime& runtime, Settings settings, std::size_t index, SwarmOfLoops& swarm) {
  const auto network = transport::make_tcp_network(runtime);
  auto nodes = co_await start_nodes(*network, index, settings.peers, swarm);
  Share share;
  double start = now_seconds(), processor = processor_seconds();
  std::vector<Task<void>> work;
  for (std::size_t worker = index; worker < kWorkers; worker += swarm.loops)
    work.push_back(store_loop(nodes, worker, start + settings.seconds, swarm, share.stores));
  co_await when_all(runtime, std::move(work));
  share.stores.wall = now_seconds() - start;
  co_await meet(runtime, swarm);
  share.stores.processor = processor_seconds() - processor;
  const std::size_t keys = swarm.keys;
  start = now_seconds(), processor = processor_seconds();
  work.clear();
  for (std::size_t worker = index; worker < kWorkers; worker += swarm.loops)
    work.push_back(get_loop(nodes, worker, start + settings.seconds, keys, share.gets));
  co_await when_all(runtime, std::move(work));
  share.gets.wall = now_seconds() - start;
  co_await meet(runtime, swarm);
  share.gets.processor = processor_seconds() - processor;
  co_return share;
}

}  // namespace

nlohmann::json dht(const Settings& settings) {
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  SwarmOfLoops swarm(std::min({cores, settings.peers, kWorkers}));
  std::vector<Share> shares(swarm.loops);
  std::vector<std::thread> threads;
  for (std::size_t index = 0; index < swarm.loops; ++index)
    threads.emplace_back([&, index] {
      auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
      shares[index] = runtime->run(run_share(*runtime, settings, index, swarm));
    });
  for (auto& thread : threads) thread.join();
  Share all;
  for (const auto& share : shares) {
    all.stores.add(share.stores);
    all.gets.add(share.gets);
  }
  return {{"benchmark", "dht"},
          {"peers", settings.peers},
          {"loops", swarm.loops},
          {"stores", summary(all.stores)},
          {"gets", summary(all.gets)}};
}

}  // namespace cohive::bench
