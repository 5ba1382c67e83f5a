/// \file
/// Schemes: what the members of a group do with their tensors. The default is one all-reduce of all of them; others run
/// several, on tensors that they compute from the round's (PowerSGD, say).
#pragma once

#include <functional>
#include <string>

#include "cohive/averaging/group.hpp"
#include "cohive/averaging/tensor_parts.hpp"

namespace cohive::averaging {

/// A round as its scheme sees it. Valid while the scheme runs.
class RoundContext {
 public:
  virtual ~RoundContext() = default;

  /// Returns the loop of the round.
  virtual Runtime& runtime() const noexcept = 0;
  /// Returns the group whose round it is; fixed.
  virtual const Group& group() const noexcept = 0;
  /// Returns the place of this peer among the members.
  virtual std::size_t own_index() const noexcept = 0;
  /// Returns the weight and alpha of this member.
  virtual const Terms& terms() const noexcept = 0;
  /// Returns the tensors that were handed over with the trigger.
  virtual TensorParts& tensors() const noexcept = 0;

  /// Announces how many all-reduces are to come: each has an equal share of the time that the ones before it have left,
  /// so that a member that is slow in the first takes nothing of the second. Unannounced ones may take all that is
  /// left.
  virtual void expect_all_reduces(std::size_t /*count*/) {}
  /// Averages `tensors` with the group, in place: each member must call it with tensors of the same shapes. The
  /// members' shares of the work are those of the whole schema, whatever the tensors are. Streams of members that reach
  /// a phase earlier are held until this call.
  /// \param phase  distinguishes the all-reduces of one round; on the wire it follows the group's id. hivemind's is
  ///               empty; its PowerSGD has "PHASE_P" and "PHASE_Q".
  /// Succeeds when some members are lost: RoundReport tells which. Errors: bad_partition for a phase that this round
  /// has had; round_cancelled.
  virtual Task<Result<>> all_reduce(TensorParts& tensors, std::string phase) = 0;
};

/// Runs a round: called once for every group, after the trigger, within RoundLimits::allreduce. An error fails the
/// round.
using Scheme = std::function<Task<Result<>>(RoundContext& round)>;

/// Returns the default: `round.all_reduce(round.tensors(), "")`.
Scheme plain_all_reduce();

}  // namespace cohive::averaging
