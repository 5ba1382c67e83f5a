/// \file
/// PowerSgd: a scheme that averages large gradients by low-rank factors, together with Python peers that use hivemind's
/// PowerSGDGradientAverager. Of a gradient seen as a matrix A of m rows and n columns, (m + n) * rank values travel
/// instead of m * n:
///   P = (A + residual) Q          averaged in the phase PHASE_P, then made orthonormal
///   Q = (A + residual)^T P        averaged in PHASE_Q, with the gradients that are not worth compressing
///   average = P Q^T               residual: what it lacks of A + residual, added in the next round
/// Sources: docs/wire/hivemind.md, section 7.3; https://arxiv.org/abs/1905.13727.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohive/averaging/scheme.hpp"
#include "cohive/averaging/state_sharing.hpp"

namespace cohive::averaging {

/// All members of a group must have the same.
struct PowerSgdOptions {
  /// Columns of the factors. 1 to 8 send least and may need more steps; the square root of the larger dimension of the
  /// model's matrices converges as without compression, as a rule.
  std::size_t averager_rank = 4;
  /// From 0 to 1: gradients of which the factors save less than this share are averaged as they are.
  double min_compression_ratio = 0.5;
};

/// The factors Q and the residuals of one averager, and the scheme that works with them. Loop thread only. Nothing but
/// assignment and destruction is allowed of one that was moved from.
class PowerSgd {
 public:
  /// Makes factors that are the same for all peers with this schema; memory for residuals is taken when there are some,
  /// 4 bytes for each value that is compressed. Throws std::invalid_argument for impossible options.
  PowerSgd(std::span<const TensorInfo> schema, const PowerSgdOptions& options);
  PowerSgd(PowerSgd&&) noexcept;
  PowerSgd& operator=(PowerSgd&&) noexcept;
  ~PowerSgd();

  /// Returns the scheme, for AveragerOptions::scheme of one averager with this schema; it may outlive this object.
  ///
  /// Residuals and factors change where averages have been applied, and nowhere else: after a round that fails they are
  /// as before it, and the tensors hold this member's own values. A member with weight 0 gets the average and keeps its
  /// residuals. Where a reducer is lost in the first phase, its rows of P are this member's own, as with hivemind: the
  /// average is coarser then, and the residual makes up for it. Errors: not_finite for gradients that are not, or whose
  /// products are not; those of the all-reduces.
  Scheme scheme() const;

  /// Forgets the residuals: the model was replaced.
  void reset_residuals();
  /// Returns a copy of what is owed of a tensor of the schema; empty: nothing, or it is not compressed.
  std::vector<float> residual(std::size_t tensor) const;

  /// Tells which tensors of the schema are compressed.
  const std::vector<std::size_t>& compressed() const noexcept;

  /// Returns what newcomers download, the factors Q, for StateSharing::set_provider.
  /// \param group_bits  of the averager, for the metadata
  StateSharing::Provider provider(std::string group_bits) const;
  /// Replaces the factors by downloaded ones. Errors: bad_state for other shapes, and for values that are not finite;
  /// then nothing is changed.
  Task<Result<>> load(Runtime& runtime, DownloadedState state);

  /// What a peer goes on with after a pause: of each compressed tensor the factor Q, as it travels, and what is owed,
  /// as the matrix that the scheme sees. No residuals: nothing is owed.
  struct Saved {
    std::vector<codec::Tensor> factors,  ///< Q of each compressed tensor
        residuals;                       ///< what is owed of each of them; or none at all
  };
  /// Copies factors and residuals. No round goes on meanwhile.
  Task<Saved> save(Runtime& runtime) const;
  /// Replaces both. No round goes on meanwhile. Errors: bad_state for other shapes, and for values that are not finite;
  /// then nothing is changed.
  Task<Result<>> restore(Runtime& runtime, Saved saved);

  /// Returns the size of what is shared, in bytes.
  std::uint64_t state_bytes() const noexcept;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace cohive::averaging
