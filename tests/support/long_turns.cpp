// In every program of simulated tests: a test fails where a turn of a loop takes longer than peers should wait.
#include <gtest/gtest.h>

#include <algorithm>
#include <string_view>

#include "cohive/core/sim_runtime.hpp"
#include "support/sanitizers.hpp"

namespace cohive {
namespace {

// The limit is that of a quiet machine; beside other programs, which use its caches, the same takes twice the time.
#ifdef COHIVE_EMULATED
constexpr int kTimesAsSlow = 60;
#else
constexpr int kTimesAsSlow = kSanitized ? 40 : 2;
#endif

/// Groups of tasks that belong to no peer of ours: attackers, who make keys by the hundred, and what starts peers.
constexpr std::string_view kMachinery[] = {"attack/", "training swarm/"};

void complain(const SimRuntime::LongTurn& turn) {
  if (std::ranges::any_of(kMachinery, [&](std::string_view group) { return turn.what.starts_with(group); })) return;
  const auto milliseconds = std::chrono::duration<double, std::milli>(turn.processor_time).count();
  ADD_FAILURE() << "the loop's processor computed for " << milliseconds << " ms in one turn: " << turn.what;
}

[[maybe_unused]] const bool watching = [] {
  SimRuntime::watch_turns(&complain, SimRuntime::kLongestTurn * kTimesAsSlow);
  return true;
}();

}  // namespace
}  // namespace cohive
