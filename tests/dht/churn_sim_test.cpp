// Swarms of many nodes on virtual time, of which one in twenty is replaced every minute.
#include <gtest/gtest.h>

#include "cohive/core/log.hpp"
#include "scenarios/dht_churn.hpp"
#include "support/sanitizers.hpp"

namespace cohive::bench {
namespace {

sim::ChurnReport churn(sim::ChurnOptions options) {
  log::configure({log::Level::error, log::Format::text});  // joining through a node that dies is no news here
  const sim::ChurnReport report = sim::run_churn(options);
  EXPECT_EQ(report.joins_failed, 0u);
  EXPECT_EQ(report.stores_failed, 0u);
  return report;
}

TEST(Churn, AHundredNodesKeepWhatIsStoredWhileTheyAreReplaced) {
  const auto report = churn({.nodes = 100, .duration = kSanitized ? Duration(30s) : Duration(2min)});
  EXPECT_GE(report.left, kSanitized ? 1u : 5u);
  EXPECT_GT(report.gets, kSanitized ? 500u : 2000u);
  EXPECT_GT(report.success(), 0.999);
}

TEST(Churn, NodesThatKeepFewConnectionsFindTheirRecordsWhenAllAreBusy) {
  // Each calls more nodes within seconds than it can stay connected to.
  const auto report = churn({.nodes = 100,
                             .duration = kSanitized ? Duration(10s) : Duration(30s),
                             .gets_per_second = 150,
                             .max_connections = 40});
  EXPECT_GT(report.gets, 1000u);
  EXPECT_EQ(report.gets_failed, 0u);
}

TEST(Churn, AThousandNodesFindTheirRecordsInFewHops) {
  sim::ChurnOptions options{.nodes = 100, .duration = 1min};
  const auto small = churn(options);
  options.nodes = kSanitized ? 200 : 1000;
  const auto large = churn(options);
  EXPECT_GE(large.left, kSanitized ? 5u : 30u);
  EXPECT_GT(large.success(), 0.999);
  // Hops grow with the logarithm of the size: ten times the nodes cost less than two hops more.
  EXPECT_LT(large.hops, small.hops + 2);
  EXPECT_LT(large.calls_per_get, 3 * small.calls_per_get);
}

}  // namespace
}  // namespace cohive::bench
