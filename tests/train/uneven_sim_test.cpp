// Local steps on machines of unlike speed: nobody waits for a slow or a lost trainer, and what it has made is not lost.
#include <gtest/gtest.h>

#include "scenarios/uneven_swarm.hpp"

namespace cohive::train {
namespace {

TEST(UnevenTrainers, AllSamplesOfSlowOnesCountAndNobodyWaitsForThem) {
  sim::UnevenRun run;
  run.fault_every = 0s;
  run.first = 1min;
  run.then = 2min;
  const auto report = sim::run_uneven(run);
  SCOPED_TRACE(report.text());
  EXPECT_GE(report.made, 0.999 * report.possible);
  EXPECT_GE(report.counted, 0.99 * report.possible);
  EXPECT_GE(report.slow_share, 0.99);
  EXPECT_EQ(report.downloads, 0u);
  EXPECT_TRUE(report.equal_anchors);
}

/// What a killed trainer has made since the last round is lost with it, of all that machines have time for.
TEST(UnevenTrainers, MakeLittleLessThroughFaultsEveryHalfMinute) {
  const auto report = sim::run_uneven({});
  SCOPED_TRACE(report.text());
  EXPECT_GE(report.faults, 35u);
  EXPECT_GE(report.counted, 0.96 * report.possible);
  EXPECT_GE(report.slow_share, 0.97);
  EXPECT_EQ(report.offences, 0);
  EXPECT_TRUE(report.equal_anchors);
}

}  // namespace
}  // namespace cohive::train
