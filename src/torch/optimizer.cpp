#include "cohive/torch/optimizer.hpp"

#include <torch/torch.h>

#include <algorithm>

#include "cohive/core/log.hpp"
#include "cohive/torch/grad_scaler.hpp"
#include "described_tensors.hpp"
#include "known_optimizer.hpp"
#include "saved_training.hpp"
#include "torch_replica.hpp"
#include "train/membership.hpp"

namespace cohive {
namespace {

OptimizerOptions completed(OptimizerOptions options, const Swarm& swarm) {
  options.client_mode = options.client_mode || swarm.options().client_mode;
  train::check(options);
  return options;
}

}  // namespace

struct Optimizer::Impl {
  Impl(Swarm& s, OptimizerOptions opts) : membership(s.membership()), options(completed(std::move(opts), s)) {}
  ~Impl();

  void make_own_optimizer(std::vector<torch::optim::OptimizerParamGroup> groups, const OptimizerFactory& make);
  void open(std::vector<torch::Tensor> parameters, torch::optim::Optimizer& optimizer,
            const SchedulerFn& make_scheduler, ModelExtras extras);
  void destroy();
  /// How the gradients of a batch come.
  struct Scaled {
    double scale = 1;
    bool finite = true;
  };
  StepReport step(std::int64_t batch, Scaled gradients);
  std::int64_t take_batch(std::int64_t batch, Scaled gradients);
  void check_model() const;
  void settle();
  template <class F>
  auto wait_for(F make) {
    if (model) model->note_trainer();
    return membership.runtime().submit(std::move(make)).get();
  }
  /// The same for what uses the model.
  template <class F>
  auto use_model(F make) {
    check_model();
    return wait_for(std::move(make));
  }

  train::Membership& membership;
  OptimizerOptions options;
  std::unique_ptr<torch::optim::Optimizer> made;
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<torch::Tensor> stepped;  // in its groups
  libtorch::DescribedTensors described;
  std::unique_ptr<torch::optim::LRScheduler> scheduler;
  std::unique_ptr<libtorch::TorchReplica> model;
  std::unique_ptr<train::Run> run;
  StepReport settled;  // of work that was awaited between two steps: the next one reports it
};

void Optimizer::Impl::make_own_optimizer(std::vector<torch::optim::OptimizerParamGroup> groups,
                                         const OptimizerFactory& make) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : groups) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  libtorch::check_parameters(parameters);
  const bool copies = options.offload_optimizer && !(parameters.front().is_cpu() && libtorch::fit_for_fused_steps(parameters));
  made = make(copies ? libtorch::make_masters(groups) : std::move(groups));
  if (!made) throw std::invalid_argument("cohive::Optimizer: the function that makes the optimizer returned null");
}

void Optimizer::Impl::open(std::vector<torch::Tensor> tensors, torch::optim::Optimizer& of,
                           const SchedulerFn& make_scheduler, ModelExtras extras) {
  optimizer = &of;
  stepped = libtorch::parameters_of(of);
  if (make_scheduler) scheduler = make_scheduler(of);
  libtorch::check_parameters(tensors);
  described.add("parameter", tensors);
  if (made) described.add("the optimizer's parameter", stepped);
  const auto extra_tensors = extras.extra_tensors;
  auto trainer = libtorch::trainer_stream_of(tensors.front().device());  // of this thread
  // What lives on the loop's thread is made and destroyed there.
  try {
    membership.on_loop([&] {
      model = libtorch::make_replica(membership.runtime(),
                                     {std::move(tensors), of, scheduler.get(), std::move(extras), std::move(trainer)},
                                     options);
      run = std::make_unique<train::Run>(*membership.dht, membership.key, model->replica(), options);
    });
  } catch (...) {
    destroy();
    throw;
  }
  described.add("extra tensor", extra_tensors);
  if (auto opened = wait_for([this] { return run->open_checkpoints(); }); !opened) {
    destroy();
    throw ErrorException(opened.error());
  }
  membership.on_loop([this] { run->start(); });
}

void Optimizer::Impl::destroy() {
  membership.on_loop([this] { run.reset(); });
  if (model) wait_for([this] { return model->replica().close(); });
  membership.on_loop([this] { model.reset(); });
}

Optimizer::Impl::~Impl() {
  if (!run) return;
  wait_for([this] { return run->close(); });
  destroy();
}

/// Before anything uses the model.
void Optimizer::Impl::check_model() const {
  described.check();
  const auto same = [](const torch::Tensor& now, const torch::Tensor& then) { return now.is_same(then); };
  if (!std::ranges::equal(libtorch::parameters_of(*optimizer), stepped, same))
    throw std::logic_error(
        "cohive::Optimizer: the optimizer's groups have other parameters than when it was made collaborative, and peers "
        "average those: make another cohive::Optimizer for a new list");
}

/// Returns the samples that count.
std::int64_t Optimizer::Impl::take_batch(std::int64_t batch, Scaled gradients) {
  if (options.auxiliary) return 0;
  if (!gradients.finite) {
    model->intake().drop_batch();
    if (options.reuse_grad_buffers) run->forget_samples();
    return 0;
  }
  if (options.use_local_updates)
    model->step_locally(gradients.scale);
  else
    model->intake().take_batch(static_cast<double>(batch), gradients.scale);
  return batch;
}

