// Hostile peers beside a simulated training run: what each role does, alone or with others, and what it costs the
// honest trainers. For cohive-bench adversary and for the tests. The same number gives the same run.
#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string_view>
#include <vector>

#include "cohive/testing/train_scenario.hpp"

namespace cohive::sim {

enum class AdversaryRole {
  progress_liar,     ///< signs reports of epochs, samples and times that cannot be
  batch_claimer,     ///< claims a whole batch in each epoch, and averages nothing
  epoch_pusher,      ///< claims the epoch after the one that the others are in
  forging_leader,    ///< declares itself before all others, and forges what the members of its groups said
  lying_owner,       ///< joins groups, and sends and answers nonsense
  bad_donor,         ///< shares a state of its own with the highest priority
  plausible_donor,   ///< shares a model of its own, of an epoch that is plausible
  flooder,           ///< fills the dictionaries of the run with late-expiring entries
  slot_holder,       ///< calls donors and asks for nothing
  slow_reader,       ///< asks donors for their states and does not read them
  inventing_leader,  ///< declares itself before all others, and fills its groups with members that do not exist
  wrong_reducer,     ///< passes for a trainer that clips and checks averages, and does not clip what it sends itself
  changeling,        ///< joins groups and sends nothing, under another identity each time
  sybils,            ///< is many nodes around the keys of the run: they name each other alone, and keep nothing
  claimants,         ///< claims one far epoch under two new keys at a time
  ghosts             ///< reports as peers that cannot be waited for: no peers, other peers, and some that do not exist
};
inline constexpr std::array kAdversaryRoles = {
    AdversaryRole::progress_liar,   AdversaryRole::batch_claimer,    AdversaryRole::epoch_pusher,
    AdversaryRole::forging_leader,  AdversaryRole::lying_owner,      AdversaryRole::bad_donor,
    AdversaryRole::plausible_donor, AdversaryRole::flooder,          AdversaryRole::slot_holder,
    AdversaryRole::slow_reader,     AdversaryRole::inventing_leader, AdversaryRole::wrong_reducer,
    AdversaryRole::changeling,      AdversaryRole::sybils,           AdversaryRole::claimants,
    AdversaryRole::ghosts};
const char* name_of(AdversaryRole role);
std::optional<AdversaryRole> role_named(std::string_view name);

/// A run among all that there are: so many for each seed, first every role alone, then three roles at a time, which
/// are 30 % of the peers.
struct AdversaryRun {
  static constexpr std::uint64_t kRunsOfASeed = 27;
  explicit AdversaryRun(std::uint64_t number);
  AdversaryRun(std::uint64_t its_seed, std::vector<AdversaryRole> its_roles)
      : seed(its_seed), roles(std::move(its_roles)) {}
  std::uint64_t seed;
  std::vector<AdversaryRole> roles;
  /// Beside a wrong reducer trainers clip what is sent, and check averages.
  bool has_checks() const;
};

struct AdversaryReport {
  TrainScenarioReport run, without;  ///< of the honest trainers, beside the hostile peers and without them
  /// Speed beside hostile peers, 1 for that without.
  double speed() const { return run.epochs_per_hour / without.epochs_per_hour; }
  /// What the honest trainers have lost, as a sentence; empty when nothing: they keep 80 % of their speed, their
  /// parameters stay near those of a run without hostile peers, and no host holds more for others than its budget.
  std::string harm() const;
};

/// Runs of the same seed share what they are compared with.
class AdversaryRuns {
 public:
  AdversaryReport run(const AdversaryRun& run);

 private:
  const TrainScenarioReport& without(const AdversaryRun& run);
  std::uint64_t seed_ = 0;
  std::array<std::optional<TrainScenarioReport>, 2> without_;  // of that seed, without checks and with
};

/// The run in which hostile peers try their worst: seven trainers for two minutes.
TrainScenario adversary_scenario(std::uint64_t seed);

std::ostream& operator<<(std::ostream& out, const AdversaryRun& run);

}  // namespace cohive::sim
