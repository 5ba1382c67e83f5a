// The repair of anchors: they are averaged now and then where they differ, as members that have lost different parts of
// a round have come to different ones. Members tell each other checksums of them in every round. The outer momentum is
// averaged with them, or else the next step would lead to different anchors again.
#include <algorithm>

#include "cohive/averaging/host_parts.hpp"
#include "outer_step.hpp"

namespace cohive::train {
namespace {

void copy(const std::vector<std::vector<float>>& from, std::vector<std::vector<float>>& to) {
  for (std::size_t i = 0; i < from.size(); ++i) std::ranges::copy(from[i], to[i].begin());
}

/// Notes how far the anchor moves, for those tensors that it moves in: it takes as much memory as their parameters.
void note_shift(OuterMemory& memory, const std::vector<std::vector<float>>& to) {
  memory.shift.resize(to.size());
  for (std::size_t i = 0; i < to.size(); ++i) {
    const auto& from = memory.anchor[i];
    auto& shift = memory.shift[i];
    if (to[i] == from) continue;
    shift.resize(from.size());
    for (std::size_t k = 0; k < from.size(); ++k) shift[k] += to[i][k] - from[k];
  }
}

/// As that of parameters, or else as that of the differences that make the anchors: where one sender shall not move
/// those anywhere, it shall not write the anchors either. Values of anchors are not left out, and not near zero.
averaging::Aggregation aggregation_of_anchors(const RunOptions& options) {
  if (averaging::bears_liars(options.state_aggregation)) return options.state_aggregation;
  if (const auto* of_senders = std::get_if<averaging::MeanOfSenders>(&options.grad_aggregation)) {
    if (of_senders->clip > 0) return averaging::ClippedMean{of_senders->clip};
    return averaging::Mean();
  }
  if (std::holds_alternative<averaging::CenteredClip>(options.grad_aggregation)) return averaging::TrimmedMean();
  return options.grad_aggregation;
}

/// All members are to hold the same bits afterwards.
averaging::AveragerOptions how_to_repair(const RunOptions& options, const OuterOptimizer& optimizer,
                                         const std::string& name) {
  auto how = optimizer.open_diloco ? averager_options(options, "_state_averager", "DiLoCoStateAverager")
                                   : averager_options(options, "_" + name, "AnchorAverager");
  how.one_average = true;
  how.aggregation = aggregation_of_anchors(options);
  if (options.averager_options) options.averager_options(how);
  return how;
}

/// The anchors, and behind them their momentum, if there is any.
std::vector<averaging::TensorInfo> what_to_repair(const Replica& replica, const Fragment& fragment,
                                                  const OuterOptimizer& optimizer) {
  const auto anchors = fragment.infos(replica.gradient_infos());
  if (optimizer.open_diloco)
    return {replica.state_infos().begin(), replica.state_infos().begin() + std::ssize(anchors)};
  auto infos = anchors;
  if (optimizer.momentum > 0) infos.insert(infos.end(), anchors.begin(), anchors.end());
  return infos;
}

/// That of those who have done their part, `own` among them: the same for all members, which are one from now on.
std::optional<std::uint64_t> middle_of_steps(const averaging::RoundReport& round, const PeerId& own) {
  const auto contributors = round.contributors();
  std::vector<std::uint64_t> all;
  for (const auto& member : round.group)
    if (member.peer == own || std::ranges::find(contributors, member.peer) != contributors.end())
      if (const auto steps = member.data.as_uint(); steps && *steps <= kMostToldSteps) all.push_back(*steps);
  std::ranges::sort(all);
  return all.empty() ? std::nullopt : std::optional(all[all.size() / 2]);
}

class AnchorRepair final : public Exchange {
 public:
  AnchorRepair(const ExchangeContext& context, std::shared_ptr<OuterMemory> memory, const OuterOptimizer& optimizer)
      : name_(memory->fragment.name("anchors")),
        runtime_(context.dht.runtime()),
        every_(static_cast<std::uint64_t>(optimizer.repair_every)),
        open_diloco_(optimizer.open_diloco),
        options_(context.options),
        infos_(what_to_repair(context.replica, memory->fragment, optimizer)),
        averager_(context.dht, infos_, how_to_repair(options_, optimizer, name_)),
        memory_(std::move(memory)) {}

  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_; }
  /// Those who begin a run together may begin at different parameters. A repair that a member has missed is done again.
  bool due(std::uint64_t epoch) const override {
    const Fragment& fragment = memory_->fragment;
    const bool is_time = fragment.due(epoch) && epoch / fragment.count % every_ < 2;
    return open_diloco_ || epoch == 1 || (is_time && memory_->differs);
  }
  bool takes_place_beside_epochs() const override { return false; }
  /// Groups that meet seldom would stay split for many rounds. In the first one trainers know few of the others.
  bool follows(std::uint64_t epoch) const override { return !open_diloco_ && epoch > 1; }
  /// Each round of the parameters repairs them, and another one would have all groups wait for the last trainer of the
  /// others.
  bool yields_to_divided_rounds() const override { return !open_diloco_; }
  bool lacks_kept_alone() const override { return true; }
  msgpack::Value greeting(std::uint64_t) const override { return told_steps(*memory_); }
  Release release(const Moment& moment) const override {
    return goes_on(options_, moment) ? Release::offered : Release::done;
  }

  /// Copies go out: newcomers may be getting the anchors. They are in memory of their own, as the outer step may have
  /// an offer out at the same time: OpenDiLoCo's repairs have groups of their own.
  Task<Offer> offer(const Moment& moment) override {
    const bool has_momentum = infos_.size() > memory_->anchor.size();
    offered_ = std::make_shared<Offered>();
    co_await runtime_.offload([memory = memory_, offered = offered_, has_momentum] {
      offered->anchor = memory->anchor;
      if (has_momentum) offered->momentum = memory->momentum;
    });
    std::vector<averaging::TensorSpan> values(offered_->anchor.begin(), offered_->anchor.end());
    for (auto& momentum : offered_->momentum) values.emplace_back(momentum);
    co_return Offer{std::make_shared<averaging::HostParts>(runtime_, infos_, std::move(values)),
                    moment.occasion == Occasion::epoch_end ? 1.0 : 0.0};
  }
  Task<Effect> take(const Moment& moment, const averaging::RoundReport* round) override {
    const auto offered = std::exchange(offered_, nullptr);
    if (round && moment.occasion == Occasion::epoch_end)
      co_await runtime_.offload(
          [memory = memory_, offered, steps = middle_of_steps(*round, averager_.dht().host().id())] {
            if (steps) memory->steps = static_cast<float>(*steps);
            note_shift(*memory, offered->anchor);
            copy(offered->anchor, memory->anchor);
            copy(offered->momentum, memory->momentum);
            memory->checksum = checksum_of(memory->anchor);
          });
    co_return Effect::none;
  }

 private:
  /// That are being averaged.
  struct Offered {
    std::vector<std::vector<float>> anchor, momentum;
  };

  const std::string name_;
  Runtime& runtime_;
  const std::uint64_t every_;
  const bool open_diloco_;
  const RunOptions& options_;
  const std::vector<averaging::TensorInfo> infos_;
  averaging::Averager averager_;
  std::shared_ptr<OuterMemory> memory_;
  std::shared_ptr<Offered> offered_;  // from offer() to take()
};

}  // namespace

std::unique_ptr<Exchange> anchor_repair(const ExchangeContext& context, std::shared_ptr<OuterMemory> memory,
                                        const OuterOptimizer& optimizer) {
  return std::make_unique<AnchorRepair>(context, std::move(memory), optimizer);
}

}  // namespace cohive::train
