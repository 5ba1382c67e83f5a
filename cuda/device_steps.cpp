#include "device_steps.hpp"

#include "cohive/cuda/codec.hpp"
#include "failure.hpp"
#include "optim/detail/norms.hpp"
#include "optim/detail/numbers.hpp"
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

/// What kernels give for each block of values: memory of a lane, and pinned memory that it is copied to.
template <class Sum>
struct BlockSums {
  std::span<Sum> there, here;
  Pinned owner;  // of what is here

  static Task<Result<BlockSums>> take(Lanes& lanes, Lane& lane, std::size_t count) {
    const std::size_t bytes = count * sizeof(Sum);
    if (auto room = lane.grow_encoded(bytes); !room) co_return room.error();
    const auto pinned = co_await lanes.pinned(bytes);
    if (!pinned) co_return pinned.error();
    const auto of = [count](MutableBytes memory) { return std::span(reinterpret_cast<Sum*>(memory.data()), count); };
    co_return BlockSums{of(lane.encoded.bytes()), of((*pinned)->bytes()), *pinned};
  }
  Result<> read(Stream& stream) const {
    return stream.download_async(there.data(), owner->bytes().first(here.size_bytes()));
  }
};

}  // namespace

DeviceSteps::DeviceSteps(std::vector<train::ParameterStep> steps) : steps_(std::move(steps)) {
  for (const auto& [options, memory, settings, has_gradient] : steps_) {
    (void)optim::TensorStep(options, memory, settings);  // checks all
    if (memory.parameters.dtype() != optim::DType::float32 || memory.gradient.dtype() != optim::DType::float32 ||
        !memory.copy.empty() || settings.clear_gradient)
      throw std::invalid_argument("steps on a device are of float32 values, and write the parameters alone");
  }
}

Result<> DeviceSteps::queue(const averaging::Stretch& stretch, Stream& stream) {
  return steps_[stretch.tensor].has_gradient ? queue_step(stretch, stream) : ok();
}

Result<> DeviceSteps::queue_step(const averaging::Stretch& stretch, Stream& stream) {
  const auto& [options, memory, settings, has_gradient] = steps_[stretch.tensor];
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

/// Without a gradient of this peer, a parameter steps where the average shows that another member had one.
Task<Result<std::vector<bool>>> DeviceSteps::find_steps(Lanes& lanes, Lane& lane) const {
  std::vector<bool> steps;
  std::vector<std::span<const float>> unsure;
  for (const auto& step : steps_) {
    steps.push_back(step.has_gradient);
    const auto& gradient = step.memory.gradient;
    if (!step.has_gradient && !gradient.empty())
      unsure.emplace_back(static_cast<const float*>(gradient.data()), gradient.size());
  }
  if (unsure.empty()) co_return steps;
  const auto squares = co_await square_sums(lanes, lane, std::move(unsure));
  if (!squares) co_return squares.error();
  for (std::size_t i = 0, number = 0; i < steps_.size(); ++i)
    if (!steps_[i].has_gradient && !steps_[i].memory.gradient.empty()) steps[i] = (*squares)[number++] != 0;
  co_return steps;
}

Task<Result<std::vector<bool>>> DeviceSteps::finish(Lanes& lanes, Lane& lane, bool all) {
  auto steps = co_await find_steps(lanes, lane);
  if (!steps) co_return steps.error();
  Queued queued(lane.stream);
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto& memory = steps_[i].memory;
    const std::size_t size = memory.parameters.size();
    Result<> done = ok();
    if ((*steps)[i]) {
      if (all || !steps_[i].has_gradient) done = queue_step({i, 0, size}, lane.stream);
    } else if (memory.result.data() != memory.parameters.data()) {
      done = copy_async(lane.stream, {static_cast<const float*>(memory.parameters.data()), size},
                        {values(memory.result), size});
    }
    if (!done) co_return done.error();
  }
  if (auto done = co_await queued.done(lanes.runtime()); !done) co_return done.error();
  if (auto done = co_await finish_lamb(lanes, lane, *steps); !done) co_return done.error();
  co_return steps;
}

/// Makes what needs norms of whole tensors.
Task<Result<>> DeviceSteps::finish_lamb(Lanes& lanes, Lane& lane, std::vector<bool> steps) {
  struct Work {
    const train::ParameterStep& step;
    optim::LambNumbers<float> numbers;
    kernels::StepArrays<float> arrays;
    std::size_t count, first_block;
  };
  std::vector<Work> all;
  std::size_t count_of_blocks = 0;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const auto& step = steps_[i];
    const std::size_t count = step.memory.parameters.size();
    if (!steps[i] || !lamb(step) || count == 0) continue;
    all.push_back(
        {step, optim::numbers<float>(*lamb(step), step.settings), arrays_of(step.memory, 0), count, count_of_blocks});
    count_of_blocks += optim::norm_blocks(count);
  }
  if (all.empty()) co_return ok();
  const auto blocks = co_await BlockSums<optim::LambSums>::take(lanes, lane, count_of_blocks);
  if (!blocks) co_return blocks.error();
  Queued queued(lane.stream);
  for (const auto& work : all) {
    auto summed = on(lane.stream, [&](CUstream_st* queue) {
      return kernels::lamb_sums(queue, work.numbers, work.arrays, work.count, &blocks->there[work.first_block]);
    });
    if (!summed) co_return summed;
  }
  if (auto read = blocks->read(lane.stream); !read) co_return read;
  if (auto done = co_await lane.stream.done(lanes.runtime()); !done) co_return done;
  for (const auto& work : all) {
    optim::LambSums total;
    for (const auto& block : blocks->here.subspan(work.first_block, optim::norm_blocks(work.count))) {
      total.parameters += block.parameters;
      total.updates += block.updates;
    }
    const auto rate = static_cast<float>(-lamb(work.step)->lr * optim::trust_ratio(*lamb(work.step), total));
    auto applied = on(lane.stream, [&](CUstream_st* queue) {
      return kernels::lamb_apply(queue, work.numbers, rate, work.arrays, work.count);
    });
    if (!applied) co_return applied;
  }
  co_return co_await queued.done(lanes.runtime());
}

Task<Result<std::vector<double>>> square_sums(Lanes& lanes, Lane& lane, std::vector<std::span<const float>> tensors) {
  std::size_t count_of_blocks = 0;
  for (const auto& tensor : tensors) count_of_blocks += optim::norm_blocks(tensor.size());
  const auto blocks = co_await BlockSums<double>::take(lanes, lane, count_of_blocks);
  if (!blocks) co_return blocks.error();
  Queued queued(lane.stream);
  std::size_t first = 0;
  for (const auto& values : tensors) {
    const auto of_tensor = blocks->there.subspan(first, optim::norm_blocks(values.size()));
    auto summed = on(lane.stream, [&](CUstream_st* queue) {
      return kernels::square_sums(queue, values.data(), values.size(), of_tensor.data());
    });
    if (!summed) co_return summed.error();
    first += of_tensor.size();
  }
  if (auto read = blocks->read(lane.stream); !read) co_return read.error();
  if (auto done = co_await queued.done(lanes.runtime()); !done) co_return done.error();
  std::vector<double> sums;
  first = 0;
  for (const auto& tensor : tensors) {
    const std::size_t count = optim::norm_blocks(tensor.size());
    sums.push_back(optim::total(blocks->here.subspan(first, count)));
    first += count;
  }
  co_return sums;
}

}  // namespace cohive::cuda
