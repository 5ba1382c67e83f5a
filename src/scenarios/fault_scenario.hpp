// One seeded run of averaging, or of a state download, in a simulated swarm where something goes wrong: a peer crashes,
// stalls, dies, leaves or lies, links break, slow down or are cut, at any message. Links may have been measured in
// rounds before, residuals of a codec with error feedback left by them, and several donors share a state. The same seed
// gives the same run.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cohive::averaging {

struct FaultReport {
  std::uint64_t seed = 0;
  std::string scenario;                ///< what was arranged, for people
  std::vector<std::string> violated;   ///< what did not hold; empty as it should be
  std::uint64_t digest = 0;            ///< of everything observable: equal when a seed is run again
  bool struck = false;                 ///< the fault came before everything was over
  std::size_t rounds = 0, failed = 0;  ///< steps of surviving peers that averaged, and that did not
  std::size_t measured = 0;            ///< of those that averaged: divided by links that were measured
  std::size_t handed_over = 0;         ///< tensors that were not the averagers' own
  std::size_t top_k = 0;               ///< of those that averaged: of the largest values only
  std::size_t one_average = 0;         ///< parts whose members were compared to the bit
  std::size_t several_donors = 0;      ///< downloads to which more than one contributed
  std::size_t liars = 0;               ///< donors that were found to lie
};

/// \param one_average  whether most peers ask for AveragerOptions::one_average; unset: as the seed has it
FaultReport run_faults(std::uint64_t seed, std::optional<bool> one_average = std::nullopt);

}  // namespace cohive::averaging
