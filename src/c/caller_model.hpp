// A model in memory of the caller's, as a run sees it: float32 arrays that stay where they are, others that are
// averaged beside them, and a state whose layout the caller describes.
#pragma once

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cohive/cohive.h"
#include "cohive/train/buffer_replica.hpp"
#include "gpu.hpp"

namespace cohive::c {

/// The caller describes its state by a layout, anew whenever that has changed.
struct Layout {
  /// A tensor of the state, in memory that lives until the next layout has been described. Only steps, loads and what
  /// CallerModel::changes() tells of change parameters and statistics.
  struct Part {
    codec::Tensor described;  ///< without values
    const std::uint8_t* data = nullptr;
    std::size_t size = 0;                  ///< bytes
    bool on_gpu = false;                   ///< the memory is that of the model's GPU
    std::optional<std::size_t> parameter;  ///< whose newest values it has
    std::string codec, name;
  };
  /// \param name  of a tensor in checkpoints
  static bool is_statistic(std::string_view name) { return name.starts_with("optimizer."); }
  msgpack::Map metadata;             ///< that newcomers get, but for the epoch
  std::vector<Part> parts;           ///< in their order
  std::vector<optim::Options> step;  ///< of each parameter, for steps of cohive; empty: the caller steps
  /// One array for each parameter, for steps of cohive: its statistics in the order of optim::state_fields, and the
  /// number of its steps.
  std::vector<std::array<float*, optim::kMostStateFields + 1>> statistics;
};

/// The arrays of a model live as long as it does.
struct CallerArrays {
  std::vector<train::BufferTensor> parameters;  ///< with a Gpu, in its memory
  /// Averaged beside the parameters.
  struct Beside {
    std::span<float> values;
    averaging::TensorInfo info;
    std::string statistic{};  ///< its name, as in Layout::Part: only steps change it, never the caller meanwhile
  };
  std::vector<Beside> beside;
};

/// How the gradients of a batch come, and who steps.
struct CallerWays {
  bool native_steps = false;   ///< cohive steps, by Layout::step
  bool reuse_buffers = false;  ///< gradients add up in the memory that they are handed over in
  bool local_steps = false;    ///< the caller steps in each batch
};

/// Its functions of the caller's run on the trainer's thread, inside of calls of the Trainer.
class CallerModel : public train::BufferReplica {
 public:
  /// \param gpu  that parameters, statistics and gradients are on; null: the host
  CallerModel(Runtime& runtime, train::TrainerThread& thread, CallerArrays arrays, cohive_trainer_calls calls,
              CallerWays ways, std::shared_ptr<Gpu> gpu);
  ~CallerModel() override;

  // ---- The trainer's thread

  /// Takes over what was described; when it returns, nothing reads the memory of the layout before. Throws what becomes
  /// COHIVE_INVALID_ARGUMENT for a layout that does not fit.
  void describe(Layout layout);
  /// Ends what newcomers read in the caller's memory, who ask again: the caller changes it by itself, or has done so.
  /// \param again  it does so again and again: newcomers are given copies from now on
  void changes(bool again);
  /// Takes a batch: its mean gradients, one pointer for each parameter, null where it has none. When it returns nothing
  /// reads them any more, but for buffers that are used again. False: it does not count, since in these it was added to
  /// the sums of an epoch that has ended, in a call that has failed before it could clear them.
  bool take_batch(const float* const* gradients, double samples, double scale);
  /// Has the caller hand over what it has added up by itself, or with local steps its parameters, if it does so.
  void take_sums_of_caller();
  /// Notes on which stream of the GPU the trainer queues its work.
  void note_stream(void* stream) const {
    if (gpu_) gpu_->note_stream(stream);
  }
  /// Forgets the batches in buffers that are used again.
  void forget_batches();
  /// Drops a batch that does not count: it is cleared with the buffers that are used again.
  void drop_batch(const float* const* gradients);
  /// Waits until nothing reads the buffers that are used again. True: they belong to an epoch that has ended, and were
  /// set to zero.
  bool clear_buffers();
  /// Takes what is in the buffers that are used again, and sets them to zero, after a call that was interrupted: what
  /// it has begun goes on, while the caller adds the next gradients up.
  void release_buffers();
  /// Returns how many states of others were taken over.
  std::uint64_t loads() const { return loads_; }
  /// Tells whether one was taken over since it was last asked: in a call that was interrupted, too.
  bool was_loaded() { return std::exchange(told_loads_, loads_) != loads_; }
  /// Has malloc give back what is free, beside the training: gradients, which come and go with each batch, have spread
  /// over the heap.
  void return_free_memory();

