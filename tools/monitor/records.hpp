// What trainers tell of themselves in the DHT, for monitors. All of it is what peers claim.
//   {run_id}_progress: where each trainer is; {run_id}_metrics: what its last epoch came to.
// The trainers of large runs report in shards instead, and the leaders of these tell of all of them.
// Source: docs/wire/hivemind.md, section 4.4; docs/wire/extensions.md, section 18.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohive/dht/dht.hpp"
#include "cohive/train/sharded_run.hpp"

namespace cohive::tools {

struct TrainerReport {
  std::string marker;          ///< of the key that signs it: one trainer; empty: its peer id does
  std::optional<PeerId> peer;  ///< that it says to be
  std::uint64_t epoch = 0, samples = 0;
  double samples_per_second = 0;
  double age = 0;  ///< seconds, by our clock; below 0: the trainer's clock is ahead
  bool client = false;
};

struct LossReport {
  std::string marker;
  std::uint64_t step = 0;  ///< the epoch that began with it
  std::uint64_t samples = 0;
  double loss = 0;  ///< the mean over the batches of the epoch before
};

struct RunRecords {
  std::vector<TrainerReport> trainers;  ///< of a run in shards some
  std::vector<LossReport> losses;       ///< of a large run some
  /// Of a run in shards what all trainers come to, without `some`.
  std::optional<train::ShardedRun> all;
};

/// Nothing for a goodbye or nonsense.
std::optional<TrainerReport> progress_from(const std::string& marker, const msgpack::Value& value, double now);
std::optional<LossReport> loss_from(const std::string& marker, const msgpack::Value& value);

/// Errors: those of Dht::get but not_found, which is a run without trainers.
Task<Result<RunRecords>> read_records(Dht& dht, std::string run_id);

}  // namespace cohive::tools
