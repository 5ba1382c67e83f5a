/// \file
/// A large run as those see it who do not train: its trainers report in shards, whose leaders add them up.
/// Source: docs/wire/extensions.md, section 18.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "cohive/dht/dht.hpp"

namespace cohive::train {

/// A trainer's report tells of itself alone.
struct ShardReport {
  std::uint64_t epoch = 0;
  double samples = 0;             ///< of that epoch
  double samples_per_second = 0;  ///< of the trainer
  double time = 0;                ///< Unix seconds, from which the samples are taken to grow at that speed
  bool client = false;
};

/// A run is what most of its leaders say of it. A single leader that lies changes none of this.
struct ShardedRun {
  std::uint64_t epoch = 0;        ///< that most trainers have reached
  double samples = 0;             ///< of that epoch, by now
  double samples_per_second = 0;  ///< of all
  double trainers = 0;            ///< clients included; an estimate
  double clients = 0;             ///< an estimate, too
  /// Signed reports of trainers that leaders have drawn, of 32 shards at most, 16 of each.
  std::map<PeerId, ShardReport> some;
};

/// Tells whether the subkey of an entry in the record of a run's progress is that of the sum of all shards. Then
/// read_sharded_run() tells more of the run than the record does.
bool is_sum_of_shards(std::string_view subkey);
/// Asks the leaders of a run. nullopt: there are none, or they do not know the run yet. The loop's thread.
Task<std::optional<ShardedRun>> read_sharded_run(Dht& dht, std::string run_id, Deadline deadline);

}  // namespace cohive::train
