#include "dht/crawl.hpp"

#include <deque>
#include <map>
#include <set>

#include "cohive/core/combine.hpp"
#include "dht/node_ping.hpp"

namespace cohive::tools {
namespace {

// Besides the node's own id it is asked about ids that differ from it in one of the first bits: each lies in another of
// its buckets, and together they hold nearly all it knows.
constexpr std::size_t kBuckets = 15;
constexpr Duration kPing = 3s;

std::vector<dht::DhtId> questions(const dht::DhtId& id) {
  std::vector<dht::DhtId> keys{id};
  for (std::size_t bit = 0; bit < kBuckets; ++bit) {
    dht::DhtId other = id;
    other.bytes[bit / 8] ^= static_cast<std::uint8_t>(0x80 >> bit % 8);
    keys.push_back(other);
  }
  return keys;
}

class Crawler {
 public:
  Crawler(Dht& dht, CrawlOptions options)
      : dht_(dht),
        options_(options),
        end_(dht.runtime().now() + options.patience),
        changed_(dht.runtime(), "crawled nodes") {}

  Task<std::vector<CrawledNode>> run() {
    for (const auto& [id, peer] : dht_.known_nodes()) add(id, peer);
    std::vector<Task<void>> workers;
    for (std::size_t i = 0; i < options_.parallel; ++i) workers.push_back(work());
    co_await when_all(dht_.runtime(), std::move(workers));
    for (const dht::DhtId& id : waiting_) nodes_.erase(id);
    std::vector<CrawledNode> result;
    for (auto& [id, node] : nodes_) result.push_back(std::move(node));
    co_return result;
  }

 private:
  void add(const dht::DhtId& id, const PeerId& peer) {
    if (nodes_.size() >= options_.max_nodes || !nodes_.try_emplace(id, CrawledNode{.id = id, .peer = peer}).second)
      return;
    waiting_.push_back(id);
    changed_.notify_one();
  }

  Task<void> work() {
    for (;;) {
      if (dht_.runtime().now() >= end_) break;
      if (waiting_.empty()) {
        if (active_ == 0) break;
        co_await changed_.wait();
        continue;
      }
      const dht::DhtId id = waiting_.front();
      waiting_.pop_front();
      ++active_;
      co_await visit(nodes_.at(id));
      --active_;
    }
    changed_.notify_all();
  }

  /// References into a map stay valid while it grows.
  Task<void> visit(CrawledNode& node) {
    const auto found = co_await dht_.ask(node.peer, questions(node.id));
    if (!found) co_return;
    std::set<dht::DhtId> named;
    for (const auto& report : *found)
      for (const auto& [id, peer] : report.nearest) {
        named.insert(id);
        add(id, peer);
      }
    node.neighbours = named.size();
    if (options_.details) node.named.assign(named.begin(), named.end());
    node.reachable = true;
    const TimePoint asked = dht_.runtime().now();  // the connection stands now
    if (const auto again = co_await dht_.ask(node.peer, {node.id}); again) node.latency = dht_.runtime().now() - asked;
    if (options_.details)
      if (const auto ping = co_await ping_node(dht_.host(), node.peer, dht_.runtime().after(kPing)); ping)
        node.clock_ahead = ping->clock_ahead;
    if (const auto info = dht_.host().peer(node.peer)) {
      node.agent = info->agent;
      node.addresses = info->addresses;
    }
  }

  Dht& dht_;
  const CrawlOptions options_;
  const TimePoint end_;
  std::map<dht::DhtId, CrawledNode> nodes_;
  std::deque<dht::DhtId> waiting_;
  std::size_t active_ = 0;
  Condition changed_;
};

}  // namespace

Task<std::vector<CrawledNode>> crawl(Dht& dht, CrawlOptions options) {
  Crawler crawler(dht, options);
  co_return co_await crawler.run();
}

}  // namespace cohive::tools
