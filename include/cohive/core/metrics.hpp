/// \file
/// The metrics registry: a thin face over prometheus-cpp. Each module's metrics.hpp registers what it measures.
/// Instruments are thread-safe; creating them is not and happens when a module is constructed.
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

using MetricLabels = std::map<std::string, std::string>;

class Counter {
 public:
  explicit Counter(prometheus::Counter* counter = nullptr) : counter_(counter) {}
  void increment(double by = 1) const;
  double value() const;

 private:
  prometheus::Counter* counter_;
};
class Gauge {
 public:
  explicit Gauge(prometheus::Gauge* gauge = nullptr) : gauge_(gauge) {}
  void set(double value) const;
  void add(double by) const;
  double value() const;

 private:
  prometheus::Gauge* gauge_;
};
class Histogram {
 public:
  explicit Histogram(prometheus::Histogram* histogram = nullptr) : histogram_(histogram) {}
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
  Gauge gauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram histogram(const std::string& name, const std::string& help, const std::vector<double>& bounds,
                      const MetricLabels& labels = {});
  /// The Prometheus text exposition format, version 0.0.4.
  std::string text() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive
