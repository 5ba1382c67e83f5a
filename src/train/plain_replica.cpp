#include "cohive/train/plain_replica.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>

#include "cohive/averaging/errors.hpp"
#include "cohive/optim/parallel.hpp"

namespace cohive::train {
namespace {

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

}  // namespace

PlainReplica::PlainReplica(Runtime& runtime, const std::vector<codec::Shape>& shapes, optim::Options optimizer)
    : FusedReplica(runtime, infos_of(shapes)), options_(std::move(optimizer)) {
  optim::check(options_);
  steps_.resize(size());
  for (const auto& info : gradient_infos()) {
    live_.push_back(filled(info.elements(), 0));
    statistics_.emplace_back();
    for (const auto& field : optim::state_fields(options_))
      statistics_.back().push_back(filled(info.elements(), field.initial));
  }
}

void PlainReplica::add_gradients(const std::vector<std::span<const float>>& gradients, double samples) {
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

void PlainReplica::step_locally(const std::vector<std::span<const float>>& gradients) {
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

void PlainReplica::check_gradients(const std::vector<std::span<const float>>& gradients) const {
  bool fits = gradients.size() == size();
  for (std::size_t i = 0; fits && i < size(); ++i)
    fits = gradients[i].empty() || gradients[i].size() == gradient_infos()[i].elements();
  if (!fits) throw std::invalid_argument("PlainReplica: a gradient has the size of its parameter, or is empty");
}

void PlainReplica::schedule(std::function<optim::Options(std::uint64_t epoch)> schedule) {
  schedule_ = std::move(schedule);
  enter_epoch(0);
}

void PlainReplica::enter_epoch(std::uint64_t epoch) {
  if (schedule_) options_ = schedule_(epoch);
}

std::array<optim::View, optim::kMostStateFields> PlainReplica::statistics(std::size_t parameter) {
  std::array<optim::View, optim::kMostStateFields> views;
  std::ranges::transform(statistics_[parameter], views.begin(), [](const Buffer& buffer) { return buffer.values; });
  return views;
}

/// The numbers of a parameter's statistics, sorted by their names.
std::vector<std::size_t> PlainReplica::statistics_by_name() const {
  const auto fields = optim::state_fields(options_);
  std::vector<std::size_t> order(fields.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {}, [&](std::size_t k) { return fields[k].name; });
  return order;
}

// Parameters, then the statistics of each, sorted by name, then the numbers of their steps.

Task<std::optional<averaging::SharedState>> PlainReplica::snapshot(std::uint64_t epoch) {
  co_return co_await runtime().offload([this, epoch, used = in_use()]() -> std::optional<averaging::SharedState> {
    const std::lock_guard lock(stepping_);
    averaging::SharedState state;
    state.metadata = msgpack::Map{{{"epoch", epoch}, {"group_bits", ""}, {"optimizer_metadata", msgpack::Array{}}}};
    const auto add = [&](std::string name, std::span<const float> values, const codec::Shape& shape) {
      state.tensors.push_back({codec::DType::float32, shape, false, bytes_of(values)});
      state.names.push_back(std::move(name));
    };
    const auto fields = optim::state_fields(options_);
    for (std::size_t i = 0; i < size(); ++i)
      add("parameter." + std::to_string(i), newest(i), gradient_infos()[i].shape);
    for (std::size_t i = 0; i < size(); ++i)
      for (const std::size_t k : statistics_by_name())
        add("optimizer." + std::to_string(i) + "." + std::string(fields[k].name), statistics_[i][k].values,
            gradient_infos()[i].shape);
    const std::vector<float> steps(steps_.begin(), steps_.end());
    add("optimizer.step", steps, {static_cast<std::uint32_t>(steps.size())});
    return state;
  });
}

Task<Result<std::uint64_t>> PlainReplica::load(averaging::DownloadedState state, std::uint64_t least_epoch) {
  const auto bad = [donor = state.donor](const std::string& what) {
    return Error(averaging::Errc::bad_state, donor, what);
  };
  const auto* metadata = state.metadata.get_if<msgpack::Map>();
  const auto* found = metadata ? metadata->find("epoch") : nullptr;
  const auto epoch = found ? found->as_uint() : std::nullopt;
  if (!epoch) co_return bad("no epoch in its metadata");
  if (*epoch < least_epoch) co_return bad("its epoch " + std::to_string(*epoch) + " is older than ours");
  std::vector<std::span<float>> places;
  for (const auto& buffer : live_) places.push_back(buffer.values);
  for (const auto& statistics : statistics_)
    for (const std::size_t k : statistics_by_name()) places.push_back(statistics[k].values);
  if (state.tensors.size() != places.size() + 1) co_return bad("another number of tensors");
  std::vector<std::span<const float>> values;
  for (const auto& tensor : state.tensors) {
    const std::size_t wanted = values.size() < places.size() ? places[values.size()].size() : size();
    if (tensor.dtype != codec::DType::float32 || tensor.data.size() != wanted * sizeof(float))
      co_return bad("tensor " + std::to_string(values.size()) + " has another shape");
    values.emplace_back(reinterpret_cast<const float*>(tensor.data.data()), wanted);
    if (!optim::all_finite(values.back())) co_return bad("values that are not finite");
  }
  const auto& counts = values.back();
  if (!std::ranges::all_of(counts, [](float steps) { return std::round(steps) >= 0 && steps <= optim::kMostSteps; }))
    co_return bad("a count of steps that is none");
  forget_next();
  for (std::size_t i = 0; i < places.size(); ++i) std::ranges::copy(values[i], places[i].begin());
  for (std::size_t i = 0; i < size(); ++i) steps_[i] = std::llround(counts[i]);
  co_return *epoch;
}

}  // namespace cohive::train
