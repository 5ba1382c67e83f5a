// A hundred training runs beside hostile peers: of each seed every role alone, and three at a time as 30 % of the
// peers. Runs of a seed share what they are compared with, so they are one test.
#include <gtest/gtest.h>

#include "scenarios/adversary.hpp"

namespace cohive::sim {
namespace {

class AdversaryRunsOfASeed : public ::testing::TestWithParam<std::uint64_t> {};

TEST_P(AdversaryRunsOfASeed, HarmNobody) {
  AdversaryRuns runs;
  const std::uint64_t first = (GetParam() - 1) * AdversaryRun::kRunsOfASeed;
  for (std::uint64_t number = first; number < first + AdversaryRun::kRunsOfASeed; ++number) {
    const AdversaryRun run(number);
    ASSERT_EQ(run.seed, GetParam());
    const auto report = runs.run(run);
    EXPECT_EQ(report.harm(), "") << "run " << number << " (" << run << "): " << report.run;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, AdversaryRunsOfASeed, ::testing::Range<std::uint64_t>(1, 5));

}  // namespace
}  // namespace cohive::sim
