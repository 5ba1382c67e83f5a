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

#include "cohive/train/optimizer.hpp"
#include "common/program.hpp"
#include "train/model.hpp"
#include "train/text.hpp"

namespace cohive::tools {
namespace {

struct Options {
  StrategyOptions strategy;
  OptimizerOptions optimizer;
  ModelOptions model;
  std::string text, save, summary;
  std::vector<std::string> compare;
  double seconds = 0, until = 0, matchmaking_time = 5, learning_rate = 1e-3, averaging_timeout = 30, report_every = 2;
  std::int64_t batch = 16;
  std::uint64_t max_epochs = 0, seed = 0;
  int threads = 1;
  bool fp16 = false;
  std::string aggregation = "mean", extension;
  averaging::TrimmedMean trimmed_mean;
  averaging::CenteredClip centered_clip;
  double density = 0.01;
  log::Options log;
};

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
        progress.bytes_total ? fmt::format(" of {:.1f}", static_cast<double>(progress.bytes_total) / megabyte) : "";
    std::cout << fmt::format("downloading the state: {:.1f}{} MB from {} {}", done, total, progress.donors,
                             progress.donors == 1 ? "donor" : "donors")
              << std::endl;
  }

 private:
  double next_ = 0;
};

/// One trainer: the model, the swarm and the numbers of the summary.
class Trainer {
 public:
  explicit Trainer(const Options& options)
      : options_(options),
        text_(read_text(options.text, static_cast<std::size_t>(options.model.context) * 4)),
        vocabulary_(text_),
        symbols_(vocabulary_.encode(text_)),
        model_(model_options()),
        adam_(model_->parameters(), torch::optim::AdamWOptions(options.learning_rate)),
        strategy_(options.strategy),
        optimizer_(strategy_, adam_, options.optimizer),
        random_(options.seed ? options.seed : std::random_device()()) {}

  int run() {
    announce();
    optimizer_.catch_up();
    const double start = unix_time();
    const double end = options_.until > 0 ? options_.until : options_.seconds > 0 ? start + options_.seconds : 1e18;
    double next_report = start;
    while (!stop_requested && unix_time() < end &&
           (options_.max_epochs == 0 || optimizer_.epoch() < options_.max_epochs)) {
      train_batch();
      if (unix_time() < next_report) continue;
      print_progress();
      next_report = unix_time() + options_.report_every;
    }
    finish();
    return 0;
  }

 private:
  ModelOptions model_options() const {
    ModelOptions model = options_.model;
    model.vocabulary = vocabulary_.size();
    torch::manual_seed(42);  // everybody begins with the same parameters
    return model;
  }

  void announce() {
    std::cout << "peer " << strategy_.peer_id() << "\nOthers join with: " << strategy_.join_line()
              << " cohive-train --run-id " << strategy_.options().run_id << " ..." << std::endl;
    if (const auto url = strategy_.metrics_url(); !url.empty()) std::cout << "Metrics: " << url << std::endl;
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
    std::cout << fmt::format("epoch {:4}  {:4.0f}/{} samples  {:7.1f} samples/s  loss {:.4f}  {} peers", stats.epoch,
                             stats.global_samples, options_.optimizer.target_batch_size, stats.samples_per_second,
                             loss_, stats.peers)
              << std::endl;
  }

  void finish() {
    std::size_t group = 0;
    optimizer_.catch_up();  // who missed the last epoch must not pull the others back
    const auto peers = optimizer_.stats().peers;
    for (int attempt = 0; attempt < 3 && peers > 1 && group < peers; ++attempt) {
      const std::size_t size = optimizer_.average_parameters();
      if (size > 0) group = size;
      if (size == 0) break;
    }
    if (!options_.save.empty()) save_parameters(options_.save, *model_);
    const auto stats = optimizer_.stats();
    double first = 0;
    for (double value : first_losses_) first += value / static_cast<double>(first_losses_.size());
    nlohmann::json summary{{"peer_id", strategy_.peer_id()},
                           {"epoch", stats.epoch},
                           {"batches", batches_},
                           {"loss_start", first},
                           {"loss_end", loss_},
                           {"grad_rounds", stats.grad_rounds},
                           {"grad_rounds_extended", stats.grad_rounds_extended},
                           {"grad_rounds_failed", stats.grad_rounds_failed},
                           {"state_rounds", stats.state_rounds},
                           {"state_rounds_failed", stats.state_rounds_failed},
                           {"state_downloads", stats.state_downloads},
                           {"bytes_sent", stats.bytes_sent},
                           {"bytes_received", stats.bytes_received},
                           {"final_group", group},
                           {"rounds_by_group_size", stats.rounds_by_group_size}};
    if (!options_.summary.empty()) std::ofstream(options_.summary) << summary.dump() << '\n';
    std::cout << "summary " << summary.dump() << std::endl;
  }

  const Options& options_;
  std::string text_;
  Vocabulary vocabulary_;
  std::vector<std::int64_t> symbols_;
  CharTransformer model_;
  torch::optim::AdamW adam_;
  Strategy strategy_;
  Optimizer optimizer_;
  std::mt19937_64 random_;
  std::vector<double> first_losses_;
  double loss_ = 0;
  std::uint64_t batches_ = 0;
};

/// A clip radius for gradients says nothing about parameters: those are averaged by a trimmed mean then.
void choose_aggregation(Options& options) {
  if (options.aggregation == "mean") return;
  options.optimizer.grad_aggregation = options.optimizer.state_aggregation = options.trimmed_mean;
  if (options.aggregation == "centered-clip") options.optimizer.grad_aggregation = options.centered_clip;
}

