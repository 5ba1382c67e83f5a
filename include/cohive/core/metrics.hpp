/// \file
/// The metrics registry: a thin face over prometheus-cpp. Each module's metrics.hpp registers what it measures.
/// All of it is thread-safe. Most instruments are made when a module is constructed.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace cohive {

/// Names of labels, and their values.
using MetricLabels = std::map<std::string, std::string>;

/// A number that only grows.
class Counter {
 public:
  /// Counts in an instrument of a Metrics, which must outlive it; nowhere where it is null.
  explicit Counter(prometheus::Counter* counter = nullptr) : counter_(counter) {}
  /// Adds `by`; a negative amount changes nothing.
  void increment(double by = 1) const;
  /// Returns the sum of all that was added; 0 without an instrument.
  double value() const;

 private:
  prometheus::Counter* counter_;
};
/// A number that rises and falls.
class Gauge {
 public:
  /// Keeps its number in an instrument of a Metrics, which must outlive it; nowhere where it is null.
  explicit Gauge(prometheus::Gauge* gauge = nullptr) : gauge_(gauge) {}
  /// Replaces the number.
  void set(double value) const;
  /// Adds to the number; a negative amount takes away from it.
  void add(double by) const;
  /// Returns the number; 0 without an instrument.
  double value() const;

 private:
  prometheus::Gauge* gauge_;
};
/// Counts of values by their size.
class Histogram {
 public:
  /// Counts in an instrument of a Metrics, which must outlive it; nowhere where it is null.
  explicit Histogram(prometheus::Histogram* histogram = nullptr) : histogram_(histogram) {}
  /// Counts a value in the first bucket whose bound is not below it, and adds it to their sum.
  void observe(double value) const;

 private:
  prometheus::Histogram* histogram_;
};

/// Owned by the Runtime. Asking twice for the same name and labels returns the same instrument.
class Metrics {
 public:
  Metrics();
  ~Metrics();
  /// Names follow Prometheus: "cohive_<module>_<what>_<unit>", counters end in "_total".
  Counter counter(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  /// Returns a gauge. This and the other two throw std::invalid_argument for a name of an instrument of another kind.
  Gauge gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  /// Returns a histogram. \param bounds  upper ends of the buckets, rising; those of the first call stay
  Histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                      const MetricLabels& labels = {});
  /// The Prometheus text exposition format, version 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive
