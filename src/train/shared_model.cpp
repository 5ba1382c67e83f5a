#include "shared_model.hpp"

#include <algorithm>
#include <memory>

#include "cohive/core/trace.hpp"

namespace cohive::train {
namespace {
constexpr int kLooks = 2;  // for each time that a copy is kept unused
}

Task<SharedModel::Change> SharedModel::change() {
  auto units = co_await lock_.lock();
  co_return Change(*this, std::move(units));
}

void SharedModel::changed() {
  ++version_;
  give_up_copy();
}

Task<std::optional<averaging::SharedState>> SharedModel::copy(Deadline deadline, Beside beside) {
  unused_ = 0;
  if (copy_ && !beside) co_return copy_;
  auto units = co_await lock_.lock(deadline);
  if (!units) co_return std::nullopt;
  if (beside) co_await beside();
  if (copy_) co_return copy_;  // made while this call waited
  const std::uint64_t version = version_;
  TraceSpan span(runtime_, "train", "copy of the state");
  auto made = co_await replica_.snapshot(epoch_);
  span.end();
  if (!made) co_return std::nullopt;
  if (complete_) co_await complete_(*made);
  made->version = version;
  if (version == version_) copy_ = made;
  co_return made;
}

bool SharedModel::copy_in_use() const {
  return std::ranges::any_of(copy_->tensors, [](const auto& t) { return !t.data.empty() && !t.data.unique(); });
}

/// Freeing much memory takes its time: not on the loop.
void SharedModel::give_up_copy() {
  if (!copy_) return;
  freeing_.spawn(
      [](Runtime& runtime, averaging::SharedState state) -> Task<void> {
        co_await runtime.offload([owned = std::make_shared<averaging::SharedState>(std::move(state))]() mutable {
          owned.reset();
          return true;
        });
      }(runtime_, std::move(*std::exchange(copy_, std::nullopt))),
      "free a copy of the state");
}

Task<void> SharedModel::give_up_idle_copies(SharedModel& model, Duration idle) {
  for (;;) {
    co_await model.runtime_.sleep_for(idle / kLooks);
    if (!model.copy_) continue;
    model.unused_ = model.copy_in_use() ? 0 : model.unused_ + 1;
    if (model.unused_ > kLooks) model.give_up_copy();
  }
}

}  // namespace cohive::train
