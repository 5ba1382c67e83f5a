/// \file
/// Steps and passes over many tensors on the runtime's pool. Loop thread only. Results are those of step.hpp and
/// passes.hpp, bit for bit. Dropping a task abandons its work within a stretch: memory is touched no more once `owner`
/// is otherwise unreferenced.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "cohive/core/runtime.hpp"
#include "cohive/optim/passes.hpp"
#include "cohive/optim/step.hpp"

namespace cohive::optim {

/// Values [offset, offset + count) of one of several tensors.
struct Stretch {
  std::size_t tensor = 0;  ///< place in the list of tensors
  std::size_t offset = 0;  ///< of the first value
  std::size_t count = 0;   ///< number of values
};

/// The size of stretches: a multiple of kNormBlock; all that a step reads and writes of one fits in the second-level
/// cache.
inline constexpr std::size_t kStretch = std::size_t{1} << 15;

/// Calls `work` for every stretch of tensors of these sizes, on several threads at a time. Stretches begin at multiples
/// of kStretch. Little work is done in place, as is all work under simulation. A thread of the pool is held for
/// about a millisecond at a time.
/// \param threads the most that take part; 0: one per core
Task<void> for_stretches(Runtime& runtime, std::vector<std::size_t> sizes, std::function<void(const Stretch&)> work,
                         std::size_t threads = 0);

/// Makes a step of every tensor, second phases included.
Task<void> run_steps(Runtime& runtime, std::shared_ptr<std::vector<TensorStep>> steps,
                     std::shared_ptr<const void> owner, std::size_t threads = 0);

/// A gradient and the sum that it is added to.
struct Addition {
  View gradient;         ///< only read; any floating dtype
  std::span<float> sum;  ///< as many values as the gradient
};
/// As the functions of passes.hpp with these names, over all tensors together.
Task<bool> accumulate(Runtime& runtime, std::vector<Addition> additions, Accumulating how,
                      std::shared_ptr<const void> owner, std::size_t threads = 0);
/// Multiplies all values by a factor; tells whether every result is finite.
Task<bool> scale(Runtime& runtime, std::vector<View> tensors, double factor, std::shared_ptr<const void> owner,
                 std::size_t threads = 0);
/// Whether no value is NaN or infinite.
Task<bool> all_finite(Runtime& runtime, std::vector<ConstView> tensors, std::shared_ptr<const void> owner,
                      std::size_t threads = 0);
/// Returns the sum of the squares of all values.
Task<double> square_sum(Runtime& runtime, std::vector<ConstView> tensors, std::shared_ptr<const void> owner,
                        std::size_t threads = 0);

/// One copy, between buffers of the same size whose types may differ.
struct Copying {
  ConstView from;  ///< read
  View to;         ///< written
};
/// Makes the copies, converting values where types differ.
Task<void> copy(Runtime& runtime, std::vector<Copying> copies, std::shared_ptr<const void> owner,
                std::size_t threads = 0);

}  // namespace cohive::optim
