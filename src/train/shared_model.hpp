// The model of a run, as changes and copies of it exclude one another. Newcomers read the state where it is
// (averaging::LiveTensors): before a change, what they still need is copied. Where the trainer changes the model by
// itself, they download a copy, made only when one asks, which serves all that ask until the end of the next change.
// Loop thread only.
#pragma once

#include <functional>
#include <optional>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/train/replica.hpp"

namespace cohive::train {

inline constexpr Duration kStateCopyIdle = 30s;  ///< that a copy is kept after the last use; making one takes seconds

class SharedModel {
 public:
  /// \param copies  the trainer changes the model by itself
  SharedModel(Runtime& runtime, Replica& replica, bool copies = false)
      : runtime_(runtime),
        replica_(replica),
        copies_(copies),
        lock_(runtime, "the model"),
        freeing_(runtime, "freeing copies") {}
  ~SharedModel();

  /// Exclusive for as long as it lives; afterwards the state has another version.
  class [[nodiscard]] Change {
   public:
    Change(SharedModel& model, Semaphore::Units units) : model_(&model), units_(std::move(units)) {}
    Change(Change&& other) noexcept : model_(std::exchange(other.model_, nullptr)), units_(std::move(other.units_)) {}
    ~Change() {
      if (model_) model_->changed();
    }

   private:
    SharedModel* model_;
    Semaphore::Units units_;
  };
  Task<Change> change();
  /// Sets the epoch that the state belongs to.
  void set_epoch(std::uint64_t epoch) { epoch_ = epoch; }
  std::uint64_t epoch() const { return epoch_; }
  /// The same for what changes beside the live parameters: what newcomers read of these is written to by publish()
  /// first.
  Task<Change> change_beside();

  using Beside = std::function<Task<void>()>;
  /// Sets what adds to each copy of the state before it is used, while there is no change.
  void complete_with(std::function<Task<void>(averaging::SharedState&)> complete) { complete_ = std::move(complete); }
  /// Returns the state; nullopt when it cannot be copied until the deadline.
  /// \param beside  copies what belongs to this state, while there is no change; the state is a copy of now, too
  Task<std::optional<averaging::SharedState>> copy(Deadline deadline, Beside beside = nullptr);
  /// Gives up a copy that was not used for `idle`, at most half as long again later. Runs until it is dropped.
  static Task<void> give_up_idle_copies(SharedModel& model, Duration idle = kStateCopyIdle);

 private:
  void changed();
  Task<void> settle();
  averaging::SharedState copy_for_a_reader() const;
  bool copy_in_use() const;
  void give_up_copy();
  void look_for_spoiled_views();

  Runtime& runtime_;
  Replica& replica_;
  bool copies_;
  std::function<Task<void>(averaging::SharedState&)> complete_;
  Mutex lock_;
  std::optional<averaging::SharedState> copy_;                     // of the present version
  std::shared_ptr<averaging::LiveTensors> live_;                   // what the copy's readers read; null: it has all
  std::vector<std::weak_ptr<averaging::LiveTensors>> read_views_;  // that are or were read
  std::uint64_t epoch_ = 0, version_ = 1;
  int unused_ = 0;  // looks in a row at which no download used the copy
  TaskGroup freeing_;
};

}  // namespace cohive::train
