#include "dht/crawl.hpp"

#include <deque>
#include <map>
#include <set>
#include <utility>

#include "cohive/core/combine.hpp"
#include "dht/node_ping.hpp"

namespace cohive::tools {
namespace {

// Besides the node's own id it is asked about ids that differ from it in one of the first bits: each lies in another of
// its buckets, and together they hold nearly all it knows.
constexpr std::size_t kBuckets = 15;
constexpr Duration kPing = 3s;
// A peer has one id. Those of earlier starts may still be known, and others may be lies about it.
constexpr std::size_t kIdsOfOnePeer = 4;

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
    for (const Place& place : waiting_) nodes_.erase(place);
    std::vector<CrawledNode> result;
    for (auto& [place, node] : nodes_) result.push_back(std::move(node));
    co_return result;
  }

 private:
  /// Both: a liar who says to be at the place of another node must not hide that one.
  using Place = std::pair<dht::DhtId, PeerId>;

  /// Anybody may name any id.
  void add(const dht::DhtId& id, const PeerId& peer) {
    const auto named = named_.find(peer);
    if (named != named_.end() && named->second >= kIdsOfOnePeer) return;
    if (insert({id, peer})) ++named_[peer];
  }

  bool insert(const Place& place) {
    if (nodes_.size() >= options_.max_nodes) return false;
    if (!nodes_.try_emplace(place, CrawledNode{.id = place.first, .peer = place.second}).second) return false;
    waiting_.push_back(place);
    changed_.notify_one();
    return true;
  }

  Task<void> work() {
    for (;;) {
      if (dht_.runtime().now() >= end_) break;
      if (waiting_.empty()) {
        if (active_ == 0) break;
        co_await changed_.wait();
        continue;
      }
      const Place place = waiting_.front();
      waiting_.pop_front();
      ++active_;
      if (!co_await visit(nodes_.at(place))) nodes_.erase(place);
      --active_;
    }
    changed_.notify_all();
  }

  /// References into a map stay valid while it grows. False: the peer is no node of that id.
  Task<bool> visit(CrawledNode& node) {
    const auto own = co_await dht_.ping(node.peer);
    if (!own) co_return true;  // nothing says that it is not there
    if (*own != node.id) {
      // Once: a peer that has another id each time it is asked would never be done with.
      if (*own && answered_.insert(node.peer).second) insert({**own, node.peer});
      co_return false;
    }
    answered_.insert(node.peer);
    const auto found = co_await dht_.ask(node.peer, questions(node.id));
    if (!found) co_return true;
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
    co_return true;
  }

  Dht& dht_;
  const CrawlOptions options_;
  const TimePoint end_;
  std::map<Place, CrawledNode> nodes_;
  std::deque<Place> waiting_;
  std::map<PeerId, std::size_t> named_;  // how many ids others have named for a peer
  std::set<PeerId> answered_;            // peers that have told their own id
  std::size_t active_ = 0;
  Condition changed_;
};

}  // namespace

Task<std::vector<CrawledNode>> crawl(Dht& dht, CrawlOptions options) {
  Crawler crawler(dht, options);
  co_return co_await crawler.run();
}

}  // namespace cohive::tools
