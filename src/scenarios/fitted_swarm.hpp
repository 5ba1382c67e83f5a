// A simulated run of local steps on lines of unlike speed: how much of their time its trainers compute.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohive/dht/dht.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"

namespace cohive::sim {

/// A line as people name it: "20/5" is 20 down and 5 up.
struct Line {
  double down = 1000, up = 1000;  ///< Mbit/s
};

/// Trainers that count batches and step nowhere: what they send is as much as if they did.
class FittedSwarm {
 public:
  struct Trainer {
    Duration step = 0s;
    std::int64_t samples = 8;  ///< of a step
    std::unique_ptr<Dht> dht;
    std::unique_ptr<train::PlainReplica> replica;
    std::unique_ptr<train::Run> run;
    std::unique_ptr<TaskGroup> tasks;
    std::string ip;
    std::uint64_t steps = 0;  ///< local ones
    std::size_t rounds = 0;   ///< with others
    double computing = 0;     ///< seconds
    double samples_of_round() const { return run->stats().target_samples; }
  };

  /// \param parameters  of the model
  explicit FittedSwarm(std::size_t parameters, std::uint64_t seed = 1);
  ~FittedSwarm();

  /// Adds a trainer, which trains until it is ended.
  Trainer& add(Line line, Duration step, std::int64_t samples = 8);
  /// Ends one as a process is killed.
  void end(Trainer& trainer);
  /// Lets virtual time pass. Returns the share of it in which the trainers computed, of the one that waited most.
  double computing(Duration time);

  Swarm net;
  train::RunOptions options;  ///< of trainers that are added from now on
  std::vector<std::unique_ptr<Trainer>> trainers;

 private:
  static Task<void> train(Runtime& runtime, Trainer& me);

  std::uint32_t parameters_;
  std::unique_ptr<Dht> first_;  // belongs to nobody: no trainer is needed for the others to meet
};

/// A run on one kind of line came to this.
struct FittedRun {
  double first_computing = 0;  ///< share of the first minutes in which a trainer computed, of the one that waited most
  double computing = 0;        ///< the same of the time after these
  double steps = 0;            ///< local ones of a round, on average
  std::string told;            ///< by the trainers, of their rounds, last
};
/// Trainers that are alike, and for how long they train once all have downloaded the state.
struct FittedScenario {
  Line line;  ///< of each
  std::size_t trainers = 4;
  std::size_t parameters = 1'000'000;  ///< of the model
  int fragments = 1;
  Duration step = 100ms;  ///< what a local step takes
  Duration first = 2min;  ///< in which they agree
  Duration then = 3min;
};
FittedRun run_fitted(const FittedScenario& scenario);

}  // namespace cohive::sim
