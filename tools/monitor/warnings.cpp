#include "monitor/warnings.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cohive/core/log.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kNamed = 3;        // peers of a sentence
constexpr std::uint64_t kFarBehind = 2;  // epochs: one is usual at the end of an epoch
constexpr double kLongSilence = 45;      // seconds without a report of any trainer: each reports every 30 s, for 60 s

using Peers = std::vector<const PeerView*>;

template <class Predicate>
Peers peers_that(const RunView& view, Predicate predicate) {
  Peers found;
  for (const PeerView& peer : view.peers)
    if (predicate(peer)) found.push_back(&peer);
  return found;
}

std::string names(const Peers& peers) {
  std::string text;
  for (std::size_t i = 0; i < std::min(peers.size(), kNamed); ++i) text += (i ? ", " : "") + peers[i]->id;
  if (peers.size() > kNamed) text += log::format(" and {} more", peers.size() - kNamed);
  return text;
}

std::string count(std::size_t number, const std::string& one, const std::string& many) {
  return std::to_string(number) + " " + (number == 1 ? one : many);
}

// ---- The run

void about_trainers(const RunView& view, std::vector<Warning>& warnings) {
  if (view.ended) {
    warnings.push_back(
        {"ended", log::format("no trainer reports any more: the run has ended, or all its trainers are gone; what "
                              "is shown is what was seen last, {:.0f} s ago",
                              std::max(0.0, view.time - *view.ended))});
    return;
  }
  if (view.trainers + view.clients == 0) {
    warnings.push_back({"no_trainers", "no trainer reports: none trains run " + log::quoted(view.run_id, 60) +
                                           " now, or its trainers were given another --run-id"});
    return;
  }
  if (view.claimed > view.epoch + 1)  // a trainer that is ahead by one has ended the epoch before the others
    warnings.push_back(
        {"claim",
         log::format("a peer claims epoch {}, which no other trainer has reached: it is not believed", view.claimed)});
  const Peers behind =
      peers_that(view, [&](const PeerView& peer) { return peer.epoch && *peer.epoch + kFarBehind <= view.epoch; });
  if (!behind.empty())
    warnings.push_back(
        {"behind",
         log::format("{} 2 epochs or more behind epoch {}: they download the state, or are in another part of "
                     "the swarm: {}",
                     count(behind.size(), "trainer is", "trainers are"), view.epoch, names(behind))});
  const Peers old = peers_that(view, [](const PeerView& peer) { return peer.age && *peer.age > kLongSilence; });
  if (!old.empty() && old.size() == view.trainers + view.clients)
    warnings.push_back(
        {"stalled", log::format("no trainer has reported for {:.0f} s: the run stands still", kLongSilence)});
}

/// Clients cannot dial one another: somebody has to reduce for them.
void about_clients(const RunView& view, std::vector<Warning>& warnings) {
  const bool helped = std::ranges::any_of(
      view.peers, [](const PeerView& peer) { return peer.role == PeerView::Role::node && !peer.schema_hash.empty(); });
  if (view.ended || view.trainers > 0 || view.clients < 2 || helped) return;
  warnings.push_back({"clients", log::format("all {} trainers are clients, and no group forms among clients: run one "
                                             "without --client where it can be dialled, or an auxiliary peer",
                                             view.clients)});
}

/// The model that most have counts as that of the run.
void about_models(const RunView& view, std::vector<Warning>& warnings) {
  std::map<std::string, std::size_t> models;
  for (const PeerView& peer : view.peers)
    if (!peer.schema_hash.empty()) ++models[peer.schema_hash];
  if (models.size() < 2) return;
  const auto most = std::ranges::max_element(models, {}, &std::pair<const std::string, std::size_t>::second)->first;
  const Peers other =
      peers_that(view, [&](const PeerView& peer) { return !peer.schema_hash.empty() && peer.schema_hash != most; });
  warnings.push_back({"model", log::format("{} another model or optimizer than {}, and cannot average with them: {}",
                                           count(other.size(), "trainer has", "trainers have"),
                                           count(models.at(most), "other", "others"), names(other))});
}

// ---- The swarm

void about_parts(const RunView& view, std::vector<Warning>& warnings) {
  if (view.parts.size() < 2) return;
  std::string sizes;
  for (std::size_t i = 0; i < std::min<std::size_t>(view.parts.size(), 5); ++i)
    sizes += (i ? " and " : "") + std::to_string(view.parts[i]);
  warnings.push_back({"split", "the swarm is split: parts of " + sizes +
                                   " nodes do not know each other; restart a node of one part with an address of the "
                                   "other among its --initial-peers"});
}

