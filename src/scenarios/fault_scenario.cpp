#include "scenarios/fault_scenario.hpp"

#include "scenarios/fault_setting.hpp"

namespace cohive::averaging {

FaultReport run_faults(std::uint64_t seed) {
  std::mt19937_64 random(seed * 7919 + 1);  // as the setting draws
  random();
  const bool download = random() % 4 == 0;
  return (download ? make_download_faults : make_round_faults)(seed)->run();
}

}  // namespace cohive::averaging
