#include "device_steps.hpp"

#include "failure.hpp"
#include "lanes.hpp"
#include "optim/norms.hpp"
#include "optim/numbers.hpp"
#include "step_kernels.hpp"

namespace cohive::cuda {
namespace {

static_assert(kernels::kNormBlock == optim::kNormBlock);

float* values(const optim::View& view) {
  return static_cast<float*>(view.data());
}

kernels::StepArrays<float> arrays_of(const optim::TensorMemory& memory, std::size_t offset) {
  kernels::StepArrays<float> arrays{static_cast<const float*>(memory.gradient.data()) + offset,
                                    static_cast<const float*>(memory.parameters.data()) + offset,
                                    values(memory.result) + offset,
                                    {}};
  for (std::size_t i = 0; i < optim::kMostStateFields; ++i)
    if (!memory.state[i].empty()) arrays.state[i] = values(memory.state[i]) + offset;
  return arrays;
}

const optim::LambOptions* lamb(const train::ParameterStep& step) {
  return std::get_if<optim::LambOptions>(&step.options);
}

/// What the host's kernels give for each block, on the device and here.
template <class Sum>
struct BlockSums {
  DeviceBuffer there;
  HostBuffer here;

  static Result<BlockSums> create(std::size_t count, int device) {
    auto there = DeviceBuffer::create(count * sizeof(Sum), device);
    if (!there) return there.error();
    auto here = HostBuffer::create(count * sizeof(Sum));
    if (!here) return here.error();
    return BlockSums{std::move(*there), std::move(*here)};
  }
  Sum* queued() const { return reinterpret_cast<Sum*>(there.bytes().data()); }
  Result<> read(Stream& stream) const { return stream.download_async(there.bytes().data(), here.bytes()); }
  std::span<const Sum> sums() const {
    return {reinterpret_cast<const Sum*>(here.bytes().data()), here.size() / sizeof(Sum)};
  }
};

}  // namespace

DeviceSteps::DeviceSteps(std::vector<train::ParameterStep> steps) : steps_(std::move(steps)) {
  for (const auto& [options, memory, settings] : steps_) {
    (void)optim::TensorStep(options, memory, settings);  // checks all
    if (memory.parameters.dtype() != optim::DType::float32 || memory.gradient.dtype() != optim::DType::float32 ||
        !memory.copy.empty() || settings.clear_gradient)
      throw std::invalid_argument("steps on a device are of float32 values, and write the parameters alone");
  }
}

Result<> DeviceSteps::queue(const averaging::Stretch& stretch, Stream& stream) {
  const auto& [options, memory, settings] = steps_[stretch.tensor];
  const auto arrays = arrays_of(memory, stretch.offset);
  return on(stream, [&](CUstream_st* queue) {
    return std::visit(
        [&](const auto& how) {
          const auto numbers = optim::numbers<float>(how, settings);
          if constexpr (std::is_same_v<std::decay_t<decltype(how)>, optim::LambOptions>)
            return kernels::lamb_moments(queue, numbers, arrays, stretch.length);
          else
            return kernels::step(queue, numbers, arrays, stretch.length);
        },
        options);
  });
}

Result<> DeviceSteps::queue_all(Stream& stream) {
  for (std::size_t i = 0; i < steps_.size(); ++i)
    if (auto queued = queue({i, 0, steps_[i].memory.parameters.size()}, stream); !queued) return queued;
  return ok();
}

Task<Result<>> DeviceSteps::finish(Runtime& runtime, Stream& stream) {
  for (const auto& step : steps_)
    if (lamb(step) && !step.memory.parameters.empty())
      if (auto finished = co_await finish_lamb(runtime, stream, step); !finished) co_return finished;
  co_return ok();
}

Task<Result<>> DeviceSteps::finish_lamb(Runtime& runtime, Stream& stream, const train::ParameterStep& step) {
  const std::size_t count = step.memory.parameters.size();
  const auto numbers = optim::numbers<float>(*lamb(step), step.settings);
  const auto arrays = arrays_of(step.memory, 0);
  auto blocks = BlockSums<optim::LambSums>::create(optim::norm_blocks(count), stream.device());
  if (!blocks) co_return blocks.error();
  Queued queued(stream);
  auto summed = on(
      stream, [&](CUstream_st* queue) { return kernels::lamb_sums(queue, numbers, arrays, count, blocks->queued()); });
  if (!summed) co_return summed;
  if (auto read = blocks->read(stream); !read) co_return read;
  if (auto done = co_await stream.done(runtime); !done) co_return done;
  optim::LambSums total;
  for (const auto& [parameters, updates] : blocks->sums()) {
    total.parameters += parameters;
    total.updates += updates;
  }
  const auto rate = static_cast<float>(-lamb(step)->lr * optim::trust_ratio(*lamb(step), total));
  auto applied =
      on(stream, [&](CUstream_st* queue) { return kernels::lamb_apply(queue, numbers, rate, arrays, count); });
  if (!applied) co_return applied;
  co_return co_await queued.done(runtime);
}

Task<Result<double>> square_sum(Runtime& runtime, Stream& stream, std::vector<train::Buffer> tensors) {
  std::vector<BlockSums<double>> all;
  all.reserve(tensors.size());
  Queued queued(stream);
  for (const auto& [owner, values] : tensors) {
    auto blocks = BlockSums<double>::create(optim::norm_blocks(values.size()), stream.device());
    if (!blocks) co_return blocks.error();
    all.push_back(std::move(*blocks));
    auto summed = on(stream, [&, sums = all.back().queued()](CUstream_st* queue) {
      return kernels::square_sums(queue, values.data(), values.size(), sums);
    });
    if (!summed) co_return summed.error();
    if (auto read = all.back().read(stream); !read) co_return read.error();
  }
  if (auto done = co_await queued.done(runtime); !done) co_return done.error();
  double result = 0;
  for (const auto& blocks : all) result += optim::total(blocks.sums());
  co_return result;
}

}  // namespace cohive::cuda
