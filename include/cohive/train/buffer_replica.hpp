/// \file
/// BufferReplica: a model of float32 arrays in memory that somebody else owns, such as numpy's or a DLPack tensor of
/// the host, with an optimizer of cohive or one of the caller's.
///
///   std::vector<BufferTensor> parameters{{.name = "w", .data = w, .shape = {784, 10}}, {.name = "b", .data = b, .shape
///   = {10}}}; auto model = std::make_shared<BufferReplica>(loop, parameters, optim::AdamWOptions{.lr = 1e-3});
///
/// The parameters stay where they are: training changes them in place, inside the calls of a Trainer. In between other
/// code reads them as it likes, and does not write to them; newcomers and checkpoints copy them at any time.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "cohive/train/fused_replica.hpp"
#include "cohive/train/trainer_thread.hpp"

namespace cohive::train {

/// An array of somebody else's, as DLPack and Python's buffer protocol describe one.
struct BufferTensor {
  std::string name;                            ///< for messages; empty: its number
  void* data = nullptr;                        ///< of the first element; aligned for the type
  codec::DType dtype = codec::DType::float32;  ///< float32 is the only one that is taken
  std::vector<std::int64_t> shape = {};        ///< in elements; empty: one value
  std::vector<std::int64_t> strides = {};      ///< in elements; empty: the array is contiguous, as it has to be
  std::shared_ptr<void> owner = nullptr;       ///< keeps the memory; null: it outlives its user
};

/// Returns the values of an array. \param what  begins the sentence: "parameter"
/// Throws std::invalid_argument with a sentence for another dtype, negative or overflowing sizes, strides that are not
/// those of a contiguous (row-major) array, a null pointer or one that is not aligned.
std::span<float> values_of(const BufferTensor& tensor, const std::string& what);

/// An optimizer step of the caller's: changes the parameters, which it knows, by averaged gradients.
/// \param gradients  the means over all samples of all peers, one for each parameter; an empty one where no peer has
/// had
///                   a gradient. The memory may be written to, and lives until the function returns
/// \param epoch  that the step leads to
using StepFunction = std::function<void(const std::vector<std::span<float>>& gradients, std::uint64_t epoch)>;

/// Where a StepFunction runs.
enum class StepThread {
  worker,  ///< on a thread of the pool, while the trainer waits
  trainer  ///< on the trainer's own, inside the call of its Trainer that waits
};

/// A StepFunction with what belongs to it.
struct CallersOptimizer {
  StepFunction step;                          ///< an exception of it ends the call of the Trainer that waits
  StepThread where = StepThread::trainer;     ///< that it runs on
  TrainerThread* thread = nullptr;            ///< of the Trainer (Trainer::MakeReplica); StepThread::trainer needs it
  std::vector<BufferTensor> statistics = {};  ///< that the step changes: they go into checkpoints and to newcomers
  std::function<void(std::uint64_t epoch)> enter_epoch = nullptr;  ///< schedules follow it; on the loop: return soon
};

/// A model of arrays. What it says of threads is in replica.hpp; add_gradients and change are for the trainer's.
class BufferReplica : public FusedReplica {
 public:
  /// With an optimizer of cohive, whose statistics are in memory of its own.
  /// Throws std::invalid_argument with a sentence: arrays as values_of() refuses them, none at all, options out of
  /// range.
  BufferReplica(Runtime& runtime, const std::vector<BufferTensor>& parameters, optim::Options optimizer);
  /// With one of the caller's, which a run with delay_optimizer_step refuses: such steps must not touch the live
  /// parameters.
  BufferReplica(Runtime& runtime, const std::vector<BufferTensor>& parameters, CallersOptimizer optimizer);
  ~BufferReplica() override;

  /// Returns the number of parameters.
  std::size_t parameters() const noexcept { return live_.size(); }
  /// Returns the memory of a live parameter.
  std::span<float> parameter(std::size_t index) { return live_[index].values; }

