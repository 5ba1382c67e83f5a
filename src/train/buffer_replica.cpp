#include "cohive/train/buffer_replica.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/optim/parallel.hpp"
#include "train/detail/loaded_state.hpp"
#include "train/detail/usable_statistics.hpp"

namespace cohive::train {
namespace {

constexpr const char* kSteps = "optimizer.step";

[[noreturn]] void refuse_array(const std::string& which, const std::string& what) {
  throw std::invalid_argument("cohive: " + which + " " + what);
}

std::string name_of(const BufferTensor& tensor, const std::string& what, std::size_t number) {
  return what + " " + (tensor.name.empty() ? std::to_string(number) : "\"" + tensor.name + "\"");
}

std::vector<codec::Shape> shapes_of(const std::vector<BufferTensor>& tensors) {
  std::vector<codec::Shape> shapes;
  for (const auto& tensor : tensors) {
    auto& shape = shapes.emplace_back();
    for (const auto size : tensor.shape) shape.push_back(static_cast<std::uint32_t>(size));
  }
  return shapes;
}

std::vector<Buffer> buffers_of(const std::vector<BufferTensor>& tensors, const std::string& what) {
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto values = values_of(tensors[i], name_of(tensors[i], what, i));
    // A Buffer is one that owns something: memory that outlives its user has an owner that does nothing.
    buffers.push_back({tensors[i].owner ? tensors[i].owner : std::make_shared<char>(), values});
  }
  return buffers;
}

std::vector<averaging::TensorInfo> infos_of(const std::vector<codec::Shape>& shapes) {
  std::vector<averaging::TensorInfo> infos;
  for (const auto& shape : shapes) {
    infos.emplace_back();
    infos.back().shape = shape;
  }
  return infos;
}

Buffer filled(std::size_t size, double value) {
  auto buffer = Buffer::on_host(size);
  std::ranges::fill(buffer.values, static_cast<float>(value));
  return buffer;
}

Slice bytes_of(std::span<const float> values) {
  return Slice::copy_of({reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes()});
}

/// Puts the statistics of a file in the order of ours. False: it has others, which are left out.
/// \param names       of those of the file, the last tensors; null: they are in our order
/// \param statistics  names of ours
bool put_in_order(std::vector<const codec::Tensor*>& tensors, const msgpack::Array* names,
                  const std::vector<std::string>& statistics) {
  if (!names || names->items.size() > tensors.size()) return true;
  const std::size_t before = tensors.size() - names->items.size();
  std::map<std::string_view, const codec::Tensor*> theirs;
  for (std::size_t i = before; i < tensors.size(); ++i)
    if (const auto* name = names->items[i - before].get_if<std::string>()) theirs.emplace(*name, tensors[i]);
  const bool same = theirs.size() == statistics.size() &&
                    std::ranges::all_of(statistics, [&](const auto& name) { return theirs.contains(name); });
  tensors.resize(before);
  for (std::size_t i = 0; same && i < statistics.size(); ++i) tensors.push_back(theirs.at(statistics[i]));
  return same;
}

bool is_row_major(const BufferTensor& tensor) {
  std::int64_t expected = 1;
  for (std::size_t i = tensor.shape.size(); i-- > 0;) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != expected) return false;  // one element has no neighbour
    expected *= tensor.shape[i];
  }
  return true;
}

}  // namespace

std::span<float> values_of(const BufferTensor& tensor, const std::string& what) {
  if (tensor.dtype != codec::DType::float32) refuse_array(what, "is not of float32: convert it");
  std::uint64_t size = 1;
  for (const auto dimension : tensor.shape) {
    if (dimension < 0) refuse_array(what, "has a negative size");
    if (dimension > std::numeric_limits<std::uint32_t>::max() ||
        (dimension > 0 && size > std::numeric_limits<std::ptrdiff_t>::max() / sizeof(float) / dimension))
      refuse_array(what, "is larger than any memory");
    size *= static_cast<std::uint64_t>(dimension);
  }
  if (!tensor.strides.empty()) {
    if (tensor.strides.size() != tensor.shape.size()) refuse_array(what, "has another number of strides than of sizes");
    if (size > 0 && !is_row_major(tensor)) refuse_array(what, "is not contiguous in row-major order: copy it");
  }
  if (size > 0 && !tensor.data) refuse_array(what, "has no memory");
  if (reinterpret_cast<std::uintptr_t>(tensor.data) % alignof(float) != 0)
    refuse_array(what, "is not aligned to the size of a float: copy it");
  return {static_cast<float*>(tensor.data), static_cast<std::size_t>(size)};
}

// ---- Making one

