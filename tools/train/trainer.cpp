#include "train/trainer.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <sstream>
#include <utility>

#include "cohive/core/log.hpp"
#include "cohive/torch/grad_scaler.hpp"
#include "cohive/torch/lamb.hpp"
#include "cohive/torch/muon.hpp"
#include "cohive/torch/optimizer.hpp"
#include "common/program.hpp"
#include "common/signals.hpp"
#include "train/mixed_precision.hpp"
#include "train/progress.hpp"

namespace cohive::tools {
namespace {

constexpr std::size_t kFirstLosses = 8;  // their mean is where the loss began
// Half precision overflows now and then. So many batches in a row mean that the training has diverged.
constexpr std::size_t kOverflows = 8;

void save_parameters(const OutputFile& file, torch::nn::Module& model) {
  std::vector<torch::Tensor> tensors;
  std::vector<std::string_view> pieces;
  for (const auto& parameter : model.parameters()) {
    const auto& flat = tensors.emplace_back(parameter.detach().cpu().contiguous());
    pieces.emplace_back(static_cast<const char*>(flat.data_ptr()), flat.nbytes());
  }
  file.write(pieces);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                        std::vector<torch::optim::OptimizerParamGroup> groups) {
  using namespace torch::optim;
  if (options.algorithm == "sgd")
    return std::make_unique<SGD>(std::move(groups), SGDOptions(options.learning_rate).momentum(options.momentum));
  if (options.algorithm == "adam") return std::make_unique<Adam>(std::move(groups), AdamOptions(options.learning_rate));
  if (options.algorithm == "lamb")
    return std::make_unique<Lamb>(std::move(groups), cohive::LambOptions(options.learning_rate));
  if (options.algorithm == "muon") return std::make_unique<Muon>(std::move(groups));
  return std::make_unique<AdamW>(std::move(groups), AdamWOptions(options.learning_rate));
}

/// One group of all parameters; of muon the matrices, and the others with options of AdamW.
std::vector<torch::optim::OptimizerParamGroup> groups_of(Workload& workload, const TrainOptions& options) {
  using namespace torch::optim;
  if (options.algorithm != "muon") return {workload.parameters()};
  const auto matrices = workload.matrices();
  std::vector<torch::Tensor> others;
  for (const auto& parameter : workload.parameters())
    if (std::ranges::none_of(matrices, [&](const auto& one) { return one.is_same(parameter); }))
      others.push_back(parameter);
  return {{matrices, std::make_unique<MuonOptions>(MuonOptions(options.learning_rate).momentum(options.momentum))},
          {others, std::make_unique<AdamWOptions>(options.adamw_learning_rate.value_or(1e-3))}};
}

std::vector<torch::Tensor> parameters_in(const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<torch::Tensor> parameters;
  for (const auto& group : groups) parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return parameters;
}

std::optional<at::ScalarType> type_of(const std::string& mixed_precision) {
  if (mixed_precision == "float16") return at::kHalf;
  if (mixed_precision == "bfloat16") return at::kBFloat16;
  return std::nullopt;
}

class Trainer {
 public:
  Trainer(const TrainOptions& options, const Results& results, LocalGroupOptions ranks,
          std::unique_ptr<Workload> workload);
  int run();

 private:
  void join();
  ModelExtras extras() const;
  OptimizerOptions with_checkpoints();
  checkpoint::Metadata position() const;
  void go_on_from(const checkpoint::Metadata& strings);
  void write_checkpoint();

  void announce();
  void begin_together();
  bool at_end();
  StepReport step(const torch::Tensor& loss);
  torch::Tensor batch_loss();
  void report_loss(double value);
  void train_batch(const torch::Tensor& loss);
  void train_until_the_end();
  void evaluate_if_due(std::uint64_t epoch);
  void attempt(const std::function<void()>& work);
  std::size_t finish_training();
  void finish();
  nlohmann::json summary(std::size_t last_group);

