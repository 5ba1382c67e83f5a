#include "cohive/train/fused_replica.hpp"

#include <algorithm>
#include <functional>

#include "discard.hpp"
#include "train/detail/state_parts.hpp"

namespace cohive::train {

using averaging::TensorInfo;
using averaging::TensorSpan;

/// The gradients of one epoch and the step that they make.
struct FusedReplica::Stepping {
  std::shared_ptr<GradientRound> round;
  std::optional<Place> place;  ///< of the step; unset: none
};

namespace {

std::vector<std::size_t> sizes_of(const std::vector<TensorInfo>& infos) {
  std::vector<std::size_t> sizes;
  for (const auto& info : infos) sizes.push_back(info.elements());
  return sizes;
}

}  // namespace

FusedReplica::FusedReplica(Runtime& runtime, std::vector<TensorInfo> parameters, std::shared_ptr<Backend> backend)
    : runtime_(runtime),
      backend_(backend ? std::move(backend) : host_backend(runtime)),
      gradient_infos_(std::move(parameters)),
      state_infos_(gradient_infos_),
      sums_(runtime, backend_, sizes_of(gradient_infos_)),
      residuals_(averaging::make_residuals(gradient_infos_)) {
  for (auto& info : gradient_infos_) info.role = codec::Role::unspecified;  // as hivemind's gradient averagers have it
  for (auto& info : state_infos_) {
    info.role = codec::Role::parameter;
    info.dtype = codec::DType::float32;  // whatever the model computes with
  }
}

void FusedReplica::average_beside(const std::vector<TensorInfo>& infos) {
  state_infos_.insert(state_infos_.end(), infos.begin(), infos.end());
}

Task<std::vector<TensorSpan>> FusedReplica::extra_parts(ParameterRound) {
  co_return std::vector<TensorSpan>();
}

void FusedReplica::wait_until_unused() noexcept {
  stepping_.reset();
  work_.wait();
}

Task<void> FusedReplica::close() {
  stepping_.reset();
  co_await work_.finished(runtime_);
}

// ---- Gradients and step

Task<GradientSums::Taken> FusedReplica::take_sums() {
  return sums_.take();
}
Task<void> FusedReplica::drop_sums() {
  return sums_.drop();
}

/// A step or a round that has begun has them already.
Task<void> FusedReplica::free_next() {
  const bool unused = pending_ == Pending::nothing && !stepping_ && !round_;
  if (unused) co_await discard(runtime_, std::exchange(next_, {}));
}

Task<Replica::Gradients> FusedReplica::take_gradients(std::optional<Place> step) {
  auto taken = co_await take_sums();
  // A step reads each gradient before it writes the parameter: the sums' memory becomes the next parameters.
  if (step == Place::next) co_await discard(runtime_, std::exchange(next_, taken.sums));
  GradientWork work;
  if (step) {
    if (!std::exchange(statistics_made_, true)) co_await make_statistics();
    for (std::size_t i = 0; i < size(); ++i) {
      const auto from = live(i);
      const auto number = steps_taken(i) + 1;
      const optim::TensorMemory memory{std::span<const float>(from),
                                       *step == Place::next ? next_[i].values : from,
                                       {},
                                       taken.sums[i].values,
                                       statistics(i)};
      work.steps.push_back({options(i), memory, optim::StepSettings{number}, taken.present[i]});
    }
    work.max_norm = max_norm_;
    std::vector<std::span<const float>> results;
    for (std::size_t i = 0; i < size(); ++i) results.push_back(*step == Place::next ? next_[i].values : live(i));
    work.stepped = watch_step(*step, std::move(results));
  }
  work.infos = gradient_infos_;
  work.sums = std::move(taken.sums);
  work.factor = taken.factor;
  work.residuals = residuals_;
  work.in_use = in_use();
  stepping_ = std::make_shared<Stepping>(backend_->gradient_round(std::move(work)), step);
  co_return Gradients{stepping_->round->parts(), taken.finite};
}

/// Their memory is written to for the first time, which takes long.
Task<void> FusedReplica::make_statistics() {
  co_await runtime_.offload([this, used = in_use()] {
    for (std::size_t i = 0; i < size(); ++i) (void)statistics(i);
    backend_->follow_caller();
  });
}

/// Other ones: work of a round that was cancelled may still use these.
void FusedReplica::forget_residuals() {
  residuals_ = averaging::make_residuals(gradient_infos_);
}

Task<void> FusedReplica::drop_gradients() {
  if (stepping_) co_await discard(runtime_, std::exchange(stepping_, nullptr));
  co_await drop_sums();
}

Task<void> FusedReplica::finish_step(std::uint64_t epoch, bool step) {
  auto stepping = std::exchange(stepping_, nullptr);
  if (step && stepping && stepping->place) {
    const auto stepped = co_await stepping->round->finish_step();
    for (std::size_t i = 0; i < size(); ++i)
      if (stepped[i]) count_step(i);
    if (stepping->place == Place::next) pending_ = Pending::values;
  }
  enter_epoch(epoch);
  co_await discard(runtime_, std::move(stepping));
}

// ---- The next parameters

void FusedReplica::make_next() {
  if (!next_.empty()) return;
  for (const auto& info : gradient_infos_) next_.push_back(backend_->allocate(info.elements()));
}

bool FusedReplica::steps_into_live() const noexcept {
  return stepping_ && stepping_->place == Place::live;
}

/// What an exchange keeps beside the parameters, such as the anchor of outer steps, has the changes already: a copy of
/// the state that lacked them in the parameters would have this peer undo them in its next round.
std::span<const float> FusedReplica::newest(std::size_t parameter) {
  if (has_next()) return next_[parameter].values;
  const std::span<const float> values = live(parameter);
  if (!has_changes() || !backend_->is_host()) return values;
  newest_.resize(values.size());
  std::ranges::transform(values, next_[parameter].values, newest_.begin(), std::plus());
  return newest_;
}

void FusedReplica::read_parameters(const std::vector<std::span<float>>& to) {
  for (std::size_t i = 0; i < size(); ++i)
    if (!to[i].empty()) std::ranges::copy(live(i), to[i].begin());
}

void FusedReplica::write_parameters(const std::vector<std::span<float>>& from) {
  for (std::size_t i = 0; i < size(); ++i) std::ranges::copy(from[i], live(i).begin());
}

void FusedReplica::change_parameters(const std::vector<std::span<float>>& by) {
  make_next();
  for (std::size_t i = 0; i < size(); ++i) {
    const std::span<float> next(next_[i].values);
    if (by[i].empty())
      std::ranges::fill(next, 0.0f);
    else
      std::ranges::copy(by[i], next.begin());
  }
  pending_ = Pending::changes;
}

Task<std::shared_ptr<averaging::TensorParts>> FusedReplica::state_parts(ParameterRound how) {
  round_ = how;
  if (how.to == Place::next) make_next();
  const bool without_step = how.from == Place::next && !has_next();
  if (how.changes || without_step) {
    std::vector<TensorSpan> copies;
    for (std::size_t i = 0; i < size(); ++i) copies.emplace_back(live(i), next_[i].values);
    co_await backend_->copy(std::move(copies), in_use());
  }
  std::vector<TensorSpan> memory;
  for (std::size_t i = 0; i < size(); ++i) {
    if (how.to == Place::live)
      memory.emplace_back(live(i));
    else if (how.from == Place::live && !how.changes)
      memory.emplace_back(live(i), next_[i].values);
    else
      memory.emplace_back(next_[i].values);
  }
  auto beside = co_await extra_parts(how);
  co_return train::state_parts(runtime_, *backend_, state_infos_, std::move(memory), std::move(beside), how.changes);
}

Task<bool> FusedReplica::finish_state(bool averaged) {
  const ParameterRound how = *std::exchange(round_, std::nullopt);
  if (how.to == Place::live) co_return false;
  if (averaged)
    pending_ = how.changes ? Pending::changes : Pending::values;
  else if (how.from == Place::live)
    pending_ = Pending::nothing;
  co_return pending_ != Pending::nothing;
}

void FusedReplica::publish() {
  const Pending pending = std::exchange(pending_, Pending::nothing);
  newest_ = std::vector<float>();
  for (std::size_t i = 0; i < size() && pending != Pending::nothing; ++i) {
    if (pending == Pending::changes)
      backend_->add_to_live(next_[i].values, live(i));
    else
      exchange_live(i, next_[i]);
  }
  backend_->follow_caller();  // what the trainer has queued uses these values, and the memory of those before
}

}  // namespace cohive::train
