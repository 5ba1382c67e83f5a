// An entry of a run's record of progress: one trainer, or all that report in shards. Source: docs/wire/hivemind.md,
// section 4.4; docs/wire/extensions.md, section 18.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cohive/core/msgpack.hpp"
#include "cohive/core/peer_id.hpp"
#include "cohive/train/sharded_run.hpp"

namespace cohive::train {

/// Comes before the marker of the key in the subkey of the sum of all shards.
inline constexpr std::string_view kSumOfShards = "shards";

struct ProgressEntry {
  std::string marker;  ///< of the key that signed it
  std::uint64_t epoch = 0;
  double samples = 0, samples_per_second = 0, time = 0;
  bool client = false;
  std::optional<PeerId> peer{};
  bool is_sum() const { return is_sum_of_shards(marker); }
};

/// Strictly typed: nullopt for what is no plausible entry.
/// \param target  samples of an epoch: a larger claim counts as so many
std::optional<ProgressEntry> read_entry(const msgpack::Value& subkey, const msgpack::Value& value, double target);
/// Tells whether a report of this time, in Unix seconds, is neither too old nor of a time that is to come.
bool is_timely(double time, double now);
/// Returns what read_entry() reads.
msgpack::Value entry_value(const PeerId& peer, std::uint64_t epoch, double samples, double samples_per_second,
                           double time, bool client);

}  // namespace cohive::train
