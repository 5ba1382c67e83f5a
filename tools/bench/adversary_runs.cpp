// Seeded training runs beside hostile peers: a line for each seed, and a table of the roles. A failing seed replays.
#include <iostream>
#include <map>

#include "bench/bench.hpp"
#include "scenarios/adversary.hpp"

namespace cohive::bench {
namespace {

/// What the runs beside one role had in common, or all runs.
struct RoleTally {
  std::uint64_t runs = 0;
  double slowest = 1e9, sum = 0;
  double worst_loss = 0;  ///< share of the first loss that is left at the end
  std::vector<std::uint64_t> failing;

  void add(const sim::AdversaryReport& report) {
    ++runs;
    slowest = std::min(slowest, report.speed());
    sum += report.speed();
    worst_loss = std::max(worst_loss, report.run.last_loss / report.run.first_loss);
    if (!report.unharmed()) failing.push_back(report.seed);
  }

  nlohmann::json json() const {
    return {{"runs", runs},
            {"slowest", slowest},
            {"mean_speed", sum / static_cast<double>(runs)},
            {"worst_loss", worst_loss},
            {"failing_seeds", failing}};
  }
};

void print(const sim::AdversaryReport& report) {
  std::cerr << (report.unharmed() ? "seed " : "FAILS: seed ") << report.seed << ":";
  for (const auto role : report.roles) std::cerr << " " << sim::name_of(role) << ",";
  std::cerr << " speed " << report.speed() << ", loss " << report.run.last_loss << ", without them "
            << report.loss_without;
  if (!report.unharmed()) std::cerr << "; " << report.run;
  std::cerr << std::endl;
}

}  // namespace

nlohmann::json adversary(const Settings& settings) {
  const double start = now_seconds();
  RoleTally all;
  std::map<std::string, RoleTally> roles;
  for (std::uint64_t seed = settings.seed; seed < settings.seed + settings.runs; ++seed) {
    const auto report = sim::run_adversaries(
        seed, settings.alone ? std::vector{sim::kAdversaryRoles[seed % sim::kAdversaryRoles.size()]} : sim::some_roles(seed));
    print(report);
    all.add(report);
    for (const auto role : report.roles) roles[sim::name_of(role)].add(report);
  }
  nlohmann::json result = all.json();
  result["benchmark"] = "adversary";
  result["first_seed"] = settings.seed;
  for (const auto& [name, tally] : roles) result["roles"][name] = tally.json();
  result["seconds"] = now_seconds() - start;
  return result;
}

}  // namespace cohive::bench
