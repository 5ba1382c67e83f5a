// The repair of anchors: they are averaged now and then where they differ, as members that have lost different parts of
// a round have come to different ones. Members tell each other checksums of them in every round.
#include <algorithm>

#include "cohive/averaging/host_parts.hpp"
#include "outer_step.hpp"

namespace cohive::train {
namespace {

void copy(const std::vector<std::vector<float>>& from, std::vector<std::vector<float>>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i], to[i].begin());
}

class AnchorRepair final : public Exchange {
 public:
  AnchorRepair(const ExchangeContext& context, std::shared_ptr<OuterMemory> memory, const OuterOptimizer& optimizer)
      : replica_(context.replica),
        runtime_(context.dht.runtime()),
        every_(static_cast<std::uint64_t>(optimizer.repair_every)),
        options_(context.options),
        averager_(context.dht, context.replica.gradient_infos(),
                  averager_options(context.options, "_anchors", "AnchorAverager")),
        memory_(std::move(memory)) {}

  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_; }
  /// Those who begin a run together may begin at different parameters.
  bool due(std::uint64_t epoch) const override { return epoch == 1 || (epoch % every_ == 0 && memory_->differs); }
  Release release(const Moment& moment) const override {
    return goes_on(options_, moment) ? Release::offered : Release::done;
  }

  /// Copies go out: newcomers may be getting the anchors.
  Task<Offer> offer(const Moment& moment) override {
    co_await runtime_.offload([memory = memory_] { copy(memory->anchor, memory->difference); });
    std::vector<averaging::TensorSpan> values(memory_->difference.begin(), memory_->difference.end());
    co_return Offer{std::make_shared<averaging::HostParts>(runtime_, replica_.gradient_infos(), std::move(values)),
                    moment.occasion == Occasion::epoch_end ? 1.0 : 0.0};
  }
  Task<Effect> take(const Moment& moment, const averaging::RoundReport* round) override {
    if (round && moment.occasion == Occasion::epoch_end)
      co_await runtime_.offload([memory = memory_] {
        copy(memory->difference, memory->anchor);
        memory->checksum = checksum_of(memory->anchor);
      });
    co_return Effect::none;
  }

 private:
  const std::string name_ = "anchors";
  Replica& replica_;
  Runtime& runtime_;
  const std::uint64_t every_;
  const RunOptions& options_;
  averaging::Averager averager_;
  std::shared_ptr<OuterMemory> memory_;
};

}  // namespace

std::unique_ptr<Exchange> anchor_repair(const ExchangeContext& context, std::shared_ptr<OuterMemory> memory,
                                        const OuterOptimizer& optimizer) {
  return std::make_unique<AnchorRepair>(context, std::move(memory), optimizer);
}

}  // namespace cohive::train
