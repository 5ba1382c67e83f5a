#include "scenarios/fault_scenario.hpp"

#include "scenarios/fault_setting.hpp"

namespace cohive::averaging {

FaultReport run_faults(std::uint64_t seed, std::optional<bool> one_average) {
  std::mt19937_64 random(seed * 7919 + 1);  // as the setting draws
  random();
  const bool download = random() % 4 == 0;
  if (download) return make_download_faults(seed)->run();
  return make_round_faults(seed, one_average.value_or(std::mt19937_64(seed)() % 4 > 0))->run();
}

}  // namespace cohive::averaging
