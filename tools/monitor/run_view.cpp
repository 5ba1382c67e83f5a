#include "monitor/run_view.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <unordered_map>
#include <unordered_set>

#include "monitor/warnings.hpp"

namespace cohive::tools {
namespace {

constexpr double kFarthestEnd =
    7 * 86400;                         // seconds: a speed that takes longer is that of a trainer that has just begun
constexpr std::size_t kInMatrix = 60;  // peers between which the page shows all links: src/p2p/page/swarm.js

std::string software_of(const std::string& agent, bool answers) {
  if (agent.starts_with("cohive/")) return "cohive";
  // The daemon of Python hivemind says what go-libp2p says.
  if (agent.find("p2pd") != std::string::npos || agent.find("go-libp2p") != std::string::npos) return "hivemind";
  return answers && !agent.empty() ? "other" : "unknown";
}

void add_contact(PeerView& peer, bool reachable, Duration latency, const std::string& agent,
                 const std::vector<Multiaddr>& addresses, std::optional<double> clock_ahead) {
  peer.reachable = reachable;
  if (reachable) peer.rtt = to_seconds(latency);
  peer.agent = agent;
  peer.software = software_of(agent, reachable);
  if (!addresses.empty()) peer.address = addresses.front().text();
  peer.clock_ahead = clock_ahead;
}

void add_up(RunView& view, const train::ShardedRun& run) {
  view.epoch = view.claimed = run.epoch;
  view.clients = static_cast<std::size_t>(std::lround(run.clients));
  view.trainers = static_cast<std::size_t>(std::lround(std::max(0.0, run.trainers - run.clients)));
  view.samples_per_second = run.samples_per_second;
  view.samples = run.samples;
}

void add_up(RunView& view, const std::vector<TrainerReport>& trainers) {
  view.epoch = agreed_epoch(trainers);
  view.claimed = view.epoch;
  for (const TrainerReport& trainer : trainers) {
    (trainer.client ? view.clients : view.trainers) += 1;
    view.samples_per_second += trainer.samples_per_second;
    if (trainer.epoch == view.epoch) view.samples += static_cast<double>(trainer.samples);
    if (!trainer.client) view.claimed = std::max(view.claimed, trainer.epoch);
  }
}

/// Of the newest epoch that the run has reached: claims beyond it do not count.
void add_losses(RunView& view, const std::vector<LossReport>& losses) {
  std::vector<double> values;
  for (const LossReport& report : losses) {
    if (report.step > view.epoch || report.step < view.loss_step) continue;
    if (report.step > view.loss_step) {
      view.loss_step = report.step;
      view.epoch_samples = 0;
      values.clear();
    }
    values.push_back(report.loss);
    view.epoch_samples += static_cast<double>(report.samples);
  }
  // Where some do not tell theirs, the sum says nothing about the target.
  if (values.size() < view.trainers + view.clients) view.epoch_samples = 0;
  view.loss = middle_mean(std::move(values));
}

/// Losses outlive the reports of the trainers that told them, by minutes: of a run that has ended they still say how
/// far it came. Two must tell of an epoch, as with reports.
void recall(RunView& view, const std::vector<LossReport>& losses) {
  if (view.trainers + view.clients > 0 || losses.empty()) return;
  std::vector<std::uint64_t> steps;
  for (const LossReport& report : losses) steps.push_back(report.step);
  std::ranges::sort(steps, std::greater());
  view.epoch = view.claimed = steps[std::min<std::size_t>(1, steps.size() - 1)];
  view.ended = view.time;
}

void foresee(RunView& view, const ViewOptions& options) {
  view.target = options.target ? options.target : options.last_epoch_size;
  view.target_estimated = !options.target;
  if (!view.target && view.epoch_samples > 0) view.target = view.epoch_samples;
  if (!view.target || !(view.samples_per_second > 0)) return;
  const double eta = std::max(0.0, *view.target - view.samples) / view.samples_per_second;
  if (eta < kFarthestEnd) view.eta = eta;
}

/// Sizes of the sets of nodes of which none is named by a node of another set.
class Parts {
 public:
  explicit Parts(std::size_t count) : above_(count) { std::iota(above_.begin(), above_.end(), std::size_t{0}); }
  void join(std::size_t a, std::size_t b) { above_[top(a)] = top(b); }
  std::size_t top(std::size_t one) {
    while (above_[one] != one) one = above_[one] = above_[above_[one]];
    return one;
  }

