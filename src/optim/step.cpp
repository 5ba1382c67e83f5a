#include "cohive/optim/step.hpp"

#include <stdexcept>
#include <string>

#include "optim/detail/numbers.hpp"
#include "step_impl.hpp"

namespace cohive::optim {
namespace {

template <class T>
auto kernel_for(const SgdOptions&) {
  return step_kernels<T>().sgd;
}
template <class T>
auto kernel_for(const AdamOptions&) {
  return step_kernels<T>().adam;
}
template <class T>
auto kernel_for(const AdamWOptions&) {
  return step_kernels<T>().adam;
}
template <class T>
auto kernel_for(const RmspropOptions&) {
  return step_kernels<T>().rmsprop;
}
template <class T>
auto kernel_for(const AdagradOptions&) {
  return step_kernels<T>().adagrad;
}

/// A step that looks at every value by itself.
template <class T, class O>
class Elementwise final : public TensorStep::Impl {
 public:
  Elementwise(const O& options, const TensorMemory& memory, const StepSettings& settings)
      : memory_(memory),
        clear_(settings.clear_gradient),
        kernel_(kernel_for<T>(options)),
        numbers_(numbers<T>(options, settings)) {}

  std::size_t size() const override { return memory_.parameters.size(); }

  void run(std::size_t offset, std::size_t count) override {
    Block<T> block(memory_);
    const auto step = [&](std::size_t at, std::size_t here) {
      StepArrays<T> arrays = block.arrays(at);
      arrays.gradient = block.gradient(at, here);
      arrays.in = block.parameters(at, here);
      arrays.out = block.result(at);
      kernel_(numbers_, arrays, here);
      block.write_result(at, here);
      if (clear_) clear(memory_.gradient, at, here);
    };
    if (block.direct() && !clear_)
      step(offset, count);
    else
      for_blocks(offset, count, step);
  }

 private:
  using Numbers = decltype(numbers<T>(std::declval<O>(), std::declval<StepSettings>()));
  TensorMemory memory_;
  bool clear_;
  void (*kernel_)(Numbers, StepArrays<T>, std::size_t);
  Numbers numbers_;
};

void check_memory(const Options& options, const TensorMemory& memory) {
  const std::size_t size = memory.parameters.size();
  const auto demand = [](bool fine, const std::string& what) {
    if (!fine) throw std::invalid_argument("memory of a step: " + what);
  };
  demand(memory.result.size() == size && memory.result.dtype() == memory.parameters.dtype(),
         "parameters are written with the size and dtype that they are read with");
  demand(memory.gradient.size() == size, "a gradient has the size of its parameters");
  demand(memory.copy.empty() || memory.copy.size() == size, "a copy has the size of its parameters");
  const DType wanted = memory.parameters.dtype() == DType::float64 ? DType::float64 : DType::float32;
  const auto fields = state_fields(options);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    const View& state = memory.state[i];
    demand(state.size() == size && state.dtype() == wanted, std::string(fields[i].name) + " is " +
                                                                std::string(codec::name_of(wanted)) +
                                                                " and has the size of its parameters");
  }
}

std::unique_ptr<TensorStep::Impl> make_impl(const Options& options, const TensorMemory& memory,
                                            const StepSettings& settings) {
  check(options);
  check_memory(options, memory);
  if (settings.step < 1) throw std::invalid_argument("steps are counted from 1");
  return std::visit(
      [&]<class O>(const O& o) -> std::unique_ptr<TensorStep::Impl> {
        if constexpr (std::is_same_v<O, LambOptions>)
          return make_lamb(o, memory, settings);
        else if (memory.parameters.dtype() == DType::float64)
          return std::make_unique<Elementwise<double, O>>(o, memory, settings);
        else
          return std::make_unique<Elementwise<float, O>>(o, memory, settings);
      },
      options);
}

void check_range(std::size_t size, std::size_t offset, std::size_t count) {
  if (offset > size || count > size - offset) throw std::out_of_range("a step has no such stretch");
}

}  // namespace

TensorStep::TensorStep(const Options& options, const TensorMemory& memory, const StepSettings& settings)
    : impl_(make_impl(options, memory, settings)) {}
TensorStep::TensorStep(TensorStep&&) noexcept = default;
TensorStep& TensorStep::operator=(TensorStep&&) noexcept = default;
TensorStep::~TensorStep() = default;

std::size_t TensorStep::size() const noexcept {
  return impl_->size();
}
void TensorStep::run(std::size_t offset, std::size_t count) {
  check_range(size(), offset, count);
  impl_->run(offset, count);
}
bool TensorStep::has_second_phase() const noexcept {
  return impl_->has_second_phase();
}
void TensorStep::settle() {
  impl_->settle();
}
void TensorStep::finish(std::size_t offset, std::size_t count) {
  check_range(size(), offset, count);
  impl_->finish(offset, count);
}

}  // namespace cohive::optim
