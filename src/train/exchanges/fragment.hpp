// Fragments: the parts of a model that rounds of local steps average in turn, so that the uplink is used evenly
// (Streaming DiLoCo, https://arxiv.org/abs/2501.18512). Whole tensors, each in one fragment: large ones first, always
// to the fragment that has least so far, so that layers of one size go to the fragments in turn. It follows from the
// sizes alone, and is the same for all trainers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohive/averaging/averager.hpp"

namespace cohive::train {

struct Fragment {
  std::size_t index = 0, count = 1;  ///< which one of how many
  std::vector<std::size_t> tensors;  ///< of the model, in its order
  std::size_t tensors_of_model = 0;

  /// Tells whether the epoch that begins with this number follows a round of it.
  bool due(std::uint64_t epoch) const { return epoch % count == index; }
  /// Returns a name, for one fragment of several another one than for the others.
  std::string name(const std::string& what) const;
  /// Returns those of its tensors.
  std::vector<averaging::TensorInfo> infos(const std::vector<averaging::TensorInfo>& of_model) const;
  /// Returns its values, one vector for each tensor, as a Replica takes them: nothing at the places of other tensors.
  std::vector<std::span<float>> in_model(std::vector<std::vector<float>>& values) const;
};

/// Divides a model. Throws std::invalid_argument with a sentence where it has fewer tensors than `count`.
std::vector<Fragment> fragments_of(const std::vector<averaging::TensorInfo>& model, std::size_t count);

}  // namespace cohive::train
