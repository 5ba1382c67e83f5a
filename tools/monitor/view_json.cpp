#include "monitor/view_json.hpp"

#include <algorithm>
#include <cmath>

namespace cohive::tools {
namespace {

using nlohmann::json;

constexpr std::size_t kPeersShown = 2000, kPointsShown = 500;
constexpr std::ptrdiff_t kEpochsShown = 100;
constexpr std::size_t kIdsShown = 4;  // of the trainers that tell of a round: else rounds times members

template <class T>
json maybe(const std::optional<T>& value) {
  return value ? json(*value) : json();
}

json json_of(const PeerView& peer) {
  return {{"id", peer.id},
          {"role", to_text(peer.role)},
          {"software", peer.software},
          {"agent", peer.agent},
          {"address", peer.address},
          {"epoch", maybe(peer.epoch)},
          {"samples", maybe(peer.samples)},
          {"samples_per_second", maybe(peer.samples_per_second)},
          {"loss", maybe(peer.loss)},
          {"age_seconds", maybe(peer.age)},
          {"reachable", maybe(peer.reachable)},
          {"rtt_seconds", maybe(peer.rtt)},
          {"clock_ahead_seconds", maybe(peer.clock_ahead)},
          {"neighbours", peer.neighbours}};
}

json links_json(const RunView& view) {
  auto links = json::array();
  for (const auto& [from, to] : view.links)
    if (from < kPeersShown && to < kPeersShown) links.push_back({from, to});
  return links;
}

json rounds_json(const RunView& view) {
  auto rounds = json::array();
  for (const auto& [round, told_by] : view.rounds) {
    const std::vector<std::string> some(
        told_by.begin(), told_by.begin() + static_cast<std::ptrdiff_t>(std::min(told_by.size(), kIdsShown)));
    rounds.push_back({{"time", round.time},
                      {"what", round.averager},
                      {"outcome", to_text(round.outcome)},
                      {"message", round.message},
                      {"group_id", round.group_id},
                      {"member_count", round.members},
                      {"told_by", some},
                      {"told_by_count", told_by.size()},
                      {"matchmaking_seconds", round.matchmaking},
                      {"allreduce_seconds", round.allreduce}});
  }
  return rounds;
}

json round_trips_json(const RunView& view) {
  auto trips = json::array();
  for (const auto& [from, to, seconds] : view.round_trips)
    if (from < kPeersShown && to < kPeersShown) trips.push_back({from, to, seconds});
  return trips;
}

/// How long each epoch took.
json epochs_json(const std::deque<Look>& looks) {
  json::array_t epochs;
  std::optional<Look> before;
  const auto add = [&](const Look& look) {
    if (before && look.epoch > before->epoch)
      epochs.push_back(json{{"epoch", look.epoch - 1},
                            {"time", look.time},
                            {"seconds", (look.time - before->time) / static_cast<double>(look.epoch - before->epoch)},
                            {"peers", look.trainers + look.clients}});
    if (!before || look.epoch != before->epoch) before = look;
  };
  const auto drop = [&](std::uint64_t begin) {
    std::erase_if(epochs, [begin](const json& old) { return old.at("epoch").get<std::uint64_t>() >= begin; });
    before.reset();
  };
  follow_run(looks, [](const Look& look) { return look.epoch; }, add, drop);
  if (std::ssize(epochs) > kEpochsShown) epochs.erase(epochs.begin(), epochs.end() - kEpochsShown);
  return epochs;
}

}  // namespace

json summary_json(const RunView& view) {
  json line{{"run_id", view.run_id},
            {"peers", view.trainers + view.clients},
            {"clients", view.clients},
            {"epoch", view.epoch},
            {"ended", maybe(view.ended)},
            {"samples_accumulated", static_cast<std::uint64_t>(view.samples)},
            {"samples_per_second", view.samples_per_second},
            {"loss", maybe(view.loss)},
            {"trainers", json::array()}};
  for (const PeerView& peer : view.peers)
    if (peer.role != PeerView::Role::node)
      line["trainers"].push_back({{"peer_id", peer.id},
                                  {"epoch", maybe(peer.epoch)},
                                  {"samples_accumulated", maybe(peer.samples)},
                                  {"samples_per_second", maybe(peer.samples_per_second)},
                                  {"loss", maybe(peer.loss)},
                                  {"age_seconds", maybe(peer.age)},
                                  {"client_mode", peer.role == PeerView::Role::client}});
  return line;
}

json view_json(const RunView& view, const std::deque<Look>& looks) {
  json run{{"run_id", view.run_id},
           {"time", view.time},
           {"ended", maybe(view.ended)},
           {"epoch", view.epoch},
           {"claimed_epoch", view.claimed},
           {"samples", view.samples},
           {"target_samples", maybe(view.target)},
           {"target_is_estimated", view.target_estimated},
           {"samples_per_second", view.samples_per_second},
           {"eta_seconds", maybe(view.eta)},
           {"loss", maybe(view.loss)},
           {"loss_epoch", view.loss ? json(view.loss_step) : json()},
           {"trainers", view.trainers},
           {"clients", view.clients},
           {"mapped", view.mapped},
           {"nodes", view.nodes},
           {"reachable_nodes", view.reachable},
           {"parts", view.parts},
           {"peer_count", view.peers.size()},
           {"links", links_json(view)},
           {"round_trips", round_trips_json(view)},
           {"rounds", rounds_json(view)}};
  run["peers"] = json::array();
  for (std::size_t i = 0; i < std::min(view.peers.size(), kPeersShown); ++i)
    run["peers"].push_back(json_of(view.peers[i]));
  run["warnings"] = json::array();
  for (const Warning& warning : view.warnings)
    run["warnings"].push_back({{"kind", warning.kind}, {"message", warning.message}});
  run["losses"] = json::array();
  for (const Look& look : thinned(losses_of(looks), kPointsShown))
    run["losses"].push_back({{"epoch", look.loss_step}, {"time", look.time}, {"loss", *look.loss}});
  run["looks"] = json::array();
  for (const Look& look : thinned(looks, kPointsShown))
    run["looks"].push_back({{"time", look.time},
                            {"epoch", look.epoch},
                            {"samples_per_second", look.samples_per_second},
                            {"peers", look.trainers + look.clients}});
  run["epochs"] = epochs_json(looks);
  return run;
}

}  // namespace cohive::tools
