#include "cohive/train/host_replica.hpp"

#include <algorithm>
#include <thread>

#include "cohive/optim/parallel.hpp"
#include "discard.hpp"

namespace cohive::train {

using averaging::HostParts;
using averaging::HostTensor;
using averaging::TensorInfo;

/// The gradients of one epoch and the steps that they make, shared with work on the pool.
struct HostReplica::Stepping {
  GradientSums::Taken taken;
  std::vector<optim::TensorStep> steps;  ///< empty: no step
  bool part_by_part = false;             ///< the round makes them
  Place place = Place::live;
  std::shared_ptr<const void> in_use;    ///< parameters and statistics
};

namespace {

/// Leaves parameters as they are.
optim::Options no_step() {
  return optim::SgdOptions{.lr = 0};
}

}  // namespace

HostReplica::HostReplica(Runtime& runtime, std::vector<TensorInfo> parameters)
    : runtime_(runtime),
      gradient_infos_(std::move(parameters)),
      state_infos_(gradient_infos_),
      sums_(runtime,
            [this] {
              std::vector<std::size_t> sizes;
              for (const auto& info : gradient_infos_) sizes.push_back(info.elements());
              return sizes;
            }()),
      residuals_(averaging::make_residuals(gradient_infos_)) {
  for (auto& info : gradient_infos_) info.role = codec::Role::unspecified;  // as hivemind's gradient averagers have it
  for (auto& info : state_infos_) {
    info.role = codec::Role::parameter;
    info.dtype = codec::DType::float32;  // whatever the model computes with
  }
}

void HostReplica::average_beside(const std::vector<TensorInfo>& infos) {
  state_infos_.insert(state_infos_.end(), infos.begin(), infos.end());
}

Task<std::vector<HostTensor>> HostReplica::parts_beside(StateRound) {
  co_return std::vector<HostTensor>();
}

void HostReplica::wait_until_unused() noexcept {
  stepping_.reset();
  while (in_use_.use_count() > 1) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

// ---- Gradients and step

Task<GradientSums::Taken> HostReplica::take_sums() {
  return sums_.take();
}
Task<void> HostReplica::drop_sums() {
  return sums_.drop();
}

Task<void> HostReplica::free_next() {
  if (!next_is_newest_ && !next_is_difference_) co_await discard(runtime_, std::exchange(next_, {}));
}

Task<Replica::Gradients> HostReplica::take_gradients(std::optional<Place> step) {
  auto stepping = std::make_shared<Stepping>();
  stepping->taken = co_await take_sums();
  stepping->place = step.value_or(Place::live);
  stepping->in_use = in_use();
  stepping_ = stepping;
  // A step reads each gradient before it writes the parameter: the sums' memory becomes the next parameters.
  if (step == Place::next) co_await discard(runtime_, std::exchange(next_, stepping->taken.sums));
  if (step) {
    if (!std::exchange(statistics_made_, true)) co_await make_statistics();
    for (std::size_t i = 0; i < size(); ++i) {
      const auto from = live(i);
      const auto number = steps_taken(i) + 1;
      const optim::TensorMemory memory{std::span<const float>(from), *step == Place::next ? next_[i].values : from, {},
                                       stepping->taken.sums[i].values, statistics(i)};
      stepping->steps.emplace_back(frozen(i) ? no_step() : options(i), memory, optim::StepSettings{number});
    }
    stepping->part_by_part = !max_norm_;
  }
  std::vector<HostTensor> memory;
  for (const auto& sum : stepping->taken.sums) memory.emplace_back(sum.values);
  averaging::HostPartsOptions how;
  how.factor = static_cast<float>(stepping->taken.factor);
  how.residuals = residuals_;
  if (stepping->part_by_part)
    how.on_result = [stepping](const averaging::StretchResult& result) {
      stepping->steps[result.stretch.tensor].run(result.stretch.offset, result.stretch.length);
    };
  co_return Gradients{std::make_shared<HostParts>(runtime_, gradient_infos_, std::move(memory), std::move(how)),
                      stepping->taken.finite};
}

/// Their memory is written to for the first time, which takes long.
Task<void> HostReplica::make_statistics() {
  co_await runtime_.offload([this, used = in_use()] {
    for (std::size_t i = 0; i < size(); ++i) (void)statistics(i);
  });
}

Task<void> HostReplica::drop_gradients() {
  residuals_ = averaging::make_residuals(gradient_infos_);
  if (stepping_) co_await discard(runtime_, std::exchange(stepping_, nullptr));
  co_await drop_sums();
}

Task<void> HostReplica::finish_step(std::uint64_t epoch, bool step) {
  auto stepping = std::exchange(stepping_, nullptr);
  if (step && stepping && !stepping->steps.empty()) {
    const std::shared_ptr<std::vector<optim::TensorStep>> steps(stepping, &stepping->steps);
    if (!stepping->part_by_part) {
      co_await clip(*stepping);
      co_await optim::run_steps(runtime_, steps, stepping);
    } else if (std::ranges::any_of(*steps, &optim::TensorStep::has_second_phase)) {
      co_await finish_second_phase(steps);
    }
    for (std::size_t i = 0; i < size(); ++i) count_step(i);
    if (stepping->place == Place::next) next_is_newest_ = true;
  }
  enter_epoch(epoch);
  co_await discard(runtime_, std::move(stepping));
}

/// The norm is that of the averaged gradients of all parameters, so every member clips alike.
Task<void> HostReplica::clip(Stepping& stepping) {
  std::vector<optim::ConstView> views;
  std::vector<optim::View> gradients;
  for (const auto& sum : stepping.taken.sums) {
    views.emplace_back(sum.values);
    gradients.emplace_back(sum.values);
  }
  const auto owner = std::make_shared<std::vector<HostBuffer>>(stepping.taken.sums);
  const double squares = co_await optim::square_sum(runtime_, std::move(views), owner);
  const double factor = optim::clip_coefficient(squares, *max_norm_);
  if (factor < 1) co_await optim::scale(runtime_, std::move(gradients), factor, owner);
}

/// What needs norms of whole tensors, when all their stretches have been read.
Task<void> HostReplica::finish_second_phase(std::shared_ptr<std::vector<optim::TensorStep>> steps) {
  std::vector<std::size_t> sizes;
  for (auto& step : *steps) {
    const bool unfinished = step.has_second_phase();
    if (unfinished) step.settle();
    sizes.push_back(unfinished ? step.size() : 0);
  }
  co_await optim::for_stretches(runtime_, std::move(sizes), [steps](const optim::Stretch& stretch) {
    (*steps)[stretch.tensor].finish(stretch.offset, stretch.count);
  });
}

// ---- The next parameters

void HostReplica::make_next() {
  if (!next_.empty()) return;
  for (const auto& info : gradient_infos_) next_.push_back(HostBuffer::allocate(info.elements()));
}

bool HostReplica::steps_into_live() const noexcept {
  return stepping_ && !stepping_->steps.empty() && stepping_->place == Place::live;
}

std::span<const float> HostReplica::newest(std::size_t parameter) {
  return next_is_newest_ ? std::span<const float>(next_[parameter].values) : live(parameter);
}

Task<std::shared_ptr<averaging::TensorParts>> HostReplica::state_parts(StateRound how) {
  state_round_ = how;
  if (how != StateRound::live) make_next();
  averaging::HostPartsOptions options;
  options.differences = how == StateRound::difference;
  const bool without_step = how == StateRound::next && !next_is_newest_;
  if (options.differences || without_step) {
    std::vector<optim::Copying> copies;
    for (std::size_t i = 0; i < size(); ++i) copies.push_back({std::span<const float>(live(i)), next_[i].values});
    co_await optim::copy(runtime_, std::move(copies), in_use());
  }
  std::vector<HostTensor> memory;
  for (std::size_t i = 0; i < size(); ++i) {
    switch (how) {
      case StateRound::live:
        memory.emplace_back(live(i));
        break;
      case StateRound::live_to_next:
        memory.emplace_back(live(i), next_[i].values);
        break;
      case StateRound::next:
      case StateRound::difference:
        memory.emplace_back(next_[i].values);
        break;
    }
  }
  const auto beside = co_await parts_beside(how);
  memory.insert(memory.end(), beside.begin(), beside.end());
  co_return std::make_shared<HostParts>(runtime_, state_infos_, std::move(memory), std::move(options));
}

Task<bool> HostReplica::finish_state(bool averaged) {
  const StateRound how = *std::exchange(state_round_, std::nullopt);
  if (how == StateRound::live) co_return false;
  if (how == StateRound::next) co_return next_is_newest_ = next_is_newest_ || averaged;
  next_is_difference_ = averaged && how == StateRound::difference;
  next_is_newest_ = averaged && how == StateRound::live_to_next;
  co_return averaged;
}

void HostReplica::publish() {
  if (std::exchange(next_is_difference_, false)) {
    for (std::size_t i = 0; i < size(); ++i) optim::accumulate(next_[i].values, live(i));
    return;
  }
  if (!std::exchange(next_is_newest_, false)) return;
  for (std::size_t i = 0; i < size(); ++i) exchange_live(i, next_[i]);
}

}  // namespace cohive::train
