/// \file
/// RelativeParts: tensors of a round that travel as differences from values which all members of the group hold to the
/// bit. Differences are small, and need fewer bits than values for the same precision.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cohive/averaging/scheme.hpp"
#include "cohive/averaging/tensor_parts.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::averaging {

/// A common state is what the last round has averaged, as all of its members have decoded it: in host memory, 4 bytes a
/// value. Members whose checksums are equal hold the same one. Loop thread, but for the values.
struct CommonState {
  /// Makes one of zeros, that nobody has in common.
  explicit CommonState(std::span<const TensorInfo> tensors);

  std::vector<std::vector<float>> values;  ///< of each tensor
  std::uint64_t checksum = 0;              ///< of the values; 0: not known, or not those of one whole round
  bool relative = false;                   ///< parts of the present round are differences from the values
  std::size_t renewed = 0;                 ///< how many values the present round has replaced

  /// Tells whether the present round has replaced all values: each was averaged, and encoded once for all members.
  bool is_whole() const;
};

/// The tensors of another TensorParts, which remain where they are, as values or as differences from a CommonState,
/// which becomes what the round averages. Arithmetic on differences is done in host memory: of tensors on a device one
/// part at a time is copied. Codecs with error feedback lose what they owe: no residuals are kept.
class RelativeParts final : public TensorParts {
 public:
  /// Wraps tensors for one round. `common` may be told to be relative until the first of them is read.
  RelativeParts(Runtime& runtime, std::shared_ptr<TensorParts> parts, std::shared_ptr<CommonState> common);

  const std::vector<TensorInfo>& infos() const noexcept override { return parts_->infos(); }
  Task<Result<EncodedStretch>> encode(Stretch stretch, codec::CodecSpec codec) override;
  Task<Result<std::shared_ptr<OwnContribution>>> contribute(Stretch stretch, codec::CodecSpec codec,
                                                            Terms terms) override;
  Task<Result<>> apply(Stretch stretch, Answer answer, Terms terms) override;
  Task<void> finish() override { return parts_->finish(); }

 private:
  Runtime& runtime_;
  const std::shared_ptr<TensorParts> parts_;
  const std::shared_ptr<CommonState> common_;
};

/// Returns the scheme for RelativeParts. An all-reduce of differences has a phase of its own, "DIFFERENCES", on the
/// wire: differences meet no values where members come to different conclusions about a round, as a leader that lies
/// about what they have in common can make them do. They are late for each other then.
Scheme relative_all_reduce(std::shared_ptr<const CommonState> common);

}  // namespace cohive::averaging
