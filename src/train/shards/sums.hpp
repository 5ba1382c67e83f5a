// Reports of trainers, sums of shards, and the run made of these: all that is told of progress in shards (shards.hpp).
// It does no I/O.
// Source: docs/wire/extensions.md, section 18.
#pragma once

#include <compare>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cohive/core/bytes.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/train/sharded_run.hpp"

namespace cohive::proto {
class ProgressSum;
}

namespace cohive::train {

/// A sum tells of many trainers what a ShardReport tells of one.
struct ProgressSum {
  std::uint64_t epoch = 0;  ///< that most of them have reached
  double samples = 0;       ///< of those in this epoch, and as many for each that has ended it
  double samples_per_second = 0, time = 0;
  double trainers = 0, clients = 0;
  int bits = 0;     ///< of a run, which is to have 2^bits shards
  int counted = 0;  ///< bits of the shards that were added up
  double samples_at(double now) const { return std::max(0.0, samples + (now - time) * samples_per_second); }
};

/// One of 2^bits shards.
struct ShardName {
  int bits = 0;
  std::uint32_t number = 0;
  friend auto operator<=>(const ShardName&, const ShardName&) = default;
};
inline constexpr int kMostBits = 10;

/// Returns the shard that a trainer reports in.
ShardName shard_of(const std::string& run_id, const PeerId& trainer, int bits);
/// Returns the key whose nearest nodes lead a shard.
std::string key_of(const std::string& run_id, const ShardName& shard);
/// Returns the key whose nearest nodes add up the shards.
std::string root_key_of(const std::string& run_id);
/// Returns the bits of a run that had `bits` before: shards have 32 to 96 trainers on average.
int bits_for(double trainers, int bits);

std::string encode_report(const ShardReport& report);
/// Returns a report that may be one of a trainer's; nullopt for others. \param now  Unix seconds
std::optional<ShardReport> decode_report(ByteView bytes, double now);

struct SignedReport {
  PeerId trainer;
  ShardReport report;
};
std::string seal_report(const KeyPair& key, const std::string& run_id, const ShardReport& report);
/// Returns a report that its trainer has signed and that may be one; nullopt for others.
std::optional<SignedReport> open_report(ByteView envelope, const std::string& run_id, double now);

void encode_sum(const ProgressSum& sum, proto::ProgressSum& message);
/// Returns a sum that may be one; nullopt for others.
std::optional<ProgressSum> decode_sum(const proto::ProgressSum& message, double now);

/// Adds trainers up. One that claims far more than the median trainer counts for less.
/// \param target  samples of an epoch
/// \param times   as many trainers as each report stands for
ProgressSum sum_up(std::span<const ShardReport> reports, double target, double now, double times = 1);
/// Returns what most of several leaders say of the same trainers; nullopt where there is none.
std::optional<ProgressSum> middle_of(std::span<const ProgressSum> views, double now);
/// Tells whether a sum of trainers is not what others reckon from an earlier one: the epoch has ended, many have come,
/// or the samples are off.
/// \param share  samples of an epoch that these trainers make
bool is_news(const ProgressSum& sum, const ProgressSum& before, double share, double now);
/// Leaves views of a shard out that are of few of its trainers, where there are others: a node that is asked in a
/// leader's place knows few. \param shards  what leaders say of each
void leave_out_partial(std::vector<std::vector<ProgressSum>>& shards);
/// Adds up the shards of a run, of which some may be missing. A shard holds trainers that were drawn by a hash, so that
/// all are about alike: one that is not counts for what the others make plausible.
ProgressSum total_of(std::span<const ProgressSum> shards, int bits, double now);
/// Adds trainers that are in no shard. \param share  of them
void add_to(ProgressSum& run, const ProgressSum& others, double share, double now);

}  // namespace cohive::train
