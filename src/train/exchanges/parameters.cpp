// The exchange of parameters: they go out as they are, and their average takes their place. With full_state_every they
// go out as differences from what the last round has averaged, in 8 bits, where all members hold that to the bit.
#include <algorithm>

#include "checksum.hpp"
#include "cohive/averaging/relative_parts.hpp"
#include "cohive/train/run_options.hpp"
#include "exchanges.hpp"
#include "parameter_greeting.hpp"
#include "train/link_fit.hpp"

namespace cohive::train {
namespace {

averaging::AveragerOptions averager_options(const RunOptions& options,
                                            const std::shared_ptr<averaging::CommonState>& common) {
  auto result = averager_options(options, "_state_averager", "TrainingStateAverager");
  result.codec = options.state_averaging_compression;
  result.aggregation = options.state_aggregation;
  result.one_average = common != nullptr;
  if (common) result.scheme = averaging::relative_all_reduce(common);
  if (options.averager_options) options.averager_options(result);
  return result;
}

class Parameters final : public Exchange {
 public:
  explicit Parameters(const ExchangeContext& context)
      : replica_(context.replica),
        options_(context.options),
        common_(options_.full_state_every > 1 ? std::make_shared<averaging::CommonState>(context.replica.state_infos())
                                              : nullptr),
        averager_(context.dht, context.replica.state_infos(), averager_options(context.options, common_)) {}

  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_; }
  bool due(std::uint64_t epoch) const override {
    return epoch % static_cast<std::uint64_t>(options_.average_state_every) == 0;
  }
  bool yields_parameters() const override { return true; }
  msgpack::Value greeting(std::uint64_t epoch) const override {
    if (!common_) return Exchange::greeting(epoch);
    return ParameterGreeting{epoch, full_is_due_ ? 0 : common_->checksum}.value();
  }
  /// This member's own greeting is among them.
  averaging::RoundCodecs codecs(const std::vector<averaging::Member>& members, bool) override {
    if (!common_) return {};
    common_->relative = common_->checksum != 0 && std::ranges::all_of(members, [this](const auto& member) {
                          return ParameterGreeting::of(member).common == common_->checksum;
                        });
    if (!common_->relative) return {};
    return {.ordinary = codec::Compression::size_adaptive(kSmallTensor, codec::Codec::none, codec::Codec::blockwise8)};
  }

  /// Parameters that a step has made are copies already, but its end has released the trainer.
  Release release(const Moment& moment) const override {
    const ParameterRound how = round_of(moment);
    return how.from == Place::live && how.to == Place::next ? Release::offered : Release::done;
  }
  Task<void> hold() override {
    if (options_.delay_optimizer_step) co_await replica_.hold_state();
  }
  Task<Offer> offer(const Moment& moment) override {
    parts_ = co_await replica_.state_parts(round_of(moment));
    if (common_) parts_ = std::make_shared<averaging::RelativeParts>(runtime(), std::move(parts_), common_);
    const bool counts = moment.occasion == Occasion::epoch_end || moment.occasion == Occasion::extra;
    co_return Offer{parts_, counts ? 1.0 : 0.0};
  }
  Task<Effect> take(const Moment&, const averaging::RoundReport* round) override {
    if (!round) co_await parts_->finish();
    parts_.reset();
    if (round && common_) co_await look_at_common_state(*round);
    co_return co_await replica_.finish_state(round != nullptr) ? Effect::publishable : Effect::none;
  }

  /// Differences from what a state far away has in common with the others would be coarse.
  Task<void> reset() override {
    full_is_due_ = true;
    co_return;
  }

 private:
  Runtime& runtime() const { return averager_.dht().runtime(); }

  /// What the round has averaged is a common state if nothing of it is missing. Members that miss something tell of
  /// none, or of an older one, and the next round is full.
  Task<void> look_at_common_state(const averaging::RoundReport& round) {
    if (!round.one_average || !common_->is_whole()) co_return;
    common_->checksum = co_await runtime().offload([common = common_] { return checksum_of(common->values); });
    relative_rounds_ = common_->relative ? relative_rounds_ + 1 : 0;
    full_is_due_ = relative_rounds_ + 1 >= options_.full_state_every;
  }

  ParameterRound round_of(const Moment& moment) const {
    if (moment.occasion != Occasion::epoch_end) return {};
    const bool delayed = options_.delay_state_averaging;
    if (options_.use_local_updates && delayed) return {.to = Place::next, .changes = true};
    if (options_.delay_optimizer_step) return {.from = Place::next, .to = Place::next};
    return {.to = delayed && !options_.auxiliary ? Place::next : Place::live};
  }

  const std::string name_ = "parameters";
  Replica& replica_;
  const RunOptions& options_;
  const std::shared_ptr<averaging::CommonState> common_;  // null: parameters always travel as they are
  averaging::Averager averager_;
  std::shared_ptr<averaging::TensorParts> parts_;  // from offer() to take()
  int relative_rounds_ = 0;                        // since the last full one
  bool full_is_due_ = false;                       // whatever the others would do
};

}  // namespace

std::unique_ptr<Exchange> parameter_exchange(const ExchangeContext& context) {
  return std::make_unique<Parameters>(context);
}

}  // namespace cohive::train