  /// Adds the mean gradients of a batch, one for each parameter; an empty one where the batch has none: a parameter of
  /// which no peer has a gradient in an epoch takes no step. The values are copied. Throws std::invalid_argument for
  /// another number or size, and what GradientSums::add throws; nothing has been added then.
  void add_gradients(const std::vector<std::span<const float>>& gradients, double samples);
  /// The same for arrays, whose memory is used until their owners are released, and may become the sum itself: they are
  /// given away. Those without data have no gradient; all others have an owner.
  void give_gradients(const std::vector<BufferTensor>& gradients, double samples);
  /// With local updates: steps with the gradients of one batch at once. Throws std::logic_error with an optimizer of
  /// the caller's: that steps by itself, in change().
  void step_locally(const std::vector<std::span<const float>>& gradients);
  /// Changes parameters and statistics between two calls of the Trainer, while no copy reads them: a local step of the
  /// caller's optimizer.
  void change(const std::function<void()>& change);
  /// Sets the options of cohive's optimizer by the epoch: those of the present one at once, and those of each that
  /// begins on the loop's thread.
  void schedule(std::function<optim::Options(std::uint64_t epoch)> schedule);

  bool can_step_beside() const override { return !callers_.step; }
  Task<Gradients> take_gradients(std::optional<Place> step) override;
  Task<void> drop_gradients() override;
  Task<void> finish_step(std::uint64_t epoch, bool step) override;
  Task<std::optional<averaging::SharedState>> snapshot(std::uint64_t epoch) override;
  Task<std::optional<averaging::SharedState>> view(std::uint64_t epoch) override;
  Task<Result<std::uint64_t>> load(averaging::DownloadedState state, std::uint64_t least_epoch) override;
  void enter_epoch(std::uint64_t epoch) override;

 protected:
  /// With an optimizer of the caller's, or without: a derived class says then how cohive steps.
  /// \param backend  where the parameters are, whose optimizer is cohive's then, and which a derived class reads and
  ///                 writes; null: host memory
  BufferReplica(Runtime& runtime, const std::vector<BufferTensor>& parameters,
                std::optional<CallersOptimizer> optimizer, std::shared_ptr<Backend> backend = nullptr);
  /// Over memory of a derived class. \param shapes  of the parameters, one for each buffer
  BufferReplica(Runtime& runtime, const std::vector<codec::Shape>& shapes, std::vector<Buffer> live,
                optim::Options optimizer, std::shared_ptr<Backend> backend = nullptr);

  std::span<float> live(std::size_t parameter) override { return live_[parameter].values; }
  void exchange_live(std::size_t parameter, Buffer& next) override;
  optim::Options options(std::size_t) override { return options_; }
  std::array<optim::View, optim::kMostStateFields> statistics(std::size_t parameter) override;
  std::int64_t steps_taken(std::size_t parameter) override { return steps_[parameter]; }
  void count_step(std::size_t parameter) override { ++steps_[parameter]; }
  Task<GradientSums::Taken> take_sums() override;

  std::vector<Buffer> live_;  ///< the parameters, in memory that may be the caller's

 private:
  struct Named {
    std::string name;
    codec::Shape shape;
    std::span<float> values;
  };
  void take_optimizer(CallersOptimizer optimizer);
  averaging::SharedState describe(std::uint64_t epoch, const std::function<Slice(std::span<const float>)>& bytes);
  std::vector<Named> kept_statistics();
  void check_gradients(const std::vector<std::span<const float>>& gradients) const;
  Task<void> step_with(GradientSums::Taken means, std::uint64_t epoch);
  static void call(const CallersOptimizer& optimizer, const GradientSums::Taken& means, std::uint64_t epoch);
  Result<std::uint64_t> take_over(const averaging::DownloadedState& state, std::uint64_t least_epoch);

  std::vector<std::vector<Buffer>> statistics_;  // of cohive's optimizer, by parameter
  optim::Options options_;
  CallersOptimizer callers_;
  std::vector<Buffer> callers_statistics_;
  std::vector<codec::Shape> callers_shapes_;
  std::vector<std::int64_t> steps_;           // by parameter
  std::optional<GradientSums::Taken> means_;  // for the caller's step; until then their sums
  bool changes_by_itself_ = false;            // the caller has called change()
  bool callers_step_ = false;                 // the gradients that are taken now are for it
  std::function<optim::Options(std::uint64_t)> schedule_;
  std::uint64_t epoch_ = 0;  // that was entered last
  std::mutex stepping_;      // local steps, loads and copies exclude one another
};

}  // namespace cohive::train
