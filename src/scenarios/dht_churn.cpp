#include "scenarios/dht_churn.hpp"

#include <unistd.h>

#include <chrono>
#include <cmath>
#include <deque>
#include <fstream>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/dht/metrics.hpp"
#include "cohive/transport/sim_network.hpp"

namespace cohive::sim {
namespace {

// Newcomers know this many nodes, as users list a few addresses.
constexpr std::size_t kInitialNodes = 3;
constexpr Duration kWave = 10s;  // while the swarm grows by a quarter
constexpr Duration kRestBeforeStart = 30s;
// Of no use where a killed node resets its connections at once, and half a million connections have many.
constexpr Duration kNodeKeepalive = 10min;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double resident_bytes() {
  std::size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return static_cast<double>(resident) * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

struct ChurnNode {
  std::string ip;
  std::unique_ptr<transport::Network> machine;
  std::unique_ptr<p2p::Host> host;
  std::unique_ptr<Dht> dht;
  bool standing = false;  // has joined
  std::size_t busy = 0;   // operations that use it
};

struct StoredKey {
  std::string key;
  double expiration;
};

class Churn {
 public:
  explicit Churn(const ChurnOptions& options)
      : options_(options),
        runtime_(options.seed),
        fabric_(runtime_, {.latency = 20ms, .jitter = 20ms}),
        find_(runtime_.metrics(), "find"),
        store_(runtime_.metrics(), "store"),
        ping_(runtime_.metrics(), "ping"),
        dht_metrics_(runtime_.metrics()),
        tasks_(runtime_, "churn") {}
  ~Churn() {
    tasks_.cancel();
    nodes_.clear();
    runtime_.run_ready();
  }

  ChurnReport run() {
    const double before = resident_bytes();
    double start = seconds_now();
    build();
    report_.build_seconds = seconds_now() - start;
    start = seconds_now();
    const double calls = all_calls(), searches = dht_metrics_.searches.value();
    const double hops = dht_metrics_.search_hops.value(), search_calls = dht_metrics_.search_calls.value();
    const auto bytes = fabric_.bytes_carried();
    report_.joined = report_.joins_failed = 0;
    tasks_.spawn(replace_nodes(), "replace nodes");
    tasks_.spawn(repeat(options_.stores_per_second, &Churn::store), "stores");
    tasks_.spawn(repeat(options_.gets_per_second, &Churn::get), "gets");
    runtime_.run_for(options_.duration);
    ending_ = true;
    runtime_.run_for(2min);  // operations that have begun end

    const double seconds = to_seconds(options_.duration), size = static_cast<double>(nodes_.size());
    const double searched = std::max(1.0, dht_metrics_.searches.value() - searches);
    report_.hops = (dht_metrics_.search_hops.value() - hops) / searched;
    report_.calls_per_get = (dht_metrics_.search_calls.value() - search_calls) / searched;
    report_.messages_per_operation =
        2 * (all_calls() - calls) / std::max(1.0, static_cast<double>(report_.gets + report_.stores));
    report_.wire_bytes_per_node_second = static_cast<double>(fabric_.bytes_carried() - bytes) / size / seconds;
    report_.memory_bytes_per_node = (resident_bytes() - before) / size;
    for (const auto& node : nodes_) {
      report_.table_size += static_cast<double>(node->dht->table_size()) / size;
      report_.connections += static_cast<double>(node->host->peers().size()) / size;
    }
    report_.run_seconds = seconds_now() - start;
    return report_;
  }

 private:
  double all_calls() const {
    double calls = 0;
    for (const auto* kind : {&find_, &store_, &ping_}) calls += kind->ok.value() + kind->failed.value();
    return calls;
  }
  std::size_t below(std::size_t limit) { return runtime_.random()() % limit; }

  /// A node that has joined, or null.
  std::shared_ptr<ChurnNode> any_standing() {
    for (int attempt = 0; attempt < 100; ++attempt) {
      auto node = nodes_[below(nodes_.size())];
      if (node->standing) return node;
    }
    return nullptr;
  }

  std::shared_ptr<ChurnNode> new_node() {
    auto node = std::make_shared<ChurnNode>();
    node->machine = fabric_.add_machine();
    const std::uint64_t number = ++made_;
    node->ip = log::format("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
    Bytes seed(32, static_cast<std::uint8_t>(options_.seed));
    std::memcpy(seed.data(), &number, sizeof number);
    p2p::HostOptions host_options;
    host_options.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()};
    host_options.max_connections = options_.max_connections;
    host_options.max_known_peers = options_.max_known_peers;
    host_options.transport.plaintext = true;
    host_options.transport.keepalive_interval = kNodeKeepalive;
    node->host = std::make_unique<p2p::Host>(*node->machine, KeyPair::ed25519_from_seed(seed), host_options);
    node->host->start().value();
    node->dht = std::make_unique<Dht>(*node->host);
    return node;
  }

  Task<void> join(std::shared_ptr<ChurnNode> node) {
    std::vector<Multiaddr> initial;
    for (std::size_t i = 0; i < kInitialNodes && !nodes_.empty(); ++i)
      if (const auto other = any_standing()) initial.push_back(other->host->visible_addresses().front());
    ++node->busy;
    const auto joined = co_await node->dht->start(initial);
    --node->busy;
    node->standing = joined.has_value();
    ++(joined ? report_.joined : report_.joins_failed);
  }

  Task<void> join_later(std::shared_ptr<ChurnNode> node, Duration pause) {
    co_await runtime_.sleep_for(pause);
    co_await join(node);
  }

  /// The swarm grows by a quarter in every wave: more newcomers at once than the others have room for are turned away.
  void build() {
    while (nodes_.size() < options_.nodes) {
      const std::size_t standing = nodes_.size();
      const std::size_t wave = std::min(std::max<std::size_t>(standing / 4, 1), options_.nodes - standing);
      std::vector<std::shared_ptr<ChurnNode>> newcomers;
      std::vector<Task<void>> joining;
      for (std::size_t i = 0; i < wave; ++i) {
        newcomers.push_back(new_node());
        joining.push_back(join_later(newcomers.back(), from_seconds(runtime_.random_unit() * to_seconds(kWave))));
      }
      runtime_.run(when_all(runtime_, std::move(joining)));
      nodes_.insert(nodes_.end(), newcomers.begin(), newcomers.end());
    }
    runtime_.run_for(kRestBeforeStart);
  }

  Task<void> replace_nodes() {
    const double per_second = options_.replaced_per_minute * static_cast<double>(options_.nodes) / 60;
    while (!ending_) {
      co_await runtime_.sleep_for(from_seconds(-std::log(1 - runtime_.random_unit()) / per_second));
      const std::size_t at = below(nodes_.size());
      if (ending_ || !nodes_[at]->standing || nodes_[at]->busy > 0)
        continue;  // an operation that dies with its node tells nothing
      fabric_.kill(nodes_[at]->ip);
      nodes_[at]->dht.reset();
      nodes_[at]->host.reset();
      ++report_.left;
      nodes_[at] = new_node();
      tasks_.spawn(join(nodes_[at]), "join");
    }
  }

  Task<void> repeat(double per_second, Task<void> (Churn::*operation)()) {
    while (!ending_) {
      co_await runtime_.sleep_for(from_seconds(-std::log(1 - runtime_.random_unit()) / per_second));
      if (!ending_) tasks_.spawn((this->*operation)(), "operation");
    }
  }

  Task<void> store() {
    const auto node = any_standing();
    if (!node) co_return;
    const StoredKey record{"key " + std::to_string(report_.stores), node->dht->now() + to_seconds(options_.lifetime)};
    ++report_.stores;
    ++node->busy;
    const auto stored = co_await node->dht->store(record.key, record.key, record.expiration);
    --node->busy;
    if (stored) {
      records_.push_back(record);
    } else {
      ++report_.stores_failed;
    }
  }

  Task<void> get() {
    const auto node = any_standing();
    if (!node) co_return;
    while (!records_.empty() && records_.front().expiration < node->dht->now() + 30) records_.pop_front();
    if (records_.empty()) co_return;
    const std::string key = records_[below(records_.size())].key;
    ++report_.gets;
    ++node->busy;
    const auto found = co_await node->dht->get(key);
    --node->busy;
    if (!found || !found->value() || *found->value() != msgpack::Value(key)) ++report_.gets_failed;
  }

  const ChurnOptions options_;
  SimRuntime runtime_;
  transport::SimFabric fabric_;
  const dht::CallMetrics find_, store_, ping_;
  const dht::DhtMetrics dht_metrics_;
  std::vector<std::shared_ptr<ChurnNode>> nodes_;
  std::deque<StoredKey> records_;  // by expiration
  std::uint64_t made_ = 0;
  bool ending_ = false;
  ChurnReport report_;
  TaskGroup tasks_;
};

}  // namespace

ChurnReport run_churn(const ChurnOptions& options) {
  Churn churn(options);
  return churn.run();
}

}  // namespace cohive::sim
