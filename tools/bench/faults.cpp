// Seeded runs of averaging and state downloads in which something goes wrong; a failing seed is printed and replays.
#include <iostream>

#include "bench/bench.hpp"
#include "scenarios/fault_scenario.hpp"

namespace cohive::bench {

nlohmann::json faults(const Settings& settings) {
  const double start = now_seconds();
  std::size_t rounds = 0, failed = 0, struck = 0, measured = 0, handed_over = 0, top_k = 0, several_donors = 0,
              liars = 0, one_average = 0;
  nlohmann::json failing = nlohmann::json::array();
  for (std::uint64_t seed = settings.seed; seed < settings.seed + settings.runs; ++seed) {
    const auto report = averaging::run_faults(seed);
    rounds += report.rounds;
    failed += report.failed;
    struck += report.struck;
    measured += report.measured;
    handed_over += report.handed_over;
    top_k += report.top_k;
    one_average += report.one_average;
    several_donors += report.several_donors;
    liars += report.liars;
    if (report.violated.empty()) continue;
    failing.push_back(seed);
    std::cerr << "seed " << seed << " (" << report.scenario << ")\n";
    for (const auto& violated : report.violated) std::cerr << "  " << violated << "\n";
  }
  return {{"benchmark", "faults"},
          {"runs", settings.runs},
          {"first_seed", settings.seed},
          {"struck", struck},
          {"steps_averaged", rounds},
          {"steps_failed", failed},
          {"steps_on_measured_links", measured},
          {"tensors_handed_over", handed_over},
          {"steps_in_top_k", top_k},
          {"parts_compared_to_the_bit", one_average},
          {"downloads_from_several", several_donors},
          {"liars_found", liars},
          {"failing_seeds", failing},
          {"seconds", now_seconds() - start}};
}

}  // namespace cohive::bench
