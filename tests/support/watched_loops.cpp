// In every program of simulated tests: a test fails where a task of any peer ends with an exception, which is a defect
// that other peers may hide, and where a turn of a loop takes far longer than peers should wait.
// On a virtual machine that others share, any turn is charged with tens of milliseconds of theirs now and then, so the
// limit is wide. COHIVE_EVERY_TURN=1 fails at 10 ms, for a look on a quiet machine.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "cohive/core/sim_runtime.hpp"
#include "support/sanitizers.hpp"

namespace cohive {
namespace {

#ifdef COHIVE_EMULATED
constexpr int kTimesAsSlow = 30;
#else
constexpr int kTimesAsSlow = kSanitized ? 20 : 1;
#endif
constexpr Duration kStrict = SimRuntime::kLongestTurn * 2;  // beside other programs, which use its caches, too
constexpr Duration kLimit = 250ms;

/// Groups of tasks that belong to no peer of ours: attackers, who make keys by the hundred, and what tests do.
constexpr std::string_view kMachinery[] = {"attack/", "training swarm/", "run/main"};

void complain(const SimRuntime::LongTurn& turn) {
  if (std::ranges::any_of(kMachinery, [&](std::string_view group) { return turn.what.starts_with(group); })) return;
  const auto milliseconds = std::chrono::duration<double, std::milli>(turn.processor_time).count();
  ADD_FAILURE() << "the loop's processor computed for " << milliseconds << " ms in one turn: " << turn.what;
}

/// What a test itself threw is the test's own business.
void complain_of_failure(const std::string& task, const std::string& what) {
  if (task != "run/main") ADD_FAILURE() << "the task " << task << " ended with an exception: " << what;
}

[[maybe_unused]] const bool watching = [] {
  SimRuntime::watch_failures(&complain_of_failure);
  SimRuntime::watch_turns(&complain, (std::getenv("COHIVE_EVERY_TURN") ? kStrict : kLimit) * kTimesAsSlow);
  return true;
}();

}  // namespace
}  // namespace cohive
