// cohive-bench: what this machine does. Prints one JSON object per measurement.
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <iostream>

#include "bench/bench.hpp"
#include "common/numbers.hpp"
#include "common/program.hpp"
#include "common/settings.hpp"
#include "common/signals.hpp"

namespace cohive::bench {

void pin_to_core(std::size_t index) {
  static const cpu_set_t allowed = [] {  // before the first call changed it
    cpu_set_t cores;
    CPU_ZERO(&cores);
    ::sched_getaffinity(0, sizeof cores, &cores);
    return cores;
  }();
  cpu_set_t chosen;
  index %= static_cast<std::size_t>(std::max(1, CPU_COUNT(&allowed)));
  for (std::size_t core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &allowed) || index-- > 0) continue;
    CPU_ZERO(&chosen);
    CPU_SET(core, &chosen);
    ::sched_setaffinity(0, sizeof chosen, &chosen);
    return;
  }
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double rate(std::size_t bytes, double seconds, const std::function<void()>& work) {
  work();
  double best = 1e9;
  const double end = now_seconds() + seconds;
  do {
    const double start = now_seconds();
    work();
    best = std::min(best, now_seconds() - start);
  } while (now_seconds() < end);
  return static_cast<double>(bytes) / best / 1e9;
}

double copy_rate(std::span<const float> from, std::span<float> to, double seconds) {
  return rate(from.size_bytes(), seconds, [&] { std::memcpy(to.data(), from.data(), from.size_bytes()); });
}

double processor_seconds() {
  timespec time{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

double percentile_ms(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(p * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), at, values.end());
  return *at * 1000;
}

}  // namespace cohive::bench

namespace {

/// The environment and a configuration file set options of commands that do not run, too.
struct OwnOptions : cohive::bench::Simulated {
  void add_minutes(CLI::App* command) {
    command->add_option("--minutes", minutes, "of virtual time (default 5)")->transform(cohive::tools::real(0.1, 1440));
  }
  void add_runs(CLI::App* command) {
    command->add_option("--runs", runs, "number of runs, with seeds or numbers in a row (default 200)")
        ->transform(cohive::tools::whole(1, 10'000'000));
  }
  cohive::bench::Settings in(cohive::bench::Settings settings) const {
    static_cast<cohive::bench::Simulated&>(settings) = *this;
    return settings;
  }
};

}  // namespace

