#include "monitor/merged_rounds.hpp"

#include <algorithm>
#include <functional>

#include "dht/node_ping.hpp"

namespace cohive::tools {
namespace {

constexpr double kLongAgo = 86400;  // seconds

void merge(MergedRound& merged, const RunReport::Round& told) {
  auto& round = merged.round;
  round.time = std::max(round.time, told.time);
  round.members = std::max(round.members, told.members);
  round.matchmaking = std::max(round.matchmaking, told.matchmaking);
  round.allreduce = std::max(round.allreduce, told.allreduce);
  round.outcome = std::max(round.outcome, told.outcome);
  if (round.message.empty()) round.message = told.message;
}

/// Keeps `most`: half of the places are for rounds that most peers tell of, so that invented rounds cannot take
/// them all; the newest other rounds, of which failed ones are told by a single peer, have the rest.
void choose(std::vector<MergedRound>& rounds, std::size_t most) {
  if (rounds.size() <= most) return;
  const auto time = [](const MergedRound& one) { return one.round.time; };
  std::ranges::sort(rounds, std::greater(),
                    [&](const MergedRound& one) { return std::pair(one.told_by.size(), time(one)); });
  std::ranges::sort(rounds.begin() + static_cast<std::ptrdiff_t>(most / 2), rounds.end(), std::greater(), time);
  rounds.resize(most);
}

}  // namespace

std::vector<MergedRound> merge_rounds(const std::map<PeerId, RunReport>& reports, double now, std::size_t most) {
  std::vector<MergedRound> rounds;
  std::map<std::pair<std::string, std::string>, std::size_t> groups;
  for (const auto& [peer, report] : reports)
    for (const RunReport::Round& told : report.rounds) {
      if (told.time < now - kLongAgo || told.time > now + kClockTolerance) continue;
      std::size_t place = rounds.size();
      if (!told.group_id.empty()) place = groups.try_emplace({told.averager, told.group_id}, place).first->second;
      if (place == rounds.size()) rounds.push_back({told, {}});
      merge(rounds[place], told);
      if (rounds[place].told_by.empty() || rounds[place].told_by.back() != peer.text())
        rounds[place].told_by.push_back(peer.text());
    }
  choose(rounds, most);
  std::ranges::sort(rounds, {}, [](const MergedRound& one) { return one.round.time; });
  return rounds;
}

}  // namespace cohive::tools