BufferReplica::BufferReplica(Runtime& runtime, const std::vector<codec::Shape>& shapes, std::vector<Buffer> live,
                             optim::Options optimizer, std::shared_ptr<Backend> backend)
    : FusedReplica(runtime, infos_of(shapes), std::move(backend)),
      live_(std::move(live)),
      options_(std::move(optimizer)),
      steps_(size()) {
  if (live_.empty()) throw std::invalid_argument("cohive: a model has at least one parameter");
  optim::check(options_);
  for (const auto& info : gradient_infos()) {
    statistics_.emplace_back();
    for (const auto& field : optim::state_fields(options_))
      statistics_.back().push_back(filled(info.elements(), field.initial));
  }
}

BufferReplica::BufferReplica(Runtime& runtime, const std::vector<BufferTensor>& parameters, optim::Options optimizer)
    : BufferReplica(runtime, shapes_of(parameters), buffers_of(parameters, "parameter"), std::move(optimizer)) {}

BufferReplica::BufferReplica(Runtime& runtime, const std::vector<BufferTensor>& parameters, CallersOptimizer optimizer)
    : BufferReplica(runtime, parameters, std::optional(std::move(optimizer))) {}

BufferReplica::BufferReplica(Runtime& runtime, const std::vector<BufferTensor>& parameters,
                             std::optional<CallersOptimizer> optimizer, std::shared_ptr<Backend> backend)
    : BufferReplica(runtime, shapes_of(parameters), buffers_of(parameters, "parameter"), optim::SgdOptions(),
                    std::move(backend)) {
  if (optimizer) take_optimizer(std::move(*optimizer));
}

void BufferReplica::take_optimizer(CallersOptimizer optimizer) {
  if (!optimizer.step) throw std::invalid_argument("cohive: an optimizer of the caller's has a function that steps");
  if (optimizer.where == StepThread::trainer && !optimizer.thread)
    throw std::invalid_argument(
        "cohive: a step on the trainer's thread needs the TrainerThread that the Trainer gives to the function that "
        "makes the model");
  callers_statistics_ = buffers_of(optimizer.statistics, "statistic");
  callers_shapes_ = shapes_of(optimizer.statistics);
  callers_ = std::move(optimizer);
}

BufferReplica::~BufferReplica() {
  wait_until_unused();
}

void BufferReplica::exchange_live(std::size_t parameter, Buffer& next) {
  std::ranges::copy(next.values, live_[parameter].values.begin());
}

void BufferReplica::schedule(std::function<optim::Options(std::uint64_t epoch)> schedule) {
  schedule_ = std::move(schedule);
  enter_epoch(epoch_);
}

void BufferReplica::enter_epoch(std::uint64_t epoch) {
  epoch_ = epoch;
  if (schedule_) options_ = schedule_(epoch);
  if (callers_.enter_epoch) callers_.enter_epoch(epoch);
}

std::array<optim::View, optim::kMostStateFields> BufferReplica::statistics(std::size_t parameter) {
  std::array<optim::View, optim::kMostStateFields> views;
  std::ranges::transform(statistics_[parameter], views.begin(), [](const Buffer& buffer) { return buffer.values; });
  return views;
}

// ---- Gradients

void BufferReplica::check_gradients(const std::vector<std::span<const float>>& gradients) const {
  bool fits = gradients.size() == size();
  for (std::size_t i = 0; fits && i < size(); ++i)
    fits = gradients[i].empty() || gradients[i].size() == gradient_infos()[i].elements();
  if (!fits) throw std::invalid_argument("cohive: a gradient has the size of its parameter, or is empty");
}

void BufferReplica::add_gradients(const std::vector<std::span<const float>>& gradients, double samples) {
  std::vector<GradientSums::Gradient> batch;
  check_gradients(gradients);
  for (const auto& gradient : gradients) {
    if (gradient.empty()) {
      batch.emplace_back();
      continue;
    }
    auto copy = Buffer::on_host(gradient.size());
    std::ranges::copy(gradient, copy.values.begin());
    batch.push_back({copy.values, copy.owner, true});
  }
  sums().add(std::move(batch), samples);
}

void BufferReplica::give_gradients(const std::vector<BufferTensor>& gradients, double samples) {
  std::vector<std::span<const float>> values;
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const std::string name = name_of(gradients[i], "the gradient of parameter", i);
    values.push_back(gradients[i].data ? values_of(gradients[i], name) : std::span<float>());
    if (gradients[i].data && !gradients[i].owner) refuse_array(name, "has no owner that keeps its memory");
  }
  check_gradients(values);
  std::vector<GradientSums::Gradient> batch;
  for (std::size_t i = 0; i < gradients.size(); ++i)
    batch.push_back({{codec::DType::float32, gradients[i].data, values[i].size()}, gradients[i].owner, true});
  sums().add(std::move(batch), samples);
}

