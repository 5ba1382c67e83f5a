#include "all_clients.hpp"

#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/core/status.hpp"

namespace cohive::train {
namespace {

constexpr std::size_t kRoundsInVain = 2;  // a trainer that can be dialled may be about to report

bool all_in_vain(const std::deque<History::Round>& rounds) {
  if (rounds.size() < kRoundsInVain) return false;
  return std::all_of(rounds.end() - kRoundsInVain, rounds.end(),
                     [](const auto& round) { return round.outcome != "ok" && round.outcome != "partial"; });
}

}  // namespace

Task<void> watch_for_all_clients(RunContext& run) {
  for (;;) {
    co_await run.tracker.news();
    const GlobalProgress global = run.tracker.snapshot();
    if (global.peers < 2 || global.clients < global.peers || !all_in_vain(run.history.kept_rounds())) continue;
    Failures::of(run.runtime)
        .warn("train", "round", "no_group",
              log::format("all {} trainers of run {} are clients, and no group forms among clients: run one without "
                          "client mode where it can be dialled, or an auxiliary peer",
                          global.peers, log::quoted(run.options.run_id)));
    co_return;
  }
}

}  // namespace cohive::train
