#include "fused_model.hpp"

#include "cohive/optim/passes.hpp"
#include "versions.hpp"

namespace cohive::libtorch {
namespace {

std::vector<averaging::TensorInfo> infos_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<averaging::TensorInfo> infos;
  for (const auto& parameter : parameters) {
    infos.emplace_back();
    infos.back().shape = shape_of(parameter);
    infos.back().dtype = *dtype_of(parameter);
  }
  return infos;
}

std::span<float> span_of(const torch::Tensor& tensor) {
  return {tensor.data_ptr<float>(), static_cast<std::size_t>(tensor.numel())};
}

std::unique_ptr<GradientDownload> make_download(const std::shared_ptr<train::DeviceLink>& link, const ModelParts& parts,
                                                const OptimizerOptions& options) {
  if (!link || options.use_local_updates || options.auxiliary) return nullptr;
  return std::make_unique<GradientDownload>(link, parts.parameters, options.offload_gradients_early);
}

}  // namespace

FusedModel::FusedModel(Runtime& runtime, std::shared_ptr<train::Backend> backend,
                       std::shared_ptr<train::DeviceLink> link, std::shared_ptr<TrainerStream> trainer,
                       ModelParts parts, KnownOptimizer known, const OptimizerOptions& options)
    : FusedReplica(runtime, infos_of(parts.parameters), std::move(backend)),
      optimizer_(parts.optimizer),
      known_(std::move(known)),
      parameters_(parameters_of(parts.optimizer)),
      mirrors_(parts.parameters.front().is_same(parameters_.front()) ? std::vector<torch::Tensor>() : parts.parameters),
      link_(std::move(link)),
      trainer_(std::move(trainer)),
      upload_(link_ ? std::make_unique<ParameterUpload>(link_, mirrors_) : nullptr),
      intake_(sums(), parts.parameters, parameters_.front().device(), trainer_, options.reuse_grad_buffers,
              make_download(link_, parts, options)),
      extras_(make_round_extras(parts, options)),
      schedule_(parts.make_scheduler, parts.optimizer),
      layout_(schedule_.entries(), parts.extras.python) {
  average_beside(extras_.infos());
}

FusedModel::~FusedModel() {
  wait_until_unused();
}

std::span<float> FusedModel::live(std::size_t parameter) {
  return span_of(parameters_[parameter]);
}

/// The parameter stays the same tensor to everything that refers to it; only its memory is another one.
void FusedModel::exchange_live(std::size_t parameter, train::Buffer& next) {
  torch::NoGradGuard no_grad;
  torch::Tensor& tensor = parameters_[parameter];
  torch::Tensor before = tensor.detach();  // keeps the memory
  auto owner = std::move(next.owner);
  tensor.set_data(torch::from_blob(
      next.values.data(), tensor.sizes(), [owner](void*) mutable { owner.reset(); }, before.options()));
  note_replaced(tensor);
  const auto values = span_of(before);
  next = {std::make_shared<torch::Tensor>(std::move(before)), values};
}

/// What the gradients of a batch are multiplied by: without the loss's scale their norm is within its bound then.
double FusedModel::local_factor(double scale) const {
  if (!max_norm()) return 1 / scale;
  double squares = 0;
  for (const auto& parameter : trained()) {
    const auto& gradient = parameter.grad();
    if (!gradient.defined()) continue;
    const auto type = gradient.scalar_type() == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32;
    const auto norm = at::linalg_vector_norm(gradient, 2, std::nullopt, false, type).item<double>() / scale;
    squares += norm * norm;
  }
  return optim::clip_coefficient(squares, *max_norm()) / scale;
}

