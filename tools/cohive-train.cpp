// cohive-train: trains a model, a transformer over text or a network for images, together with whoever joins the same
// run.
#include <torch/torch.h>

#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cohive/core/log.hpp"
#include "cohive/torch/lamb.hpp"
#include "cohive/torch/optimizer.hpp"
#include "cohive/torch/tensor_memory.hpp"
#include "common/program.hpp"
#include "train/options.hpp"
#include "train/progress.hpp"
#include "train/settings.hpp"
#include "train/workload.hpp"

namespace cohive::tools {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
void request_stop(int signal) {
  constexpr int kInterrupted = 128 + SIGINT;
  if (stop_requested && signal == SIGINT) ::_exit(kInterrupted);  // the second Ctrl+C does not wait for other peers
  stop_requested = 1;
}

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw Exit{kBadInput, "--compare: cannot read " + path};
  std::vector<float> values(static_cast<std::size_t>(file.tellg()) / sizeof(float));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(values.size() * sizeof(float)));
  return values;
}

/// Prints the largest difference between saved parameters, null where one is no number; fails above 1e-3.
int compare(const std::vector<std::string>& files) {
  const auto first = read_floats(files.front());
  if (first.empty()) throw Exit{kBadInput, "--compare: " + files.front() + " holds no parameters"};
  float largest = 0, magnitude = 0;
  for (const auto& path : files) {
    const auto other = read_floats(path);
    if (other.size() != first.size())
      throw Exit{kBadInput, "--compare: " + path + " holds another number of parameters"};
    for (std::size_t i = 0; i < first.size(); ++i) {
      const float difference = std::abs(first[i] - other[i]);
      largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
      magnitude = std::max(magnitude, std::abs(first[i]));
    }
  }
  std::cout << nlohmann::json{{"files", files.size()},
                              {"parameters", first.size()},
                              {"largest_difference", largest},
                              {"largest_parameter", magnitude}}
                   .dump()
            << std::endl;
  return largest <= 1e-3f ? 0 : kFailed;
}

/// What a run has learned must not be lost at its end.
void check_writable(const std::string& flag, const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  if (path.empty() || ::access(folder.empty() ? "." : folder.c_str(), W_OK) == 0) return;
  throw Exit{kBadInput, flag + ": cannot write " + path + ": " + std::strerror(errno)};
}

void save_parameters(const std::string& path, torch::nn::Module& model) {
  std::ofstream file(path, std::ios::binary);
  for (const auto& parameter : model.parameters()) {
    const auto flat = parameter.detach().contiguous();
    file.write(static_cast<const char*>(flat.data_ptr()), static_cast<std::streamsize>(flat.nbytes()));
  }
  if (!file) throw Exit{kFailed, "--save: cannot write " + path};
}

/// Prints how far the download of a state has come, about once a second.
class DownloadPrinter {
 public:
  explicit DownloadPrinter(bool json) : json_(json) {}

  void operator()(const averaging::DownloadProgress& progress) {
    const bool end = progress.bytes_total > 0 && progress.bytes_done == progress.bytes_total;
    if (!end && unix_time() < next_) return;
    next_ = unix_time() + 1;
    const double megabyte = 1e6, done = static_cast<double>(progress.bytes_done) / megabyte;
    if (json_) {
      std::cout << nlohmann::json{{"event", "download"},
                                  {"bytes_done", progress.bytes_done},
                                  {"bytes_total", progress.bytes_total},
                                  {"donors", progress.donors}}
                       .dump()
                << std::endl;
      return;
    }
    const std::string total =
        progress.bytes_total ? log::format(" of {:.1f}", static_cast<double>(progress.bytes_total) / megabyte) : "";
    std::cout << log::format("downloading the state: {:.1f}{} MB from {} {}", done, total, progress.donors,
                             progress.donors == 1 ? "donor" : "donors")
              << std::endl;
  }

 private:
  bool json_;
  double next_ = 0;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                        std::vector<torch::optim::OptimizerParamGroup> groups) {
  using namespace torch::optim;
  if (options.algorithm == "sgd")
    return std::make_unique<SGD>(std::move(groups), SGDOptions(options.learning_rate).momentum(options.momentum));
  if (options.algorithm == "adam") return std::make_unique<Adam>(std::move(groups), AdamOptions(options.learning_rate));
  if (options.algorithm == "lamb")
    return std::make_unique<Lamb>(std::move(groups), cohive::LambOptions(options.learning_rate));
  return std::make_unique<AdamW>(std::move(groups), AdamWOptions(options.learning_rate));
}

