#include "sums.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/core/sha256.hpp"
#include "cohive/core/signed_envelope.hpp"
#include "cohive/proto/progress.pb.h"
#include "cohive/train/progress_tracker.hpp"
#include "core/detail/bounded_parse.hpp"
#include "core/detail/median.hpp"
#include "train/majority.hpp"
#include "train/progress_entry.hpp"

namespace cohive::train {
namespace {

constexpr std::string_view kReportType = "/cohive/progress";
constexpr double kMostOfShard = 96, kFewestOfShard = 32;  // of a shard
constexpr double kMostSpeed = 1e15, kMostClaimed = 1e18, kMostCount = 1e7;
constexpr double kLeastSpeed = 1e-9;  // samples per second; below, nothing was measured yet
constexpr double kBeyondMedian = 16;  // than the median trainer
constexpr double kUsualDelay = 1.5;   // seconds until a trainer follows most others into an epoch
constexpr double kFirstBatches = 10;  // seconds in which few have finished one: samples of that time are plausible
// What a shard counts for, in what the median shard does: sums of 64 trainers hardly ever differ by as much. Of 16
// shards a wrong one changes the whole by 4 % at most.
constexpr double kSmallestShard = 0.5, kLargestShard = 1.6;
constexpr std::size_t kShardsToCompare = 4;
// Of the trainers that were counted, so many have come: the sum is told again soon. The same of the samples of an epoch
// that are missing, or that nobody expected.
constexpr double kGrowing = 0.05, kUnforeseen = 0.015;

bool is_plausible(double value, double most) {
  return value >= 0 && value <= most;  // false for NaN
}

std::string domain_of(const std::string& run_id) {
  return "cohive progress " + run_id;
}

/// What is in `values` by and large: none is far from the median.
double plausible_sum(const std::vector<double>& values) {
  double sum = 0;
  const double middle = values.empty() ? 0 : median(values);
  for (const double value : values)
    sum +=
        values.size() < kShardsToCompare ? value : std::clamp(value, kSmallestShard * middle, kLargestShard * middle);
  return sum;
}

}  // namespace

ShardName shard_of(const std::string& run_id, const PeerId& trainer, int bits) {
  crypto::Sha256 hash;
  hash.add(as_bytes(run_id));
  hash.add(trainer.bytes());
  const auto digest = hash.finish();
  const auto first = static_cast<std::uint32_t>(digest[0]) << 8 | digest[1];
  return {bits, first >> (16 - bits)};
}

std::string key_of(const std::string& run_id, const ShardName& shard) {
  return run_id + "_progress_" + std::to_string(shard.bits) + "_" + std::to_string(shard.number);
}

std::string root_key_of(const std::string& run_id) {
  return run_id + "_progress_root";
}

int bits_for(double trainers, int bits) {
  while (bits < kMostBits && trainers / std::exp2(bits) > kMostOfShard) ++bits;
  while (bits > 0 && trainers / std::exp2(bits) < kFewestOfShard) --bits;
  return bits;
}

std::string encode_report(const ShardReport& report) {
  proto::ShardReport message;
  message.set_epoch(report.epoch);
  message.set_samples(static_cast<float>(report.samples));
  message.set_samples_per_second(static_cast<float>(report.samples_per_second));
  message.set_time(report.time);
  message.set_client(report.client);
  return message.SerializeAsString();
}

std::optional<ShardReport> decode_report(ByteView bytes, double now) {
  proto::ShardReport message;
  if (!parse_bounded(message, bytes)) return std::nullopt;
  const ShardReport report{message.epoch(), message.samples(), message.samples_per_second(), message.time(),
                           message.client()};
  if (report.epoch > kMostEpochs || !is_plausible(report.samples, kMostClaimed) || !is_timely(report.time, now) ||
      !is_plausible(report.samples_per_second, kMostSpeed))
    return std::nullopt;
  return report;
}

std::string seal_report(const KeyPair& key, const std::string& run_id, const ShardReport& report) {
  return seal_envelope(key, domain_of(run_id), kReportType, encode_report(report));
}

std::optional<SignedReport> open_report(ByteView envelope, const std::string& run_id, double now) {
  const auto opened = open_envelope(envelope, domain_of(run_id), kReportType);
  const auto report = opened ? decode_report(as_bytes(opened->payload), now) : std::nullopt;
  if (!report) return std::nullopt;
  return SignedReport{opened->signer.peer_id(), *report};
}

void encode_sum(const ProgressSum& sum, proto::ProgressSum& message) {
  message.set_epoch(sum.epoch);
  message.set_samples(sum.samples);
  message.set_samples_per_second(sum.samples_per_second);
  message.set_time(sum.time);
  message.set_trainers(static_cast<float>(sum.trainers));
  message.set_clients(static_cast<float>(sum.clients));
  message.set_bits(static_cast<std::uint32_t>(sum.bits));
  message.set_counted(static_cast<std::uint32_t>(sum.counted));
}

std::optional<ProgressSum> decode_sum(const proto::ProgressSum& message, double now) {
  if (message.epoch() > kMostEpochs || message.bits() > kMostBits || message.counted() > kMostBits ||
      !is_timely(message.time(), now) || !is_plausible(message.samples(), kMostClaimed) ||
      !is_plausible(message.samples_per_second(), kMostSpeed) || !is_plausible(message.trainers(), kMostCount) ||
      !is_plausible(message.clients(), kMostCount))
    return std::nullopt;
  return ProgressSum{
      message.epoch(),    message.samples(), message.samples_per_second(),     message.time(),
      message.trainers(), message.clients(), static_cast<int>(message.bits()), static_cast<int>(message.counted())};
}

ProgressSum sum_up(std::span<const ShardReport> reports, double target, double now, double times) {
  ProgressSum sum{.time = now};
  std::vector<std::uint64_t> epochs;
  std::vector<double> speeds, samples;
  for (const ShardReport& report : reports) {
    if (!report.client) epochs.push_back(report.epoch);
    if (report.samples_per_second > kLeastSpeed) speeds.push_back(report.samples_per_second);
  }
  sum.epoch = reached_by_most(epochs);
  const double usual = speeds.empty() ? 0 : median(speeds);
  double late = 0, there = 0, ended = 0;  // speeds
  for (const ShardReport& report : reports) {
    const double speed = std::min(report.samples_per_second, kBeyondMedian * usual);
    sum.samples_per_second += times * speed;
    sum.trainers += times;
    sum.clients += times * report.client;
    if (report.epoch + 1 == sum.epoch) late += speed;
    if (report.epoch == sum.epoch + 1) ended += speed;
    if (report.epoch != sum.epoch) continue;
    there += speed;
    samples.push_back(std::min(report.samples + (now - report.time) * speed, target));
  }
  const double most = samples.empty() ? 0 : std::max(kBeyondMedian * median(samples), kFirstBatches * usual);
  for (const double one : samples) sum.samples += times * std::clamp(one, -most, most);
  // Trainers that have ended the epoch have done as much as others of their speed. Without their share its end would
  // seem to move away from all that look while the first ones reach it.
  if (there > 0) sum.samples *= 1 + ended / there;
  sum.samples -= times * kUsualDelay * late;
  // Where hardly one has finished a batch yet.
  if (sum.samples < 0) sum.time -= std::exchange(sum.samples, 0) / sum.samples_per_second;
  return sum;
}

std::optional<ProgressSum> middle_of(std::span<const ProgressSum> views, double now) {
  std::vector<std::uint64_t> epochs;
  for (const ProgressSum& view : views) epochs.push_back(view.epoch);
  const std::uint64_t epoch = reached_by_most(epochs);
  std::vector<double> samples;
  for (const ProgressSum& view : views)
    if (view.epoch == epoch) samples.push_back(view.samples_at(now));
  if (samples.empty()) return std::nullopt;
  const auto middle = [views](auto ProgressSum::* what) {
    std::vector<double> told;
    for (const ProgressSum& view : views) told.push_back(view.*what);
    return median(told);
  };
  ProgressSum sum{.epoch = epoch, .samples = median(samples), .time = now};
  sum.samples_per_second = middle(&ProgressSum::samples_per_second);
  sum.trainers = middle(&ProgressSum::trainers);
  sum.clients = middle(&ProgressSum::clients);
  sum.bits = static_cast<int>(middle(&ProgressSum::bits));
  sum.counted = static_cast<int>(middle(&ProgressSum::counted));
  return sum;
}

bool is_news(const ProgressSum& sum, const ProgressSum& before, double share, double now) {
  return sum.epoch != before.epoch || sum.trainers > (1 + kGrowing) * before.trainers ||
         std::abs(std::min(sum.samples_at(now), share) - std::min(before.samples_at(now), share)) > kUnforeseen * share;
}

void leave_out_partial(std::vector<std::vector<ProgressSum>>& shards) {
  std::vector<double> trainers;
  for (const auto& views : shards)
    for (const ProgressSum& view : views) trainers.push_back(view.trainers);
  if (trainers.empty()) return;
  const double least = kSmallestShard * median(trainers);
  const auto is_partial = [least](const ProgressSum& view) { return view.trainers < least; };
  for (auto& views : shards)
    if (!std::ranges::all_of(views, is_partial)) std::erase_if(views, is_partial);
}

ProgressSum total_of(std::span<const ProgressSum> shards, int bits, double now) {
  std::vector<EpochVote> votes;
  std::vector<double> samples, speeds, trainers, clients;
  for (const ProgressSum& shard : shards) {
    trainers.push_back(shard.trainers);
    speeds.push_back(shard.samples_per_second);
    clients.push_back(shard.clients);
  }
  const double usual = trainers.empty() ? 0 : median(trainers);
  for (const ProgressSum& shard : shards)
    votes.push_back({shard.epoch, std::min(shard.trainers, kLargestShard * usual)});
  ProgressSum run{.epoch = reached_by_most(std::move(votes)), .time = now, .bits = bits, .counted = bits};
  for (const ProgressSum& shard : shards)
    if (shard.epoch == run.epoch) samples.push_back(shard.samples_at(now));
  const double missing = shards.empty() ? 0 : std::exp2(bits) / static_cast<double>(shards.size());
  run.samples = missing * plausible_sum(samples);
  // Shards that have ended the epoch count as the others do, like trainers in sum_up().
  const auto ended = std::ranges::count(shards, run.epoch + 1, &ProgressSum::epoch);
  if (!samples.empty()) run.samples *= 1 + static_cast<double>(ended) / static_cast<double>(samples.size());
  run.samples_per_second = missing * plausible_sum(speeds);
  run.trainers = missing * plausible_sum(trainers);
  for (const double count : clients) run.clients += missing * count;
  return run;
}

void add_to(ProgressSum& run, const ProgressSum& others, double share, double now) {
  run.samples = run.samples_at(now) + (others.epoch == run.epoch ? share * others.samples_at(now) : 0);
  run.time = now;
  run.samples_per_second += share * others.samples_per_second;
  run.trainers += share * others.trainers;
  run.clients += share * others.clients;
}

}  // namespace cohive::train
