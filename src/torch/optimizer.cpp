#include "cohive/torch/optimizer.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "cohive/core/log.hpp"
#include "cohive/torch/grad_scaler.hpp"
#include "cohive/train/trainer.hpp"
#include "described_tensors.hpp"
#include "known_optimizer.hpp"
#include "refuse.hpp"
#include "saved_training.hpp"
#include "torch_replica.hpp"

namespace cohive {
namespace {

bool are_same(const std::vector<torch::Tensor>& some, const std::vector<torch::Tensor>& others) {
  return std::ranges::equal(some, others, [](const auto& one, const auto& other) { return one.is_same(other); });
}

}  // namespace

struct Optimizer::Impl {
  Impl(Swarm& s, OptimizerOptions opts) : swarm(s), given(std::move(opts)) { train::check(given); }
  ~Impl() {
    if (trainer) model->sync_with_caller_stream();  // closing may write parameters
  }

  void make_own_optimizer(std::vector<torch::optim::OptimizerParamGroup> groups, const OptimizerFactory& make);
  void open(std::vector<torch::Tensor> parameters, torch::optim::Optimizer& optimizer, SchedulerFn make_scheduler,
            ModelExtras extras);
  /// How the gradients of a batch come.
  struct Scaled {
    double scale = 1;
    std::optional<bool> finite = std::nullopt;  // unset: nobody has looked
  };
  StepReport step(std::int64_t batch, Scaled gradients);
  std::int64_t take_batch(std::int64_t batch, Scaled gradients);
  bool steps_can_use(Scaled gradients);
  void check_model() const;
  /// The run, for a call that uses the model and waits.
  train::Trainer& use_model() {
    check_model();
    model->sync_with_caller_stream();
    return *trainer;
  }

  Swarm& swarm;
  const OptimizerOptions given;
  std::unique_ptr<torch::optim::Optimizer> made;
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<torch::Tensor> stepped;  // in its groups
  libtorch::DescribedTensors described;
  std::shared_ptr<libtorch::TrainerStream> stream;  // of the trainer
  bool scheduled = false;                           // the learning rates follow a scheduler
  bool told_of_batches = false;                     // that are not finite
  libtorch::TorchReplica* model = nullptr;          // the trainer's
  std::unique_ptr<train::Trainer> trainer;
};

void Optimizer::Impl::make_own_optimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                         const OptimizerFactory& make) {
  const auto parameters = libtorch::parameters_of(groups);
  libtorch::check_parameters(parameters);
  const bool copies =
      given.offload_optimizer && !(parameters.front().is_cpu() && libtorch::fit_for_fused_steps(parameters));
  if (copies) groups = libtorch::make_masters(groups);
  const auto handed = libtorch::parameters_of(groups);
  made = make(std::move(groups));
  libtorch::demand(made != nullptr, "the function that makes the optimizer returned null");
  libtorch::demand(are_same(libtorch::parameters_of(*made), handed),
                   "the function that makes the optimizer has given it other parameters than the groups that it is "
                   "handed have, or has changed their order, by which peers know them: pass those groups on");
}

void Optimizer::Impl::open(std::vector<torch::Tensor> tensors, torch::optim::Optimizer& of, SchedulerFn make_scheduler,
                           ModelExtras extras) {
  optimizer = &of;
  stepped = libtorch::parameters_of(of);
  scheduled = make_scheduler != nullptr;
  libtorch::check_parameters(tensors);
  described.add("parameter", tensors);
  if (made) described.add("the optimizer's parameter", stepped);
  const auto extra_tensors = extras.extra_tensors;
  stream = libtorch::trainer_stream_of(tensors.front().device());  // of this thread
  stream->note();
  const auto make = [&](Runtime& runtime, train::TrainerThread&) {
    std::shared_ptr<libtorch::TorchReplica> replica = libtorch::make_replica(
        runtime, {std::move(tensors), of, std::move(make_scheduler), std::move(extras), stream}, given);
    model = replica.get();
    return std::shared_ptr<train::Replica>(replica, &model->replica());
  };
  trainer = std::make_unique<train::Trainer>(swarm, given, make);
  described.add("extra tensor", extra_tensors);
}

/// Before anything uses the model.
void Optimizer::Impl::check_model() const {
  described.check();
  if (!are_same(libtorch::parameters_of(*optimizer), stepped))
    throw std::logic_error(
        "cohive::Optimizer: the optimizer's groups have other parameters than when it was made collaborative, and "
        "peers "
        "average those: make another cohive::Optimizer for a new list");
}

/// Sums of gradients are looked through as they are added up. A local step would spoil the parameters at once.
bool Optimizer::Impl::steps_can_use(Scaled gradients) {
  if (gradients.finite || !given.use_local_updates) return gradients.finite.value_or(true);
  const bool finite = model->intake().all_finite();
  if (!finite && !std::exchange(told_of_batches, true))
    log::warn("torch", "gradients of a batch are not finite: it does not count, nor do the next ones until some are");
  told_of_batches &= !finite;
  return finite;
}

/// Returns the samples that count.
std::int64_t Optimizer::Impl::take_batch(std::int64_t batch, Scaled gradients) {
  if (given.auxiliary) return 0;
  if (!steps_can_use(gradients)) {
    model->intake().drop_batch();
    if (given.reuse_grad_buffers) trainer->forget_samples();
    return 0;
  }
  if (given.use_local_updates)
    model->step_locally(gradients.scale);
  else
    model->intake().take_batch(static_cast<double>(batch), gradients.scale);
  return batch;
}