void FusedModel::step_locally(double scale) {
  torch::NoGradGuard no_grad;
  const std::lock_guard lock(stepping_);
  make_gradients_dense(trained());
  const double factor = local_factor(scale);
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    auto& gradient = trained()[i].mutable_grad();
    if (!gradient.defined()) continue;
    const torch::Tensor values = gradient.to(torch::kCPU, torch::kFloat32).contiguous();
    const auto live_values = live(i);
    const auto number = known_.steps_taken(i) + 1;
    const optim::TensorMemory memory{
        std::span<const float>(live_values), live_values, {}, span_of(values), known_.statistics(i)};
    optim::TensorStep step(known_.options(i), memory, {.step = number, .gradient_factor = factor});
    at::parallel_for(0, static_cast<std::int64_t>(step.size()), std::int64_t{1} << 20,
                     [&](std::int64_t begin, std::int64_t end) {
                       step.run(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
                     });
    if (step.has_second_phase()) {
      step.settle();
      step.finish(0, step.size());
    }
    known_.count_step(i);
    note_written(parameters_[i]);
    gradient.reset();
    if (!mirrors_.empty()) mirrors_[i].copy_(parameters_[i]);
  }
}

/// A trainer that gives a parameter other memory, as model->to() does, is told of it in its next call: until then the
/// memory that is in use stays.
void FusedModel::hold_memory() {
  held_.clear();
  for (const auto* tensors : {&parameters_, &mirrors_})
    for (const auto& tensor : *tensors) held_.push_back(tensor.detach());
}

void FusedModel::note_all_written() const {
  for (const auto& parameter : parameters_) note_written(parameter);
}

// ---- Mirrors

Task<void> FusedModel::show_in_mirrors() {
  if (mirrors_.empty()) co_return;
  co_await runtime().offload([this, used = in_use()] { copy_to_mirrors(); });
}

void FusedModel::copy_to_mirrors() {
  torch::NoGradGuard no_grad;
  const auto turn = trainer_->in_turn();
  if (upload_) return upload_->send(parameters_);
  for (std::size_t i = 0; i < mirrors_.size(); ++i) mirrors_[i].copy_(parameters_[i]);
}

/// Converts the next parameters for their mirrors, so that publish() has only to queue copies.
Task<void> FusedModel::stage_next() {
  if (!upload_ || !has_next()) co_return;
  co_await runtime().offload([this, used = in_use()] {
    upload_->begin(false);
    upload_->finish(newest_parameters());
  });
}

/// What is stepped is converted while it is in a cache. Where the trainer waits it goes to the device right away.
std::function<void(const averaging::Stretch&)> FusedModel::watch_step(train::Place place,
                                                                      std::vector<std::span<const float>> results) {
  if (!upload_) return nullptr;
  upload_->begin(place == train::Place::live);
  return [this, results = std::move(results)](const averaging::Stretch& stretch) {
    upload_->stage(stretch, results[stretch.tensor].subspan(stretch.offset, stretch.length));
  };
}

Task<void> FusedModel::finish_step(std::uint64_t epoch, bool step) {
  const bool live_changes = steps_into_live();
  co_await FusedReplica::finish_step(epoch, step);
  if (live_changes) note_all_written();
  if (upload_ && upload_->begun()) {
    if (step)
      co_await runtime().offload([this, used = in_use()] {
        const auto turn = trainer_->in_turn();
        upload_->finish(newest_parameters());
      });
    else
      upload_->forget();
  } else if (step && live_changes) {
    co_await show_in_mirrors();
  }
}

Task<bool> FusedModel::finish_state(bool averaged) {
  const bool publishable = co_await FusedReplica::finish_state(averaged);
  if (std::exchange(averages_live_, false)) note_all_written();
  extras_.end(averaged);
  if (averaged && !extras_.empty()) co_await runtime().offload([this, used = in_use()] { extras_.stage(*trainer_); });
  co_await stage_next();
  if (averaged && !publishable) {
    if (!extras_.empty())
      co_await runtime().offload([this, used = in_use()] {
        const auto turn = trainer_->in_turn();
        extras_.publish();
      });
    co_await show_in_mirrors();
  }
  co_return publishable;
}

