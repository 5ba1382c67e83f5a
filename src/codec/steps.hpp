// Work in steps that several threads may share:
//   for each phase: its steps, in any order, any number at a time; then settle(phase), alone.
// The result must not depend on how the steps were shared out.
#pragma once

#include <cstddef>

namespace cohive::codec {

class Steps {
 public:
  /// Values that one step takes, about: a multiple of every block there is.
  static constexpr std::size_t kSegment = std::size_t{1} << 18;

  virtual ~Steps() = default;
  /// 0 past the last phase.
  virtual std::size_t steps(int phase) const = 0;
  virtual void run(int phase, std::size_t step) = 0;
  virtual void settle(int /*phase*/) {}
};

}  // namespace cohive::codec
