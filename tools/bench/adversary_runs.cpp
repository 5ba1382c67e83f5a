// Seeded training runs beside hostile peers; a failing seed is printed and replays.
#include <iostream>

#include "bench/adversary.hpp"
#include "bench/bench.hpp"

namespace cohive::bench {
namespace {

constexpr double kLeastSpeed = 0.8;

}  // namespace

nlohmann::json adversary(const Settings& settings) {
  const double start = now_seconds();
  double slowest = 1, sum = 0;
  nlohmann::json failing = nlohmann::json::array();
  for (std::uint64_t seed = settings.seed; seed < settings.seed + settings.runs; ++seed) {
    const auto report = run_adversaries(seed, some_roles(seed));
    slowest = std::min(slowest, report.speed());
    sum += report.speed();
    const bool learnt = report.run.last_loss < report.run.first_loss / 5;
    if (report.speed() >= kLeastSpeed && learnt) continue;
    failing.push_back(seed);
    std::cerr << "seed " << seed << " (";
    for (const auto role : report.roles) std::cerr << name_of(role) << ", ";
    std::cerr << "speed " << report.speed() << "): " << report.run << "\n";
  }
  return {{"benchmark", "adversary"},
          {"runs", settings.runs},
          {"first_seed", settings.seed},
          {"slowest", slowest},
          {"mean_speed", sum / static_cast<double>(settings.runs)},
          {"failing_seeds", failing},
          {"seconds", now_seconds() - start}};
}

}  // namespace cohive::bench
