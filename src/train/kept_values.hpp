// What exchanges keep (Exchange::kept) in states and checkpoints: after the tensors of the model, each under
// "exchange.<exchange>.<name>".
#pragma once

#include <memory>
#include <vector>

#include "cohive/averaging/state_sharing.hpp"
#include "scheduled.hpp"

namespace cohive::train {

class KeptValues {
 public:
  /// Throws std::invalid_argument with a sentence for values that are not as many as their shape says.
  explicit KeptValues(const std::vector<std::unique_ptr<Scheduled>>& exchanges);

  /// Returns how many values there are.
  std::uint64_t elements() const noexcept;
  /// Copies them to the end of a state of the model.
  Task<void> append(Runtime& runtime, averaging::SharedState& state) const;
  /// Copies them, as they are in states.
  Task<std::vector<codec::Tensor>> copies(Runtime& runtime) const;
  /// Moves them out of a downloaded state, whose last tensors they are. Errors: averaging::Errc::bad_state for one that
  /// does not have them.
  Task<Result<std::vector<codec::Tensor>>> split(Runtime& runtime, averaging::DownloadedState& state) const;
  /// Moves them out of a file; empty where it has others, or none.
  std::vector<codec::Tensor> take_from(checkpoint::TensorFile& file) const;
  /// Writes what split() or take_from() has returned.
  Task<void> write(Runtime& runtime, std::vector<codec::Tensor> tensors) const;

 private:
  bool fit(std::span<const codec::Tensor> tensors) const;

  std::vector<Exchange::Kept> kept_;  // with whole names
};

/// Names of parameters in files must not begin with it.
inline constexpr std::string_view kExchangePrefix = "exchange.";

}  // namespace cohive::train
