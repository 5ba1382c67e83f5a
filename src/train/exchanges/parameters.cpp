// The exchange of parameters: they go out as they are, and their average takes their place.
#include "cohive/train/run_options.hpp"
#include "exchanges.hpp"

namespace cohive::train {
namespace {

averaging::AveragerOptions averager_options(const RunOptions& options) {
  auto result = averager_options(options, "_state_averager", "TrainingStateAverager");
  result.codec = options.state_averaging_compression;
  result.aggregation = options.state_aggregation;
  if (options.averager_options) options.averager_options(result);
  return result;
}

class Parameters final : public Exchange {
 public:
  explicit Parameters(const ExchangeContext& context)
      : replica_(context.replica),
        options_(context.options),
        averager_(context.dht, context.replica.state_infos(), averager_options(context.options)) {}

  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_; }
  bool due(std::uint64_t epoch) const override {
    return epoch % static_cast<std::uint64_t>(options_.average_state_every) == 0;
  }
  bool yields_parameters() const override { return true; }

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
    co_return Offer{parts_, moment.occasion == Occasion::following ? 0.0 : 1.0};
  }
  Task<Effect> take(const Moment&, const averaging::RoundReport* round) override {
    if (!round) co_await parts_->finish();
    parts_.reset();
    co_return co_await replica_.finish_state(round != nullptr) ? Effect::publishable : Effect::none;
  }

 private:
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
  averaging::Averager averager_;
  std::shared_ptr<averaging::TensorParts> parts_;  // from offer() to take()
};

}  // namespace

std::unique_ptr<Exchange> parameter_exchange(const ExchangeContext& context) {
  return std::make_unique<Parameters>(context);
}

}  // namespace cohive::train