  bool can_step_beside() const override { return ways_.native_steps; }
  void cut_gradients() override;
  Task<void> hold_state() override;
  Task<bool> finish_state(bool averaged) override;
  void publish() override;
  Task<std::optional<averaging::SharedState>> snapshot(std::uint64_t epoch) override;
  Task<std::optional<averaging::SharedState>> view(std::uint64_t epoch) override;
  Task<Result<std::uint64_t>> load(averaging::DownloadedState state, std::uint64_t least_epoch) override;

 protected:
  optim::Options options(std::size_t parameter) override;
  void exchange_live(std::size_t parameter, train::Buffer& next) override;
  std::array<optim::View, optim::kMostStateFields> statistics(std::size_t parameter) override;
  std::int64_t steps_taken(std::size_t parameter) override;
  void count_step(std::size_t parameter) override;
  Task<std::vector<averaging::TensorSpan>> extra_parts(train::ParameterRound how) override;

 private:
  std::optional<train::CallersOptimizer> optimizer_of(train::TrainerThread& thread, const CallerWays& ways);
  void call_step(const std::vector<std::span<float>>& gradients, std::uint64_t epoch) const;
  /// The gradients of batches, as the caller has added them up.
  struct Sums {
    std::vector<const float*> values;
    double samples = 0, scale = 1;
  };
  Sums ask_for_sums() const;
  void hand_over(const std::vector<const float*>& gradients, double samples, double scale);
  bool adds_in_buffers() const { return ways_.reuse_buffers && !calls_.sums; }
  void hand_buffers_over();
  void check(const Layout& layout) const;
  bool can_read_in_place() const;
  std::optional<averaging::SharedState> copy_state(std::uint64_t epoch);
  std::optional<averaging::SharedState> view_state(std::uint64_t epoch);
  averaging::SharedState state_without_values(std::uint64_t epoch) const;
  void make_usable(averaging::DownloadedState& state);
  averaging::LiveTensors::Source source_of(const Layout::Part& part);
  void drop_views();
  Task<void> copy_beside();
  void take_averages(train::ParameterRound how, bool in_place);
  void make_statistics_usable();
  bool is_in_place(const CallerArrays::Beside& one, train::ParameterRound how) const {
    return how.to == train::Place::live || (how.from == train::Place::next && !one.statistic.empty());
  }

  train::TrainerThread& thread_;
  const cohive_trainer_calls calls_;
  const CallerWays ways_;
  const std::shared_ptr<Gpu> gpu_;
  std::vector<CallerArrays::Beside> beside_;
  // Locks are taken in this order: stepping_ of the base, with which callbacks run inside of change(), copying_, and
  // described_, or that of a view. A callback may call describe(): nobody who holds copying_ waits for stepping_, or
  // for the trainer's thread.
  std::mutex copying_;    // the memory that the layout points to is read, or becomes that of a view
  std::mutex described_;  // the layout is read; who changes it has both
  Layout layout_;
  bool has_layout_ = false;
  // These are the layout's, as they were when the sums of gradients were cut: a step that is delayed has the rates of
  // its own epoch, not those of the next one, which the caller describes meanwhile.
  std::vector<optim::Options> steps_of_sums_;
  std::vector<std::weak_ptr<averaging::LiveTensors>> views_;  // with copying_
  // Copies of what the trainer may change while it is averaged.
  std::vector<train::Buffer> copies_;
  bool held_ = false;  // they were made for the next round
  std::optional<train::ParameterRound> round_;
  std::optional<train::ParameterRound> publishable_;  // the round whose results publish() takes from them
  std::uint64_t loads_ = 0, told_loads_ = 0;
  // These are of buffers that are used again: what an interrupted call has begun may cut their sums while its caller
  // goes on, so that they have a mutex.
  std::mutex summing_;
  std::vector<const float*> buffers_;
  double batches_ = 0, scale_ = 1;
  bool spent_ = false;        // they are to be set to zero: their sums were handed over, or do not count
  std::future<void> unread_;  // of the last hand-over
};

}  // namespace cohive::c
