// Steps of an outer optimizer, and the repair of what they step from; cohive/train/outer_optimizer.hpp has the
// formulas.
#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "checksum.hpp"
#include "cohive/averaging/host_parts.hpp"
#include "cohive/train/exchange.hpp"
#include "cohive/train/run_options.hpp"
#include "fragment.hpp"
#include "train/growing_pause.hpp"
#include "train/link_fit.hpp"

namespace cohive::train {

/// Outer steps keep this from round to round: one vector for each parameter of the fragment.
struct OuterMemory {
  explicit OuterMemory(Fragment of) : fragment(std::move(of)) {}
  /// Returns some of the values below as a Replica takes them.
  std::vector<std::span<float>> in_model(std::vector<std::vector<float>>& values) const {
    return fragment.in_model(values);
  }

  const Fragment fragment;
  std::vector<std::vector<float>> anchor, momentum;
  std::vector<std::vector<float>> difference;  // of this peer, then of all; between two rounds anything
  std::vector<std::vector<float>> own;         // of this peer, where the trainer goes on during the round
  std::uint64_t checksum = 0;                  // of the anchor; 0: not known
  bool differs = false;                        // members of the last round had other anchors
  float steps = 0;                             // that led to the anchor: those of one anchor have the same number
  struct Failed {
    averaging::Stretch stretch;
    std::vector<float> own;
  };
  /// How much of what this peer has come to was averaged in a round whose step it has not made: the step of the others
  /// has it, and no offer of this peer has it again. Values of stretches without an average are 0; empty: nothing.
  std::vector<std::vector<float>> counted;
  /// How far repairs have moved the anchor, and not the parameters, since the last step: that is nothing that this peer
  /// has come to. Empty, or a tensor without values: not at all.
  std::vector<std::vector<float>> shift;
  std::mutex mutex;                          // of what follows
  std::vector<Failed> failed;                // stretches of this round of which no average came
  std::vector<averaging::Stretch> averaged;  // those of which one came
};

inline constexpr float kMostToldSteps = 1 << 24;  // that a float counts
/// Returns how many steps a member tells the others that it has made. A donor can have given any number.
inline std::uint64_t told_steps(const OuterMemory& memory) {
  return static_cast<std::uint64_t>(std::clamp(memory.steps, 0.0f, kMostToldSteps));
}

/// Tells whether the trainer goes on during a round.
inline bool goes_on(const RunOptions& options, const Moment& moment) {
  return options.delay_state_averaging && moment.occasion == Occasion::epoch_end;
}

/// Averages how far the trainers have come in a fragment of the model, and steps there. With delay_state_averaging the
/// trainer goes on meanwhile, and what it makes of its parameters in that time is added to the result.
///
/// In a divided run each group comes to a mean of its own, and anchors that follow such means drift apart. There the
/// parameters are averaged, and each member steps by what its own anchor differs by from their mean (NoLoCo,
/// https://arxiv.org/abs/2506.10911): from one anchor this is the same step, and what a member's anchor differs by from
/// those of the others is part of its difference, so that the next groups undo it.
class OuterStep final : public Exchange {
 public:
  /// Throws std::invalid_argument with a sentence for a model whose parameters it cannot copy.
  /// \param fit  hears of its rounds, and says how the next ones are; null: nobody does
  OuterStep(const ExchangeContext& context, OuterOptimizer optimizer, Fragment fragment,
            std::shared_ptr<LinkFit> fit = nullptr);