void FusedModel::publish() {
  const auto turn = trainer_->in_turn();  // it may be a thread of the pool that publishes
  const bool staged = upload_ && upload_->ready() && has_next(), adds = has_changes();
  FusedReplica::publish();
  if (adds) note_all_written();
  extras_.publish();
  staged ? upload_->send() : copy_to_mirrors();
}

// ---- What is averaged beside parameters

Task<void> FusedModel::hold_state() {
  if (!extras_.empty()) co_await runtime().offload([this, used = in_use()] { extras_.hold_tensors(*trainer_); });
}

Task<std::vector<averaging::TensorSpan>> FusedModel::extra_parts(train::ParameterRound how) {
  if (extras_.empty()) co_return std::vector<averaging::TensorSpan>();
  co_return co_await runtime().offload([this, how, used = in_use()] { return extras_.begin(how, *trainer_); });
}

// ---- The state as a whole

std::vector<torch::Tensor> FusedModel::newest_parameters() {
  torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> result;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (has_changes()) {
      const auto change =
          torch::from_blob(unpublished_change(i).data(), parameters_[i].sizes(), parameters_[i].options());
      result.push_back(with_change(parameters_[i], change));
      continue;
    }
    const auto values = newest(i);
    torch::Tensor tensor = values.data() == live(i).data()
                               ? parameters_[i]
                               : torch::from_blob(
                                     const_cast<float*>(values.data()), parameters_[i].sizes(),
                                     [owner = owner_of_next(i)](void*) {}, parameters_[i].options());
    result.push_back(std::move(tensor));
  }
  return result;
}

/// False once a trainer has changed the model, of which its next call will tell it.
bool FusedModel::is_as_described() const {
  std::size_t number = 0;
  return std::ranges::all_of(parameters_, [&](const torch::Tensor& parameter) {
    return parameter.scalar_type() == torch::kFloat32 && parameter.is_contiguous() &&
           static_cast<std::size_t>(parameter.numel()) == gradient_infos()[number++].elements();
  });
}

Task<std::optional<averaging::SharedState>> FusedModel::snapshot(std::uint64_t epoch) {
  co_return co_await runtime().offload([this, epoch, used = in_use()]() -> std::optional<averaging::SharedState> {
    const std::lock_guard lock(stepping_);
    if (!is_as_described()) return std::nullopt;
    const auto beside = trainer_->beside();
    return copy_unless_changed(parameters_, [&] {
      return describe_state(optimizer_, newest_parameters(), epoch, extras_.tensors(), layout_);
    });
  });
}

/// publish() writes to statistics that are averaged, while newcomers may read.
Task<std::optional<averaging::SharedState>> FusedModel::view(std::uint64_t epoch) {
  if (!parameters_.front().is_cpu() || has_changes() || extras_.has_statistics()) co_return co_await snapshot(epoch);
  co_return co_await runtime().offload([this, epoch, used = in_use()]() -> std::optional<averaging::SharedState> {
    torch::NoGradGuard no_grad;
    const std::lock_guard lock(stepping_);
    if (!is_as_described()) return std::nullopt;
    return view_of(describe_state(optimizer_, newest_parameters(), epoch, extras_.tensors(), layout_));
  });
}

Task<Result<std::uint64_t>> FusedModel::load(averaging::DownloadedState state, std::uint64_t least_epoch) {
  forget_next();
  extras_.forget();
  auto shared = std::make_shared<averaging::DownloadedState>(std::move(state));
  auto loaded = co_await runtime().offload([this, shared, least_epoch, used = in_use()] {
    const auto turn = trainer_->in_turn();
    auto loaded = load_state(optimizer_, parameters_, *shared, least_epoch, extras_.tensors(), layout_);
    known_.look_at_state();
    backend().follow_caller();
    return loaded;
  });
  if (loaded) co_await show_in_mirrors();
  co_return loaded;
}

void FusedModel::look_at_state() {
  forget_next();
  extras_.forget();
  known_.look_at_state();
  backend().follow_caller();
  copy_to_mirrors();
}

}  // namespace cohive::libtorch
