// cohive-train: trains a small character-level transformer together with whoever joins the same run.
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
#include "train/model.hpp"
#include "train/options.hpp"
#include "train/text.hpp"

namespace cohive::tools {
namespace {

volatile std::sig_atomic_t stop_requested = 0;
void request_stop(int) {
  stop_requested = 1;
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
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
  void operator()(const averaging::DownloadProgress& progress) {
    const bool end = progress.bytes_total > 0 && progress.bytes_done == progress.bytes_total;
    if (!end && unix_time() < next_) return;
    next_ = unix_time() + 1;
    const double megabyte = 1e6, done = static_cast<double>(progress.bytes_done) / megabyte;
    const std::string total =
        progress.bytes_total ? log::format(" of {:.1f}", static_cast<double>(progress.bytes_total) / megabyte) : "";
    std::cout << log::format("downloading the state: {:.1f}{} MB from {} {}", done, total, progress.donors,
                             progress.donors == 1 ? "donor" : "donors")
              << std::endl;
  }

 private:
  double next_ = 0;
};

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const TrainOptions& options,
                                                        std::vector<torch::optim::OptimizerParamGroup> groups) {
  using namespace torch::optim;
  if (options.algorithm == "sgd")
    return std::make_unique<SGD>(std::move(groups), SGDOptions(options.learning_rate).momentum(options.momentum));
  if (options.algorithm == "adam") return std::make_unique<Adam>(std::move(groups), AdamOptions(options.learning_rate));
  if (options.algorithm == "lamb") return std::make_unique<Lamb>(std::move(groups), cohive::LambOptions(options.learning_rate));
  return std::make_unique<AdamW>(std::move(groups), AdamWOptions(options.learning_rate));
}

/// One trainer: the model, the swarm and the numbers of the summary.
class Trainer {
 public:
  explicit Trainer(const TrainOptions& options)
      : options_(options),
        text_(read_text(options.text, static_cast<std::size_t>(options.model.context) * 4)),
        vocabulary_(text_),
        symbols_(vocabulary_.encode(text_)),
        model_(model_options()),
        swarm_(options.swarm),
        optimizer_(
            swarm_, {model_->parameters()},
            [&options](auto groups) { return make_optimizer(options, std::move(groups)); }, with_checkpoints(),
            options.scheduler, options.extras) {
    optimizer_.clip_grad_norm(options.clip_grad_norm);
    if (!options.load_checkpoint.empty() && optimizer_.loaded_strings().empty())
      std::cout << "epoch " << optimizer_.load_checkpoint(options.load_checkpoint).value() << " of " << options.load_checkpoint
                << std::endl;
    go_on_in_the_data(optimizer_.loaded_strings());
    if (options.optimizer.checkpoints.resume && !optimizer_.loaded_strings().empty())
      std::cout << "resumed at epoch " << optimizer_.local_epoch() << std::endl;
  }

  int run() {
    announce();
    optimizer_.load_state_from_peers();
    const double start = unix_time();
    const double end = options_.until > 0 ? options_.until : options_.seconds > 0 ? start + options_.seconds : 1e18;
    double next_report = start;
    while (!stop_requested && unix_time() < end &&
           (options_.max_epochs == 0 || optimizer_.local_epoch() < options_.max_epochs)) {
      train_batch();
      if (unix_time() < next_report) continue;
      print_progress();
      next_report = unix_time() + options_.report_every;
    }
    // A machine that is taken away may be gone before the others have averaged with it once more.
    if (stop_requested) write_checkpoint();
    finish();
    if (!stop_requested) write_checkpoint();
    return 0;
  }

 private:
  OptimizerOptions with_checkpoints() {
    OptimizerOptions result = options_.optimizer;
    for (const auto& parameter : model_->named_parameters()) result.checkpoints.parameter_names.push_back(parameter.key());
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
    std::cout << "checkpoint " << written->string() << std::endl;
  }

  ModelOptions model_options() const {
    ModelOptions model = options_.model;
    model.vocabulary = vocabulary_.size();
    torch::manual_seed(42);  // everybody begins with the same parameters
    return model;
  }

