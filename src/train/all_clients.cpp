// Trainers that are all clients find no group, as nobody among them can be dialled. Each goes on by itself, which looks
// like a run that works: so it is said, once.
#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/core/status.hpp"
#include "run_impl.hpp"

namespace cohive::train {
namespace {

constexpr std::size_t kRoundsInVain = 2;  // a trainer that can be dialled may be about to report

bool all_in_vain(const std::deque<History::Round>& rounds) {
  if (rounds.size() < kRoundsInVain) return false;
  return std::all_of(rounds.end() - kRoundsInVain, rounds.end(),
                     [](const auto& round) { return round.outcome != "ok" && round.outcome != "partial"; });
}

}  // namespace

Task<void> Run::Impl::watch_clients(Impl& self) {
  for (;;) {
    co_await self.tracker.news();
    const GlobalProgress global = self.tracker.snapshot();
    if (global.peers < 2 || global.clients < global.peers || !all_in_vain(self.history.kept_rounds())) continue;
    Failures::of(self.runtime)
        .warn("train", "round", "no_group",
              log::format("all {} trainers of run {} are clients, and no group forms among clients: run one without "
                          "client mode where it can be dialled, or an auxiliary peer",
                          global.peers, log::quoted(self.options.run_id)));
    co_return;
  }
}

}  // namespace cohive::train
