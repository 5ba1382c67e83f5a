/// \file
/// HostParts: float32 tensors in host memory as a round uses them. Arithmetic runs in fused passes on the pool, small
/// stretches on the loop.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "cohive/averaging/answer_residuals.hpp"
#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/codec/residuals.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::averaging {

class HostMemory;

/// What lossy codecs owe of each tensor, round after round: handed to the HostParts of one round after another.
using ResidualsPtr = std::shared_ptr<std::vector<codec::Residuals>>;
/// Makes residuals of nothing owed. Memory is taken where something is owed for the first time: 4 bytes a value.
/// \param kept  see codec::Residuals
ResidualsPtr make_residuals(std::span<const TensorInfo> tensors, float kept = 1);

/// How tensors in host memory take part in a round.
struct HostPartsOptions {
  /// Results are differences: what is written is alpha * (average - own), and 0 where no average came. `read` stays.
  bool differences = false;
  /// Applied to `read`, in place, just before the first use of a value, and once. 1: `read` is not written to.
  float factor = 1;
  /// Called once for every stretch of every tensor when its values are final: on the thread that made them final, while
  /// they are in its cache, or in finish() for stretches without an average. Calls for different stretches run at once.
  /// Not called any more once the task that it belongs to was dropped. It must not end the round itself.
  std::function<void(const StretchResult&)> on_result = nullptr;
  ResidualsPtr residuals = nullptr;      ///< none: codecs with error feedback are not used
  AnswerResidualsPtr answers = nullptr;  ///< see TensorParts::answer_residuals
  double density_factor = 1;             ///< see TensorParts::density_factor
};

/// Serves one round; make another one for the next. The memory is touched only while a task or a contribution of this
/// object is in progress; the destructor is called when none is.
class HostParts final : public TensorParts {
 public:
  /// Throws std::invalid_argument when the memory does not fit the infos.
  HostParts(Runtime& runtime, std::vector<TensorInfo> infos, std::vector<TensorSpan> memory,
            HostPartsOptions options = {});
  ~HostParts() override;

  const std::vector<TensorInfo>& infos() const noexcept override;
  bool keeps_residuals() const noexcept override;
  AnswerResidualsPtr answer_residuals() const override;
  double density_factor() const noexcept override;
  Task<Result<EncodedStretch>> encode(Stretch stretch, codec::CodecSpec codec) override;
  Task<Result<std::shared_ptr<OwnContribution>>> contribute(Stretch stretch, codec::CodecSpec codec,
                                                            Terms terms) override;
  Task<Result<>> apply(Stretch stretch, Answer answer, Terms terms) override;
  /// Copies what has no result from `read` to `write` (differences: writes 0), reports it, and applies the factor where
  /// that has not been done: on all threads of the pool. So it is also the whole of a round that this peer is alone in.
  Task<void> finish() override;

  /// Counts the values that have an average.
  std::size_t averaged() const noexcept;

 private:
  Runtime& runtime_;
  std::shared_ptr<HostMemory> memory_;  // shared with work on other threads
};

/// Tensors of several TensorParts as one list: for a scheme that averages some of its own and some of the round's, or
/// for tensors in several kinds of memory.
class JoinedParts final : public TensorParts {
 public:
  /// One of the tensors that are joined.
  struct Source {
    TensorParts* parts = nullptr;  ///< what the tensor belongs to; not null
    std::size_t tensor = 0;        ///< its place among the tensors of `parts`
  };
  /// Joins tensors; they are in the list in the order of `sources`, whose parts must outlive this object. finish() does
  /// nothing: it is up to those.
  explicit JoinedParts(std::vector<Source> sources);
  /// Joins all tensors of `all`, and keeps these; finish() finishes them.
  static std::shared_ptr<JoinedParts> owning(std::vector<std::shared_ptr<TensorParts>> all);

  const std::vector<TensorInfo>& infos() const noexcept override { return infos_; }
  Task<Result<EncodedStretch>> encode(Stretch stretch, codec::CodecSpec codec) override;
  Task<Result<std::shared_ptr<OwnContribution>>> contribute(Stretch stretch, codec::CodecSpec codec,
                                                            Terms terms) override;
  Task<Result<>> apply(Stretch stretch, Answer answer, Terms terms) override;
  std::unique_ptr<FactoredTensor> factored(std::size_t tensor, FactorForm form, codec::Residuals& owed) override;
  Task<void> finish() override;

 private:
  std::vector<std::shared_ptr<TensorParts>> owned_;
  std::vector<Source> sources_;
  std::vector<TensorInfo> infos_;
};

}  // namespace cohive::averaging
