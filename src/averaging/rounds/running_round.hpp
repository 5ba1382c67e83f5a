// The round of a group as its scheme sees it: all-reduces on demand, and what they add up to.
#pragma once

#include "cohive/averaging/scheme.hpp"
#include "rounds.hpp"

namespace cohive::averaging {

/// How the members of a group share the work of a round.
struct WorkDivision {
  std::shared_ptr<const Group> group;
  std::size_t own_index = 0;
  std::vector<std::uint64_t> fractions;  ///< for each member
};
/// The same for all members. Errors: the group cannot average, or does not have us.
Task<Result<WorkDivision>> divide_work(Runtime& runtime, PeerId own, std::shared_ptr<const Group> group,
                                       std::span<const TensorInfo> schema, std::uint64_t min_vector_size);

class RunningRound final : public RoundContext {
 public:
  struct Setup {
    p2p::Host& host;
    const AveragerOptions& options;
    const AveragingMetrics& metrics;
    std::string prefix;  ///< of protocols: "<prefix>::<class>."
    const std::vector<TensorInfo>& schema;
    RoundLimits limits;                                                 ///< unset: none
    std::function<std::optional<Duration>(const PeerId&)> timeout_for;  ///< see AllReduce::Setup, as the next one
    std::function<void(std::vector<PeerId>)> on_stragglers;
  };
  RunningRound(Setup setup, WorkDivision work, Terms terms, TensorParts& tensors, Rounds::Entry& entry);

  /// Runs the scheme. Errors: tensors that do not fit the schema; those of the scheme.
  Task<Result<>> run();
  /// Hands over what is known at the end; without times.
  RoundReport report(TimePoint trigger) &&;

  Runtime& runtime() const noexcept override { return setup_.host.runtime(); }
  const Group& group() const noexcept override { return *work_.group; }
  std::size_t own_index() const noexcept override { return work_.own_index; }
  const Terms& terms() const noexcept override { return terms_; }
  TensorParts& tensors() const noexcept override { return tensors_; }
  void expect_all_reduces(std::size_t count) override { to_come_ = count; }
  Task<Result<>> all_reduce(TensorParts& tensors, std::string phase) override;

 private:
  const Setup setup_;
  const WorkDivision work_;
  const Terms terms_;
  TensorParts& tensors_;
  Rounds::Entry& entry_;
  const Deadline end_;
  std::size_t to_come_ = 0;  // all-reduces, as far as the scheme has announced them
  std::shared_ptr<std::vector<MemberTraffic>> traffic_;
  RoundReport report_;  // of all all-reduces so far
};

}  // namespace cohive::averaging
