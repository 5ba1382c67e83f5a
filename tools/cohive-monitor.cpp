// cohive-monitor: how a training run is doing, read from the DHT without taking part.
#include <unistd.h>

#include <fstream>
#include <iostream>

#include "cohive/core/log.hpp"
#include "common/client.hpp"
#include "common/numbers.hpp"
#include "common/output_file.hpp"
#include "common/program.hpp"
#include "common/settings.hpp"
#include "common/signals.hpp"
#include "monitor/doctor_command.hpp"
#include "monitor/merge_traces.hpp"
#include "monitor/plot.hpp"
#include "monitor/serve.hpp"
#include "monitor/watch.hpp"

namespace cohive::tools {
namespace {

struct Options {
  std::string command;  ///< empty: watch
  std::vector<std::string> initial_peers;
  std::string run_id = "cohive_run";
  bool run_id_given = false;
  bool once = false, json = false;
  double interval = 5, crawl_interval = 60, target = 0;
  ClientMember member;
  std::string address = ServeOptions().address, token_file, history;
  std::size_t peer_series = ServeOptions().peer_series;
  std::string plot_file, output;
  std::vector<std::string> traces;
  DoctorCommand doctor;
  log::Options log{log::Level::warn, log::Format::text};
};

CollectorOptions collector_options(const Options& options, const std::vector<Multiaddr>& initial) {
  return {.run_id = options.run_id,
          .initial_peers = initial,
          .period = from_seconds(options.interval),
          .crawl_period = from_seconds(options.crawl_interval),
          .target = options.target > 0 ? std::optional(options.target) : std::nullopt};
}

LookHistory read_history(const std::string& path, const std::string& run_id) {
  LookHistory history(run_id);
  const auto nonsense = history.load(path);
  if (!nonsense) throw ErrorException(nonsense.error());
  if (*nonsense > 0) log::warn("monitor", "{}: {} lines are none of a history", path, *nonsense);
  return history;
}

int watch_or_serve(const Options& options) {
  const bool serve = options.command == "serve";
  // Variables and the file set options of `serve` for whoever watches, too: these are not for it.
  const std::string token_file = serve ? options.token_file : "", path = serve ? options.history : "";
  refuse_same_files({{"--history", path}, {"--log-file", log_file()}},
                    {{"--metrics-token-file", token_file},
                     {"--identity-path", options.member.identity_path},
                     {"--secret-file", options.member.members.secret_file},
                     {"--members", options.member.members.members_file}});
  // Before the swarm is joined: what cannot be read or written is told at once, and a long history holds up no loop.
  const std::string token = metrics_token(token_file);
  try_regular_output("--history", path);
  auto initial = swarm_addresses(options.initial_peers);
  LookHistory history = read_history(path, options.run_id);
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  CollectorOptions collector = collector_options(options, initial);
  collector.history_path = path;
  const bool terminal = ::isatty(STDOUT_FILENO) && !options.once && !options.json;
  const auto work = [&](Dht& dht) {
    if (serve)
      return serve_run(dht, {.collector = collector,
                             .history = std::move(history),
                             .address = options.address,
                             .token = token,
                             .peer_series = options.peer_series,
                             .json = options.json});
    return watch_run(dht, {.collector = collector, .once = options.once, .json = options.json, .table = terminal});
  };
  return runtime->run(run_as_client(*runtime, std::move(initial), options.member, true, work)).value_or(0);
}

int plot(const Options& options) {
  const OutputFile output("--output", options.output);
  refuse_same_files({{"--output", options.output}, {"--log-file", log_file()}}, {{"FILE", options.plot_file}});
  LookHistory history(options.run_id);
  std::ifstream file(options.plot_file);
  if (!file) throw Exit{kBadInput, "cannot read " + options.plot_file};
  if (auto loaded = history.load(options.plot_file); !loaded) throw ErrorException(loaded.error());
  if (history.looks().empty())
    throw Exit{kBadInput,
               options.plot_file + " has no look at run " + options.run_id + " (--run-id names another one)"};
  output.write(plot_svg(history.looks(), "run " + options.run_id));
  return 0;
}

int merge(const Options& options) {
  for (const std::string& sentence : merge_traces(options.traces, options.output)) std::cout << sentence << std::endl;
  return 0;
}

/// A flag that the command does not look at is a mistake of the user.
void refuse_idle_flags(const Options& options) {
  const std::string& command = options.command;
  const bool reads_files = command == "plot" || command == "merge-traces", watches = command.empty();
  if (command == "serve") refuse_idle({"--once"}, "with serve");
  if (reads_files || command == "doctor")
    refuse_idle({"--interval", "--crawl-interval", "--target-batch-size", "--once"}, "with " + command);
  if (reads_files)
    refuse_idle({"--initial-peers", "--json", "--secret-file", "--members", "--identity-path"}, "with " + command);
  if (command == "merge-traces") refuse_idle({"--run-id"}, "with merge-traces");
  if (watches && options.once) refuse_idle({"--interval", "--crawl-interval"}, "with --once");
  if (watches && options.json) refuse_idle({"--crawl-interval"}, "with --json");
}

int run(const Options& options) {
  log::configure(options.log);
  refuse_idle_flags(options);
  if (options.command == "plot" || options.command == "merge-traces") let_signals_end_program();
  if (options.command == "plot") return plot(options);
  if (options.command == "merge-traces") return merge(options);
  if (options.command == "doctor") {
    DoctorCommand doctor = options.doctor;
    doctor.initial_peers = options.initial_peers;
    doctor.member = options.member;
    if (options.run_id_given) doctor.run_id = options.run_id;
    doctor.json = options.json;
    return run_doctor(doctor);
  }
  return watch_or_serve(options);
}

void add_serve(CLI::App& app, Options& options) {
  auto* serve =
      app.add_subcommand("serve", "a page that shows the run, its trainers and its swarm, and metrics for Prometheus");
  serve->callback([&options] { options.command = "serve"; });
  takes_endpoint(
      serve->add_option("--metrics-address", options.address,
                        "host:port for the page, /status, /api/v1/state and /metrics (default 127.0.0.1:9470)"));
  serve->add_option("--metrics-token-file", options.token_file,
                    "ask for the token in this file before showing anything there");
  serve->add_option("--history", options.history, "file of JSON lines that keeps what was seen across restarts");
  serve
      ->add_option("--peer-series", options.peer_series,
                   "trainers that /metrics tells one by one, at most (default 100)")
      ->transform(whole(0, 10000));
}

void add_plot(CLI::App& app, Options& options) {
  auto* plot = app.add_subcommand("plot", "draws loss, speed and trainers from a file of --history");
  plot->callback([&options] { options.command = "plot"; });
  plot->add_option("FILE", options.plot_file, "the history")->required();
  plot->add_option("-o,--output", options.output, "the SVG file to write")->required();
}

void add_merge_traces(CLI::App& app, Options& options) {
  auto* merge =
      app.add_subcommand("merge-traces", "makes one picture of the files that several peers have written by --trace");
  merge->callback([&options] { options.command = "merge-traces"; });
  merge->add_option("FILES", options.traces, "the traces; clocks are set right by that of the first")->required();
  merge->add_option("-o,--output", options.output, "the file to write, for ui.perfetto.dev")->required();
}

}  // namespace
}  // namespace cohive::tools

