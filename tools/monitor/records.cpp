#include "monitor/records.hpp"

#include <cmath>

#include "cohive/dht/errors.hpp"

namespace cohive::tools {
namespace {

// What is beyond is a lie.
constexpr double kMostPlausible = 1e15;  // samples per second
constexpr double kLargestLoss = 1e9;
constexpr double kOldestReport = 7200;  // seconds that a trainer's clock may be off, either way, as trainers have it
constexpr std::uint64_t kLastEpoch = std::uint64_t{1} << 48, kMostSamples = kLastEpoch;

constexpr Duration kShards = 10s;  // until their leaders have answered

std::string marker_of(const msgpack::Value& subkey) {
  const auto* bytes = subkey.get_if<msgpack::Bin>();
  return bytes ? bytes->data : std::string();
}

}  // namespace

std::optional<TrainerReport> progress_from(const std::string& marker, const msgpack::Value& value, double now) {
  const auto* map = value.get_if<msgpack::Map>();
  if (!map) return std::nullopt;
  const auto field = [map](const char* name) { return map->find(name); };
  const auto *peer = field("peer_id"), *epoch = field("epoch"), *samples = field("samples_accumulated"),
             *rate = field("samples_per_second"), *time = field("time"), *client = field("client_mode");
  if (!peer || !epoch || !samples || !rate || !time || !client) return std::nullopt;
  if (!epoch->as_uint() || !samples->as_uint() || !rate->as_number() || !time->as_number()) return std::nullopt;
  const auto* id = peer->get_if<msgpack::Bin>();
  TrainerReport report{.marker = marker,
                       .peer = id ? PeerId::from_bytes(as_bytes(id->data)) : std::nullopt,
                       .epoch = *epoch->as_uint(),
                       .samples = *samples->as_uint(),
                       .samples_per_second = *rate->as_number(),
                       .age = now - *time->as_number(),
                       .client = client->truthy()};
  const bool plausible = report.samples_per_second >= 0 && report.samples_per_second < kMostPlausible &&
                         report.epoch < kLastEpoch && report.samples < kMostSamples &&
                         std::abs(report.age) <= kOldestReport;
  return report.peer && plausible ? std::optional(std::move(report)) : std::nullopt;
}

std::optional<LossReport> loss_from(const std::string& marker, const msgpack::Value& value) {
  const auto* map = value.get_if<msgpack::Map>();
  if (!map) return std::nullopt;
  const auto *step = map->find("step"), *samples = map->find("samples_accumulated"), *loss = map->find("loss"),
             *batches = map->find("mini_steps");
  if (!step || !samples || !loss || !batches) return std::nullopt;
  if (!step->as_uint() || !samples->as_uint() || !loss->as_number() || !batches->as_uint()) return std::nullopt;
  const double mean = *loss->as_number() / static_cast<double>(*batches->as_uint());
  if (*batches->as_uint() == 0 || !(std::abs(mean) <= kLargestLoss)) return std::nullopt;
  if (*step->as_uint() >= kLastEpoch || *samples->as_uint() >= kMostSamples) return std::nullopt;
  return LossReport{.marker = marker, .step = *step->as_uint(), .samples = *samples->as_uint(), .loss = mean};
}

namespace {

/// Leaders have checked that nobody reports for another one, and nobody can in two shards.
Task<void> add_shards(Dht& dht, std::string run_id, RunRecords& records) {
  records.all = co_await train::read_sharded_run(dht, std::move(run_id), dht.runtime().after(kShards));
  if (!records.all) co_return;
  for (const auto& [trainer, told] : std::exchange(records.all->some, {}))
    records.trainers.push_back({.peer = trainer,
                                .epoch = told.epoch,
                                .samples = static_cast<std::uint64_t>(told.samples),
                                .samples_per_second = told.samples_per_second,
                                .age = dht.now() - told.time,
                                .client = told.client});
}

}  // namespace

Task<Result<RunRecords>> read_records(Dht& dht, std::string run_id) {
  const auto found = co_await dht.get_many({run_id + "_progress", run_id + "_metrics"}, true);
  for (const auto& one : found)
    if (!one && one.error() != dht::Errc::not_found) co_return one.error();
  RunRecords records;
  bool in_shards = false;
  if (found[0])
    for (const auto& [subkey, stored] : found[0]->entries()) {
      const std::string marker = marker_of(subkey);
      if (train::is_sum_of_shards(marker))
        in_shards = true;
      else if (auto report = progress_from(marker, stored.value, dht.now()))
        records.trainers.push_back(std::move(*report));
    }
  if (found[1])
    for (const auto& [subkey, stored] : found[1]->entries())
      if (auto report = loss_from(marker_of(subkey), stored.value)) records.losses.push_back(std::move(*report));
  if (in_shards) co_await add_shards(dht, std::move(run_id), records);
  co_return records;
}

}  // namespace cohive::tools