  void announce() {
    std::cout << "peer " << swarm_.peer_id() << "\nOthers join with: " << swarm_.join_line()
              << " cohive-train --run-id " << options_.optimizer.run_id << " ..." << std::endl;
    if (const auto url = swarm_.metrics_url(); !url.empty()) std::cout << "Metrics: " << url << std::endl;
  }

  void train_batch() {
    auto [input, target] = random_batch(symbols_, options_.batch, options_.model.context, random_);
    auto logits = model_->forward(input);
    auto loss = torch::nn::functional::cross_entropy(logits.view({-1, vocabulary_.size()}), target.view({-1}));
    loss.backward();
    const double value = loss.item<double>();
    if (first_losses_.size() < 8) first_losses_.push_back(value);
    loss_ = loss_ == 0 ? value : 0.95 * loss_ + 0.05 * value;
    ++batches_;
    optimizer_.report_loss(loss_);
    const StepReport report = optimizer_.step(options_.batch);
    if (report.loaded_state) std::cout << "caught up: state of epoch " << report.epoch << " downloaded" << std::endl;
  }

  void print_progress() {
    const auto stats = optimizer_.stats();
    std::cout << log::format("epoch {:4}  {:4.0f}/{} samples  {:7.1f} samples/s  loss {:.4f}  {} peers", stats.epoch,
                             stats.global_samples, options_.optimizer.target_batch_size, stats.samples_per_second,
                             loss_, stats.peers)
              << std::endl;
  }

  void finish() {
    optimizer_.load_state_from_peers();  // a peer that missed the last epoch must not pull the others back
    const std::size_t group = optimizer_.finish();
    if (!options_.save.empty()) save_parameters(options_.save, *model_);
    const auto stats = optimizer_.stats();
    double first = 0;
    for (double value : first_losses_) first += value / static_cast<double>(first_losses_.size());
    nlohmann::json summary{{"peer_id", swarm_.peer_id()},
                           {"epoch", stats.epoch},
                           {"batches", batches_},
                           {"loss_start", first},
                           {"loss_end", loss_},
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
    std::cout << "summary " << summary.dump() << std::endl;
  }

  const TrainOptions& options_;
  std::string text_;
  Vocabulary vocabulary_;
  std::vector<std::int64_t> symbols_;
  CharTransformer model_;
  std::mt19937_64 random_{options_.seed ? options_.seed : std::random_device()()};
  std::vector<double> first_losses_;
  double loss_ = 0;
  std::uint64_t batches_ = 0;
  Swarm swarm_;
  Optimizer optimizer_;
};

int run(TrainOptions& options) {
  log::configure(options.log);
  if (!options.compare.empty()) return compare(options.compare);
  if (options.text.empty()) throw Exit{kBadInput, "--text is required: a text file, or a folder of them"};
  check_writable("--save", options.save);
  check_writable("--summary", options.summary);
  options.swarm.initial_peers = initial_peers(options.swarm.initial_peers);
  parse_initial_peers(options.swarm.initial_peers);
  parse_addresses(options.swarm.host_maddrs, "--host-maddrs");
  parse_addresses(options.swarm.announce_maddrs, "--announce-maddrs");
  complete(options);
  options.optimizer.on_download = DownloadPrinter();
  options.swarm.give_up = [] { return stop_requested != 0; };
  recycle_tensor_memory();
  torch::set_num_threads(options.threads);
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  return Trainer(options).run();
}

}  // namespace
}  // namespace cohive::tools

int main(int argc, char** argv) {
  using namespace cohive::tools;
  TrainOptions options;
  cohive::transport::BandwidthLimits limits;
  CLI::App app("Trains a small character-level transformer together with others.", "cohive-train");
  add_train_options(app, options);
  add_bandwidth_options(app, limits);
  add_log_options(app, options.log);
  return run_program(argc, argv, app, [&] {
    options.swarm.max_upload = limits.upload;
    options.swarm.max_download = limits.download;
    return run(options);
  });
}
