// The measurements of cohive-bench. Each returns one JSON object.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

namespace cohive::bench {

/// What several commands have, each with values of its own.
struct Simulated {
  double minutes = 5;      ///< of virtual time, of dht-sim, train-sim and fitted-links
  std::uint64_t seed = 1;  ///< of dht-sim, train-sim, faults and adversary
  std::size_t runs = 200;  ///< of faults and adversary
};

struct Settings : Simulated {
  double seconds = 3;     ///< how long each measurement runs
  std::size_t peers = 4;  ///< of dht, allreduce and fitted-links
  std::size_t megabytes = 64;
  std::vector<std::size_t> nodes{100, 1000};  ///< of dht-sim: one swarm each
  std::vector<std::size_t> trainers{100};     ///< of train-sim: one run each
  double replaced_per_minute = 0.1;           ///< of the trainers of train-sim
  double arrival_seconds = 30;                ///< in which the trainers of train-sim come
  double local_steps = 0;                     ///< of each trainer of train-sim in a round; 0: gradients are averaged
  std::size_t group = 128;                    ///< trainers of train-sim in a group, about; 0: one of all
  std::size_t sharded_above = 64;             ///< of train-sim: TrackerOptions::sharded_above
  std::size_t connections = 0;                ///< of each trainer of train-sim, about; 0: as hosts have it
  bool plaintext = false;                     ///< train-sim: connections are not encrypted
  std::size_t model_millions = 10;            ///< of fitted-links: parameters
  double step_seconds = 0.2;                  ///< of fitted-links
  int fragments = 1;                          ///< of fitted-links: OuterOptimizer::fragments
  double gets_per_minute = 1200;              ///< of virtual time, of the whole swarm of dht-sim
  std::vector<std::string> roles;             ///< of adversary: one hostile peer of each, in every run
  std::size_t tensors_megabytes = 512;        ///< of memory: averaged
  std::size_t state_megabytes = 2000;         ///< of memory: downloaded
  std::size_t parameters = 100;               ///< of optimizer, in millions
  std::vector<std::string> only;              ///< of optimizer: names of its rows; empty: all
};

nlohmann::json transport(const Settings& settings);
nlohmann::json dht(const Settings& settings);
nlohmann::json dht_sim(const Settings& settings);
nlohmann::json faults(const Settings& settings);
nlohmann::json adversary(const Settings& settings);
nlohmann::json allreduce(const Settings& settings);
nlohmann::json codec(const Settings& settings);
/// Throws tools::Exit where there is no GPU.
nlohmann::json cuda(const Settings& settings);
/// What the kernels take for so many values; on GPU 0.
nlohmann::json cuda_kernels(std::size_t values, double seconds);
nlohmann::json memory(const Settings& settings);
nlohmann::json train_sim(const Settings& settings);
nlohmann::json fitted_links(const Settings& settings);
nlohmann::json optimizer(const Settings& settings);

double now_seconds();
/// Gigabytes per second in the fastest of the rounds that `seconds` has room for.
double rate(std::size_t bytes, double seconds, const std::function<void()>& work);
/// The same of a plain copy, counting what it reads: the memory bandwidth is twice that.
double copy_rate(std::span<const float> from, std::span<float> to, double seconds);
/// Processor time of this process, all threads: it says something on a busy machine, too.
double processor_seconds();
/// This process stands for a machine of its own: left alone, the scheduler puts two that talk to each other on one
/// core. Counted around the cores there are; with fewer than `index` it shares one.
void pin_to_core(std::size_t index);
/// The p-th percentile (0 to 1) of `values`, in milliseconds when they are seconds.
double percentile_ms(std::vector<double> values, double p);

}  // namespace cohive::bench
