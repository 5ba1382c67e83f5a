/// \file
/// FusedReplica: a Replica of float32 parameters and statistics in host memory, or where another backend has them. It
/// adds up gradients, steps with cohive's fused optimizers and keeps a second copy of the parameters where work is
/// delayed; the memory itself belongs to a derived class: a machine-learning library's tensors, or plain buffers
/// (PlainReplica).
///
/// Passes over memory are what training costs beside the model: the first batch of an epoch becomes the sum of
/// gradients as it is, sums are averaged in place, the optimizer steps stretch by stretch while averages arrive, and
/// what is delayed reads one copy of the parameters and writes the other.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cohive/train/gradient_sums.hpp"
#include "cohive/train/replica.hpp"
#include "cohive/train/work_count.hpp"

namespace cohive::train {

/// A model whose parameters, sums and averages are a backend's; options and statistics are the derived class's.
class FusedReplica : public Replica {
 public:
  /// Takes gradients from the trainer; see GradientSums::add.
  GradientSums& sums() noexcept { return sums_; }
  /// Bounds the norm of the averaged gradients of all parameters together; nullopt: no bound. Any time before a step.
  void clip_gradients(std::optional<double> max_norm) { max_norm_ = max_norm; }

  const std::vector<averaging::TensorInfo>& gradient_infos() const override { return gradient_infos_; }
  const std::vector<averaging::TensorInfo>& state_infos() const override { return state_infos_; }
  void cut_gradients() override { sums_.cut(); }
  Task<void> free_next() override;
  Task<Gradients> take_gradients(std::optional<Place> step) override;
  averaging::ResidualsPtr residuals() override { return residuals_; }
  void forget_residuals() override;
  Task<void> drop_gradients() override;
  Task<void> finish_step(std::uint64_t epoch, bool step) override;
  Task<std::shared_ptr<averaging::TensorParts>> state_parts(ParameterRound how) override;
  Task<bool> finish_state(bool averaged) override;
  bool copies_parameters() const override { return backend_->is_host(); }
  void read_parameters(const std::vector<std::span<float>>& to) override;
  void write_parameters(const std::vector<std::span<float>>& from) override;
  void change_parameters(const std::vector<std::span<float>>& by) override;
  void publish() override;
  std::shared_ptr<const void> in_use() const override { return work_.begin(); }
  Task<void> close() override;

 protected:
  /// \param parameters  float32; as the group names them
  /// \param backend  where they are; null: host memory
  FusedReplica(Runtime& runtime, std::vector<averaging::TensorInfo> parameters,
               std::shared_ptr<Backend> backend = nullptr);
  /// Describes what rounds of the state average after the parameters. In the constructor.
  void average_beside(const std::vector<averaging::TensorInfo>& infos);

  /// Returns the loop of the constructor.
  Runtime& runtime() const noexcept { return runtime_; }
  /// Returns where the parameters are.
  Backend& backend() const noexcept { return *backend_; }
  /// Returns the bound of clip_gradients().
  std::optional<double> max_norm() const noexcept { return max_norm_; }
  /// Returns the number of parameters.
  std::size_t size() const noexcept { return gradient_infos_.size(); }

  // ---- What a derived class has. Called on the loop; publish() calls exchange_live on the trainer's thread.

  /// Returns the memory of a live parameter.
  virtual std::span<float> live(std::size_t parameter) = 0;
  /// Makes the values of `next` live, and gives `next` the memory that was.
  virtual void exchange_live(std::size_t parameter, Buffer& next) = 0;
  /// Returns the options of a parameter's step as they are now; the same kind of optimizer for all.
  virtual optim::Options options(std::size_t parameter) = 0;
  /// Returns the statistics of a parameter, in the order of optim::state_fields; makes those that are missing.
  virtual std::array<optim::View, optim::kMostStateFields> statistics(std::size_t parameter) = 0;
  /// Returns how many steps a parameter has taken.
  virtual std::int64_t steps_taken(std::size_t parameter) = 0;
  /// Counts a step that a parameter has taken.
  virtual void count_step(std::size_t parameter) = 0;
  /// Called before a step with the memory of its results. Returns what is told of stretches that are stepped while
  /// averages are still on their way (GradientWork::stepped); null: nobody asks.
  virtual std::function<void(const averaging::Stretch&)> watch_step(Place,
                                                                    std::vector<std::span<const float>> /*results*/) {
    return nullptr;
  }
  /// Returns the memory of what a round of the state averages after the parameters, as average_beside() has described
  /// it: host memory.
  virtual Task<std::vector<averaging::TensorSpan>> extra_parts(ParameterRound how);
  /// Takes the sums before the cut; overridden where the trainer's library adds them up by itself (reuse_grad_buffers).
  virtual Task<GradientSums::Taken> take_sums();
  /// Throws away what has been added up before the cut; overridden together with take_sums().
  virtual Task<void> drop_sums();

  /// Waits until no work on the pool uses the memory any more. The destructors of derived classes begin with it; after
  /// close() there is nothing to wait for.
  void wait_until_unused() noexcept;

  /// Returns the newest complete parameters: the next ones where a step or a round has made them; in host memory the
  /// live ones with the changes that publish() will add to them; else the live ones. A sum lasts until the next call.
  std::span<const float> newest(std::size_t parameter);
  /// Returns what publish() will add to a parameter; empty where it will not add anything.
  std::span<float> unpublished_change(std::size_t parameter) const {
    return has_changes() ? next_[parameter].values : std::span<float>();
  }
  /// Returns what keeps the memory of newest(), where that is not the live parameter's; else null.
  std::shared_ptr<const void> owner_of_next(std::size_t parameter) const {
    return has_next() ? next_[parameter].owner : nullptr;
  }
  /// Tells whether the step in progress writes the live parameters.
  bool steps_into_live() const noexcept;
  /// Tells whether there are next parameters, complete and not published yet.
  bool has_next() const noexcept { return pending_ == Pending::values; }
  /// Tells whether publish() has changes to add to the live parameters.
  bool has_changes() const noexcept { return pending_ == Pending::changes; }
  /// Forgets the next parameters: the live ones were replaced.
  void forget_next() noexcept { pending_ = Pending::nothing; }

 private:
  struct Stepping;
  Task<void> make_statistics();
  void make_next();

  Runtime& runtime_;
  const std::shared_ptr<Backend> backend_;
  std::vector<averaging::TensorInfo> gradient_infos_, state_infos_;
  GradientSums sums_;
  averaging::ResidualsPtr residuals_;
  std::optional<double> max_norm_;
  std::shared_ptr<Stepping> stepping_;  // from take_gradients to finish_step
  std::vector<Buffer> next_;            // from the first delayed work on; kept, as new memory costs time
  Pending pending_ = Pending::nothing;  // what is in them, and not published yet
  std::vector<float> newest_;           // a sum that newest() has returned
  std::optional<ParameterRound> round_;
  bool statistics_made_ = false;
  WorkCount work_;  // on the memory
};

}  // namespace cohive::train
