// Honest trainers beside hostile peers of every role: the run goes on. `cohive-bench adversary` tries more runs.
#include "scenarios/adversary.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/sanitizers.hpp"

namespace cohive::train {
namespace {

using sim::AdversaryRole;
using sim::AdversaryRun;

/// 80 % of the speed, parameters near those of a run without hostile peers, and no host beyond its memory budget.
void expect_unharmed(const AdversaryRun& run) {
  static sim::AdversaryRuns runs;
  const auto report = runs.run(run);
  EXPECT_EQ(report.harm(), "") << ::testing::PrintToString(run) << ": " << ::testing::PrintToString(report.run);
}

class Adversaries : public ::testing::TestWithParam<AdversaryRole> {};

TEST_P(Adversaries, OfOneRoleSlowNobodyDown) {
  expect_unharmed(AdversaryRun(1, {GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(EveryRole, Adversaries, ::testing::ValuesIn(sim::kAdversaryRoles), [](const auto& test) {
  std::string name = sim::name_of(test.param);
  std::ranges::replace(name, ' ', '_');
  return name;
});

class SeveralAdversaries : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(SeveralAdversaries, AsAThirdOfThePeersSlowNobodyDown) {
  expect_unharmed(AdversaryRun(GetParam()));
}

/// Many claims once made trainers read few replicas, of which sybils leave some without the reports of others.
TEST(AdversariesTogether, DoNotMakeTrainersReadOldReports) {
  sim::AdversaryRuns runs;
  const auto report = runs.run(AdversaryRun(32975, {AdversaryRole::sybils, AdversaryRole::claimants}));
  EXPECT_EQ(report.harm(), "");
  EXPECT_LT(report.run.samples_error, 0.1) << "without hostile peers " << report.without.samples_error;
}

constexpr std::uint64_t kFirstOfSeveral = sim::kAdversaryRoles.size();
INSTANTIATE_TEST_SUITE_P(Runs, SeveralAdversaries,
                         ::testing::Range(kFirstOfSeveral, kFirstOfSeveral + (kSanitized ? 1 : 3)));

}  // namespace
}  // namespace cohive::train
