// Honest trainers beside hostile peers of every role: the run goes on. `cohive-bench adversary` tries more seeds.
#include "scenarios/adversary.hpp"

#include <gtest/gtest.h>

#include "support/sanitizers.hpp"

namespace cohive::train {
namespace {

using sim::AdversaryReport;
using sim::AdversaryRole;
using sim::run_adversaries;

/// 80 % of the speed, and the model is learnt.
void expect_unharmed(const AdversaryReport& report) {
  std::string roles;
  for (const AdversaryRole role : report.roles) roles += std::string(sim::name_of(role)) + ", ";
  SCOPED_TRACE("seed " + std::to_string(report.seed) + ": " + roles + ::testing::PrintToString(report.run));
  EXPECT_GE(report.speed(), 0.8) << report.epochs << " epochs, without hostile peers " << report.epochs_without;
  EXPECT_LT(report.run.last_loss, report.run.first_loss / 5);
  EXPECT_EQ(report.run.epochs_alone, 0u);
}

class Adversaries : public ::testing::TestWithParam<AdversaryRole> {};

TEST_P(Adversaries, OfOneRoleSlowNobodyDown) {
  expect_unharmed(run_adversaries(1, {GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(EveryRole, Adversaries, ::testing::ValuesIn(sim::kAdversaryRoles), [](const auto& test) {
  std::string name = sim::name_of(test.param);
  std::ranges::replace(name, ' ', '_');
  return name;
});

class SeveralAdversaries : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(SeveralAdversaries, AsAThirdOfThePeersSlowNobodyDown) {
  expect_unharmed(run_adversaries(GetParam(), sim::some_roles(GetParam())));
}

INSTANTIATE_TEST_SUITE_P(Seeds, SeveralAdversaries, ::testing::Range<std::uint64_t>(3, kSanitized ? 4 : 6));

}  // namespace
}  // namespace cohive::train
