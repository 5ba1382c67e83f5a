// What this process costs its machine, under the names that Prometheus' own client libraries use.
#pragma once

#include "cohive/core/metrics.hpp"

namespace cohive {

/// Reads /proc; all zero where there is none.
class ProcessMetrics {
 public:
  explicit ProcessMetrics(Metrics& metrics);
  /// Call before the registry is written out.
  void update();

 private:
  Counter cpu_seconds_, log_lines_dropped_;
  Gauge resident_bytes_, virtual_bytes_, open_descriptors_, max_descriptors_, threads_, start_time_;
};

}  // namespace cohive