/// One trainer: the model, the swarm and the numbers of the summary.
class Trainer {
 public:
  Trainer(const TrainOptions& options, std::unique_ptr<Workload> workload)
      : options_(options),
        workload_(std::move(workload)),
        end_(options.until > 0     ? options.until
             : options.seconds > 0 ? unix_time() + options.seconds
                                   : 0),
        progress_(choose_output(options.json), options.optimizer.target_batch_size, {end_, options.max_epochs}),
        swarm_(options.swarm),
        optimizer_(
            swarm_, {workload_->parameters()},
            [&options](auto groups) { return make_optimizer(options, std::move(groups)); }, with_checkpoints(),
            options.scheduler, extras()) {
    optimizer_.clip_grad_norm(options.clip_grad_norm);
    if (!options.load_checkpoint.empty() && optimizer_.loaded_strings().empty()) {
      const auto epoch = optimizer_.load_checkpoint(options.load_checkpoint).value();
      progress_.say(log::format("epoch {} of {}", epoch, options.load_checkpoint), "loaded", {{"epoch", epoch}});
    }
    go_on_in_the_data(optimizer_.loaded_strings());
    if (options.optimizer.checkpoints.resume && !optimizer_.loaded_strings().empty())
      progress_.say(log::format("resumed at epoch {}", optimizer_.local_epoch()), "resumed",
                    {{"epoch", optimizer_.local_epoch()}});
  }

  int run() {
    announce();
    optimizer_.load_state_from_peers();
    double next_report = unix_time();
    while (!stop_requested && (end_ == 0 || unix_time() < end_) &&
           (options_.max_epochs == 0 || optimizer_.local_epoch() < options_.max_epochs)) {
      train_batch();
      if (unix_time() < next_report) continue;
      progress_.report(optimizer_.stats(), loss_);
      next_report = unix_time() + progress_.period();
    }
    // A machine that is taken away may be gone before the others have averaged with it once more.
    if (stop_requested) write_checkpoint();
    finish();
    return 0;
  }

 private:
  /// What is averaged with the parameters.
  ModelExtras extras() const {
    ModelExtras result = options_.extras;
    result.extra_tensors = workload_->extra_tensors();
    return result;
  }

  OptimizerOptions with_checkpoints() {
    OptimizerOptions result = options_.optimizer;
    for (const auto& parameter : workload_->model().named_parameters())
      result.checkpoints.parameter_names.push_back(parameter.key());
    // Batches are drawn at random: where the generator stands is the position in the data.
    result.checkpoints.strings = [this] {
      std::ostringstream random;
      random << random_;
      return checkpoint::Metadata{{"random", random.str()}, {"batches", std::to_string(batches_)}};
    };
    return result;
  }

  void go_on_in_the_data(const checkpoint::Metadata& strings) {
    const auto random = strings.find("random"), batches = strings.find("batches");
    if (random == strings.end() || batches == strings.end()) return;
    std::istringstream(random->second) >> random_;
    std::istringstream(batches->second) >> batches_;
  }

  void write_checkpoint() {
    if (options_.optimizer.checkpoints.directory.empty()) return;
    const auto written = optimizer_.checkpoint_now();
    if (!written) throw Exit{kFailed, "--checkpoint-dir: " + written.error().message()};
    progress_.say("checkpoint " + written->string(), "checkpoint", {{"path", written->string()}});
  }

  void announce() {
    std::string text = "peer " + swarm_.peer_id() + "\nOthers join with: " + swarm_.join_line() +
                       " cohive-train --run-id " + options_.optimizer.run_id + " ...";
    if (const auto url = swarm_.metrics_url(); !url.empty()) text += "\nPage: " + swarm_.page_url() + "\nMetrics: " + url;
    auto fields = workload_->description();
    fields["peer_id"] = swarm_.peer_id();
    fields["run_id"] = options_.optimizer.run_id;
    fields["initial_peers"] = swarm_.visible_addresses();
    fields["page"] = swarm_.page_url();
    fields["metrics"] = swarm_.metrics_url();
    progress_.say(text, "started", std::move(fields));
  }

  void train_batch() {
    const auto loss = workload_->batch_loss(options_.batch, random_);
    loss.backward();
    const double value = loss.item<double>();
    if (first_losses_.size() < 8) first_losses_.push_back(value);
    loss_ = loss_ == 0 ? value : 0.95 * loss_ + 0.05 * value;
    ++batches_;
    optimizer_.report_loss(loss_);
    const StepReport report = optimizer_.step(options_.batch);
    if (report.loaded_state)
      progress_.say(log::format("caught up: state of epoch {} downloaded", report.epoch), "caught_up",
                    {{"epoch", report.epoch}});
  }

