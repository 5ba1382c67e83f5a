// The counter of tasks that failed: there from the start, or no query could see its first increase.
#pragma once

#include "cohive/core/metrics.hpp"

namespace cohive::detail {

inline Counter task_failures(Metrics& metrics) {
  return metrics.counter("cohive_core_task_failures_total", "Tasks that ended with an exception.");
}

}  // namespace cohive::detail