void about_clocks(const RunView& view, std::vector<Warning>& warnings) {
  Peers off;
  std::vector<double> known;
  for (const PeerView& peer : view.peers) {
    if (!peer.clock_ahead) continue;
    known.push_back(*peer.clock_ahead);
    if (std::abs(*peer.clock_ahead) > kClockTolerance) off.push_back(&peer);
  }
  if (off.empty()) return;
  std::ranges::nth_element(known, known.begin() + static_cast<std::ptrdiff_t>(known.size() / 2));
  const double middle = known[known.size() / 2];
  if (known.size() > 2 && std::abs(middle) > kClockTolerance) {
    warnings.push_back(
        {"clock", log::format("the clock of this machine is {:.1f} s {} those of most nodes: set it by NTP "
                              "(timedatectl set-ntp true)",
                              std::abs(middle), middle > 0 ? "behind" : "ahead of")});
    return;
  }
  for (std::size_t i = 0; i < std::min(off.size(), kNamed); ++i)
    warnings.push_back(
        {"clock",
         log::format("the clock of {} is {:.1f} s {} this one: set it by NTP (timedatectl set-ntp "
                     "true), records expire by it",
                     off[i]->id, std::abs(*off[i]->clock_ahead), *off[i]->clock_ahead > 0 ? "ahead of" : "behind")});
  if (off.size() > kNamed)
    warnings.push_back({"clock", log::format("the clocks of {} more peers are off", off.size() - kNamed)});
}

void about_reachability(const RunView& view, const SwarmMap& map, std::vector<Warning>& warnings) {
  for (const Multiaddr& address : map.silent)
    warnings.push_back({"initial_peer", "the initial peer " + address.text() +
                                            " does not answer: newcomers that know only this one cannot join"});
  const Peers unreachable = peers_that(view, [](const PeerView& peer) { return peer.reachable == false; });
  if (unreachable.empty()) return;
  const std::size_t asked = peers_that(view, [](const PeerView& peer) { return peer.reachable.has_value(); }).size();
  warnings.push_back(
      {"unreachable",
       log::format("{} of {} peers cannot be reached from here: closed ports, or peers that have just left: {}",
                   unreachable.size(), asked, names(unreachable))});
}

/// "cohive/0.1" as numbers; empty for other software.
std::vector<int> version_of(const std::string& agent) {
  std::vector<int> numbers;
  if (!agent.starts_with("cohive/")) return numbers;
  const char *at = agent.data() + 7, *end = agent.data() + agent.size();
  for (int number = 0; at < end; ++at) {
    const auto [rest, error] = std::from_chars(at, end, number);
    if (error != std::errc()) break;
    numbers.push_back(number);
    at = rest;
    if (at == end || *at != '.') break;
  }
  return numbers;
}

/// The newest counts when two peers have it: one may say anything.
void about_versions(const RunView& view, std::vector<Warning>& warnings) {
  std::map<std::vector<int>, std::size_t> versions;
  for (const PeerView& peer : view.peers)
    if (auto version = version_of(peer.agent); !version.empty()) ++versions[version];
  if (versions.size() < 2) return;
  auto newest = std::prev(versions.end());
  if (newest->second < 2) newest = std::prev(newest);
  const Peers old = peers_that(view, [&](const PeerView& peer) {
    const auto version = version_of(peer.agent);
    return !version.empty() && version < newest->first;
  });
  if (old.empty()) return;
  std::string text;
  for (const int number : newest->first) text += (text.empty() ? "" : ".") + std::to_string(number);
  warnings.push_back({"version", log::format("{} an older cohive than {}: {}",
                                             count(old.size(), "peer runs", "peers run"), text, names(old))});
}

}  // namespace

std::vector<Warning> warnings_of(const RunView& view, const SwarmMap* map) {
  std::vector<Warning> warnings;
  if (view.time > 0) {
    about_trainers(view, warnings);
    about_clients(view, warnings);
  }
  about_clocks(view, warnings);
  if (!map) return warnings;
  about_models(view, warnings);
  about_parts(view, warnings);
  about_reachability(view, *map, warnings);
  about_versions(view, warnings);
  return warnings;
}

Warning blind_warning(std::optional<Duration> since) {
  if (!since) return {"blind", "the swarm has not answered yet: nothing is known of the run"};
  return {"blind", log::format("the swarm has not answered for {:.0f} s: what is shown is what was seen then",
                               to_seconds(*since))};
}

}  // namespace cohive::tools