void BufferReplica::step_locally(const std::vector<std::span<const float>>& gradients) {
  if (callers_.step) throw std::logic_error("cohive: an optimizer of the caller's steps locally in change()");
  check_gradients(gradients);
  const std::lock_guard lock(stepping_);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    if (gradients[i].empty()) continue;
    std::vector<float> gradient(gradients[i].begin(), gradients[i].end());
    const optim::TensorMemory memory{
        std::span<const float>(live_[i].values), live_[i].values, {}, std::span(gradient), statistics(i)};
    optim::TensorStep step(options_, memory, {++steps_[i]});
    step.run(0, step.size());
    if (!step.has_second_phase()) continue;
    step.settle();
    step.finish(0, step.size());
  }
}

void BufferReplica::change(const std::function<void()>& change) {
  const std::lock_guard lock(stepping_);
  changes_by_itself_ = true;
  change();
}

// ---- A step of the caller's: with the averages of a round that does not step

Task<Replica::Gradients> BufferReplica::take_gradients(std::optional<Place> step) {
  means_.reset();
  callers_step_ = step && callers_.step;
  return FusedReplica::take_gradients(callers_.step ? std::nullopt : step);
}

Task<GradientSums::Taken> BufferReplica::take_sums() {
  auto taken = co_await FusedReplica::take_sums();
  if (std::exchange(callers_step_, false)) means_ = taken;
  co_return taken;
}

Task<void> BufferReplica::drop_gradients() {
  means_.reset();
  return FusedReplica::drop_gradients();
}

Task<void> BufferReplica::finish_step(std::uint64_t epoch, bool step) {
  if (auto means = std::exchange(means_, std::nullopt); means && step) co_await step_with(std::move(*means), epoch);
  co_await FusedReplica::finish_step(epoch, step);
}

Task<void> BufferReplica::step_with(GradientSums::Taken means, std::uint64_t epoch) {
  if (const auto bound = max_norm()) {
    std::vector<optim::ConstView> values;
    std::vector<optim::View> gradients;
    for (const auto& sum : means.sums) {
      values.emplace_back(std::span<const float>(sum.values));
      gradients.emplace_back(sum.values);
    }
    const double factor =
        optim::clip_coefficient(co_await optim::square_sum(runtime(), std::move(values), in_use()), *bound);
    if (factor < 1) co_await optim::scale(runtime(), std::move(gradients), factor, in_use());
  }
  std::function<void()> job = [optimizer = callers_, means = std::move(means), epoch, used = in_use()] {
    call(optimizer, means, epoch);
  };
  if (callers_.where == StepThread::trainer)
    co_await callers_.thread->run(runtime(), std::move(job));
  else
    co_await runtime().offload(std::move(job));
  for (auto& steps : steps_) ++steps;
}

/// A parameter of which no member had a gradient has none: the average is zero then.
void BufferReplica::call(const CallersOptimizer& optimizer, const GradientSums::Taken& means, std::uint64_t epoch) {
  std::vector<std::span<float>> gradients;
  for (std::size_t i = 0; i < means.sums.size(); ++i) {
    const auto values = means.sums[i].values;
    const bool some = means.present[i] || std::ranges::any_of(values, [](float value) { return value != 0; });
    gradients.push_back(some ? values : std::span<float>());
  }
  optimizer.step(gradients, epoch);
}

// ---- The state: parameters, then statistics, sorted by name for each parameter, then the numbers of their steps.

std::vector<BufferReplica::Named> BufferReplica::kept_statistics() {
  std::vector<Named> kept;
  for (std::size_t k = 0; k < callers_statistics_.size(); ++k)
    kept.push_back({"optimizer." + std::to_string(k), callers_shapes_[k], callers_statistics_[k].values});
  if (callers_.step) return kept;
  const auto fields = optim::state_fields(options_);
  std::vector<std::size_t> order(fields.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t k) { return fields[k].name; });
  for (std::size_t i = 0; i < size(); ++i)
    for (const std::size_t k : order)
      kept.push_back({"optimizer." + std::to_string(i) + "." + std::string(fields[k].name), gradient_infos()[i].shape,
                      statistics_[i][k].values});
  return kept;
}

