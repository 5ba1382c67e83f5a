// Seeded runs of averaging and state downloads in which something goes wrong; a failing seed is printed and replays.
#include <iostream>

#include "averaging/fault_scenario.hpp"
#include "bench/bench.hpp"

namespace cohive::bench {

nlohmann::json faults(const Settings& settings) {
  const double start = now_seconds();
  std::size_t rounds = 0, failed = 0, struck = 0;
  nlohmann::json failing = nlohmann::json::array();
  for (std::uint64_t seed = settings.seed; seed < settings.seed + settings.runs; ++seed) {
    const auto report = averaging::run_faults(seed);
    rounds += report.rounds;
    failed += report.failed;
    struck += report.struck;
    if (report.violated.empty()) continue;
    failing.push_back(seed);
    std::cerr << "seed " << seed << " (" << report.scenario << ")\n";
    for (const auto& violated : report.violated) std::cerr << "  " << violated << "\n";
  }
  return {{"benchmark", "faults"},           {"runs", settings.runs},  {"first_seed", settings.seed},
          {"struck", struck},
          {"steps_averaged", rounds},        {"steps_failed", failed}, {"failing_seeds", failing},
          {"seconds", now_seconds() - start}};
}

}  // namespace cohive::bench
