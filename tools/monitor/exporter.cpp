#include "monitor/exporter.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "cohive/core/log.hpp"
#include "cohive/core/names.hpp"

namespace cohive::tools {
namespace {

constexpr std::array kWarnings = {"blind", "no_trainers", "ended",        "clients",     "claim",   "behind", "stalled",
                                  "split", "clock",       "initial_peer", "unreachable", "version", "model"};
constexpr std::array kSoftware = {"cohive", "hivemind", "other", "unknown"};

double or_nan(const std::optional<double>& value) {
  return value.value_or(std::nan(""));
}

/// What is not known yet is no 0, which would be an epoch, or a swarm without trainers.
double once_known(bool known, double value) {
  return known ? value : std::nan("");
}

/// As the value of a label.
std::string label_of(const std::string& text) {
  std::string result;
  for (const char c : printable_text(text)) {
    if (c == '\\' || c == '"') result += '\\';
    result += c;
  }
  return result;
}

struct Series {
  const char *name, *help;
  std::optional<double> (*value)(const PeerView&);
};
template <class T>
std::optional<double> as_double(const std::optional<T>& value) {
  return value ? std::optional(static_cast<double>(*value)) : std::nullopt;
}
constexpr std::array kSeries = {
    Series{"cohive_swarm_trainer_epoch", "Epoch of a trainer.",
           [](const PeerView& peer) { return as_double(peer.epoch); }},
    Series{"cohive_swarm_trainer_samples_per_second", "Speed of a trainer.",
           [](const PeerView& peer) { return peer.samples_per_second; }},
    Series{"cohive_swarm_trainer_loss", "Mean loss of a trainer in its last epoch.",
           [](const PeerView& peer) { return peer.loss; }},
    Series{"cohive_swarm_trainer_reachable", "Whether a trainer could be reached: 1 or 0.",
           [](const PeerView& peer) { return as_double(peer.reachable); }},
};

}  // namespace

Gauge RunExporter::gauge(const std::string& name, const std::string& help, MetricLabels labels) {
  labels["run_id"] = run_id_;
  return metrics_.gauge(name, help, labels);
}

RunExporter::RunExporter(Metrics& metrics, std::string run_id, std::size_t peers)
    : metrics_(metrics),
      run_id_(std::move(run_id)),
      most_peers_(peers),
      epoch_(gauge("cohive_swarm_epoch", "Epoch of the run, which two trainers at least have reached.")),
      samples_(gauge("cohive_swarm_samples", "Samples accumulated towards this epoch.")),
      target_(gauge("cohive_swarm_target_samples", "Samples of an epoch, as given or else estimated.")),
      rate_(gauge("cohive_swarm_samples_per_second", "Speed of all trainers together.")),
      loss_(gauge("cohive_swarm_loss", "Loss of the last epoch, the mean of the middle half of the trainers.")),
      eta_(gauge("cohive_swarm_epoch_remaining_seconds", "Until the epoch ends, as foreseen.")),
      trainers_(gauge("cohive_swarm_trainers", "Trainers that report.", {{"mode", "node"}})),
      clients_(gauge("cohive_swarm_trainers", "Trainers that report.", {{"mode", "client"}})),
      reachable_(gauge("cohive_swarm_nodes", "Nodes of the DHT.", {{"reachable", "yes"}})),
      unreachable_(gauge("cohive_swarm_nodes", "Nodes of the DHT.", {{"reachable", "no"}})),
      parts_(gauge("cohive_swarm_parts", "Parts of the DHT that do not know each other; 1 is right.")),
      last_look_(gauge("cohive_swarm_last_look_timestamp_seconds", "When the swarm answered a look at the run last.")),
      sees_run_(gauge("cohive_swarm_sees_run",
                      "Whether the swarm answers looks at the run: 1, or 0 for some minutes without an answer.")),
      failed_looks_(metrics.counter("cohive_swarm_failed_looks_total",
                                    "Looks at the run that the swarm did not answer.", {{"run_id", run_id_}})) {
  for (const char* kind : kWarnings)
    warnings_.emplace(kind, gauge("cohive_swarm_warnings", "Sentences of warning, by kind.", {{"kind", kind}}));
  for (const char* name : kSoftware)
    software_.emplace(name, gauge("cohive_swarm_peers", "Peers by what they run.", {{"software", name}}));
  update({});
  sees_run(true);
}

void RunExporter::update(const RunView& view) {
  const bool looked = view.time > 0;
  epoch_.set(once_known(looked, static_cast<double>(view.epoch)));
  samples_.set(once_known(looked, view.samples));
  target_.set(or_nan(view.target));
  rate_.set(once_known(looked, view.samples_per_second));
  loss_.set(or_nan(view.loss));
  eta_.set(or_nan(view.eta));
  trainers_.set(once_known(looked, static_cast<double>(view.trainers)));
  clients_.set(once_known(looked, static_cast<double>(view.clients)));
  reachable_.set(once_known(view.mapped, static_cast<double>(view.reachable)));
  unreachable_.set(once_known(view.mapped, static_cast<double>(view.nodes - view.reachable)));
  parts_.set(once_known(view.mapped, static_cast<double>(view.parts.size())));
  last_look_.set(once_known(looked, view.time));
  for (const auto& [kind, gauge] : warnings_)
    gauge.set(static_cast<double>(std::ranges::count(view.warnings, kind, &Warning::kind)));
  for (const auto& [name, gauge] : software_)
    gauge.set(once_known(looked || view.mapped,
                         static_cast<double>(std::ranges::count(view.peers, name, &PeerView::software))));
  tell_peers(view);
}

void RunExporter::tell_peers(const RunView& view) {
  std::unordered_map<std::string, const PeerView*> trainers;
  for (const PeerView& peer : view.peers)
    if (peer.epoch) trainers.emplace(peer.id, &peer);
  std::erase_if(told_, [&](const std::string& id) { return !trainers.contains(id); });
  std::unordered_set<std::string> told(told_.begin(), told_.end());
  for (const PeerView& peer : view.peers)
    if (told_.size() < most_peers_ && peer.epoch && told.insert(peer.id).second) told_.push_back(peer.id);
  peer_text_.clear();
  const std::string run = label_of(run_id_);
  for (const Series& series : kSeries) {
    std::string lines;
    for (const std::string& id : told_)
      if (const auto value = series.value(*trainers.at(id)))
        lines += log::format("{}{{run_id=\"{}\",peer=\"{}\"}} {}\n", series.name, run, id, *value);
    if (!lines.empty())
      peer_text_ += log::format("# HELP {} {}\n# TYPE {} gauge\n", series.name, series.help, series.name) + lines;
  }
}

}  // namespace cohive::tools