StepReport Optimizer::Impl::step(std::int64_t batch, Scaled gradients) {
  if (batch < 1 && !options.auxiliary)
    throw std::invalid_argument("cohive::Optimizer: a batch has at least one sample");
  check_model();
  torch::NoGradGuard no_grad;
  StepReport report = std::exchange(settled, {});
  model->note_trainer();
  if (auto update = run->publish()) report = *update;
  if (run->count(take_batch(batch, gradients)) == train::Run::Next::synchronise) {
    const StepReport update = report;
    report = wait_for([this] { return run->synchronise(); });
    report.updated |= update.updated;
    report.bytes_sent += update.bytes_sent;
    if (report.grad_group == 0) report.grad_group = update.grad_group;
    if (report.state_group == 0) report.state_group = update.state_group;
  }
  report.epoch = run->epoch();
  run->checkpoint_if_due();
  return report;
}

/// Waits for delayed work and publishes it.
void Optimizer::Impl::settle() {
  const StepReport report = use_model([this] { return run->settle(); });
  if (report.updated) settled = report;
}

Optimizer::Optimizer(Swarm& swarm, torch::optim::Optimizer& optimizer, OptimizerOptions options, SchedulerFn scheduler,
                     ModelExtras extras)
    : impl_(std::make_unique<Impl>(swarm, std::move(options))) {
  impl_->open(libtorch::parameters_of(optimizer), optimizer, scheduler, std::move(extras));
}

Optimizer::Optimizer(Swarm& swarm, std::vector<torch::optim::OptimizerParamGroup> parameters,
                     const OptimizerFactory& make_optimizer, OptimizerOptions options, SchedulerFn scheduler,
                     ModelExtras extras)
    : impl_(std::make_unique<Impl>(swarm, std::move(options))) {
  std::vector<torch::Tensor> tensors;
  for (const auto& group : parameters) tensors.insert(tensors.end(), group.params().begin(), group.params().end());
  impl_->make_own_optimizer(std::move(parameters), make_optimizer);
  impl_->open(std::move(tensors), *impl_->made, scheduler, std::move(extras));
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
  if (!impl_->options.batch_size && !impl_->options.auxiliary)
    throw std::logic_error(
        "cohive::Optimizer: how many samples has the batch? Set batch_size in the options, or use step(batch_size)");
  return impl_->step(impl_->options.batch_size.value_or(0), {});
}

StepReport Optimizer::step(const at::Tensor& batch) {
  if (batch.dim() == 0) throw std::invalid_argument("cohive::Optimizer: a batch has a leading dimension");
  return impl_->step(batch.size(0), {});
}

void Optimizer::zero_grad() {
  if (!impl_->options.reuse_grad_buffers) impl_->optimizer->zero_grad();
}

bool Optimizer::load_state_from_peers() {
  return impl_->use_model([this] { return impl_->run->catch_up(); });
}
std::size_t Optimizer::average_parameters() {
  return impl_->use_model([this] { return impl_->run->average_parameters(); });
}
std::size_t Optimizer::finish() {
  return impl_->use_model([this] { return impl_->run->finish(); });
}

Result<> Optimizer::save_checkpoint(const std::filesystem::path& path) {
  return impl_->use_model([this, &path] { return impl_->run->save_checkpoint(path); });
}
Result<std::uint64_t> Optimizer::load_checkpoint(const std::filesystem::path& path) {
  return impl_->use_model([this, &path] { return impl_->run->load_checkpoint(path); });
}
Result<std::filesystem::path> Optimizer::checkpoint_now() {
  return impl_->use_model([this] { return impl_->run->checkpoint_now(); });
}
checkpoint::Metadata Optimizer::loaded_strings() const {
  return impl_->run->loaded_strings();
}

void Optimizer::clip_grad_norm(double max_norm) {
  impl_->membership.on_loop([&] { impl_->model->clip_grad_norm(max_norm); });
}

void Optimizer::report_loss(double loss) {
  impl_->run->report_loss(loss);
}

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  impl_->settle();
  libtorch::save_training(archive, *impl_->optimizer, impl_->run->epoch(), impl_->model->masters());
}

void Optimizer::load(torch::serialize::InputArchive& archive) {
  const std::uint64_t epoch = libtorch::saved_epoch(archive);
  if (epoch < local_epoch())
    throw std::invalid_argument("cohive::Optimizer: the archive is of epoch " + std::to_string(epoch) +
                                ", and this training has come to epoch " + std::to_string(local_epoch()));
  if (epoch > train::kMostEpochs)
    throw std::invalid_argument("cohive::Optimizer: the archive is of epoch " + std::to_string(epoch) +
                                ", to which no run comes");
  impl_->settle();
  const auto write = [this, &archive] {
    libtorch::load_training(archive, *impl_->optimizer, impl_->model->masters(), impl_->scheduler != nullptr);
    impl_->model->look_at_state();
  };
  impl_->use_model([&] { return impl_->run->restore(epoch, write); });
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
  return impl_->run->epoch();
}
TrainingStats Optimizer::stats() const {
  return impl_->run->stats();
}
const OptimizerOptions& Optimizer::options() const noexcept {
  return impl_->options;
}

}  // namespace cohive
