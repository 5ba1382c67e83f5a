// Hostile peers beside a simulated training run: what each role does, alone or with others, and what it costs the honest
// trainers. For cohive-bench adversary and for the tests. The same seed gives the same run.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cohive/testing/train_scenario.hpp"

namespace cohive::sim {

enum class AdversaryRole {
  progress_liar,   ///< signs reports of epochs, samples and times that cannot be
  batch_claimer,   ///< claims a whole batch in each epoch, and averages nothing
  epoch_pusher,    ///< claims the epoch after the one that the others are in
  forging_leader,  ///< declares itself before all others, and forges what the members of its groups said
  lying_owner,     ///< joins groups, and sends and answers nonsense
  bad_donor,       ///< shares a state of its own with the highest priority
  plausible_donor, ///< shares a model of its own, of an epoch that is plausible
  flooder,         ///< fills the dictionaries of the run with late-expiring entries
  slot_holder,     ///< calls donors and asks for nothing
  slow_reader,     ///< asks donors for their states and does not read them
  inventing_leader,  ///< declares itself before all others, and fills its groups with members that do not exist
  wrong_reducer  ///< passes for a trainer that clips and checks averages, and does not clip what it sends itself
};
inline constexpr std::array kAdversaryRoles = {
    AdversaryRole::progress_liar, AdversaryRole::batch_claimer, AdversaryRole::epoch_pusher,
    AdversaryRole::forging_leader, AdversaryRole::lying_owner, AdversaryRole::bad_donor,
    AdversaryRole::plausible_donor,    AdversaryRole::flooder,       AdversaryRole::slot_holder,    AdversaryRole::slow_reader,
    AdversaryRole::inventing_leader, AdversaryRole::wrong_reducer};
const char* name_of(AdversaryRole role);

struct AdversaryReport {
  std::uint64_t seed = 0;
  std::vector<AdversaryRole> roles;
  std::uint64_t epochs = 0, epochs_without = 0;  ///< of the honest trainers, beside the hostile peers and without them
  TrainScenarioReport run;
  double loss_without = 0;  ///< at the end of the run without hostile peers
  /// Speed beside hostile peers, 1 for that without.
  double speed() const { return static_cast<double>(epochs) / static_cast<double>(epochs_without); }
  /// The honest trainers keep 80 % of their speed, and learn.
  bool unharmed() const { return speed() >= 0.8 && run.last_loss < run.first_loss / 5 && run.epochs_alone == 0; }
};

/// The run in which hostile peers try their worst: seven trainers for two minutes.
TrainScenario adversary_scenario(std::uint64_t seed);
/// Runs it without hostile peers, and beside one for each of `roles`. Beside a wrong reducer trainers clip and check
/// averages.
AdversaryReport run_adversaries(std::uint64_t seed, std::vector<AdversaryRole> roles);
/// Three of seven roles, chosen by the seed; the others are tried alone: with seven trainers 30 % of the peers.
std::vector<AdversaryRole> some_roles(std::uint64_t seed);

}  // namespace cohive::sim
