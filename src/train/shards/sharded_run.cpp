#include "cohive/train/sharded_run.hpp"

#include <algorithm>

#include "calls.hpp"
#include "cohive/core/combine.hpp"
#include "train/progress_entry.hpp"

namespace cohive::train {
namespace {

constexpr std::uint32_t kDrawnOfAShard = 16;
constexpr std::uint32_t kMostAsked = 32;  // shards

Task<void> draw_some(ShardCalls& calls, std::string run_id, ShardName shard, double now, Deadline deadline,
                     ShardedRun& run) {
  auto request = about(shard);
  request.set_draw(kDrawnOfAShard);
  const auto answers = co_await calls.ask(key_of(run_id, shard), std::move(request), deadline);
  for (const auto& [leader, reply] : answers)
    for (const auto& envelope : reply.reports())
      if (const auto opened = open_report(as_bytes(envelope), run_id, now)) run.some[opened->trainer] = opened->report;
}

}  // namespace

bool is_sum_of_shards(std::string_view subkey) {
  return subkey.starts_with(kSumOfShards);
}

Task<std::optional<ShardedRun>> read_sharded_run(Dht& dht, std::string run_id, Deadline deadline) {
  ShardCalls calls(dht, run_id);
  const auto answers = co_await calls.ask_root(deadline);
  const double now = dht.now();
  const auto sum = run_in(answers, now);
  if (!sum) co_return std::nullopt;
  ShardedRun run{sum->epoch, sum->samples_at(now), sum->samples_per_second, sum->trainers, sum->clients, {}};
  Nursery shards(dht.runtime(), "shards of a run");
  for (std::uint32_t i = 0; i < std::min(std::uint32_t{1} << sum->bits, kMostAsked); ++i)
    shards.spawn(draw_some(calls, run_id, {sum->bits, i}, now, deadline, run), "a shard");
  co_await shards.join();
  co_return run;
}

}  // namespace cohive::train
