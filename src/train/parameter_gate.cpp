#include "parameter_gate.hpp"

#include <memory>

#include "cohive/core/sync.hpp"
#include "core/detail/assertion.hpp"

namespace cohive::train {
namespace {

/// What wakes a coroutine from any thread; nothing, where it has been dropped meanwhile.
ParameterGate::Wake waker_of(Runtime& runtime, const std::shared_ptr<Event>& event) {
  return [&runtime, weak = std::weak_ptr(event)] {
    runtime.post([weak] {
      if (const auto waiting = weak.lock()) waiting->set();
    });
  };
}

void wake_all(std::vector<ParameterGate::Wake> waiting) {
  for (const auto& wake : waiting) wake();
}

}  // namespace

ParameterGate::~ParameterGate() {
  COHIVE_ASSERT(holds_ == 0 && state_ != State::publishing);
}

void ParameterGate::offer(StepReport report) {
  const std::lock_guard lock(mutex_);
  COHIVE_ASSERT(state_ == State::empty);  // an epoch ends after the parameters of the one before were published
  state_ = State::offered;
  offer_ = std::move(report);
}

bool ParameterGate::offered() const {
  const std::lock_guard lock(mutex_);
  return state_ == State::offered;
}

std::optional<ParameterGate::Publication> ParameterGate::publish(Wake otherwise) {
  const std::lock_guard lock(mutex_);
  if (state_ != State::offered) return std::nullopt;
  if (holds_ > 0) {
    if (otherwise) waiting_.push_back(std::move(otherwise));
    return std::nullopt;
  }
  state_ = State::publishing;
  return std::make_optional<Publication>(*this, std::move(offer_));
}

std::optional<ParameterGate::Hold> ParameterGate::hold(Wake otherwise) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::publishing) {
    if (otherwise) waiting_.push_back(std::move(otherwise));
    return std::nullopt;
  }
  ++holds_;
  return std::make_optional<Hold>(*this);
}

void ParameterGate::release() {
  std::vector<Wake> waiting;
  {
    const std::lock_guard lock(mutex_);
    COHIVE_ASSERT(holds_ > 0 && state_ != State::publishing);
    if (--holds_ == 0) waiting.swap(waiting_);
  }
  wake_all(std::move(waiting));
}

void ParameterGate::end_publication() {
  std::vector<Wake> waiting;
  {
    const std::lock_guard lock(mutex_);
    COHIVE_ASSERT(holds_ == 0 && state_ == State::publishing);
    state_ = State::empty;
    waiting.swap(waiting_);
  }
  wake_all(std::move(waiting));
}

Task<ParameterGate::Hold> ParameterGate::hold(Runtime& runtime) {
  for (;;) {
    const auto free = std::make_shared<Event>(runtime, "parameters to be published");
    if (auto held = hold(waker_of(runtime, free))) co_return std::move(*held);
    co_await free->wait();
  }
}

Task<std::optional<ParameterGate::Publication>> ParameterGate::publish(Runtime& runtime) {
  for (;;) {
    const auto free = std::make_shared<Event>(runtime, "copies of the state");
    if (auto publication = publish(waker_of(runtime, free))) co_return publication;
    if (!offered()) co_return std::nullopt;
    co_await free->wait();
  }
}

}  // namespace cohive::train
