// The exchange of gradients: the sum of an epoch's batches goes out, and the optimizer steps with the average.
#include <algorithm>
#include <iterator>

#include "cohive/core/log.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/train/gradient_averager.hpp"
#include "cohive/train/run_options.hpp"
#include "exchanges.hpp"
#include "train/checkpoint_content.hpp"

namespace cohive::train {
namespace {

using checkpoint::NamedTensor;

std::unique_ptr<GradientAverager> make_averager(const ExchangeContext& context) {
  const RunOptions& options = context.options;
  auto how = averager_options(options, "_grad_averager", "GradientAverager");
  how.codec = options.grad_compression;
  how.agreed_codec = options.agreed_grad_compression;
  how.one_average = true;
  how.aggregation = options.grad_aggregation;
  if (options.grad_averager_factory)
    return options.grad_averager_factory(context.dht, context.replica.gradient_infos(), std::move(how));
  return std::make_unique<GradientAverager>(context.dht, context.replica.gradient_infos(), std::move(how));
}

class Gradients final : public Exchange {
 public:
  explicit Gradients(const ExchangeContext& context)
      : replica_(context.replica), options_(context.options), averager_(make_averager(context)) {}

  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_->averager(); }
  void start() override { averager_->start(); }

  bool due(std::uint64_t) const override { return true; }
  bool makes_step() const override { return true; }
  /// Members of a scheme such as PowerSGD go on from factors that they share: they meet the same members again.
  bool is_divided() const override { return !options_.grad_averager_factory; }

  Release release(const Moment&) const override { return place() == Place::next ? Release::averaged : Release::done; }
  Task<void> prepare(const Moment&) override {
    if (place() == Place::next) co_await replica_.free_next();
  }

  Task<Offer> offer(const Moment& moment) override {
    if (moment.occasion != Occasion::epoch_end) replica_.cut_gradients();
    const bool steps = moment.occasion == Occasion::epoch_end && !options_.auxiliary;
    taken_ = co_await replica_.take_gradients(steps ? std::optional(place()) : std::nullopt);
    if (steps && !taken_.usable)
      log::warn("train", "gradients of epoch {} hold NaN or infinity, and do not count", moment.epoch - 1);
    co_return Offer{taken_.parts, steps && taken_.usable ? moment.samples : 0};
  }

  Task<Effect> take(const Moment& moment, const averaging::RoundReport* round) override {
    auto [parts, usable] = std::exchange(taken_, {});
    if (moment.occasion != Occasion::epoch_end || options_.auxiliary) co_return Effect::none;
    TraceSpan span(averager().dht().runtime(), "train", "optimizer step");
    span.note("epoch", static_cast<double>(moment.epoch));
    co_await parts->finish();
    parts.reset();
    co_await replica_.finish_step(moment.epoch, usable || (round && round->group.size() > 1));
    co_return place() == Place::next ? Effect::publishable : Effect::none;
  }

  Task<void> drop() override { return replica_.drop_gradients(); }

  Task<void> reset() override {
    replica_.forget_residuals();
    averager_->reset();
    co_return;
  }
  Task<void> download(Deadline deadline) override { return averager_->load_state(deadline); }

  Task<std::vector<NamedTensor>> save() override {
    auto saved = co_await averager_->save();
    auto owed = co_await runtime().offload([residuals = replica_.residuals(), infos = replica_.gradient_infos()] {
      return owed_tensors(residuals, infos);
    });
    std::ranges::move(owed, std::back_inserter(saved));
    co_return saved;
  }

  Task<Result<>> restore(std::vector<NamedTensor> saved) override {
    const auto rest = std::make_shared<std::vector<NamedTensor>>(std::move(saved));
    auto restored =
        co_await runtime().offload([rest, residuals = replica_.residuals(), infos = replica_.gradient_infos()] {
          return take_residuals(*rest, residuals, infos);
        });
    if (restored) restored = co_await averager_->restore(std::move(*rest));
    co_return restored;
  }

 private:
  Place place() const { return options_.delay_optimizer_step ? Place::next : Place::live; }
  Runtime& runtime() const { return averager_->averager().dht().runtime(); }

  const std::string name_ = "gradients";
  Replica& replica_;
  const RunOptions& options_;
  std::unique_ptr<GradientAverager> averager_;
  Replica::Gradients taken_;  // from offer() to take()
};

}  // namespace

std::unique_ptr<Exchange> gradient_exchange(const ExchangeContext& context) {
  return std::make_unique<Gradients>(context);
}

}  // namespace cohive::train
