#include "caller_model.hpp"

#include <malloc.h>

#include <algorithm>
#include <cmath>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/optim/step.hpp"
#include "errors.hpp"
#include "tensors.hpp"
#include "train/detail/loaded_state.hpp"
#include "train/detail/usable_statistics.hpp"

namespace cohive::c {

using averaging::TensorSpan;
using train::ParameterRound;

namespace {

constexpr std::size_t kStepCounter = optim::kMostStateFields;  // in Layout::statistics

std::vector<averaging::TensorInfo> infos_of(const std::vector<CallerArrays::Beside>& beside) {
  std::vector<averaging::TensorInfo> infos;
  for (const auto& one : beside) infos.push_back(one.info);
  return infos;
}

/// Reads a counter of steps in the caller's memory, where a donor or a file may have left anything.
double steps_of(float counter) {
  return counter > 0 ? std::min<double>(counter, optim::kMostSteps) : 0;
}

Task<void> trim_heap(Runtime& runtime) {
  co_await runtime.offload([] {
#ifdef __GLIBC__
    (void)::malloc_trim(0);
#endif
    return true;
  });
}

/// What the caller's side has failed in is no defect of cohive.
[[noreturn]] void throw_callers_failure(const char* sentence) {
  throw ErrorException(Error(cohive::Errc::cancelled, sentence));
}

}  // namespace

CallerModel::CallerModel(Runtime& runtime, train::TrainerThread& thread, CallerArrays arrays,
                         cohive_trainer_calls calls, CallerWays ways, std::shared_ptr<Gpu> gpu)
    : BufferReplica(runtime, arrays.parameters, optimizer_of(thread, ways), gpu ? gpu->backend() : nullptr),
      thread_(thread),
      calls_(calls),
      ways_(ways),
      gpu_(std::move(gpu)),
      beside_(std::move(arrays.beside)) {
  average_beside(infos_of(beside_));
  for (const auto& one : beside_) copies_.push_back(train::Buffer::on_host(one.values.size()));
}

CallerModel::~CallerModel() {
  wait_until_unused();
}

std::optional<train::CallersOptimizer> CallerModel::optimizer_of(train::TrainerThread& thread, const CallerWays& ways) {
  if (ways.native_steps) return std::nullopt;
  train::CallersOptimizer optimizer;
  optimizer.step = [this](const std::vector<std::span<float>>& gradients, std::uint64_t epoch) {
    call_step(gradients, epoch);
  };
  optimizer.thread = &thread;
  return optimizer;
}

void CallerModel::call_step(const std::vector<std::span<float>>& gradients, std::uint64_t epoch) const {
  std::vector<float*> pointers;
  for (const auto& gradient : gradients) pointers.push_back(gradient.empty() ? nullptr : gradient.data());
  if (calls_.step(calls_.context, gradients.empty() ? nullptr : pointers.data(), epoch) != 0)
    throw_callers_failure("the caller's optimizer has failed to step");
}

// ---- What the caller says

void CallerModel::check(const Layout& layout) const {
  if (layout.metadata.entries.empty()) refuse("metadata must be a map that is not empty");
  if (!ways_.native_steps) return;
  if (layout.step.size() != size() || layout.statistics.size() != size())
    refuse("a layout has the step and the statistics of every parameter");
  for (std::size_t i = 0; i < size(); ++i) {
    optim::check(layout.step[i]);
    if (layout.step[i].index() != layout.step[0].index()) refuse("one optimizer steps all parameters");
    if (gradient_infos()[i].elements() == 0) continue;  // nor has a parameter without values memory
    const auto fields = optim::state_fields(layout.step[i]).size();
    for (std::size_t k = 0; k < fields; ++k)
      if (!layout.statistics[i][k]) refuse("a statistic of the optimizer has no memory");
  }
}

void CallerModel::describe(Layout layout) {
  check(layout);
  const std::lock_guard copying(copying_);
  const bool moved = !std::ranges::equal(layout_.parts, layout.parts, [](const auto& before, const auto& now) {
    return before.data == now.data && before.size == now.size;
  });
  if (moved) drop_views();
  const std::lock_guard lock(described_);
  layout_ = std::move(layout);
  has_layout_ = true;
}

void CallerModel::changes(bool again) {
  const std::lock_guard copying(copying_);
  for (const auto& weak : views_)
    if (const auto view = weak.lock(); view && again && view->is_live()) view->spoil();
  drop_views();
}

/// What was settled reads the caller's memory no more.
void CallerModel::drop_views() {
  for (const auto& weak : views_)
    if (const auto view = weak.lock(); view && view->is_live()) view->drop();
  views_.clear();
}

optim::Options CallerModel::options(std::size_t parameter) {
  if (!ways_.native_steps) return BufferReplica::options(parameter);
  const std::lock_guard lock(described_);
  if (!has_layout_) throw std::logic_error("cohive: the caller has not described its optimizer");
  return steps_of_sums_.empty() ? layout_.step[parameter] : steps_of_sums_[parameter];
}

std::array<optim::View, optim::kMostStateFields> CallerModel::statistics(std::size_t parameter) {
  if (!ways_.native_steps) return BufferReplica::statistics(parameter);
  const std::size_t values = gradient_infos()[parameter].elements();
  const std::lock_guard lock(described_);
  std::array<optim::View, optim::kMostStateFields> views;
  for (std::size_t k = 0; k < views.size(); ++k)
    if (auto* memory = layout_.statistics[parameter][k]) views[k] = std::span(memory, values);
  return views;
}

void CallerModel::exchange_live(std::size_t parameter, train::Buffer& next) {
  if (!gpu_) return BufferReplica::exchange_live(parameter, next);
  gpu_->copy(next.values, live_[parameter].values);
}

std::int64_t CallerModel::steps_taken(std::size_t parameter) {
  if (!ways_.native_steps) return BufferReplica::steps_taken(parameter);
  const std::lock_guard lock(described_);
  const auto* counter = layout_.statistics[parameter][kStepCounter];
  // Statistics that nobody counts the steps of were made by one, as torch makes them.
  return counter ? std::llround(steps_of(*counter)) : BufferReplica::steps_taken(parameter) + 1;
}

void CallerModel::count_step(std::size_t parameter) {
  BufferReplica::count_step(parameter);
  if (!ways_.native_steps) return;
  const std::lock_guard lock(described_);
  if (auto* counter = layout_.statistics[parameter][kStepCounter])
    *counter = static_cast<float>(steps_of(*counter) + 1);
}

// ---- Gradients

/// They are read on the pool; the future of unread_ is there when they are not read any more.
void CallerModel::hand_over(const std::vector<const float*>& gradients, double samples, double scale) {
  auto read = std::make_shared<std::promise<void>>();
  unread_ = read->get_future();
  const std::shared_ptr<void> owner(this, [read](void*) { read->set_value(); });
  std::vector<train::GradientSums::Gradient> batch(size());
  for (std::size_t i = 0; i < size(); ++i) {
    if (!gradients[i]) continue;
    auto* values = const_cast<float*>(gradients[i]);  // which are not exclusive: they are only read
    batch[i] = {std::span(values, gradient_infos()[i].elements()), owner, false};
  }
  sums().add(std::move(batch), samples, scale);
}

bool CallerModel::take_batch(const float* const* gradients, double samples, double scale) {
  if (ways_.local_steps) {
    change([this] { call_step({}, 0); });
    return true;
  }
  if (calls_.sums) return true;  // which will hand over the sum
  if (ways_.reuse_buffers) {
    const std::lock_guard lock(summing_);
    if (spent_) {
      buffers_.assign(gradients, gradients + size());  // the caller may have given up the memory of before
      return false;
    }
    if (batches_ > 0 && scale_ != scale)
      refuse(
          "with reuse_grad_buffers all gradients of an epoch have one loss scale; change it where an epoch has ended "
          "only");
    if (batches_ == 0) buffers_.assign(size(), nullptr);
    for (std::size_t i = 0; i < size(); ++i)  // a batch without a gradient leaves the sum as it is
      if (gradients[i]) buffers_[i] = gradients[i];
    scale_ = scale;
    ++batches_;
    return true;
  }
  hand_over(std::vector(gradients, gradients + size()), samples, scale);
  unread_.get();
  return true;
}

CallerModel::Sums CallerModel::ask_for_sums() const {
  Sums sums{std::vector<const float*>(size())};
  if (calls_.sums(calls_.context, sums.values.data(), &sums.samples, &sums.scale) != 0)
    throw_callers_failure("the caller has failed to hand over its gradients");
  return sums;
}

void CallerModel::take_sums_of_caller() {
  if (!calls_.sums) return;
  if (ways_.local_steps) return change([this] { ask_for_sums(); });
  if (unread_.valid()) unread_.get();
  const auto [sums, samples, scale] = ask_for_sums();
  if (samples == 0) return;
  if (!(samples > 0 && scale > 0 && std::isfinite(samples) && std::isfinite(scale)))
    refuse("the sums of gradients have a number of samples and a scale that are above 0 and finite");
  hand_over(sums, samples, scale);
  if (gpu_) unread_.get();  // what the trainer queues from now on writes there
}

/// The sum of buffers that are used again is that of batches, whose mean it becomes. In an epoch with an interrupted
/// call there are several sums. With summing_.
void CallerModel::hand_buffers_over() {
  const double batches = std::exchange(batches_, 0);
  if (batches == 0) return;
  hand_over(buffers_, batches, scale_ * batches);
  spent_ = true;
}

void CallerModel::cut_gradients() {
  if (adds_in_buffers()) {
    const std::lock_guard lock(summing_);
    hand_buffers_over();
  }
  {
    const std::lock_guard lock(described_);
    steps_of_sums_ = layout_.step;
  }
  BufferReplica::cut_gradients();
}

void CallerModel::forget_batches() {
  const std::lock_guard lock(summing_);
  batches_ = 0;
}

void CallerModel::drop_batch(const float* const* gradients) {
  if (!adds_in_buffers()) return;
  const std::lock_guard lock(summing_);
  buffers_.assign(gradients, gradients + size());
  batches_ = 0;
  spent_ = true;
}

void CallerModel::release_buffers() {
  if (!adds_in_buffers()) return;
  {
    const std::lock_guard lock(summing_);
    hand_buffers_over();
  }
  (void)clear_buffers();
}

bool CallerModel::clear_buffers() {
  if (!adds_in_buffers()) return false;
  std::future<void> unread;
  {
    const std::lock_guard lock(summing_);
    if (!std::exchange(spent_, false)) return false;
    unread = std::move(unread_);
  }
  if (unread.valid()) unread.get();
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    if (buffers_[i]) std::fill_n(const_cast<float*>(buffers_[i]), gradient_infos()[i].elements(), 0.0f);
  return true;
}

void CallerModel::return_free_memory() {
  runtime().submit([&loop = runtime()] { return trim_heap(loop); });
}

// ---- Beside the parameters

Task<void> CallerModel::copy_beside() {
  co_await runtime().offload([this, used = in_use()] {
    for (std::size_t k = 0; k < beside_.size(); ++k) std::ranges::copy(beside_[k].values, copies_[k].values.begin());
  });
}

Task<void> CallerModel::hold_state() {
  if (beside_.empty()) co_return;
  co_await copy_beside();
  held_ = true;
}

Task<std::vector<TensorSpan>> CallerModel::extra_parts(ParameterRound how) {
  round_ = how;
  if (how.to != train::Place::live && !beside_.empty() && !std::exchange(held_, false)) co_await copy_beside();
  std::vector<TensorSpan> parts;
  for (std::size_t k = 0; k < beside_.size(); ++k) {
    const auto& one = beside_[k];
    if (!is_in_place(one, how))
      parts.emplace_back(copies_[k].values);
    else if (!one.statistic.empty())
      parts.emplace_back(one.values, copies_[k].values);  // averages are looked at before they take its place
    else
      parts.emplace_back(one.values);
  }
  co_return parts;
}

Task<bool> CallerModel::finish_state(bool averaged) {
  const auto how = std::exchange(round_, std::nullopt);
  const bool publishable = co_await BufferReplica::finish_state(averaged);
  if (!averaged) co_return publishable;
  publishable_ = how;
  co_await runtime().offload([this, how = *how, used = in_use()] { take_averages(how, true); });
  co_return publishable;
}

/// \param in_place  those of statistics that publish() leaves alone; else those that it makes live
void CallerModel::take_averages(ParameterRound how, bool in_place) {
  bool some = false;  // statistics
  for (std::size_t k = 0; k < beside_.size(); ++k) {
    const auto& one = beside_[k];
    const bool is_statistic = !one.statistic.empty();
    if (is_in_place(one, how) != in_place || (in_place && !is_statistic)) continue;
    some |= is_statistic;
    train::take_average(train::statistic_of(one.statistic), copies_[k].values, how.changes, one.values);
  }
  if (some) make_statistics_usable();
}

/// Means may be others than those that were averaged: they are where the caller has described them.
void CallerModel::make_statistics_usable() {
  const std::lock_guard copying(copying_);
  const std::lock_guard lock(described_);
  train::StatisticViews statistics;
  for (const auto& part : layout_.parts) {
    const auto dtype = part.described.dtype;
    if (Layout::is_statistic(part.name) && !part.on_gpu && codec::is_floating(dtype))
      statistics.emplace(part.name,
                         optim::View(dtype, const_cast<std::uint8_t*>(part.data), part.size / codec::size_of(dtype)));
  }
  for (const auto& one : beside_)
    if (!one.statistic.empty()) statistics.insert_or_assign(one.statistic, optim::View(one.values));
  train::make_usable(statistics);
}

/// The memory of the averages, which are in the parameters now, goes until the next round. On a GPU that would take
/// long.
void CallerModel::publish() {
  BufferReplica::publish();
  if (!gpu_) runtime().submit([this] { return free_next(); });
  if (const auto how = std::exchange(publishable_, std::nullopt)) take_averages(*how, false);
}

// ---- The state as a whole

averaging::SharedState CallerModel::state_without_values(std::uint64_t epoch) const {
  averaging::SharedState state;
  auto metadata = layout_.metadata;
  metadata.entries.insert(metadata.entries.begin(), {"epoch", epoch});
  state.metadata = std::move(metadata);
  for (const auto& part : layout_.parts) {
    const auto role = part.parameter                    ? codec::Role::parameter
                      : Layout::is_statistic(part.name) ? codec::Role::optimizer
                                                        : codec::Role::unspecified;
    state.infos.push_back({part.codec, part.described.shape, part.described.dtype, role});
    state.names.push_back(part.name);
    state.tensors.push_back(part.described);
  }
  return state;
}

std::optional<averaging::SharedState> CallerModel::copy_state(std::uint64_t epoch) {
  std::optional<averaging::SharedState> copied;
  change([&] {
    const std::lock_guard copying(copying_);  // the caller frees the memory of a layout after describe()
    if (!has_layout_) return;
    copied = state_without_values(epoch);
    std::vector<Gpu::Download> downloads;
    for (std::size_t i = 0; i < layout_.parts.size(); ++i) {
      const auto& part = layout_.parts[i];
      const auto* from = part.data;
      if (part.parameter) from = reinterpret_cast<const std::uint8_t*>(newest(*part.parameter).data());
      Slice& data = copied->tensors[i].data;
      if (gpu_ && (part.parameter || part.on_gpu)) {
        data = Slice::uninitialised(part.size);
        downloads.push_back({from, {data.mutable_data(), part.size}});
      } else {
        data = Slice::copy_of({from, part.size});
      }
    }
    if (gpu_) gpu_->read(downloads);
  });
  return copied;
}

Task<std::optional<averaging::SharedState>> CallerModel::snapshot(std::uint64_t epoch) {
  co_return co_await runtime().offload([this, epoch, used = in_use()] { return copy_state(epoch); });
}

/// Rounds that average statistics write to them, and so does publish(), while newcomers may read.
bool CallerModel::can_read_in_place() const {
  return !gpu_ && !ways_.local_steps &&
         std::ranges::all_of(beside_, [](const auto& one) { return one.statistic.empty(); });
}

/// Where a part is, or a copy of it: forward passes change extra tensors when they like.
averaging::LiveTensors::Source CallerModel::source_of(const Layout::Part& part) {
  if (part.parameter)
    return {reinterpret_cast<const std::uint8_t*>(newest(*part.parameter).data()), part.size,
            owner_of_next(*part.parameter)};
  if (Layout::is_statistic(part.name)) return {part.data, part.size};
  const auto copy = std::make_shared<Slice>(Slice::copy_of({part.data, part.size}));
  return {copy->data(), part.size, copy};
}

std::optional<averaging::SharedState> CallerModel::view_state(std::uint64_t epoch) {
  std::optional<averaging::SharedState> state;
  change([&] {
    const std::lock_guard copying(copying_);
    if (!has_layout_) return;
    state = state_without_values(epoch);
    std::vector<averaging::LiveTensors::Source> sources;
    for (const auto& part : layout_.parts) sources.push_back(source_of(part));
    const auto view = std::make_shared<averaging::LiveTensors>(std::move(sources));
    std::erase_if(views_, [](const auto& weak) { return weak.expired(); });
    views_.push_back(view);
    state->reader = std::make_shared<averaging::StateReader>(view);
  });
  return state;
}

Task<std::optional<averaging::SharedState>> CallerModel::view(std::uint64_t epoch) {
  if (!can_read_in_place() || has_changes()) co_return co_await snapshot(epoch);
  co_return co_await runtime().offload([this, epoch, used = in_use()] { return view_state(epoch); });
}

/// Statistics have their names from a file, or the places of those that the caller has described. A state of another
/// number of tensors is for the caller to refuse.
void CallerModel::make_usable(averaging::DownloadedState& state) {
  const auto* const names = train::names_of_statistics(state);
  const std::lock_guard lock(described_);
  const std::size_t count = names ? names->items.size() : layout_.parts.size();
  if (names ? count > state.tensors.size() : count != state.tensors.size()) return;
  train::StatisticViews statistics;
  for (std::size_t k = 0; k < count; ++k) {
    const std::string* const name = names ? names->items[k].get_if<std::string>() : &layout_.parts[k].name;
    codec::Tensor& tensor = state.tensors[state.tensors.size() - count + k];
    if (!name || !Layout::is_statistic(*name) || !codec::is_floating(tensor.dtype)) continue;
    if (!tensor.data.unique() || reinterpret_cast<std::uintptr_t>(tensor.data.data()) % alignof(double) != 0)
      tensor.data = Slice::copy_of(tensor.data);
    statistics.emplace(*name, optim::View(tensor.dtype, tensor.data.mutable_data(),
                                          tensor.data.size() / codec::size_of(tensor.dtype)));
  }
  train::make_usable(statistics);
}

Task<Result<std::uint64_t>> CallerModel::load(averaging::DownloadedState state, std::uint64_t least_epoch) {
  const auto epoch = train::epoch_to_load(state, least_epoch);
  if (!epoch) co_return epoch;
  const auto shared = std::make_shared<averaging::DownloadedState>(std::move(state));
  const bool finite = co_await runtime().offload([this, shared, used = in_use()] {
    if (!std::ranges::all_of(shared->tensors, train::is_finite)) return false;
    make_usable(*shared);
    return true;
  });
  if (!finite) co_return Error(averaging::Errc::bad_state, shared->donor, "values that are not finite");
  const auto fits = std::make_shared<bool>(false);
  co_await thread_.run(runtime(), [this, shared, fits, number = *epoch] {
    const std::string text = msgpack::encode(shared->metadata);
    std::vector<cohive_tensor> views;
    for (const auto& tensor : shared->tensors) views.push_back(view_of(tensor));
    change([&] {
      *fits = calls_.load(calls_.context, reinterpret_cast<const std::uint8_t*>(text.data()), text.size(), views.data(),
                          views.size(), number) == 0;
    });
  });
  if (!*fits) co_return Error(averaging::Errc::bad_state, shared->donor, "it is of another model or optimizer");
  ++loads_;
  forget_next();
  publishable_.reset();
  backend().follow_caller();  // the trainer's copies to a device
  co_return epoch;
}

}  // namespace cohive::c