int main(int argc, char** argv) {
  using namespace cohive;
  bench::Settings settings;
  log::Options log_options{log::Level::warn, log::Format::text};
  OwnOptions of_dht, of_training, of_lines, of_faults, of_adversaries;
  of_lines.minutes = 40;
  CLI::App app("Measures transport, DHT, all-reduce, codecs, optimizers and memory; prints JSON.", "cohive-bench");
  app.require_subcommand(1);
  app.fallthrough();
  tools::in_seconds(app.add_option("--seconds", settings.seconds, "duration of each measurement (default 3)"), 0.1,
                    3600);
  app.add_option("--peers", settings.peers, "of dht, allreduce and fitted-links (default 4)")
      ->transform(tools::whole(1, 1000));
  app.add_option("--megabytes", settings.megabytes, "of allreduce, codec and cuda (default 64)")
      ->transform(tools::whole(1, 16384));
  tools::add_log_options(app, log_options);
  auto* transport = app.add_subcommand("transport", "an encrypted stream between two processes");
  auto* dht = app.add_subcommand("dht", "stores and gets in a swarm on loopback");
  auto* dht_sim = app.add_subcommand("dht-sim", "simulated swarms whose nodes come and go; a table on stderr");
  dht_sim->add_option("--nodes", settings.nodes, "size of each swarm (default 100 1000)")
      ->transform(tools::whole(2, 100000));
  of_dht.add_minutes(dht_sim);
  dht_sim->add_option("--gets-per-minute", settings.gets_per_minute, "of the whole swarm (default 1200)")
      ->transform(tools::real(1, 1e6));
  dht_sim->add_option("--seed", of_dht.seed, "another seed is another swarm (default 1)")->transform(tools::whole());
  auto* train_sim =
      app.add_subcommand("train-sim", "simulated training runs whose trainers come and go; a table on stderr");
  train_sim->add_option("--trainers", settings.trainers, "size of each run (default 100)")
      ->transform(tools::whole(2, 10000));
  of_training.add_minutes(train_sim);
  train_sim
      ->add_option("--replaced-per-minute", settings.replaced_per_minute,
                   "share of the trainers that is killed and replaced (default 0.1)")
      ->transform(tools::real(0, 10));
  tools::in_seconds(train_sim->add_option("--arrival", settings.arrival_seconds,
                                          "virtual time in which the first trainers come (default 30)"),
                    0, 3600);
  train_sim
      ->add_option("--local-steps", settings.local_steps,
                   "in a round of each trainer, behind which an outer optimizer steps (default 0: gradients)")
      ->transform(tools::real(0, 1000));
  train_sim->add_option("--group", settings.group, "trainers in a group, about; 0: one of all (default 128)")
      ->transform(tools::whole(0, 10000));
  train_sim
      ->add_option("--connections", settings.connections,
                   "that each trainer keeps, about; fewer take less memory (default 0: as many as hosts keep)")
      ->transform(tools::whole(0, 1024));
  train_sim->add_flag("--plaintext", settings.plaintext,
                      "connections are not encrypted: a third less time, and less memory");
  train_sim
      ->add_option("--sharded-above", settings.sharded_above,
                   "trainers from which on progress is told in shards; 0: never (default 64)")
      ->transform(tools::whole());
  train_sim->add_option("--seed", of_training.seed, "another seed is another run (default 1)")
      ->transform(tools::whole());
  auto* fitted_links = app.add_subcommand(
      "fitted-links",
      "simulated local steps whose rounds follow five lines, 20/5 to 1000/1000 Mbit/s; a table on stderr");
  fitted_links->add_option("--minutes", of_lines.minutes, "of virtual time, for each line (default 40)")
      ->transform(tools::real(0.1, 1440));
  fitted_links->add_option("--model", settings.model_millions, "its parameters, in millions (default 10)")
      ->transform(tools::whole(1, 1000));
  fitted_links->add_option("--step", settings.step_seconds, "seconds of a local step (default 0.2)")
      ->transform(tools::real(0.001, 3600));
  fitted_links->add_option("--fragments", settings.fragments, "parts of the model, averaged in turn (default 1)")
      ->transform(tools::whole(1, 64));
  auto* allreduce = app.add_subcommand("allreduce", "averaging rounds, group forming included");
  auto* faults =
      app.add_subcommand("faults", "simulated averaging in which something goes wrong; failing seeds on stderr");
  of_faults.add_runs(faults);
  faults->add_option("--seed", of_faults.seed, "the first of them (default 1)")->transform(tools::whole());
  auto* adversary =
      app.add_subcommand("adversary", "simulated training beside hostile peers; a line for each run on stderr");
  of_adversaries.add_runs(adversary);
  adversary->add_option("--seed", of_adversaries.seed, "number of the first run, or with --roles its seed (default 1)")
      ->transform(tools::whole());
  adversary
      ->add_option("--roles", settings.roles,
                   "of the hostile peers, one of each in every run (default: each role alone and three at a time, "
                   "25 runs of each seed)")
      ->delimiter(',');
  auto* codec = app.add_subcommand("codec", "encoding and decoding on one core");
  auto* cuda = app.add_subcommand("cuda", "kernels, copies and steps on a GPU, beside their goals");
  auto* memory = app.add_subcommand("memory", "peak memory of peers beyond their tensors");
  memory->add_option("--tensors", settings.tensors_megabytes, "megabytes that are averaged (default 512)")
      ->transform(tools::whole(8, 16384));
  memory->add_option("--state", settings.state_megabytes, "megabytes that are downloaded (default 2000)")
      ->transform(tools::whole(8, 16384));
  auto* optimizer = app.add_subcommand("optimizer", "optimizer steps and passes over gradients in host memory");
  optimizer->add_option("--parameters", settings.parameters, "millions of them (default 100)")
      ->transform(tools::whole(1, 10000));
  optimizer->add_option("--only", settings.only, "names of steps and passes (default: all)");
  app.footer(
      "Examples:\n"
      "  cohive-bench transport --seconds 10\n"
      "  cohive-bench allreduce --peers 4 --megabytes 64\n"
      "  cohive-bench dht-sim --nodes 1000 --minutes 5\n"
      "  cohive-bench optimizer --only adam accumulate\n");
  return tools::run_program(argc, argv, app, [&] {
    if (!*train_sim) tools::let_signals_end_program();  // a long one tells what it has seen until then
    log::configure(log_options);
    if (*transport) std::cout << bench::transport(settings).dump() << std::endl;
    if (*dht) std::cout << bench::dht(settings).dump() << std::endl;
    if (*dht_sim) std::cout << bench::dht_sim(of_dht.in(settings)).dump() << std::endl;
    if (*train_sim) std::cout << bench::train_sim(of_training.in(settings)).dump() << std::endl;
    if (*fitted_links) std::cout << bench::fitted_links(of_lines.in(settings)).dump() << std::endl;
    if (*allreduce) std::cout << bench::allreduce(settings).dump() << std::endl;
    if (*faults) {
      // What goes wrong here is meant to; a single run is one that somebody looks into.
      if (of_faults.runs != 1) log::configure({log::Level::off, log_options.format});
      const auto result = bench::faults(of_faults.in(settings));
      std::cout << result.dump() << std::endl;
      return result["failing_seeds"].empty() ? 0 : 1;
    }
    if (*adversary) {
      if (of_adversaries.runs != 1) log::configure({log::Level::off, log_options.format});
      const auto result = bench::adversary(of_adversaries.in(settings));
      std::cout << result.dump() << std::endl;
      return result["failing"].empty() ? 0 : 1;
    }
    if (*memory) std::cout << bench::memory(settings).dump() << std::endl;
    if (*codec) std::cout << bench::codec(settings).dump() << std::endl;
    if (*cuda) std::cout << bench::cuda(settings).dump() << std::endl;
    if (*optimizer) std::cout << bench::optimizer(settings).dump() << std::endl;
    return 0;
  });
}
