// Seeded training runs beside hostile peers: a line for each run, and a table of the roles. A failing run replays.
#include <iostream>
#include <map>

#include "bench/bench.hpp"
#include "cohive/core/log.hpp"
#include "common/program.hpp"
#include "scenarios/adversary.hpp"

namespace cohive::bench {
namespace {

/// What the runs beside one role had in common, or all runs.
struct AdversaryTally {
  std::uint64_t runs = 0;
  double slowest = 1e9, fastest = 0, sum = 0;
  double astray = 0;     ///< of the worst run
  std::size_t held = 0;  ///< bytes, of the host that held most
  std::vector<std::string> failing;

  void add(const std::string& name, const sim::AdversaryReport& report) {
    ++runs;
    slowest = std::min(slowest, report.speed());
    fastest = std::max(fastest, report.speed());
    sum += report.speed();
    astray = std::max(astray, report.run.astray);
    held = std::max(held, report.run.most_held);
    if (!report.harm().empty()) failing.push_back(name);
  }

  nlohmann::json json() const {
    return {
        {"runs", runs},     {"slowest", slowest}, {"fastest", fastest}, {"mean_speed", sum / static_cast<double>(runs)},
        {"astray", astray}, {"bytes_held", held}, {"failing", failing}};
  }
};

/// The runs that are asked for: those of the numbers, or those of the roles with seeds in a row.
std::vector<std::pair<std::string, sim::AdversaryRun>> chosen_runs(const Settings& settings) {
  std::vector<sim::AdversaryRole> roles;
  for (const std::string& name : settings.roles) {
    const auto role = sim::role_named(name);
    if (!role) throw tools::Exit{2, "no role '" + name + "'"};
    roles.push_back(*role);
  }
  std::vector<std::pair<std::string, sim::AdversaryRun>> runs;
  for (std::uint64_t at = settings.seed; at < settings.seed + settings.runs; ++at) {
    if (roles.empty())
      runs.emplace_back("run " + std::to_string(at), sim::AdversaryRun(at));
    else
      runs.emplace_back("seed " + std::to_string(at), sim::AdversaryRun(at, roles));
  }
  return runs;
}

}  // namespace

nlohmann::json adversary(const Settings& settings) {
  const double start = processor_seconds();
  sim::AdversaryRuns runs;
  AdversaryTally all;
  std::map<std::string, AdversaryTally> alone, together;
  for (const auto& [name, run] : chosen_runs(settings)) {
    const auto report = runs.run(run);
    const std::string harm = report.harm();
    std::cerr << (harm.empty() ? "" : "FAILS: ") << name << " (" << run
              << log::format("): speed {:.2f}, {:.3f} astray (without them {:.3f}), {} bytes held", report.speed(),
                             report.run.astray, report.without.astray, report.run.most_held);
    if (!harm.empty()) std::cerr << ": " << harm << "; " << report.run;
    std::cerr << std::endl;
    all.add(name, report);
    for (const auto role : run.roles) (run.roles.size() > 1 ? together : alone)[sim::name_of(role)].add(name, report);
  }
  nlohmann::json result = all.json();
  result["benchmark"] = "adversary";
  result["first"] = settings.seed;
  for (const auto& [name, tally] : alone) result["alone"][name] = tally.json();
  for (const auto& [name, tally] : together) result["together"][name] = tally.json();
  result["processor_seconds"] = processor_seconds() - start;
  return result;
}

}  // namespace cohive::bench
