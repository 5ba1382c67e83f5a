/// \file
/// A simulated training run: trainers of a least-squares model that come and go, on links of all speeds, on virtual
/// time. `cohive-bench train-sim` runs such scenarios.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/time.hpp"
#include "cohive/optim/options.hpp"
#include "cohive/train/run_options.hpp"

namespace cohive::sim {

/// What a simulated run is like. The same scenario gives the same run.
struct TrainScenario {
  std::size_t trainers = 100;        ///< at a time
  std::uint64_t seed = 1;            ///< the same one gives the same run
  Duration duration = 10min;         ///< of virtual time, from the first trainer on
  Duration arrival = 30s;            ///< in which the trainers of the beginning come
  double replaced_per_minute = 0.1;  ///< of the trainers: killed without a word, and replaced by newcomers
  double asleep_per_minute = 0;      ///< of the trainers: they are suspended with their machine for a while
  Duration longest_sleep = 60s;      ///< of these
  double slowest_line = 10e6 / 8;    ///< of a trainer, in bytes per second each way
  double fastest_line = 1e9 / 8;     ///< the same; the others are spread evenly in between, by logarithm
  Duration shortest_way = 2ms;       ///< one way, between two trainers
  Duration longest_way = 60ms;       ///< the same
  Duration shortest_batch = 1s;      ///< computing time, of the fastest trainer
  Duration longest_batch = 4s;       ///< of the slowest one
  std::int64_t batch_size = 16;      ///< samples
  double batches_per_epoch = 8;      ///< of a trainer of middling speed: makes the target batch size
  std::size_t features = 64;         ///< of the model that is learnt
  std::size_t columns = 0;           ///< not 0: the model is a matrix with so many
  std::size_t ballast = 2000;        ///< parameters without a gradient, which travel all the same
  double learning_rate = 0.05;       ///< of plain gradient descent
  double noise = 0.1;                ///< of the data
  std::size_t memory_budget = 0;     ///< of each host, HostOptions::memory_budget
  std::size_t connections = 0;       ///< of each host, HostOptions::high_water, trimmed early; 0: as hosts have it
  bool plaintext = false;            ///< connections are neither encrypted nor authenticated: less time and memory
  DhtOptions dht;                    ///< of each node
  std::function<void(train::RunOptions&)> tune = nullptr;  ///< matchmaking_time is 5 s before
  /// Called at every second of virtual time, to do mischief.
  std::function<void(class TrainSwarm&, double second)> each_second = nullptr;
};

/// What came of a simulated run.
struct TrainScenarioReport {
  std::uint64_t epochs = 0;          ///< of the most advanced trainer
  double epochs_per_hour = 0;        ///< of simulated time, by the epochs that have ended
  std::size_t epochs_alone = 0;      ///< that no two trainers averaged
  double mean_group = 0;             ///< members of a gradient round
  double least_group = 0;            ///< the same in the second half, of the trainer whose groups were smallest
  double bytes_per_peer_second = 0;  ///< sent on the wire, everything included
  double dht_bytes = 0;              ///< of these, of the DHT's calls: without what carries them
  double shard_bytes = 0;            ///< of these, of calls for progress in shards: the same
  double shard_bytes_busiest = 0;    ///< the same of the trainer that sent most of them
  /// The 95th percentile of how far trainers' reckoning of an epoch's samples is off, in epochs. Looks begin soon after
  /// the last arrival.
  double samples_error = 0;
  double speed_error = 0;          ///< of all trainers' speed as the worst one takes it at the end, by itself
  double waiting = 0;              ///< share of their time that trainers waited in synchronise()
  double first_loss = 0;           ///< before the first step, less the noise
  double last_loss = 0;            ///< the same at the end, of the worst trainer of the last epoch
  double loss_of_one = 0;          ///< of one process that takes the same number of steps with the same batch size
  std::size_t newcomers = 0;       ///< that were in a gradient round, or lived for three epochs
  std::size_t newcomers_late = 0;  ///< of these, not in a gradient round within three epochs
  std::uint64_t downloads = 0;     ///< of the state
  std::uint64_t followed = 0;      ///< rounds of the state that trainers followed in place of a download
  double spread = 0;  ///< largest distance of parameters from those of the first trainer, in the last epoch
  /// Largest distance of parameters, in the last epoch, from those of one process that takes the same number of steps
  /// with the same batch size; 1 is that of the model at the beginning from the one that is to be learnt.
  double astray = 0;
  /// With local steps that nothing delays: the root mean square distance of the trainers' parameters after a round from
  /// their mean, as a share of how far that has moved since the beginning. That of the worst epoch, the first few
  /// apart.
  double apart = 0;
  double loss_after_round = 0;   ///< then, the mean of the trainers after the last round, noise included
  double loss_of_one_group = 0;  ///< the same, if all of them had averaged with one another in each epoch
  double offences = 0;           ///< that hosts have reported of each other: none, where all of them are honest
  std::size_t most_held = 0;     ///< bytes that peers have filled of one host, at the worst moment (MemoryBudget)
  std::size_t over_budget =
      0;                    ///< hosts of which they have filled more than its budget, or that ended with some charged
  double seconds = 0;       ///< of virtual time that there were
  double real_seconds = 0;  ///< that the simulation took
};

/// What mischief may touch.
class TrainSwarm {
 public:
  virtual ~TrainSwarm() = default;
  /// Returns how many trainers there are now.
  virtual std::size_t size() const = 0;
  /// Adds trainers, all at once.
  virtual void add(std::size_t newcomers) = 0;
  /// Ends the run with this second of virtual time. The report is of what there was until then.
  virtual void stop() = 0;
  /// Cuts the trainers in two halves, or joins them again.
  virtual void split(bool apart) = 0;
  /// Joins the swarm with a peer that does not train. It stays as long as the swarm.
  virtual Task<Dht*> stranger() = 0;
  /// Adds a host of such a peer that is not in the DHT, with the address of a trainer that is.
  virtual std::pair<p2p::Host*, Multiaddr> bare_stranger() = 0;
  /// Starts a task that lives as long as the swarm.
  virtual void spawn(Task<void> task) = 0;
};

/// Five trainers that are alike, for two minutes.
TrainScenario small_training();
/// Runs it to its end. A minute of five trainers takes half a second, one of a thousand several minutes.
TrainScenarioReport run_training(const TrainScenario& scenario);
/// Prints the report as one line.
std::ostream& operator<<(std::ostream& out, const TrainScenarioReport& report);

}  // namespace cohive::sim