  void finish() {
    optimizer_.load_state_from_peers();  // a peer that missed the last epoch must not pull the others back
    const std::size_t group = optimizer_.finish();
    if (!stop_requested) write_checkpoint();
    if (!options_.save.empty()) save_parameters(options_.save, workload_->model());
    const auto stats = optimizer_.stats();
    const Evaluation evaluation = workload_->evaluate();
    double first = 0;
    for (double value : first_losses_) first += value / static_cast<double>(first_losses_.size());
    nlohmann::json summary{{"peer_id", swarm_.peer_id()},
                           {"epoch", stats.epoch},
                           {"batches", batches_},
                           {"loss_start", first},
                           {"loss_end", loss_},
                           {"eval_loss", evaluation.loss},
                           {"eval_accuracy", evaluation.accuracy},
                           {"eval_predictions", evaluation.predictions},
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
                           {"final_group", group},
                           {"rounds_by_group_size", stats.rounds_by_group_size}};
    if (!options_.summary.empty()) std::ofstream(options_.summary) << summary.dump() << '\n';
    progress_.say("summary " + summary.dump(), "summary", summary);
  }

  const TrainOptions& options_;
  std::unique_ptr<Workload> workload_;
  std::mt19937_64 random_{options_.seed ? options_.seed : std::random_device()()};
  double end_;  ///< Unix time; 0: none is set
  Progress progress_;
  std::vector<double> first_losses_;
  double loss_ = 0;
  std::uint64_t batches_ = 0;
  Swarm swarm_;
  Optimizer optimizer_;
};

/// Says what a run with these options would do.
int dry_run(const TrainOptions& options, Workload& workload) {
  auto plan = workload.description();
  const auto& run = options.optimizer;
  const auto peers = options.swarm.initial_peers.size();
  plan["run_id"] = run.run_id;
  plan["optimizer"] = options.algorithm;
  plan["learning_rate"] = options.learning_rate;
  plan["batch_size"] = options.batch;
  plan["target_batch_size"] = run.target_batch_size;
  plan["initial_peers"] = options.swarm.initial_peers;
  const std::string text = log::format(
      "{}, {} parameters\n{}\n{} with learning rate {}; {} samples per step, {} per epoch of all peers\nrun {}, {}",
      plan["model"].get<std::string>(), plan["parameters"].get<std::int64_t>(), plan["data"].get<std::string>(),
      options.algorithm, options.learning_rate, options.batch, run.target_batch_size, run.run_id,
      peers == 0 ? std::string("a new swarm")
                 : log::format("joined through {} {}", peers, peers == 1 ? "address" : "addresses"));
  Progress(options.json ? Output::json : Output::lines, run.target_batch_size, {})
      .say(text, "dry_run", std::move(plan));
  return 0;
}

int run(TrainOptions& options) {
  log::configure(options.log);
  if (!options.compare.empty()) return compare(options.compare);
  check_writable("--save", options.save);
  check_writable("--summary", options.summary);
  options.swarm.initial_peers = initial_peers(options.swarm.initial_peers);
  parse_initial_peers(options.swarm.initial_peers);
  parse_addresses(options.swarm.host_maddrs, "--host-maddrs");
  parse_addresses(options.swarm.announce_maddrs, "--announce-maddrs");
  complete(options);
  options.optimizer.on_download = DownloadPrinter(options.json);
  options.swarm.give_up = [] { return stop_requested != 0; };
  recycle_tensor_memory();
  options.swarm.diagnostics_at_signal = true;
  torch::set_num_threads(options.threads);
  auto workload = make_workload(options.workload);
  if (options.dry_run) return dry_run(options, *workload);
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  return Trainer(options, std::move(workload)).run();
}

}  // namespace
}  // namespace cohive::tools

int main(int argc, char** argv) {
  using namespace cohive::tools;
  TrainOptions options;
  cohive::transport::BandwidthLimits limits;
  CLI::App app("Trains a model together with others: a transformer over text, or a network for images.",
               "cohive-train");
  add_train_options(app, options);
  add_bandwidth_options(app, limits);
  add_log_options(app, options.log);
  add_settings(app);
  return run_program(argc, argv, app, [&] {
    refuse_unknown_variables(app);
    options.swarm.max_upload = limits.upload;
    options.swarm.max_download = limits.download;
    return run(options);
  });
}
