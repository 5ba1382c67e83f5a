// Which values of some tensors have been dealt with. Any thread.
#pragma once

#include <map>
#include <mutex>
#include <vector>

#include "cohive/averaging/tensor_parts.hpp"

namespace cohive::averaging {

class StretchSet {
 public:
  explicit StretchSet(std::size_t tensors) : covered_(tensors) {}

  /// Adds a stretch. Returns the parts of it that were not in the set.
  std::vector<Stretch> claim(const Stretch& stretch);
  /// Returns the parts of a stretch that are not in the set.
  std::vector<Stretch> missing(const Stretch& stretch) const;

 private:
  using Intervals = std::map<std::size_t, std::size_t>;  // begin: end; neither overlapping nor touching
  std::vector<Stretch> missing_of(const Stretch& stretch) const;

  mutable std::mutex mutex_;
  std::vector<Intervals> covered_;
};

}  // namespace cohive::averaging
