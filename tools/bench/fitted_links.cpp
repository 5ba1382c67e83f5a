// Runs of local steps whose rounds follow the lines of their trainers, simulated: a row for every line.

#include <iostream>

#include "bench/bench.hpp"
#include "cohive/core/log.hpp"
#include "scenarios/fitted_swarm.hpp"

namespace cohive::bench {

nlohmann::json fitted_links(const Settings& settings) {
  constexpr sim::Line kLines[] = {{20, 5}, {50, 10}, {100, 40}, {500, 110}, {1000, 1000}};
  constexpr std::uint64_t kMillion = 1'000'000;
  const auto while_they_agree = from_seconds(settings.minutes * 60 / 4);
  nlohmann::json rows = nlohmann::json::array();
  std::cerr << log::format("{:>12} {:>10} {:>10} {:>7}  {}\n", "Mbit/s", "first", "computing", "steps", "told");
  for (const sim::Line line : kLines) {
    const auto run = sim::run_fitted({.line = line,
                                      .trainers = settings.peers,
                                      .parameters = settings.model_millions * kMillion,
                                      .fragments = settings.fragments,
                                      .step = from_seconds(settings.step_seconds),
                                      .first = while_they_agree,
                                      .then = from_seconds(settings.minutes * 60) - while_they_agree});
    std::cerr << log::format("{:>12} {:>9.1f}% {:>9.1f}% {:>7.0f}  {}\n", log::format("{}/{}", line.down, line.up),
                             100 * run.first_computing, 100 * run.computing, run.steps, run.told);
    rows.push_back({{"down", line.down},
                    {"up", line.up},
                    {"first_computing", run.first_computing},
                    {"computing", run.computing},
                    {"steps", run.steps},
                    {"told", run.told}});
  }
  return {{"benchmark", "fitted-links"},
          {"trainers", settings.peers},
          {"parameters", settings.model_millions * kMillion},
          {"fragments", settings.fragments},
          {"step_seconds", settings.step_seconds},
          {"minutes", settings.minutes},
          {"lines", rows}};
}

}  // namespace cohive::bench