  const TrainOptions& options_;
  const Results& results_;
  std::unique_ptr<Workload> workload_;
  std::mt19937_64 random_;
  const End end_;
  std::vector<double> first_losses_;
  double loss_ = 0;  ///< of batches whose loss is finite
  bool told_of_loss_ = false;
  std::size_t overflows_ = 0;  ///< batches in a row whose loss is not finite
  std::uint64_t batches_ = 0;
  bool failed_ = false;  ///< something that was tried at the end, or the data
  GradScaler scaler_;
  std::optional<std::uint64_t> epoch_before_step_;  ///< while the scaler does not know of the step that goes on
  LocalGroup ranks_;
  std::uint64_t next_evaluation_;
  // Of rank 0.
  Progress progress_;
  std::optional<Swarm> swarm_;
  std::optional<Optimizer> optimizer_;
  // Where there are several ranks.
  std::optional<LocalOptimizer> node_;
};

End end_of(const TrainOptions& options) {
  End end{.unix_time = options.until, .epochs = options.max_epochs};
  if (options.seconds > 0)
    end.time = SteadyClock::now() +
               std::chrono::duration_cast<SteadyClock::duration>(std::chrono::duration<double>(options.seconds));
  return end;
}

Trainer::Trainer(const TrainOptions& options, const Results& results, LocalGroupOptions ranks,
                 std::unique_ptr<Workload> workload)
    : options_(options),
      results_(results),
      workload_(std::move(workload)),
      random_(options.seed ? options.seed : std::random_device()()),
      end_(end_of(options)),
      scaler_({.enabled = options.mixed_precision == "float16"}),
      ranks_(std::move(ranks)),
      next_evaluation_(options.eval_every),
      progress_(choose_output(options.json), end_) {
  if (ranks_.leads()) join();
  if (ranks_.size() > 1)
    node_.emplace(ranks_, optimizer_ ? &*optimizer_ : nullptr, parameters_in(groups_of(*workload_, options_)));
}

/// Rank 0 becomes a peer, and goes on where a checkpoint says.
void Trainer::join() {
  swarm_.emplace(options_.swarm);
  optimizer_.emplace(
      *swarm_, groups_of(*workload_, options_),
      [this](auto groups) { return make_optimizer(options_, std::move(groups)); }, with_checkpoints(),
      options_.scheduler, extras());
  optimizer_->clip_grad_norm(options_.clip_grad_norm);
  if (!options_.load_checkpoint.empty() && optimizer_->loaded_strings().empty()) {
    const auto epoch = optimizer_->load_checkpoint(options_.load_checkpoint).value();
    progress_.say(log::format("epoch {} of {}", epoch, options_.load_checkpoint), "loaded", {{"epoch", epoch}});
  }
  go_on_from(optimizer_->loaded_strings());
  if (options_.optimizer.checkpoints.resume && !optimizer_->loaded_strings().empty())
    progress_.say(log::format("resumed at epoch {}", optimizer_->local_epoch()), "resumed",
                  {{"epoch", optimizer_->local_epoch()}});
}

/// What is averaged with the parameters.
ModelExtras Trainer::extras() const {
  ModelExtras result = options_.extras;
  result.extra_tensors = workload_->extra_tensors();
  return result;
}

// ---- Checkpoints

OptimizerOptions Trainer::with_checkpoints() {
  OptimizerOptions result = options_.optimizer;
  for (const auto& parameter : workload_->model().named_parameters())
    result.checkpoints.parameter_names.push_back(parameter.key());
  result.checkpoints.strings = [this] { return position(); };
  return result;
}

/// Batches are drawn at random: where the generator stands is the position in the data.
checkpoint::Metadata Trainer::position() const {
  std::ostringstream random;
  random << random_;
  checkpoint::Metadata strings{{"random", random.str()}, {"batches", std::to_string(batches_)}};
  if (!scaler_.is_enabled()) return strings;
  const bool epoch_ended = epoch_before_step_ && optimizer_->local_epoch() > *epoch_before_step_;
  const auto scale = scaler_.state_after_update(epoch_ended);
  strings.emplace("loss_scale", log::format("{}", scale.scale));
  strings.emplace("loss_scale_growth", std::to_string(scale.growth_tracker));
  return strings;
}

void Trainer::go_on_from(const checkpoint::Metadata& strings) {
  const auto read = [&strings](std::string_view name, auto& value) {
    const auto found = strings.find(name);
    if (found != strings.end()) std::istringstream(found->second) >> value;
  };
  read("random", random_);
  read("batches", batches_);
  GradScalerState scale = scaler_.state_dict();
  read("loss_scale", scale.scale);
  read("loss_scale_growth", scale.growth_tracker);
  scaler_.load_state_dict(scale);
}

void Trainer::write_checkpoint() {
  if (options_.optimizer.checkpoints.directory.empty()) return;
  const auto written = optimizer_->checkpoint_now();
  if (!written) throw Exit{kFailed, "--checkpoint-dir: " + written.error().message()};
  progress_.say("checkpoint " + written->string(), "checkpoint", {{"path", written->string()}});
}

// ---- Training

void Trainer::announce() {
  if (!ranks_.leads()) {
    progress_.say(log::format("rank {} of {}: rank 0 speaks for this machine", ranks_.rank(), ranks_.size()), "started",
                  {{"rank", ranks_.rank()}, {"ranks", ranks_.size()}});
    return;
  }
  std::string text = "peer " + swarm_->peer_id() + "\nOthers join with: " + swarm_->join_line() +
                     " cohive-train --run-id " + options_.optimizer.run_id + " ...";
  if (const auto url = swarm_->metrics_url(); !url.empty())
    text += "\nPage: " + swarm_->page_url() + "\nMetrics: " + url;
  auto fields = workload_->description();
  fields["peer_id"] = swarm_->peer_id();
  fields["run_id"] = options_.optimizer.run_id;
  fields["initial_peers"] = swarm_->visible_addresses();
  fields["page"] = swarm_->page_url();
  fields["metrics"] = swarm_->metrics_url();
  fields["ranks"] = ranks_.size();
  progress_.say(text, "started", std::move(fields));
}

/// All ranks begin with the newest state, and each one draws batches of its own.
void Trainer::begin_together() {
  if (!node_) {
    optimizer_->load_state_from_peers();
    return;
  }
  node_->load_state_from_peers();
  std::uint64_t seed = ranks_.leads() ? std::mt19937_64(random_)() : 0;
  ranks_.broadcast(&seed, sizeof seed);
  if (!ranks_.leads()) random_.seed(seed + ranks_.rank());
}

/// The same on all ranks, whichever got a signal.
bool Trainer::at_end() {
  float stopped = stop_signal() != 0 ? 1 : 0;
  ranks_.sum(&stopped, 1);
  bool end = false;
  if (ranks_.leads())
    end = stopped > 0 || end_.seconds_left() == 0 || (end_.epochs > 0 && optimizer_->local_epoch() >= end_.epochs);
  ranks_.broadcast(&end, sizeof end);
  return end;
}

StepReport Trainer::step(const torch::Tensor& loss) {
  if (node_) {
    loss.backward();
    return node_->step(options_.batch);
  }
  scaler_.scale(loss).backward();
  epoch_before_step_ = optimizer_->local_epoch();
  const StepReport report = scaler_.step(*optimizer_, options_.batch);
  scaler_.update();
  epoch_before_step_.reset();
  return report;
}

torch::Tensor Trainer::batch_loss() {
  const Autocast precision(workload_->parameters().front().device().type(), type_of(options_.mixed_precision));
  return workload_->batch_loss(options_.batch, random_);
}

/// The means leave a batch out whose loss is not finite. The metrics show such a loss, as the training may have
/// diverged.
void Trainer::report_loss(double value) {
  if (std::isfinite(value)) {
    overflows_ = 0;
    if (first_losses_.size() < kFirstLosses) first_losses_.push_back(value);
    loss_ = loss_ == 0 ? value : 0.95 * loss_ + 0.05 * value;
    if (optimizer_) optimizer_->report_loss(loss_);
    return;
  }
  if (!std::exchange(told_of_loss_, true))
    log::warn("train", "the loss of a batch is {}: means of losses are those of the other ones", value);
  ++overflows_;
  if (optimizer_ && (!scaler_.is_enabled() || overflows_ >= kOverflows)) optimizer_->report_loss(value);
}

void Trainer::train_batch(const torch::Tensor& loss) {
  ++batches_;
  report_loss(loss.item<double>());
  const StepReport report = step(loss);
  if (!ranks_.leads()) return;
  if (report.loaded_state)
    progress_.say(log::format("caught up: state of epoch {} downloaded", report.epoch), "caught_up",
                  {{"epoch", report.epoch}});
  evaluate_if_due(report.epoch);
}

void Trainer::evaluate_if_due(std::uint64_t epoch) {
  if (options_.eval_every == 0 || epoch < next_evaluation_) return;
  next_evaluation_ = epoch - epoch % options_.eval_every + options_.eval_every;
  const Evaluation found = workload_->evaluate();
  progress_.say(log::format("epoch {:4}  held-out loss {:.4f}, accuracy {:.3f}", epoch, found.loss, found.accuracy),
                "evaluation",
                {{"epoch", epoch}, {"loss", found.loss}, {"accuracy", found.accuracy}, {"batches", batches_}});
}

void Trainer::train_until_the_end() {
  auto next_report = SteadyClock::now();
  while (!at_end()) {
    torch::Tensor loss;
    if (node_)
      loss = batch_loss();  // other ranks would wait for this one
    else
      attempt([&] { loss = batch_loss(); });
    if (!loss.defined()) return;  // data that cannot be read any more leave the model as it is
    train_batch(loss);
    if (!ranks_.leads() || SteadyClock::now() < next_report) continue;
    progress_.report(optimizer_->stats(), loss_);
    next_report = SteadyClock::now() + progress_.period();
  }
}

int Trainer::run() {
  announce();
  if (stop_signal() == 0 || node_) begin_together();
  train_until_the_end();
  finish();
  return failed_ ? kFailed : 0;
}

// ---- The end

/// What fails here keeps nothing else from being tried.
void Trainer::attempt(const std::function<void()>& work) {
  try {
    work();
  } catch (...) {
    if (node_ && !ranks_.leads()) throw;
    report_failure();
    failed_ = true;
  }
}

std::size_t Trainer::finish_training() {
  // A peer that missed the last epoch must not pull the other peers back.
  if (node_) {
    node_->load_state_from_peers();
    return node_->finish();
  }
  optimizer_->load_state_from_peers();
  return optimizer_->finish();
}

void Trainer::finish() {
  if (!ranks_.leads()) {
    finish_training();
    return;
  }
  // A machine that is taken away may be gone before its peers have averaged with it once more.
  const bool at_once = stop_signal() != 0;
  if (at_once) attempt([this] { write_checkpoint(); });
  std::size_t group = 0;
  attempt([&] { group = finish_training(); });
  if (!at_once) attempt([this] { write_checkpoint(); });
  attempt([this] {
    if (results_.save) save_parameters(results_.save, workload_->model());
  });
  attempt([&] {
    const auto numbers = summary(group);
    attempt([&] { results_.summary.write(numbers.dump() + "\n"); });
    progress_.say("summary " + numbers.dump(), "summary", numbers);
  });
}

nlohmann::json Trainer::summary(std::size_t last_group) {
  const auto stats = optimizer_->stats();
  const Evaluation evaluation = workload_->evaluate();
  double first = 0;
  for (double value : first_losses_) first += value / static_cast<double>(first_losses_.size());
  return {{"peer_id", swarm_->peer_id()},
          {"epoch", stats.epoch},
          {"batches", batches_},
          {"loss_start", first},
          {"loss_end", loss_},
          {"eval_loss", evaluation.loss},
          {"eval_accuracy", evaluation.accuracy},
          {"eval_predictions", evaluation.predictions},
          {"learning_rate", optimizer_->optimizer().param_groups()[0].options().get_lr()},
          {"loss_scale", scaler_.get_scale()},
          {"ranks", ranks_.size()},
          {"grad_rounds", stats.grad_rounds},
          {"grad_rounds_agreed", stats.grad_rounds_agreed},
          {"grad_rounds_failed", stats.grad_rounds_failed},
          {"state_rounds", stats.state_rounds},
          {"state_rounds_failed", stats.state_rounds_failed},
          {"state_downloads", stats.state_downloads},
          {"states_followed", stats.states_followed},
          {"checkpoints", stats.checkpoints},
          {"checkpoints_failed", stats.checkpoints_failed},
          {"seconds_synchronised", stats.seconds_synchronised},
          {"bytes_sent", stats.bytes_sent},
          {"bytes_received", stats.bytes_received},
          {"final_group", last_group},
          {"rounds_by_group_size", stats.rounds_by_group_size}};
}

}  // namespace

LocalGroupOptions ranks_of_environment(const TrainOptions& options) {
  LocalGroupOptions ranks;
  try {
    ranks = LocalGroupOptions::from_environment();
  } catch (const std::invalid_argument& error) {
    throw Exit{kBadInput, error.what()};
  }
  const auto refuse = [&](const std::string& flag, const std::string& why) {
    throw Exit{kBadInput, log::format("{} does not go with {} ranks (LOCAL_WORLD_SIZE): {}", flag, ranks.size, why)};
  };
  if (ranks.size == 1) return ranks;
  const char* summed = "their gradients are summed in every batch";
  if (options.local_steps) refuse("--local-steps", summed);
  if (options.optimizer.use_local_updates) refuse("--use-local-updates", summed);
  if (options.optimizer.reuse_grad_buffers) refuse("--reuse-grad-buffers", summed);
  if (options.optimizer.auxiliary) refuse("--auxiliary", "it does not train");
  if (options.mixed_precision == "float16")
    refuse("--mixed-precision float16", "each rank would need a loss scale of its own; bfloat16 needs none");
  return ranks;
}

int train(const TrainOptions& options, const Results& results, LocalGroupOptions ranks,
          std::unique_ptr<Workload> workload) {
  return Trainer(options, results, std::move(ranks), std::move(workload)).run();
}

}  // namespace cohive::tools
