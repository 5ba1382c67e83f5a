// LAMB (You et al. 2020, "Large batch optimization for deep learning", algorithm 2), for each tensor x:
//   phase one, on any stretch:  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
//   update                      u = m' / (sqrt(v') + eps) + decay * x, with bias-corrected m' and v'
//   settle                      ratio = bound(|x|) / |u|, 1 where either is 0
//   phase two, on any stretch:  x -= lr * ratio * u
// Both norms are sums over fixed blocks. Whichever call of run() makes a block complete takes its sums, so they do not
// depend on how the tensor was cut into stretches.
#include <atomic>
#include <stdexcept>
#include <vector>

#include "optim/detail/numbers.hpp"
#include "step_impl.hpp"

namespace cohive::optim {
namespace {

template <class T>
class Lamb final : public TensorStep::Impl {
 public:
  Lamb(const LambOptions& options, const TensorMemory& memory, const StepSettings& settings)
      : options_(options),
        memory_(memory),
        clear_(settings.clear_gradient),
        numbers_(numbers<T>(options, settings)),
        sums_((size() + kBlock - 1) / kBlock),
        seen_(sums_.size()) {}

  std::size_t size() const override { return memory_.parameters.size(); }
  bool has_second_phase() const override { return true; }

  void run(std::size_t offset, std::size_t count) override {
    Block<T> block(memory_);
    for_blocks(offset, count, [&](std::size_t at, std::size_t here) {
      StepArrays<T> arrays = block.arrays(at);
      arrays.gradient = block.gradient(at, here);
      const std::size_t index = at / kBlock;
      const bool whole = here == size_of_block(index);
      if (whole) {
        arrays.in = block.parameters(at, here);
        sums_[index] = step_kernels<T>().lamb_moments_and_sums(numbers_, arrays, here);
      } else {
        step_kernels<T>().lamb_moments(numbers_, arrays, here);
      }
      if (clear_) clear(memory_.gradient, at, here);
      const auto seen = seen_[index].fetch_add(static_cast<std::uint32_t>(here), std::memory_order_acq_rel) + here;
      if (!whole && seen == size_of_block(index)) take_sums(block, index);
    });
  }

  void settle() override {
    LambSums total;
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      if (seen_[i].load(std::memory_order_acquire) != size_of_block(i))
        throw std::logic_error("LAMB settles once every value was seen once");
      total.parameters += sums_[i].parameters;
      total.updates += sums_[i].updates;
    }
    rate_ = static_cast<T>(-options_.lr * trust_ratio(options_, total));
  }

  void finish(std::size_t offset, std::size_t count) override {
    Block<T> block(memory_);
    for_blocks(offset, count, [&](std::size_t at, std::size_t here) {
      StepArrays<T> arrays = block.arrays(at);
      arrays.in = block.parameters(at, here);
      arrays.out = block.result(at);
      step_kernels<T>().lamb_apply(numbers_, rate_, arrays, here);
      block.write_result(at, here);
    });
  }

 private:
  std::size_t size_of_block(std::size_t index) const { return std::min(kBlock, size() - index * kBlock); }

  void take_sums(Block<T>& block, std::size_t index) {
    StepArrays<T> arrays = block.arrays(index * kBlock);
    arrays.in = block.parameters(index * kBlock, size_of_block(index));
    sums_[index] = step_kernels<T>().lamb_sums(numbers_, arrays, size_of_block(index));
  }

  LambOptions options_;
  TensorMemory memory_;
  bool clear_;
  LambNumbers<T> numbers_;
  std::vector<LambSums> sums_;                    // of every block
  std::vector<std::atomic<std::uint32_t>> seen_;  // values of it that run() had
  T rate_ = 0;
};

}  // namespace

std::unique_ptr<TensorStep::Impl> make_lamb(const LambOptions& options, const TensorMemory& memory,
                                            const StepSettings& settings) {
  if (memory.parameters.dtype() == DType::float64) return std::make_unique<Lamb<double>>(options, memory, settings);
  return std::make_unique<Lamb<float>>(options, memory, settings);
}

}  // namespace cohive::optim
