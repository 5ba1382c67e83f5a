// cohive-train: trains a model, a transformer over text or a network for images, together with the peers that join the
// same run.
#include <torch/torch.h>

#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/members.hpp"
#include "cohive/p2p/metrics_server.hpp"
#include "cohive/torch/tensor_memory.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/signals.hpp"
#include "train/device.hpp"
#include "train/options.hpp"
#include "train/progress.hpp"
#include "train/trainer.hpp"
#include "train/workload.hpp"

namespace cohive::tools {
namespace {

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

/// What a run has learned must not be lost at its end: tries all that it is to write.
Results try_outputs(const TrainOptions& o) {
  refuse_same_files(
      {{"--save", o.save}, {"--summary", o.summary}, {"--trace", o.swarm.trace_file}, {"--log-file", log_file()}},
      {{"--text", o.workload.text.value_or("")},
       {"--load-checkpoint", o.load_checkpoint},
       {"--identity-path", o.swarm.identity_path},
       {"--secret-file", o.swarm.secret_file},
       {"--members", o.swarm.members_file},
       {"--metrics-token-file", o.swarm.metrics_token_file}});
  Results results{OutputFile("--save", o.save), OutputFile("--summary", o.summary)};
  try_output("--trace", o.swarm.trace_file);
  try_output_folder("--checkpoint-dir", o.optimizer.checkpoints.directory);
  return results;
}

/// Tries the files that say who this peer is and who may speak to it: a text may be read for minutes before they are
/// used. A key file that is missing is made when the peer starts.
void try_membership(const SwarmOptions& o) {
  const std::filesystem::path identity = o.identity_path;
  if (!o.members_file.empty() && identity.empty())
    throw Exit{kBadInput, "--members needs --identity-path: a peer that is listed keeps its identity"};
  if (std::filesystem::exists(std::filesystem::symlink_status(identity))) {
    load_or_create_identity(identity).value();
  } else if (!identity.empty()) {
    const auto folder = std::filesystem::absolute(identity).parent_path();
    if (!std::filesystem::is_directory(folder))
      throw Exit{kBadInput, "--identity-path: the directory " + folder.string() + " does not exist"};
    try_output_folder("--identity-path", folder);
  }
  dht::check_members({o.secret_file, o.members_file}).value();
  if (!o.metrics_token_file.empty()) p2p::read_token(o.metrics_token_file).value();
}

/// Prints how far the download of a state has come, about once a second.
class DownloadPrinter {
 public:
  explicit DownloadPrinter(bool json) : json_(json) {}

  void operator()(const averaging::DownloadProgress& progress) {
    const bool end = progress.bytes_total > 0 && progress.bytes_done == progress.bytes_total;
    if (!end && SteadyClock::now() < next_) return;
    next_ = SteadyClock::now() + std::chrono::seconds(1);
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
  SteadyClock::time_point next_{};
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
  const bool fitted = run.fit_target_batch_size;
  plan["target_batch_size"] = fitted ? nlohmann::json() : nlohmann::json(run.target_batch_size);
  plan["initial_peers"] = options.swarm.initial_peers;
  const std::string text = log::format(
      "{}, {} parameters\n{}\n{} with learning rate {}; {} samples per step, {} per epoch of all peers\nrun {}, {}",
      plan["model"].get<std::string>(), plan["parameters"].get<std::int64_t>(), plan["data"].get<std::string>(),
      options.algorithm, options.learning_rate, options.batch,
      fitted ? std::string("what the links carry") : std::to_string(run.target_batch_size), run.run_id,
      peers == 0 ? std::string("a new swarm")
                 : log::format("joined through {} {}", peers, peers == 1 ? "address" : "addresses"));
  Progress(options.json ? Output::json : Output::lines, {}).say(text, "dry_run", std::move(plan));
  return 0;
}

int run(TrainOptions& options) {
  log::configure(options.log);
  if (!options.compare.empty() || options.dry_run) let_signals_end_program();
  if (!options.compare.empty()) return compare(options.compare);
  options.swarm.initial_peers = initial_peers(options.swarm.initial_peers);
  parse_initial_peers(options.swarm.initial_peers);
  options.swarm.host_maddrs = each_address(options.swarm.host_maddrs);
  options.swarm.announce_maddrs = each_address(options.swarm.announce_maddrs);
  options.swarm.trusted_relays = each_address(options.swarm.trusted_relays);
  parse_addresses(options.swarm.host_maddrs, "--host-maddrs");
  parse_announced(options.swarm.announce_maddrs, options.swarm.identity_path);
  parse_addresses(options.swarm.trusted_relays, "--trusted-relays");
  complete(options);
  try_membership(options.swarm);
  const Results results = try_outputs(options);
  const auto ranks = ranks_of_environment(options);
  options.optimizer.on_download = DownloadPrinter(options.json);
  options.swarm.give_up = [] { return stop_signal() != 0; };
  recycle_tensor_memory();
  options.swarm.diagnostics_at_signal = true;
  torch::set_num_threads(options.threads);
  const bool rank_chooses = options.workload.device == "cuda" && ranks.size > 1;
  const auto device = device_from_text(rank_chooses ? "cuda:" + std::to_string(ranks.rank) : options.workload.device);
  auto workload = make_workload(options.workload);
  workload->move_to(device);
  if (options.dry_run) return dry_run(options, *workload);
  try {
    return train(options, results, ranks, std::move(workload));
  } catch (const ErrorException& error) {
    if (stop_signal() != 0 && error.error() == Errc::closed) throw Stopped{};  // while it joined
    throw;
  }
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
  add_connection_options(app, options.swarm.congestion_control, options.swarm.connections_per_peer);
  add_log_options(app, options.log);
  app.footer(
      "Examples:\n"
      "  cohive-train --text corpus.txt --size 25m --run-id my_run\n"
      "  cohive-train --text corpus.txt --size 25m --run-id my_run --initial-peers "
      "/ip4/203.0.113.7/tcp/31337/p2p/Qm...\n"
      "  cohive-train --model cnn --dry-run\n"
      "  cohive-train --config run.toml --checkpoint-dir checkpoints --checkpoint-every 10m --resume\n");
  return run_program(argc, argv, app, [&] {
    options.swarm.max_upload = limits.upload;
    options.swarm.max_download = limits.download;
    return run(options);
  });
}
