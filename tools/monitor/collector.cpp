#include "monitor/collector.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "monitor/warnings.hpp"

namespace cohive::tools {
namespace {

constexpr Duration kCall = 5s;  // to one peer
// Trainers may claim any peer id, each of which is searched for.
constexpr std::size_t kCallsAtOnce = 32, kMostCalls = 512;
constexpr Duration kFirstLook = 10s;
// After so long, or so many looks without an answer, what is shown is no longer how the run is.
constexpr Duration kStale = 5min;
constexpr int kStaleLooks = 3;
constexpr Duration kCrawl = 2min;  // a swarm may hold thousands of nodes that answer slowly

/// All of them, a few at a time.
Task<void> some_at_once(Runtime& runtime, std::vector<Task<void>> calls) {
  for (auto next = calls.begin(); next != calls.end();) {
    const auto end = next + std::min<std::ptrdiff_t>(kCallsAtOnce, calls.end() - next);
    co_await when_all(runtime, std::vector<Task<void>>(std::move_iterator(next), std::move_iterator(end)));
    next = end;
  }
}

}  // namespace

Collector::Collector(Dht& dht, CollectorOptions options, std::optional<LookHistory> history)
    : dht_(dht),
      options_(std::move(options)),
      history_(history ? std::move(*history) : LookHistory(options_.run_id)),
      began_(dht.runtime().now()),
      last_seen_(history_.last_seen()),
      changed_(dht.runtime(), "a look at the run") {}

Task<void> Collector::look_again_and_again(Collector& self) {
  for (;;) {
    co_await self.look();
    co_await self.dht_.runtime().sleep_for(self.options_.period);
  }
}

Task<void> Collector::crawl_again_and_again(Collector& self) {
  if (self.view_.time == 0)
    co_await self.changed_.wait(self.dht_.runtime().after(kFirstLook));  // trainers are called, too
  for (;;) {
    co_await self.crawl();
    co_await self.dht_.runtime().sleep_for(self.options_.crawl_period);
  }
}

Task<void> Collector::look() {
  auto records = co_await read_records(dht_, options_.run_id);
  if (!records) {
    ++failed_looks_;
    log::warn("monitor", "the progress of the run cannot be read: {}", records.error());
    blind_ = true;
    warn_if_blind();
    changed_.notify_all();
    co_return;
  }
  records_ = std::move(*records);
  records_read_ = dht_.now();
  answered_ = dht_.runtime().now();
  blind_ = false;
  refresh();
  auto line = history_.add(view_);
  changed_.notify_all();
  if (!line || options_.history_path.empty()) co_return;
  const bool written = co_await append(dht_.runtime(), options_.history_path, std::move(*line));
  if (!written && !file_fails_) log::warn("monitor", "the history cannot be written: {}", options_.history_path);
  file_fails_ = !written;
}

Task<bool> Collector::append(Runtime& runtime, std::string path, std::string line) {
  co_return co_await runtime.offload_io([path = std::move(path), line = std::move(line)] {
    // What a process left that was killed while it wrote must not swallow this line.
    std::ifstream before(path, std::ios::binary | std::ios::ate);
    const bool cut = before && before.tellg() > 0 && before.seekg(-1, std::ios::end).get() != '\n';
    std::ofstream file(path, std::ios::app);
    file << (cut ? "\n" : "") << line << '\n';
    file.flush();
    return file.good();
  });
}

void Collector::refresh() {
  view_ =
      make_view({.run_id = options_.run_id, .target = options_.target, .last_epoch_size = history_.last_epoch_size()},
                records_read_, records_, map_ ? &*map_ : nullptr, &last_seen_);
  if (saw_the_run(view_)) {
    last_seen_ = view_;
    last_seen_.peers.clear();
    last_seen_.links.clear();
  }
  warn_if_blind();
}

/// What the view shows looks as if it were of now: that it is not comes first.
void Collector::warn_if_blind() {
  auto& warnings = view_.warnings;
  std::erase_if(warnings, [](const Warning& warning) { return warning.kind == "blind"; });
  if (!blind_) return;
  const auto since = answered_ ? std::optional<Duration>(dht_.runtime().now() - *answered_) : std::nullopt;
  warnings.insert(warnings.begin(), blind_warning(since));
}

bool Collector::misses_the_run() const {
  const TimePoint heard = answered_.value_or(began_);
  return dht_.runtime().now() - heard > std::max<Duration>(kStale, kStaleLooks * options_.period);
}

// ---- The swarm

Task<void> Collector::crawl() {
  SwarmMap map;
  map.nodes = co_await tools::crawl(dht_, {.max_nodes = options_.max_nodes, .details = true, .patience = kCrawl});
  std::vector<Task<void>> calls;
  for (const Multiaddr& address : options_.initial_peers) calls.push_back(call_initial(dht_, address, map));
  calls.push_back(call_trainers(map));
  co_await when_all(dht_.runtime(), std::move(calls));
  co_await read_reports(map);
  map_ = std::move(map);
  refresh();
  changed_.notify_all();
}

/// The connection stands, where the crawl has met the peer.
Task<void> Collector::call_initial(Dht& dht, Multiaddr address, SwarmMap& map) {
  const Deadline deadline = dht.runtime().after(kCall);
  if (const auto peer = address.peer(); peer && dht.host().connected(*peer)) co_return;
  if (!co_await dht.host().connect(address, deadline)) map.silent.push_back(std::move(address));
}

/// Calls trainers that are no clients and that no node has named.
Task<void> Collector::call_trainers(SwarmMap& map) {
  std::set<PeerId> met;
  for (const CrawledNode& node : map.nodes) met.insert(node.peer);
  for (const TrainerReport& trainer : records_.trainers)
    if (!trainer.client && !met.contains(*trainer.peer) && map.trainers.size() < kMostCalls)
      map.trainers.try_emplace(*trainer.peer);
  std::vector<Task<void>> calls;
  for (auto& [peer, contact] : map.trainers) calls.push_back(call(dht_, peer, contact));
  co_await some_at_once(dht_.runtime(), std::move(calls));
}

/// Of the trainers that run cohive: this one is connected to them now.
Task<void> Collector::read_reports(SwarmMap& map) {
  std::vector<Task<void>> calls;
  for (const TrainerReport& trainer : records_.trainers) {  // which a look may replace once the calls go on
    const auto known = dht_.host().peer(*trainer.peer);
    const bool tells = known && known->connected && known->agent.starts_with("cohive/");
    if (tells && calls.size() < kMostCalls) calls.push_back(read_report(dht_, *trainer.peer, options_.run_id, map));
  }
  co_await some_at_once(dht_.runtime(), std::move(calls));
}

Task<void> Collector::read_report(Dht& dht, PeerId peer, std::string run_id, SwarmMap& map) {
  auto report = co_await read_run_report(dht.host(), peer, std::move(run_id), dht.runtime().after(kCall));
  if (report)
    map.reports.insert_or_assign(peer, std::move(*report));
  else
    log::debug("monitor", "{} tells nothing of its run: {}", peer, report.error());
}

Task<void> Collector::call(Dht& dht, PeerId peer, Contact& contact) {
  const auto ping = co_await ping_node(dht.host(), peer, dht.runtime().after(kCall));
  if (!ping) co_return;
  contact.reachable = true;
  contact.latency = from_seconds(ping->seconds);
  contact.clock_ahead = ping->clock_ahead;
  if (const auto info = dht.host().peer(peer)) {
    contact.agent = info->agent;
    contact.addresses = info->addresses;
  }
}

}  // namespace cohive::tools
