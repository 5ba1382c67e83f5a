#include "shared_model.hpp"

#include <algorithm>
#include <memory>

#include "cohive/core/log.hpp"
#include "cohive/core/trace.hpp"

namespace cohive::train {
namespace {
constexpr int kLooks = 2;  // for each time that a copy is kept unused
}

SharedModel::~SharedModel() {
  for (const auto& weak : read_views_)
    if (const auto view = weak.lock()) view->drop();
}

Task<SharedModel::Change> SharedModel::change() {
  auto units = co_await lock_.lock();
  co_await settle();
  co_return Change(*this, std::move(units));
}

void SharedModel::changed() {
  ++version_;
  give_up_copy();
}

Task<SharedModel::Change> SharedModel::change_beside() {
  auto units = co_await lock_.lock();
  if (!replica_.publishes_by_exchange()) co_await settle();
  co_return Change(*this, std::move(units));
}

/// What nobody reads any more is forgotten.
Task<void> SharedModel::settle() {
  look_for_spoiled_views();
  if (live_) give_up_copy();
  for (const auto views = read_views_; const auto& weak : views)
    if (const auto view = weak.lock(); view && !view->settled_at())
      co_await averaging::LiveTensors::settle(runtime_, view);
}

/// A trainer that writes to its model where nobody knows of it does so again and again. What the replica has dropped by
/// itself is read no more.
void SharedModel::look_for_spoiled_views() {
  std::erase_if(read_views_, [](const auto& weak) { return weak.expired(); });
  const bool spoiled = std::ranges::any_of(read_views_, [](const auto& weak) {
    const auto view = weak.lock();
    return view && view->is_spoiled();
  });
  if (spoiled && !std::exchange(copies_, true)) {
    log::info("train", "the model changes while newcomers read it: from now on they are given copies");
    if (live_) changed();
  }
  if (live_ && !live_->is_live()) changed();
}

averaging::SharedState SharedModel::copy_for_a_reader() const {
  averaging::SharedState state = *copy_;
  if (live_) state.reader = std::make_shared<averaging::StateReader>(live_);
  return state;
}

Task<std::optional<averaging::SharedState>> SharedModel::copy(Deadline deadline, Beside beside) {
  unused_ = 0;
  look_for_spoiled_views();
  if (copy_ && !beside && !live_) co_return copy_;
  auto units = co_await lock_.lock(deadline);
  if (!units) co_return std::nullopt;
  if (beside) co_await beside();
  if (copy_ && !(beside && (live_ || copies_))) co_return copy_for_a_reader();  // made while this call waited
  const std::uint64_t version = version_;
  TraceSpan span(runtime_, "train", "copy of the state");
  auto made = co_await (beside || copies_ ? replica_.snapshot(epoch_) : replica_.view(epoch_));
  span.end();
  if (!made) co_return std::nullopt;
  if (made->reader) read_views_.push_back(made->reader->tensors());
  if (complete_) co_await complete_(*made);
  made->version = version;
  if (copy_ || version != version_ || (beside && !copies_)) co_return made;
  if (const auto reader = std::exchange(made->reader, nullptr)) live_ = reader->tensors();
  copy_ = std::move(made);
  co_return copy_for_a_reader();
}

bool SharedModel::copy_in_use() const {
  if (live_) return live_->in_use();
  return std::ranges::any_of(copy_->tensors, [](const auto& t) { return !t.data.empty() && !t.data.unique(); });
}

/// Freeing much memory takes its time: not on the loop.
void SharedModel::give_up_copy() {
  if (!copy_) return;
  live_.reset();
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
    // What the trainer changes by itself is another state when it is copied again, and so are its hashes.
    if (model.unused_ > kLooks) model.changed();
  }
}

}  // namespace cohive::train
