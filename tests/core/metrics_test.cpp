// Metrics: one instrument per name and labels, in the text that Prometheus reads.
#include "cohive/core/metrics.hpp"

#include <gmock/gmock.h>

namespace cohive {
namespace {

using ::testing::HasSubstr;

TEST(MetricsTest, AskingTwiceGivesTheSameInstrument) {
  Metrics metrics;
  metrics.counter("cohive_test_events_total", "Events.").increment();
  metrics.counter("cohive_test_events_total", "Events.").increment(2);
  EXPECT_EQ(metrics.counter("cohive_test_events_total", "Events.").value(), 3);
  const Counter labelled = metrics.counter("cohive_test_events_total", "Events.", {{"kind", "other"}});
  EXPECT_EQ(labelled.value(), 0);
  const Gauge gauge = metrics.gauge("cohive_test_open", "Open things.");
  gauge.set(5);
  gauge.add(-2);
  EXPECT_EQ(metrics.gauge("cohive_test_open", "Open things.").value(), 3);
}

TEST(MetricsTest, TextIsWhatPrometheusReads) {
  Metrics metrics;
  metrics.counter("cohive_test_events_total", "Events.", {{"kind", "a\"b\nc\xff"}}).increment();
  metrics.histogram("cohive_test_wait_seconds", "Waits.", {0.1, 1}).observe(0.5);
  const std::string text = metrics.text();
  EXPECT_THAT(text, HasSubstr("# HELP cohive_test_events_total Events.\n# TYPE cohive_test_events_total counter\n"));
  EXPECT_THAT(text, HasSubstr("cohive_test_events_total{kind=\"a\\\"b\ufffdc\ufffd\"} 1"));
  EXPECT_THAT(text, HasSubstr("cohive_test_wait_seconds_bucket{le=\"0.1\"} 0"));
  EXPECT_THAT(text, HasSubstr("cohive_test_wait_seconds_bucket{le=\"1\"} 1"));
  EXPECT_THAT(text, HasSubstr("cohive_test_wait_seconds_count 1"));
}

TEST(MetricsTest, AnInstrumentOfNobodyMeasuresNothing) {
  Counter().increment();
  Gauge().set(1);
  Histogram().observe(1);
  EXPECT_EQ(Counter().value(), 0);
  EXPECT_EQ(Gauge().value(), 0);
}

}  // namespace
}  // namespace cohive