 private:
  std::vector<std::size_t> above_;
};

/// The peers that each peer names, as indices of `peers`.
using NamedPeers = std::vector<std::vector<std::size_t>>;

/// Adds one link of each peer, then a second one of each, and so on: whoever names many takes no other one's place.
void add_in_turn(RunView& view, const NamedPeers& named, std::size_t most) {
  bool any_left = true;
  for (std::size_t turn = 0; any_left; ++turn) {
    any_left = false;
    for (std::size_t from = 0; from < named.size(); ++from) {
      if (turn >= named[from].size()) continue;
      if (view.links.size() >= most) return;
      view.links.emplace_back(from, named[from][turn]);
      any_left = true;
    }
  }
}

void add_links(RunView& view, const SwarmMap& map, const std::vector<std::size_t>& peer_of_node, std::size_t most) {
  std::unordered_map<dht::DhtId, std::size_t> index;
  for (std::size_t i = 0; i < map.nodes.size(); ++i) index.emplace(map.nodes[i].id, i);
  Parts parts(map.nodes.size());
  NamedPeers among_the_first(view.peers.size()), others(view.peers.size());
  for (std::size_t i = 0; i < map.nodes.size(); ++i)
    for (const dht::DhtId& named : map.nodes[i].named) {
      const auto found = index.find(named);
      if (found == index.end() || found->second == i || !map.nodes[found->second].reachable) continue;
      parts.join(i, found->second);
      const std::size_t from = peer_of_node[i], to = peer_of_node[found->second];
      (std::max(from, to) < kInMatrix ? among_the_first : others)[from].push_back(to);
    }
  add_in_turn(view, among_the_first, most);
  add_in_turn(view, others, most);
  std::map<std::size_t, std::size_t> sizes;
  for (std::size_t i = 0; i < map.nodes.size(); ++i)
    if (map.nodes[i].reachable) ++sizes[parts.top(i)];
  for (const auto& [top, size] : sizes) view.parts.push_back(size);
  std::ranges::sort(view.parts, std::greater());
}

std::unordered_map<PeerId, std::size_t> add_trainers(RunView& view, const RunRecords& records) {
  std::unordered_map<std::string, double> losses;
  for (const LossReport& report : records.losses) losses[report.marker] = report.loss;
  std::unordered_map<PeerId, std::size_t> places;
  for (const TrainerReport& trainer : records.trainers) {
    PeerView peer;
    peer.role = trainer.client ? PeerView::Role::client : PeerView::Role::trainer;
    peer.id = trainer.peer->text();
    peer.software = "unknown";
    peer.epoch = trainer.epoch;
    peer.samples = trainer.samples;
    peer.samples_per_second = trainer.samples_per_second;
    if (const auto loss = losses.find(trainer.marker); loss != losses.end()) peer.loss = loss->second;
    peer.age = trainer.age;
    if (trainer.age < -kClockTolerance) peer.clock_ahead = -trainer.age;
    places.emplace(*trainer.peer, view.peers.size());
    view.peers.push_back(std::move(peer));
  }
  return places;
}

void add_reports(RunView& view, const SwarmMap& map, const std::unordered_map<PeerId, std::size_t>& places,
                 std::size_t most) {
  const std::size_t share = most / std::max<std::size_t>(1, map.reports.size());
  for (const auto& [peer, report] : map.reports) {
    const auto from = places.find(peer);
    if (from == places.end()) continue;
    view.peers[from->second].schema_hash = report.schema_hash;
    std::unordered_set<std::size_t> told;
    for (const RunReport::Link& link : report.links)
      if (const auto to = places.find(link.peer);
          to != places.end() && told.size() < share && told.insert(to->second).second)
        view.round_trips.push_back({from->second, to->second, link.round_trip});
  }
  view.rounds = merge_rounds(map.reports, view.time);
}

void add_map(RunView& view, const RunRecords& records, const SwarmMap& map, std::size_t max_links) {
  auto places = add_trainers(view, records);
  std::vector<std::size_t> peer_of_node;
  for (const CrawledNode& node : map.nodes) {
    const auto [place, is_new] = places.emplace(node.peer, view.peers.size());
    if (is_new) view.peers.emplace_back().id = node.peer.text();
    PeerView& peer = view.peers[place->second];
    add_contact(peer, node.reachable, node.latency, node.agent, node.addresses,
                node.clock_ahead ? node.clock_ahead : peer.clock_ahead);
    peer.neighbours = node.neighbours;
    peer_of_node.push_back(place->second);
    view.reachable += node.reachable;
  }
  view.nodes = map.nodes.size();
  for (const auto& [id, contact] : map.trainers)
    if (const auto place = places.find(id); place != places.end())
      add_contact(view.peers[place->second], contact.reachable, contact.latency, contact.agent, contact.addresses,
                  contact.clock_ahead);
  add_links(view, map, peer_of_node, max_links);
  add_reports(view, map, places, max_links);
  view.mapped = true;
}

}  // namespace

std::uint64_t agreed_epoch(const std::vector<TrainerReport>& trainers) {
  const bool only_clients = std::ranges::all_of(trainers, &TrainerReport::client);
  std::vector<std::uint64_t> epochs;
  for (const TrainerReport& trainer : trainers)
    if (only_clients || !trainer.client) epochs.push_back(trainer.epoch);
  std::ranges::sort(epochs, std::greater());
  if (epochs.empty()) return 0;
  if (epochs.size() == 1) return epochs[0];
  return epochs.size() == 2 && epochs[0] - epochs[1] == 1 ? epochs[0] : epochs[1];
}

std::optional<double> middle_mean(std::vector<double> values) {
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const std::size_t left_out = values.size() == 3 ? 1 : values.size() / 4;
  const auto middle = std::span(values).subspan(left_out, values.size() - 2 * left_out);
  return std::accumulate(middle.begin(), middle.end(), 0.0) / static_cast<double>(middle.size());
}

bool saw_the_run(const RunView& view) {
  return view.time > 0 && (view.trainers + view.clients > 0 || view.ended);
}

void keep_what_was_seen(RunView& view, const RunView& before) {
  if (view.trainers + view.clients > 0 || before.time == 0) return;
  const bool trained = before.trainers + before.clients > 0;
  if (!trained && !before.ended) return;
  view.ended = trained ? before.time : before.ended;
  if (view.epoch > before.epoch) return;
  view.epoch = view.claimed = before.epoch;
  view.samples = before.samples;
  view.target = before.target;
  view.target_estimated = before.target_estimated;
  view.loss = before.loss;
  view.loss_step = before.loss_step;
  view.epoch_samples = before.epoch_samples;
}

RunView make_view(const ViewOptions& options, double now, const RunRecords& records, const SwarmMap* map,
                  const RunView* before) {
  RunView view;
  view.run_id = options.run_id;
  view.time = now;
  if (records.all)
    add_up(view, *records.all);
  else
    add_up(view, records.trainers);
  recall(view, records.losses);
  add_losses(view, records.losses);
  foresee(view, options);
  if (before) keep_what_was_seen(view, *before);
  if (map) {
    add_map(view, records, *map, options.max_links);
  } else {
    add_trainers(view, records);
  }
  view.warnings = warnings_of(view, map);
  return view;
}

std::string_view to_text(PeerView::Role role) {
  switch (role) {
    case PeerView::Role::trainer:
      return "trainer";
    case PeerView::Role::client:
      return "client";
    case PeerView::Role::node:
      break;
  }
  return "node";
}

}  // namespace cohive::tools