/// \param bytes  of a tensor's values; called in the order of the tensors
averaging::SharedState BufferReplica::describe(std::uint64_t epoch,
                                               const std::function<Slice(std::span<const float>)>& bytes) {
  averaging::SharedState state;
  state.metadata = msgpack::Map{{{"epoch", epoch}, {"group_bits", ""}, {"optimizer_metadata", msgpack::Array{}}}};
  const auto add = [&](std::string name, const codec::Shape& shape, codec::Role role, Slice values) {
    state.infos.push_back({std::uint64_t{state.tensors.size()}, shape, codec::DType::float32, role});
    state.tensors.push_back({codec::DType::float32, shape, false, std::move(values)});
    state.names.push_back(std::move(name));
  };
  for (std::size_t i = 0; i < size(); ++i)
    add("parameter." + std::to_string(i), gradient_infos()[i].shape, codec::Role::parameter, bytes(newest(i)));
  for (auto& [name, shape, values] : kept_statistics())
    add(std::move(name), shape, codec::Role::optimizer, bytes(values));
  const std::vector<float> steps(steps_.begin(), steps_.end());
  add(kSteps, {static_cast<std::uint32_t>(steps.size())}, codec::Role::optimizer, bytes_of(steps));
  return state;
}

Task<std::optional<averaging::SharedState>> BufferReplica::snapshot(std::uint64_t epoch) {
  co_return co_await runtime().offload([this, epoch, used = in_use()]() -> std::optional<averaging::SharedState> {
    const std::lock_guard lock(stepping_);
    return describe(epoch, bytes_of);
  });
}

/// Memory of the caller's lives longer than the run.
Task<std::optional<averaging::SharedState>> BufferReplica::view(std::uint64_t epoch) {
  co_return co_await runtime().offload([this, epoch, used = in_use()]() -> std::optional<averaging::SharedState> {
    const std::lock_guard lock(stepping_);
    if (changes_by_itself_ || has_changes()) return describe(epoch, bytes_of);
    std::vector<averaging::LiveTensors::Source> sources;
    auto state = describe(epoch, [&](std::span<const float> values) {
      auto owner = sources.size() < size() ? owner_of_next(sources.size()) : nullptr;
      sources.push_back({reinterpret_cast<const std::uint8_t*>(values.data()), values.size_bytes(), std::move(owner)});
      return Slice();
    });
    state.reader =
        std::make_shared<averaging::StateReader>(std::make_shared<averaging::LiveTensors>(std::move(sources)));
    return state;
  });
}

Task<Result<std::uint64_t>> BufferReplica::load(averaging::DownloadedState state, std::uint64_t least_epoch) {
  auto shared = std::make_shared<averaging::DownloadedState>(std::move(state));
  auto loaded = co_await runtime().offload(
      [this, shared, least_epoch, used = in_use()] { return take_over(*shared, least_epoch); });
  if (loaded) forget_next();
  co_return loaded;
}

/// Nothing is changed before all has been looked at.
Result<std::uint64_t> BufferReplica::take_over(const averaging::DownloadedState& state, std::uint64_t least_epoch) {
  const auto bad = [&state](const std::string& what) { return Error(averaging::Errc::bad_state, state.donor, what); };
  const auto epoch = epoch_to_load(state, least_epoch);
  if (!epoch) return epoch;
  const std::lock_guard lock(stepping_);
  std::vector<std::span<float>> places;
  std::vector<std::string> statistics;
  StatisticViews views;
  for (const auto& buffer : live_) places.push_back(buffer.values);
  for (auto& kept : kept_statistics()) {
    places.push_back(kept.values);
    views.emplace(kept.name, kept.values);
    statistics.push_back(std::move(kept.name));
  }
  statistics.emplace_back(kSteps);
  std::vector<const codec::Tensor*> tensors;
  for (const auto& tensor : state.tensors) tensors.push_back(&tensor);
  const bool whole = put_in_order(tensors, names_of_statistics(state), statistics);
  if (!whole) places.resize(size());
  if (tensors.size() != places.size() + (whole ? 1u : 0u)) return bad("another number of tensors");
  std::vector<std::span<const float>> values;
  for (const codec::Tensor* tensor : tensors) {
    const std::size_t wanted = values.size() < places.size() ? places[values.size()].size() : size();
    if (tensor->dtype != codec::DType::float32 || tensor->data.size() != wanted * sizeof(float))
      return bad("tensor " + std::to_string(values.size()) + " has another shape");
    values.emplace_back(reinterpret_cast<const float*>(tensor->data.data()), wanted);
    if (!is_finite(*tensor)) return bad("values that are not finite");
  }
  const auto is_count = [](float steps) { return std::round(steps) >= 0 && steps <= optim::kMostSteps; };
  if (whole && !std::ranges::all_of(values.back(), is_count)) return bad("a count of steps that is none");
  for (std::size_t i = 0; i < places.size(); ++i) std::ranges::copy(values[i], places[i].begin());
  if (whole) make_usable(views);
  for (std::size_t i = 0; whole && i < size(); ++i) steps_[i] = std::llround(values.back()[i]);
  if (!whole) log::warn("train", "the checkpoint was taken without the statistics of its optimizer: ours keeps others");
  return epoch;
}

}  // namespace cohive::train