int main(int argc, char** argv) {
  using namespace cohive::tools;
  Options options;
  CLI::App app("Shows peers, epoch, speed and loss of a training run.", "cohive-monitor");
  app.require_subcommand(0, 1);
  app.fallthrough();
  app.add_option("--initial-peers", options.initial_peers, "multiaddrs of the swarm (or $INITIAL_PEERS)");
  names_run(app.add_option("--run-id", options.run_id,
                           "the run to watch (default cohive_run; doctor looks at no run unless it is given)"))
      ->each([&options](const std::string&) { options.run_id_given = true; });
  in_seconds(app.add_option("--interval", options.interval, "seconds between two looks at the trainers (default 5)"),
             0.1, 86400);
  in_seconds(
      app.add_option("--crawl-interval", options.crawl_interval, "seconds between two looks at the swarm (default 60)"),
      1, 86400);
  app.add_option("--target-batch-size", options.target,
                 "samples of an epoch (default: estimated from the epochs that end)")
      ->transform(real(1e-6, 1e15));
  app.add_flag("--once", options.once, "print one line and exit");
  app.add_flag("--json", options.json, "one JSON object per line");
  add_client_member_options(app, options.member);
  add_log_options(app, options.log);
  add_serve(app, options);
  add_plot(app, options);
  add_merge_traces(app, options);
  auto* doctor = app.add_subcommand(
      "doctor", "finds out step by step what is wrong with a swarm or the way to it, and what to do about it");
  doctor->callback([&options] { options.command = "doctor"; });
  add_doctor_options(*doctor, options.doctor);
  app.footer(
      "Examples:\n"
      "  cohive-monitor --run-id my_run --initial-peers /ip4/203.0.113.7/tcp/31337/p2p/Qm...\n"
      "  cohive-monitor --run-id my_run --once --json\n"
      "  cohive-monitor serve --run-id my_run --metrics-address 127.0.0.1:9470 --history my_run.jsonl\n"
      "  cohive-monitor plot my_run.jsonl --run-id my_run -o my_run.svg\n"
      "  cohive-monitor doctor --run-id my_run\n");
  return run_program(argc, argv, app, [&] { return run(options); });
}