StepReport Optimizer::Impl::step(std::int64_t batch, Scaled gradients) {
  if (batch < 1 && !given.auxiliary) throw std::invalid_argument("cohive::Optimizer: a batch has at least one sample");
  check_model();
  torch::NoGradGuard no_grad;
  model->sync_with_caller_stream();
  return trainer->step([&] {
    const auto counted = take_batch(batch, gradients);
    model->sync_with_caller_stream();
    return counted;
  });
}

Optimizer::Optimizer(Swarm& swarm, torch::optim::Optimizer& optimizer, OptimizerOptions options, SchedulerFn scheduler,
                     ModelExtras extras)
    : impl_(std::make_unique<Impl>(swarm, std::move(options))) {
  impl_->open(libtorch::parameters_of(optimizer), optimizer, std::move(scheduler), std::move(extras));
}

Optimizer::Optimizer(Swarm& swarm, std::vector<torch::optim::OptimizerParamGroup> parameters,
                     const OptimizerFactory& make_optimizer, OptimizerOptions options, SchedulerFn scheduler,
                     ModelExtras extras)
    : impl_(std::make_unique<Impl>(swarm, std::move(options))) {
  auto tensors = libtorch::parameters_of(parameters);
  impl_->make_own_optimizer(std::move(parameters), make_optimizer);
  impl_->open(std::move(tensors), *impl_->made, std::move(scheduler), std::move(extras));
}

Optimizer::~Optimizer() = default;

StepReport Optimizer::step(std::int64_t batch_size) {
  return impl_->step(batch_size, {});
}

StepReport Optimizer::step(std::int64_t batch_size, GradScaler& scaler) {
  if (!scaler.is_enabled()) return impl_->step(batch_size, {});
  const bool finite = scaler.looked_at_ == this ? scaler.looked_finite_ : scaler.unscale_(*this);
  const auto report = impl_->step(batch_size, {scaler.get_scale(), finite});
  scaler.stepped(finite, report.epoch_changed);
  return report;
}

bool Optimizer::has_finite_gradients() const {
  return impl_->model->intake().all_finite();
}

StepReport Optimizer::step() {
  if (!impl_->given.batch_size && !impl_->given.auxiliary)
    throw std::logic_error(
        "cohive::Optimizer: how many samples has the batch? Set batch_size in the options, or use step(batch_size)");
  return impl_->step(impl_->given.batch_size.value_or(0), {});
}

StepReport Optimizer::step(const at::Tensor& batch) {
  if (batch.dim() == 0) throw std::invalid_argument("cohive::Optimizer: a batch has a leading dimension");
  return impl_->step(batch.size(0), {});
}

void Optimizer::zero_grad() {
  if (!impl_->given.reuse_grad_buffers) impl_->optimizer->zero_grad();
}

bool Optimizer::load_state_from_peers() {
  return impl_->use_model().load_state_from_peers();
}
std::size_t Optimizer::average_parameters() {
  return impl_->use_model().average_parameters();
}
std::size_t Optimizer::finish() {
  return impl_->use_model().finish();
}

Result<> Optimizer::save_checkpoint(const std::filesystem::path& path) {
  return impl_->use_model().save_checkpoint(path);
}
Result<std::uint64_t> Optimizer::load_checkpoint(const std::filesystem::path& path) {
  return impl_->use_model().load_checkpoint(path);
}
Result<std::filesystem::path> Optimizer::checkpoint_now() {
  return impl_->use_model().checkpoint_now();
}
checkpoint::Metadata Optimizer::loaded_strings() const {
  return impl_->trainer->loaded_strings();
}

void Optimizer::clip_grad_norm(double max_norm) {
  impl_->trainer->on_loop([&] { impl_->model->clip_grad_norm(max_norm); });
}

void Optimizer::report_loss(double loss) {
  impl_->trainer->report_loss(loss);
}

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  impl_->use_model().settle();
  libtorch::save_training(archive, *impl_->optimizer, local_epoch(), impl_->model->masters());
}

void Optimizer::load(torch::serialize::InputArchive& archive) {
  const std::uint64_t epoch = libtorch::saved_epoch(archive);
  if (epoch < local_epoch())
    throw std::invalid_argument("cohive::Optimizer: the archive is of epoch " + std::to_string(epoch) +
                                ", and this training has come to epoch " + std::to_string(local_epoch()));
  if (epoch > train::kMostEpochs)
    throw std::invalid_argument("cohive::Optimizer: the archive is of epoch " + std::to_string(epoch) +
                                ", to which no run comes");
  impl_->use_model().settle();
  const auto write = [this, &archive] {
    const auto turn = impl_->stream->in_turn();
    libtorch::load_training(archive, *impl_->optimizer, impl_->model->masters(), impl_->scheduled);
    impl_->model->look_at_state();
  };
  impl_->use_model().restore(epoch, write);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const Optimizer& optimizer) {
  optimizer.save(archive);
  return archive;
}
torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, Optimizer& optimizer) {
  optimizer.load(archive);
  return archive;
}

torch::optim::Optimizer& Optimizer::optimizer() noexcept {
  return *impl_->optimizer;
}
std::uint64_t Optimizer::local_epoch() const {
  return impl_->trainer->epoch();
}
TrainingStats Optimizer::stats() const {
  return impl_->trainer->stats();
}
const OptimizerOptions& Optimizer::options() const noexcept {
  return impl_->trainer->options();
}

}  // namespace cohive
