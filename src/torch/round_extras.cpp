#include "round_extras.hpp"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "known_optimizer.hpp"
#include "model_state.hpp"
#include "refuse.hpp"
#include "train/detail/usable_statistics.hpp"

namespace cohive::libtorch {
namespace {

using train::Buffer;

torch::Tensor as_view(const Buffer& buffer, at::IntArrayRef sizes) {
  return torch::from_blob(buffer.values.data(), sizes, torch::TensorOptions(torch::kFloat32));
}

/// The range of a type in numbers that float32 holds, so that what peers send cannot become something else.
std::pair<double, double> range_of(torch::ScalarType type) {
  switch (type) {
    case torch::kFloat16:
      return {-65504, 65504};
    case torch::kInt64:
      return {-0x1p62, 0x1p62};
    case torch::kInt32:
      return {-0x1p31, 0x1.fffffep30};
    case torch::kInt16:
      return {-32768, 32767};
    case torch::kInt8:
      return {-128, 127};
    case torch::kUInt8:
      return {0, 255};
    case torch::kBool:
      return {0, 1};
    default:
      return {-std::numeric_limits<float>::max(), std::numeric_limits<float>::max()};
  }
}

}  // namespace

RoundExtras::RoundExtras(torch::optim::Optimizer& optimizer, ModelExtras extras, bool own_types)
    : optimizer_(optimizer), extras_(std::move(extras)) {
  const auto parameters = parameters_of(optimizer);
  for (std::size_t i = 0; i < extras_.average_opt_statistics.size(); ++i) {
    const auto& name = extras_.average_opt_statistics[i];
    if (std::count(extras_.average_opt_statistics.begin(), extras_.average_opt_statistics.end(), name) > 1)
      refuse("average_opt_statistics names " + name + " twice");
    add_statistics(name);
  }
  for (std::size_t i = 0; i < extras_.extra_tensors.size(); ++i) {
    const auto& tensor = extras_.extra_tensors[i];
    const std::string which = "extra tensor " + std::to_string(i);
    if (!tensor.defined()) refuse(which + " is undefined");
    if (tensor.layout() != torch::kStrided || !wire_type_of(tensor))
      refuse(which + " must be dense, of floating-point numbers, integers or truth values");
    if (std::ranges::any_of(parameters, [&](const auto& parameter) { return parameter.is_same(tensor); }))
      refuse(which + " is a parameter, which is averaged anyway");
    add_info(tensor, codec::Role::unspecified, std::uint64_t{i}, own_types);
  }
}

void RoundExtras::add_statistics(const std::string& name) {
  std::size_t number = 0;
  for (std::size_t g = 0; g < optimizer_.param_groups().size(); ++g) {
    auto& group = optimizer_.param_groups()[g];
    const auto kept = statistics_kept(group.options());
    for (std::size_t i = 0; i < group.params().size(); ++i, ++number) {
      if (std::ranges::find(kept, name) == kept.end())
        refuse("average_opt_statistics: the optimizer keeps no \"" + name + "\" of parameter " +
               std::to_string(number));
      statistics_.push_back({g, i, name});
      add_info(read(statistics_.back()), codec::Role::optimizer, std::pair(std::to_string(number), name), false);
    }
  }
}

void RoundExtras::add_info(const torch::Tensor& tensor, codec::Role role, codec::TensorKey key, bool own_type) {
  averaging::TensorInfo info;
  info.shape = shape_of(tensor);
  if (own_type) info.dtype = *wire_type_of(tensor);
  info.requires_grad = tensor.requires_grad();
  info.role = role;
  info.key = std::move(key);
  infos_.push_back(std::move(info));
}

torch::Tensor RoundExtras::read(const Statistic& which) {
  auto& group = optimizer_.param_groups()[which.group];
  return made_statistic(optimizer_, group.options(), group.params()[which.parameter], which.name);
}

RoundExtras::Copy RoundExtras::copy_of(const torch::Tensor& tensor) {
  const auto size = static_cast<std::size_t>(tensor.numel());
  Copy copy{Buffer::on_host(size), Buffer::on_host(size), {}, {}};
  copy.before = as_view(copy.read, tensor.sizes());
  copy.after = as_view(copy.written, tensor.sizes());
  copy.before.copy_(tensor.detach());
  return copy;
}

void RoundExtras::hold_tensors(TrainerStream& trainer) {
  torch::NoGradGuard no_grad;
  const auto beside = trainer.beside();
  held_.clear();
  for (const auto& tensor : extras_.extra_tensors) held_.push_back(copy_of(tensor));
}

std::vector<averaging::TensorSpan> RoundExtras::begin(train::ParameterRound how, TrainerStream& trainer) {
  torch::NoGradGuard no_grad;
  if (how.from != train::Place::next || held_.empty()) hold_tensors(trainer);
  const auto beside = trainer.beside();
  differences_ = how.changes;
  copies_.clear();
  for (const auto& statistic : statistics_) copies_.push_back(copy_of(read(statistic)));
  std::ranges::move(std::exchange(held_, {}), std::back_inserter(copies_));
  std::vector<averaging::TensorSpan> memory;
  for (const auto& copy : copies_) memory.emplace_back(copy.read.values, copy.written.values);
  return memory;
}

void RoundExtras::end(bool averaged) {
  averaged_ = averaged;
  if (!averaged) copies_.clear();
}

void RoundExtras::stage(TrainerStream& trainer) {
  if (!averaged_) return;
  torch::NoGradGuard no_grad;
  const auto stage_one = [&trainer](const torch::Tensor& live, Copy& copy) {
    if (live.is_cpu()) return;
    for (torch::Tensor* const values : {&copy.before, &copy.after}) {
      torch::Tensor staged;
      {
        const auto turn = trainer.in_turn();  // whose memory it is
        staged = torch::empty(live.sizes(), torch::TensorOptions(torch::kFloat32).device(live.device()));
      }
      const auto beside = trainer.beside();
      *values = staged.copy_(*values);
    }
  };
  for (std::size_t i = 0; i < statistics_.size(); ++i) stage_one(read(statistics_[i]), copies_[i]);
  for (std::size_t i = 0; i < extras_.extra_tensors.size(); ++i)
    stage_one(extras_.extra_tensors[i], copies_[statistics_.size() + i]);
}

void RoundExtras::forget() noexcept {
  averaged_ = false;
  copies_.clear();
  held_.clear();
}

/// Exactly the average where the live value is still what was averaged, else the live value and what the round changed.
torch::Tensor RoundExtras::merged(const torch::Tensor& live, const Copy& copy) const {
  const auto& [read, written, before, after] = copy;
  if (!live.is_floating_point()) {
    const auto average = (differences_ ? before + after : after).round();
    return live.to(before.device(), torch::kFloat64) + (average - before);
  }
  const auto now = live.to(before.device(), torch::kFloat32);
  return differences_ ? now + after : torch::where(now == before, after, now + (after - before));
}

void RoundExtras::publish() {
  if (!std::exchange(averaged_, false)) return;
  torch::NoGradGuard no_grad;
  for (std::size_t i = 0; i < statistics_.size(); ++i) write(statistics_[i], copies_[i]);
  if (has_statistics())
    for (const auto& parameter : parameters_of(optimizer_)) make_usable(statistics_of(optimizer_, parameter));
  for (std::size_t i = 0; i < extras_.extra_tensors.size(); ++i) {
    auto& tensor = extras_.extra_tensors[i];
    const auto& copy = copies_[statistics_.size() + i];
    const auto [least, most] = range_of(tensor.scalar_type());
    tensor.copy_(merged(tensor, copy).clamp(least, most));
  }
  copies_.clear();
}

/// A step draws roots from some statistics, and counts with others: what peers send must not make numbers of them that
/// it cannot use. A small square of which the group's codec has left nothing stays ours.
void RoundExtras::write(const Statistic& which, const Copy& copy) {
  auto& group = optimizer_.param_groups()[which.group];
  const auto live = read(which);
  auto value = merged(live, copy);
  if (which.name == "step") return set_steps(optimizer_, group.params()[which.parameter], value.item<double>());
  if (train::is_of_squares(which.name)) {
    const auto average = differences_ ? copy.before + copy.after : copy.after;
    value = torch::where(torch::minimum(average, value) > 0, value, live.to(value.device()));
  }
  const auto [least, most] = range_of(live.scalar_type());
  live.copy_(value.clamp(least, most));
}

}  // namespace cohive::libtorch
