#include "shards.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"

namespace cohive::train {
namespace {

constexpr Duration kExchangeTime = 8s;
constexpr std::uint32_t kReportsDrawn = 6;  // 150 bytes each

}  // namespace

ProgressShards::ProgressShards(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, const TrackerOptions& options)
    : dht_(dht), options_(options), calls_(dht, options.run_id), leader_(dht, std::move(key), options, calls_) {}

void ProgressShards::follow(const ProgressSum& run) {
  bits_ = run.bits;
  counted_ = run.counted;
}

Task<bool> ProgressShards::find_run(double trainers, Deadline deadline) {
  const auto answers = co_await calls_.ask_root(deadline);
  const auto know = std::ranges::count_if(answers, [](const auto& answer) { return answer.reply.has_run(); });
  const auto run = run_in(answers, dht_.now());
  if (!run || 2 * know <= std::ssize(answers) || run->trainers < trainers) co_return false;
  follow(*run);
  co_return true;
}

Task<void> ProgressShards::tell(ProgressShards& self, ShardName shard, proto::ProgressRequest request,
                                Deadline deadline) {
  (void)co_await self.calls_.ask(key_of(self.options_.run_id, shard), std::move(request), deadline);
}

Task<std::optional<ProgressShards::Seen>> ProgressShards::exchange(std::optional<ShardReport> report) {
  const Deadline deadline = dht_.runtime().after(kExchangeTime);
  if (!bits_) {
    // How many shards there are, the leaders of the run know. The first trainers, which see unlike numbers of others,
    // begin in one, which the leaders divide: in shards of several sizes none would hold all of them.
    bits_ = 0;
    if (const auto run = run_in(co_await calls_.ask_root(deadline), dht_.now())) follow(*run);
  }
  const ShardName shard = shard_of(options_.run_id, dht_.host().id(), *bits_);
  auto request = about(shard);
  request.set_draw(kReportsDrawn);
  Nursery old_shard(dht_.runtime(), "the shard that counts by now");
  if (report) {
    request.set_report(seal_report(dht_.host().identity(), options_.run_id, *report));
    reported_in_ = {shard};
    // Until nearly all have moved, the old shards have to hold the others, too: none would hold all of them.
    if (counted_ && *counted_ != shard.bits) {
      const ShardName old = shard_of(options_.run_id, dht_.host().id(), *counted_);
      auto told = about(old);
      told.set_report(request.report());
      reported_in_.insert(old);
      old_shard.spawn(tell(*this, old, std::move(told), deadline), "report in the old shard");
    }
  }
  const auto answers = co_await calls_.ask(key_of(options_.run_id, shard), std::move(request), deadline);
  co_await old_shard.join();
  if (answers.empty()) {
    bits_.reset();
    co_return std::nullopt;
  }
  if (report) reported_ = report;
  const double now = dht_.now();
  Seen seen{run_in(answers, now), {}};
  if (seen.run) {
    follow(*seen.run);
    seen.is_news = !run_ || is_news(*seen.run, *run_, options_.target_batch_size, now);
    run_ = seen.run;
  }
  for (const auto& [leader, reply] : answers)
    for (const auto& envelope : reply.reports())
      if (auto opened = open_report(as_bytes(envelope), options_.run_id, now))
        seen.reports.push_back(std::move(*opened));
  co_return seen;
}

Task<void> ProgressShards::withdraw(Deadline deadline) {
  if (!std::exchange(reported_, std::nullopt)) co_return;
  Nursery goodbyes(dht_.runtime(), "goodbye to shards");
  for (const ShardName& shard : std::exchange(reported_in_, {})) {
    auto request = about(shard);
    request.set_goodbye(true);
    goodbyes.spawn(tell(*this, shard, std::move(request), deadline), "goodbye to a shard");
  }
  co_await goodbyes.join();
}

Task<void> ProgressShards::close(Deadline deadline) {
  co_await withdraw(deadline);
  co_await leader_.close(deadline);
}

}  // namespace cohive::train
