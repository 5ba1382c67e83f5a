#include "cohive/averaging/round.hpp"

#include <stdexcept>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/try.hpp"
#include "round_state.hpp"

namespace cohive::averaging {

void check(const RoundLimits& limits) {
  for (const auto& limit : {limits.allreduce, limits.sender, limits.reducer})
    if (limit && *limit <= Duration::zero()) throw std::invalid_argument("the limits of a round must be above zero");
}

Round::State::State(Runtime& runtime, RoundOptions wanted, bool own_tensors)
    : runtime(runtime),
      options(std::move(wanted)),
      has_own_tensors(own_tensors),
      plan(runtime),
      limits(options.limits),
      stage_changed(runtime, "stage of an averaging round"),
      triggered(runtime, "trigger of an averaging round"),
      tasks(runtime, "averaging round") {
  check(limits);
}

void Round::State::trigger(double with_weight, std::shared_ptr<TensorParts> handed_over) {
  if (triggered.is_set() || finished()) return;
  weight = with_weight;
  tensors = std::move(handed_over);
  triggered.set();
}

void Round::State::cancel() {
  if (finished()) return;
  enter(Stage::finished);
  result = Error(Errc::round_cancelled);
  tasks.cancel();
  tensors.reset();
}

Round::Round(std::shared_ptr<State> state) : state_(std::move(state)) {}
Round::Round(Round&&) noexcept = default;

Round& Round::operator=(Round&& other) noexcept {
  if (this == &other) return *this;
  if (state_) state_->cancel();
  state_ = std::move(other.state_);
  return *this;
}

Round::~Round() {
  if (state_) state_->cancel();
}

Round::Stage Round::stage() const noexcept {
  return state_->stage;
}

std::vector<Member> Round::members() const {
  return state_->group ? state_->group->members : std::vector<Member>();
}

Task<void> Round::grouped() {
  return [](std::shared_ptr<State> state) -> Task<void> {
    while (state->stage == Stage::looking_for_group) co_await state->stage_changed.wait();
  }(state_);
}

void Round::reschedule(double unix_time) {
  state_->plan.scheduled_time = unix_time;
  state_->plan.changed.notify_all();
}

void Round::expect(std::size_t members) {
  state_->plan.expected_members = members;
  state_->plan.changed.notify_all();
}

void Round::hurry(std::vector<PeerId> company) {
  state_->plan.early = false;
  state_->plan.company = std::move(company);
  state_->plan.hurried = state_->runtime.now();
  state_->plan.changed.notify_all();
}

void Round::limit(const RoundLimits& limits) {
  check(limits);
  state_->limits = limits;
}

void Round::trigger(double weight, std::shared_ptr<TensorParts> tensors) {
  if (!tensors) throw std::invalid_argument("a round is triggered with tensors");
  state_->trigger(weight, std::move(tensors));
}

void Round::trigger(double weight) {
  if (!state_->has_own_tensors)
    throw std::logic_error("this averager has no tensors of its own to trigger a round with");
  state_->trigger(weight, nullptr);
}

void Round::cancel() {
  state_->cancel();
}

Task<Result<RoundReport>> Round::result() {
  return [](Task<Result<std::shared_ptr<const RoundReport>>> waiting) -> Task<Result<RoundReport>> {
    CO_TRY(const auto report, co_await std::move(waiting));
    co_return *report;
  }(report());
}

Task<Result<std::shared_ptr<const RoundReport>>> Round::report() {
  return [](std::shared_ptr<State> state) -> Task<Result<std::shared_ptr<const RoundReport>>> {
    co_await state->tasks.join();
    co_return std::exchange(state->result, std::nullopt).value_or(Error(Errc::round_cancelled));
  }(state_);
}

}  // namespace cohive::averaging