  const std::string& name() const override { return name_; }
  averaging::Averager& averager() override { return averager_; }
  bool due(std::uint64_t epoch) const override { return memory_->fragment.due(epoch); }
  bool needs_every_round() const override { return true; }  // an anchor that missed one is that of nobody else
  bool keeps_unaveraged() const override { return averaged_; }
  msgpack::Value greeting(std::uint64_t) const override;
  bool is_late(const averaging::Member& member, const averaging::Member& own) const override;
  Release release(const Moment& moment) const override { return is_delayed(moment) ? Release::offered : Release::done; }
  averaging::RoundCodecs codecs(const std::vector<averaging::Member>& members, bool divided) override;
  Duration patience() const override { return fit_ ? from_seconds(fit_->patience()) : Duration{}; }
  Task<void> prepare(const Moment& moment) override;
  Task<Offer> offer(const Moment& moment) override;
  Task<Effect> take(const Moment& moment, const averaging::RoundReport* round) override;
  Task<void> drop() override;
  std::vector<Kept> kept() override;
  Task<void> complete(averaging::SharedState& state) override;
  bool lacks_kept_alone() const override { return finite_; }  // else the optimizer's statistics are not finite, either
  Task<void> alone() override;
  Task<void> renewing() override;
  Task<void> replacing() override;
  Task<void> reset() override;
  Task<void> loaded() override;
  Task<std::vector<checkpoint::NamedTensor>> save() override;
  Task<Result<>> restore(std::vector<checkpoint::NamedTensor> saved) override;

  /// Returns what it steps from; for the repair, and for tests between two calls of the run.
  const std::shared_ptr<OuterMemory>& memory() const noexcept { return memory_; }

 private:
  bool is_delayed(const Moment& moment) const { return goes_on(options_, moment); }
  double weight_of(const Moment& moment) const;
  bool averages_parameters(bool divided) const { return divided && !optimizer_.open_diloco; }
  bool is_told_to_be_behind(const averaging::RoundReport& round) const;
  bool believes_to_be_behind();
  Task<void> keep_what_was_averaged(const Moment& moment);
  void compare_anchors(const averaging::RoundReport& round, bool parameters);
  void fit_next_rounds(const Moment& moment, const averaging::RoundReport& round);
  void warn_of_short_rounds(std::uint64_t batches);
  void forget_what_is_owed();
  Task<std::vector<checkpoint::NamedTensor>> copy_of_what_is_owed();

  const std::string name_;
  Replica& replica_;
  Runtime& runtime_;
  const RunOptions& options_;
  const OuterOptimizer optimizer_;
  const std::shared_ptr<OuterMemory> memory_;
  const std::vector<averaging::TensorInfo> infos_;  // of the fragment
  averaging::Averager averager_;
  averaging::ResidualsPtr residuals_;
  averaging::AnswerResidualsPtr answers_;  // null: answers are not in sparse2
  // A copy of what was owed when a round began that goes on beside copies of the state: these have the anchor of that
  // time, and the round changes what is owed as it goes. Empty without a directory for checkpoints; nullopt: no such
  // round.
  std::optional<std::vector<checkpoint::NamedTensor>> owed_before_;
  const std::shared_ptr<LinkFit> fit_;
  double values_ = 0;               // of the fragment
  double share_ = 1;                // of the model's values
  TimePoint began_{};               // the exchange that goes on
  std::uint64_t trained_from_ = 0;  // the epoch that the last exchange led to
  bool whole_ = false;              // this peer has trained in all epochs since then
  bool averaged_ = false;           // the anchor is one that others have had, too
  bool alone_ = false;              // the anchor is one that this peer has come to alone
  bool finite_ = true;              // the parameters were when they were read last
  bool carries_ = false;            // until loaded(): `difference` has what this peer has come to
  bool warned_ = false;
  GrowingPause doubt_ = doubt_of_members();
  float told_at_steps_ = 0;     // when members said last that this peer is behind
  float counted_at_steps_ = 0;  // when something was counted last that this peer has made no step by
  bool few_bits_ = false;       // of the parameters of the last group that averaged these
};

/// Averages the anchors now and then, where they differ. The parameters stay as they are until the next step.
std::unique_ptr<Exchange> anchor_repair(const ExchangeContext& context, std::shared_ptr<OuterMemory> memory,
                                        const OuterOptimizer& optimizer);

}  // namespace cohive::train