int run(Options& options) {
  log::configure(options.log);
  if (!options.compare.empty()) return compare(options.compare);
  if (options.text.empty()) throw Exit{kBadInput, "--text is required: a text file, or a folder of them"};
  check_writable("--save", options.save);
  check_writable("--summary", options.summary);
  options.strategy.initial_peers = initial_peers(options.strategy.initial_peers);
  parse_initial_peers(options.strategy.initial_peers);
  parse_addresses(options.strategy.host_maddrs, "--host-maddrs");
  parse_addresses(options.strategy.announce_maddrs, "--announce-maddrs");
  options.optimizer.matchmaking_time = from_seconds(options.matchmaking_time);
  options.optimizer.averaging_timeout = from_seconds(options.averaging_timeout);
  options.optimizer.on_download = DownloadPrinter();
  if (options.fp16) options.optimizer.grad_compression = codec::Codec::float16;
  choose_aggregation(options);
  if (const auto codec = codec::codec_from_name(options.extension))
    options.optimizer.grad_agreed_codec = codec::CodecSpec(*codec, options.density);
  torch::set_num_threads(options.threads);
  std::signal(SIGINT, request_stop);
  std::signal(SIGTERM, request_stop);
  return Trainer(options).run();
}

}  // namespace
}  // namespace cohive::tools

int main(int argc, char** argv) {
  using namespace cohive::tools;
  Options o;
  CLI::App app("Trains a small character-level transformer together with others.", "cohive-train");
  app.add_option("--text", o.text, "a text file, or a folder of them");
  app.add_option("--run-id", o.strategy.run_id, "name of the run; all its trainers use the same (default cohive_run)");
  app.add_option("--initial-peers", o.strategy.initial_peers,
                 "multiaddrs of the swarm (or $INITIAL_PEERS); none: start a new one");
  app.add_option("--host-maddrs", o.strategy.host_maddrs, "addresses to listen on");
  app.add_option("--announce-maddrs", o.strategy.announce_maddrs, "addresses to tell others instead");
  app.add_option("--identity-path", o.strategy.identity_path, "key file; made when missing");
  app.add_option("--metrics-address", o.strategy.metrics_address, "host:port for /metrics, /healthz and /readyz");
  app.add_flag("--client", o.strategy.client_mode, "do not listen: for peers that cannot be reached");
  app.add_option("--target-batch-size", o.optimizer.target_batch_size, "samples per epoch of all peers together")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch-size", o.batch, "samples per local step")->check(CLI::Range(1, 65536));
  app.add_option("--matchmaking-time", o.matchmaking_time, "seconds to gather a group")->check(CLI::Range(0.5, 600.0));
  app.add_option("--averaging-timeout", o.averaging_timeout, "seconds for one round")->check(CLI::Range(1.0, 3600.0));
  app.add_option("--average-state-every", o.optimizer.average_state_every, "epochs between parameter averaging")
      ->check(CLI::Range(1, 1000000));
  app.add_option("--learning-rate", o.learning_rate, "of AdamW")->check(CLI::PositiveNumber);
  app.add_flag("--fp16", o.fp16, "send gradients as float16");
  app.add_option("--extension", o.extension, "send gradients so, with error feedback, where all of a group ask for it")
      ->check(CLI::IsMember({"block4", "top_k"}));
  app.add_option("--density", o.density, "the share of gradients that top_k sends (default 0.01)")
      ->check(CLI::Range(1e-6, 1.0));
  app.add_option("--aggregation", o.aggregation, "how this peer averages its parts (default mean)")
      ->check(CLI::IsMember({"mean", "trimmed-mean", "centered-clip"}));
  app.add_option("--trim", o.trimmed_mean.fraction,
                 "the share left out at each end by trimmed-mean, and for parameters by centered-clip (default 0.2)")
      ->check(CLI::Range(0.001, 0.499));
  app.add_option("--clip-radius", o.centered_clip.radius, "of centered-clip, for gradients (default 1)")
      ->check(CLI::Range(1e-12, 1e12));
  app.add_option("--clip-iterations", o.centered_clip.iterations, "of centered-clip (default 5)")
      ->check(CLI::Range(1, 100));
  app.add_option("--seconds", o.seconds, "stop after this long")->check(CLI::NonNegativeNumber);
  app.add_option("--until", o.until, "stop at this Unix time, together with the others");
  app.add_option("--max-epochs", o.max_epochs, "stop after this many epochs");
  app.add_option("--threads", o.threads, "of LibTorch")->check(CLI::Range(1, 256));
  app.add_option("--seed", o.seed, "of the order of batches; 0: random");
  app.add_option("--width", o.model.width, "of the model")->check(CLI::Range(8, 4096));
  app.add_option("--layers", o.model.layers, "of the model")->check(CLI::Range(1, 64));
  app.add_option("--context", o.model.context, "characters per sample")->check(CLI::Range(8, 4096));
  app.add_option("--save", o.save, "write the final parameters here (raw float32)");
  app.add_option("--summary", o.summary, "write the final numbers here (JSON)");
  app.add_option("--compare", o.compare, "compare files of --save and exit");
  app.add_option_function<std::string>(
      "--bandwidth",
      [&o](const std::string& text) {
        const auto rate = bytes_per_second(text);
        if (text != "measured" && !rate)
          throw CLI::ValidationError("--bandwidth",
                                     "'measured', or bytes per second as 500K or 10M, not '" + text + "'");
        o.optimizer.bandwidth = rate ? cohive::averaging::Bandwidth(*rate) : cohive::averaging::Bandwidth::measured();
      },
      "of the link, by which trainers divide the averaging: 'measured', or bytes per second as 500K or 10M");
  add_bandwidth_options(app, o.strategy.limits);
  add_log_options(app, o.log);
  return run_program(argc, argv, app, [&] { return run(o); });
}
