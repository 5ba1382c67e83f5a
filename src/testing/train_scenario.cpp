#include "cohive/testing/train_scenario.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/p2p/metrics.hpp"
#include "cohive/rpc/metrics.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"
#include "cohive/transport/sim_network.hpp"
#include "testing/learning_problem.hpp"

namespace cohive::sim {
namespace {

constexpr std::size_t kInitialPeers = 3;
constexpr std::uint64_t kEpochsToGetIn = 3;
constexpr std::uint64_t kFirstRounds = 7;      // of local steps, in which what has moved is little
constexpr Duration kStartAgain = 1s;           // after which a trainer whom nobody answered asks again
constexpr Duration kSettling = 15s;            // passes after the last arrival before what trainers know is looked at
constexpr Duration kShortGrace = 5s;           // of connections, where hosts shall have few
constexpr std::size_t kKnownForEach = 16;      // such hosts know so many peers for each connection
constexpr Duration kTrainerKeepalive = 10min;  // of no use where a killed trainer resets its connections at once

/// Returns the larger one. What is no number is worse than all that are, where std::max would drop it.
double worse_of(double a, double b) {
  return std::isnan(b) ? std::numeric_limits<double>::infinity() : std::max(a, b);
}

double uniform(Random& random, double from, double to) {
  return std::uniform_real_distribution<double>(from, to)(random);
}

struct SimulatedNode {
  std::string ip;
  std::unique_ptr<transport::Network> machine;
  std::unique_ptr<p2p::Host> host;
  std::unique_ptr<Dht> dht;
};

struct Trainer : SimulatedNode {
  std::size_t number = 0;
  std::unique_ptr<train::PlainReplica> replica;
  std::unique_ptr<train::Run> run;
  Random random;
  Duration batch{};
  double steps = 0;       // local ones
  bool standing = false;  // in the DHT
  bool asleep = false;
  bool newcomer = false;
  std::optional<std::uint64_t> joined_at{};  // epoch of the run when it began
  std::optional<std::uint64_t> in_at{};      // epoch of its first gradient round
  std::size_t rounds = 0, members = 0;       // of the second half
  TimePoint began{};
  Duration waited{};
  std::unique_ptr<TaskGroup> tasks;
};

class SimulatedSwarm final : public TrainSwarm {
 public:
  explicit SimulatedSwarm(const TrainScenario& scenario)
      : scenario_(scenario),
        runtime_(scenario.seed),
        fabric_(runtime_, {.latency = scenario.shortest_way, .jitter = scenario.longest_way - scenario.shortest_way}),
        problem_(scenario.features, scenario.noise, scenario.seed),
        random_(scenario.seed),
        tasks_(runtime_, "training swarm") {
    const double middling = (to_seconds(scenario.shortest_batch) + to_seconds(scenario.longest_batch)) / 2;
    const double each = std::log(to_seconds(scenario.longest_batch) / to_seconds(scenario.shortest_batch)) /
                        std::max(1e-9, to_seconds(scenario.longest_batch - scenario.shortest_batch));
    const double rate = scenario.longest_batch > scenario.shortest_batch ? each : 1 / middling;  // mean of 1 / seconds
    target_ =
        static_cast<std::int64_t>(static_cast<double>(scenario.trainers) * static_cast<double>(scenario.batch_size) *
                                  scenario.batches_per_epoch * middling * rate);
  }
  ~SimulatedSwarm() override { end_all(); }

  TrainScenarioReport run() {
    const auto start = std::chrono::steady_clock::now();
    report_.first_loss = problem_.loss(std::vector<float>(scenario_.features));
    tasks_.spawn(arrive(*this), "arrivals");
    tasks_.spawn(replace(*this), "replacements");
    tasks_.spawn(put_to_sleep(*this), "sleep");
    const Duration settled = scenario_.arrival + std::min(scenario_.arrival, kSettling);
    for (double second = 0; second < to_seconds(scenario_.duration) && !stopped_; ++second) {
      is_second_half_ = second > to_seconds(scenario_.duration) / 2;
      runtime_.run_for(1s);
      report_.seconds = second + 1;
      const std::uint64_t latest = epoch();
      if (latest > std::exchange(report_.epochs, latest)) entered_ = report_.seconds;
      if (second > to_seconds(settled)) compare_samples(latest);
      if (scenario_.each_second) scenario_.each_second(*this, second);
    }
    finish_report();
    report_.real_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return report_;
  }

  std::size_t size() const override { return trainers_.size(); }
  Task<Dht*> stranger() override {
    SimulatedNode node = make_node();
    Dht* dht = node.dht.get();
    strangers_.push_back(std::move(node));
    (void)co_await dht->start(initial_peers(dht));
    co_return dht;
  }
  std::pair<p2p::Host*, Multiaddr> bare_stranger() override {
    strangers_.push_back(make_host());
    return {strangers_.back().host.get(), initial_peers(nullptr).front()};
  }
  void spawn(Task<void> task) override { tasks_.spawn(std::move(task), "mischief"); }
  void add(std::size_t newcomers) override {
    for (std::size_t i = 0; i < newcomers; ++i) begin_newcomer(trainers_.emplace_back());
  }
  void stop() override { stopped_ = true; }
  void split(bool apart) override {
    if (!apart) return fabric_.heal();
    std::set<std::string> sides[2];
    for (std::size_t i = 0; i < trainers_.size(); ++i) sides[i % 2].insert(trainers_[i]->ip);
    fabric_.partition(sides[0], sides[1]);
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  std::uint64_t epoch() const {
    std::uint64_t latest = 0;
    for (const auto& trainer : trainers_)
      if (trainer->run) latest = std::max(latest, trainer->run->epoch());
    return latest;
  }

  SimulatedNode make_host() {
    SimulatedNode node;
    node.machine = fabric_.add_machine();
    const std::uint64_t number = ++made_;
    node.ip = log::format("10.{}.{}.{}", number >> 16 & 255, number >> 8 & 255, number & 255);
    const double line = std::exp(uniform(random_, std::log(scenario_.slowest_line), std::log(scenario_.fastest_line)));
    fabric_.set_line(node.ip, {line, line});
    Bytes seed(32, static_cast<std::uint8_t>(scenario_.seed));
    std::memcpy(seed.data(), &number, sizeof number);
    p2p::HostOptions host_options;
    host_options.listen = {Multiaddr::from_text("/ip4/0.0.0.0/tcp/4001").value()};
    host_options.transport.keepalive_interval = kTrainerKeepalive;
    host_options.transport.plaintext = scenario_.plaintext;
    host_options.memory_budget = scenario_.memory_budget;
    if (scenario_.connections > 0) {
      host_options.high_water = scenario_.connections;
      host_options.low_water = scenario_.connections * 3 / 4;
      host_options.trim_grace = kShortGrace;
      host_options.max_known_peers = kKnownForEach * scenario_.connections;
    }
    node.host = std::make_unique<p2p::Host>(*node.machine, KeyPair::ed25519_from_seed(seed), host_options);
    node.host->start().value();
    budgets_.push_back(node.host->memory());
    return node;
  }
  SimulatedNode make_node() {
    SimulatedNode node = make_host();
    node.dht = std::make_unique<Dht>(*node.host, scenario_.dht);
    return node;
  }

  codec::Shape model_shape() const {
    const auto features = static_cast<std::uint32_t>(scenario_.features);
    const auto columns = static_cast<std::uint32_t>(scenario_.columns);
    return columns > 0 ? codec::Shape{features / columns, columns} : codec::Shape{features};
  }
  std::shared_ptr<Trainer> make_trainer() {
    auto trainer = std::make_shared<Trainer>();
    trainer->number = made_;
    static_cast<SimulatedNode&>(*trainer) = make_node();
    trainer->random.seed(scenario_.seed * 1'000'003 + made_);
    trainer->batch =
        from_seconds(uniform(random_, to_seconds(scenario_.shortest_batch), to_seconds(scenario_.longest_batch)));
    trainer->replica = std::make_unique<train::PlainReplica>(
        runtime_, std::vector<codec::Shape>{model_shape(), {static_cast<std::uint32_t>(scenario_.ballast)}},
        optim::SgdOptions{.lr = scenario_.learning_rate});
    train::RunOptions options;
    options.run_id = "simulated";
    options.target_batch_size = target_;
    options.matchmaking_time = 5s;
    options.averaging_timeout = 30s;
    if (scenario_.tune) scenario_.tune(options);
    local_updates_ = options.use_local_updates;
    if (!options.delay_state_averaging) outer_ = options.outer_optimizer;
    trainer->run = std::make_unique<train::Run>(
        *trainer->dht, std::make_shared<dht::RsaSignatureValidator>(cheap_key(trainer->number)), *trainer->replica,
        options);
    trainer->tasks = std::make_unique<TaskGroup>(runtime_, "trainer");
    return trainer;
  }

  /// Puts a newcomer into a place of trainers_, where it is before it looks for others.
  void begin_newcomer(std::shared_ptr<Trainer>& place) {
    place = make_trainer();
    place->newcomer = true;
    place->tasks->spawn(train(*this, place), "newcomer");
  }

  static Task<void> arrive(SimulatedSwarm& self) {
    const Duration pause = self.scenario_.arrival / static_cast<Duration::rep>(self.scenario_.trainers);
    while (self.trainers_.size() < self.scenario_.trainers) {
      self.trainers_.push_back(self.make_trainer());
      auto& trainer = *self.trainers_.back();
      trainer.tasks->spawn(train(self, self.trainers_.back()), "trainer");
      if (self.trainers_.size() == 1)
        while (!trainer.standing) co_await self.runtime_.sleep_for(100ms);
      co_await self.runtime_.sleep_for(pause);
    }
  }

  static Task<void> replace(SimulatedSwarm& self) {
    if (self.scenario_.replaced_per_minute <= 0) co_return;
    const double per_second = self.scenario_.replaced_per_minute * static_cast<double>(self.scenario_.trainers) / 60;
    co_await self.runtime_.sleep_for(self.scenario_.arrival * 2);
    for (;;) {
      co_await self.runtime_.sleep_for(from_seconds(-std::log(1 - self.runtime_.random_unit()) / per_second));
      auto& place = self.trainers_[self.below(self.trainers_.size())];
      self.fabric_.kill(place->ip);
      self.end(*place);
      self.begin_newcomer(place);
    }
  }

  /// Machines that nothing reaches, and that compute nothing.
  static Task<void> put_to_sleep(SimulatedSwarm& self) {
    if (self.scenario_.asleep_per_minute <= 0) co_return;
    const double per_second = self.scenario_.asleep_per_minute * static_cast<double>(self.scenario_.trainers) / 60;
    co_await self.runtime_.sleep_for(self.scenario_.arrival * 2);
    for (;;) {
      co_await self.runtime_.sleep_for(from_seconds(-std::log(1 - self.runtime_.random_unit()) / per_second));
      const auto sleeper = self.trainers_[self.below(self.trainers_.size())];
      const auto time = from_seconds(self.runtime_.random_unit() * to_seconds(self.scenario_.longest_sleep));
      if (sleeper->asleep) continue;
      sleeper->asleep = true;
      self.cut_off_sleepers();
      self.tasks_.spawn(wake(self, sleeper, time), "sleeper");
    }
  }
  static Task<void> wake(SimulatedSwarm& self, std::shared_ptr<Trainer> sleeper, Duration after) {
    co_await self.runtime_.sleep_for(after);
    sleeper->asleep = false;
    self.cut_off_sleepers();
  }
  void cut_off_sleepers() {
    fabric_.heal();
    for (const auto& sleeper : trainers_) {
      if (!sleeper->asleep) continue;
      std::set<std::string> others;
      for (const auto& other : trainers_)
        if (other != sleeper) others.insert(other->ip);
      fabric_.partition({sleeper->ip}, others);
    }
  }

  /// As a process is killed.
  void end(Trainer& trainer) {
    judge(trainer);
    trainer.tasks.reset();
    trainer.run.reset();
    trainer.replica.reset();
    trainer.dht.reset();
    trainer.host.reset();
  }

  void judge(const Trainer& trainer) {
    if (!trainer.run) return;
    if (trainer.began != TimePoint{}) {
      waited_ += to_seconds(trainer.waited);
      lived_ += to_seconds(runtime_.now() - trainer.began);
    }
    const auto bytes = static_cast<double>(trainer.run->progress().shard_bytes);
    shard_bytes_ += bytes;
    if (trainer.began != TimePoint{})
      report_.shard_bytes_busiest =
          std::max(report_.shard_bytes_busiest, bytes / std::max(60.0, to_seconds(runtime_.now() - trainer.began)));
    const auto stats = trainer.run->stats();
    report_.downloads += stats.state_downloads;
    report_.followed += stats.states_followed;
    if (!trainer.newcomer || !trainer.joined_at) return;
    const bool due = epoch() > *trainer.joined_at + kEpochsToGetIn;
    if (!trainer.in_at && !due) return;  // killed too early to tell
    ++report_.newcomers;
    if (!trainer.in_at || *trainer.in_at > *trainer.joined_at + kEpochsToGetIn) ++report_.newcomers_late;
  }

  std::vector<Multiaddr> initial_peers(const Dht* of) {
    std::vector<Multiaddr> initial;
    for (int attempt = 0; attempt < 100 && initial.size() < kInitialPeers; ++attempt) {
      const auto& other = trainers_[below(trainers_.size())];
      if (other->standing && other->dht.get() != of) initial.push_back(other->host->visible_addresses().front());
    }
    return initial;
  }

  static Task<void> train(SimulatedSwarm& self, std::shared_ptr<Trainer> me) {
    me->joined_at = self.epoch();
    while (!co_await me->dht->start(self.initial_peers(me->dht.get()))) co_await self.runtime_.sleep_for(kStartAgain);
    me->standing = true;
    me->run->start();
    // One that sees no other trainer yet has nothing to catch up with, and learns so at once.
    while (me->newcomer) {
      if (co_await me->run->catch_up() || self.epoch() == 0) break;
      co_await self.runtime_.sleep_for(1s);
    }
    me->began = self.runtime_.now();
    std::vector<float> gradient(self.scenario_.features), ballast(self.scenario_.ballast);
    for (;;) {
      co_await self.runtime_.sleep_for(me->batch);
      while (me->asleep) co_await self.runtime_.sleep_for(me->batch);
      self.problem_.gradient(me->replica->parameter(0), self.scenario_.batch_size, me->random, gradient);
      ++me->steps;
      if (self.local_updates_)
        me->replica->step_locally({gradient, ballast});
      else
        me->replica->add_gradients({gradient, ballast}, static_cast<double>(self.scenario_.batch_size));
      const TimePoint begin = self.runtime_.now();
      const auto report = co_await me->run->step(self.scenario_.batch_size);
      me->waited += self.runtime_.now() - begin;
      self.note(*me, report);
    }
  }

  void note(Trainer& trainer, const train::StepReport& report) {
    if (outer_ && report.state_group > 1) {
      const auto weights = trainer.replica->parameter(0);
      auto& all = after_rounds_[report.epoch];
      all.weights.emplace_back(weights.begin(), weights.end());
      all.steps += trainer.steps;
    }
    if (report.grad_group > 1 || (local_updates_ && report.state_group > 1)) {
      const std::size_t group = std::max(report.grad_group, local_updates_ ? report.state_group : 0);
      ++rounds_;
      members_ += group;
      if (is_second_half_) ++trainer.rounds, trainer.members += group;
      if (!trainer.in_at) trainer.in_at = report.epoch;
      auto& largest = groups_[report.epoch];
      largest = std::max(largest, group);
    } else if (report.epoch_changed) {
      groups_.try_emplace(report.epoch, 0);
    }
  }

  /// Returns the pace of the epochs that have ended. The one in progress counts once it takes longer than they did.
  double epochs_per_hour() const {
    if (report_.epochs == 0) return 0;
    const auto epochs = static_cast<double>(report_.epochs);
    return epochs / std::max(entered_, report_.seconds - entered_ / epochs) * 3600;
  }

  /// What trainers take the samples of the epoch for, beside those that there are; both end at the target.
  void compare_samples(std::uint64_t latest) {
    const auto target = static_cast<double>(target_);
    double there_are = 0;
    std::vector<double> reckoned;
    for (const auto& trainer : trainers_) {
      if (!trainer->run || trainer->run->epoch() != latest) continue;
      const train::GlobalProgress seen = trainer->run->progress();
      if (seen.epoch != latest) continue;
      there_are += seen.own_samples;
      if (!seen.others_train) continue;
      const double left = (seen.eta - runtime_.wall_time()) * seen.samples_per_second;
      reckoned.push_back(std::clamp(target - left, 0.0, target));
    }
    for (const double samples : reckoned)
      samples_errors_.push_back(std::abs(samples - std::min(there_are, target)) / target);
  }

  /// Bytes of calls that all trainers have sent.
  double bytes_of(const char* method) {
    double sum = 0;
    for (const char* side : {"client", "server"})
      sum += rpc::MethodMetrics(runtime_.metrics(), method, side).bytes_sent.value();
    return sum;
  }

  double peer_seconds() const { return static_cast<double>(scenario_.trainers) * report_.seconds; }

  void report_progress() {
    report_.dht_bytes = (bytes_of("rpc_find") + bytes_of("rpc_store") + bytes_of("rpc_ping")) / peer_seconds();
    if (samples_errors_.empty()) return;
    const auto rank = static_cast<std::ptrdiff_t>(static_cast<double>(samples_errors_.size()) * 0.95);
    std::ranges::nth_element(samples_errors_, samples_errors_.begin() + rank);
    report_.samples_error = samples_errors_[static_cast<std::size_t>(rank)];
  }

  /// Compares the speed of all, as each trainer takes it, with the time that batches take.
  void compare_speeds() {
    double speed = 0;
    for (const auto& trainer : trainers_)
      if (trainer->run) speed += static_cast<double>(scenario_.batch_size) / to_seconds(trainer->batch);
    for (const auto& trainer : trainers_)
      if (trainer->run)
        report_.speed_error =
            worse_of(report_.speed_error, std::abs(trainer->run->progress().samples_per_second / speed - 1));
  }

  void finish_report() {
    report_progress();
    compare_speeds();
    report_.epochs_per_hour = epochs_per_hour();
    for (std::uint64_t number = 1; number < report_.epochs; ++number)
      if (const auto group = groups_.find(number); group == groups_.end() || group->second < 2) ++report_.epochs_alone;
    report_.mean_group = rounds_ ? static_cast<double>(members_) / static_cast<double>(rounds_) : 0;
    std::vector<double> groups;
    for (const auto& trainer : trainers_)
      if (trainer->run && trainer->rounds > 0)
        groups.push_back(static_cast<double>(trainer->members) / static_cast<double>(trainer->rounds));
    if (!groups.empty()) report_.least_group = std::ranges::min(groups);
    report_.bytes_per_peer_second = static_cast<double>(fabric_.bytes_carried()) / peer_seconds();
    std::vector<std::span<float>> last;
    for (const auto& trainer : trainers_)
      if (trainer->run && trainer->run->epoch() == report_.epochs) last.push_back(trainer->replica->parameter(0));
    for (const auto& weights : last) {
      report_.last_loss = worse_of(report_.last_loss, problem_.loss(weights));
      report_.spread = worse_of(report_.spread, distance(weights, last[0]));
    }
    const auto one = train_alone(report_.epochs);
    report_.loss_of_one = problem_.loss(one);
    for (const auto& weights : last)
      report_.astray = worse_of(report_.astray, distance(weights, one) / std::sqrt(report_.first_loss));
    if (outer_) compare_after_rounds();
    end_all();
    const p2p::HostMetrics metrics(runtime_.metrics());
    for (const auto& reason : metrics.offences) report_.offences += reason.value();
    report_.shard_bytes = shard_bytes_ / peer_seconds();
    report_.waiting = lived_ > 0 ? waited_ / lived_ : 0;
    for (const MemoryBudget& budget : budgets_) {
      report_.most_held = std::max(report_.most_held, budget.highest());
      report_.over_budget += budget.highest() > budget.total() || budget.held() > 0;
    }
  }

  /// Of the epochs that most trainers have ended with a round.
  void compare_after_rounds() {
    std::vector<double> steps;  // local ones of a trainer, in each of these rounds
    double before = 0;
    for (const auto& [epoch, after] : after_rounds_) {
      const auto size = static_cast<double>(after.weights.size());
      if (2 * after.weights.size() <= scenario_.trainers) continue;
      steps.push_back(after.steps / size - std::exchange(before, after.steps / size));
      const auto mean = mean_of(after.weights);
      double square = 0, loss = 0;
      for (const auto& one : after.weights) {
        square += std::pow(distance(one, mean), 2) / size;
        loss += problem_.loss(one) / size;
      }
      const double apart = std::sqrt(square) / distance(mean, std::vector<float>(mean.size()));
      if (epoch > kFirstRounds) report_.apart = worse_of(report_.apart, apart);
      report_.loss_after_round = loss + std::pow(scenario_.noise, 2);
    }
    report_.loss_of_one_group = problem_.loss(train_as_one_group(steps)) + std::pow(scenario_.noise, 2);
  }

  void end_all() {
    tasks_.cancel();
    for (auto& trainer : trainers_) end(*trainer);
    strangers_.clear();
    runtime_.run_ready();
  }

  static double distance(std::span<const float> a, std::span<const float> b) {
    double square = 0;
    for (std::size_t i = 0; i < a.size(); ++i) square += std::pow(a[i] - b[i], 2);
    return std::sqrt(square);
  }

  std::vector<float> train_alone(std::uint64_t epochs) {
    Random random(scenario_.seed + 7);
    std::vector<float> weights(scenario_.features), gradient(scenario_.features);
    for (std::uint64_t epoch = 0; epoch < epochs; ++epoch) {
      problem_.gradient(weights, target_, random, gradient);
      for (std::size_t i = 0; i < weights.size(); ++i)
        weights[i] -= static_cast<float>(scenario_.learning_rate) * gradient[i];
    }
    return weights;
  }

  static std::vector<float> mean_of(const std::vector<std::vector<float>>& all) {
    std::vector<float> mean(all.front().size());
    for (const auto& one : all)
      for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += one[i] / static_cast<float>(all.size());
    return mean;
  }

  /// Rounds of the outer optimizer that all trainers take part in. \param rounds  local steps of the mean trainer
  std::vector<float> train_as_one_group(const std::vector<double>& rounds) {
    Random random(scenario_.seed + 7);
    const auto lr = static_cast<float>(scenario_.learning_rate), mu = static_cast<float>(outer_->momentum);
    const auto outer_lr = static_cast<float>(outer_->lr);
    double speeds = 0;
    for (const auto& trainer : trainers_) speeds += 1 / to_seconds(trainer->batch);
    std::vector<float> anchor(scenario_.features), momentum(scenario_.features), gradient(scenario_.features);
    for (const double steps : rounds) {
      std::vector<double> sum(anchor.size());
      double made = 0;
      for (const auto& trainer : trainers_) {
        const double share = 1 / to_seconds(trainer->batch) / speeds;
        const double own = std::round(steps * share * static_cast<double>(trainers_.size()));
        auto weights = anchor;
        for (double step = 0; step < own; ++step) {
          problem_.gradient(weights, scenario_.batch_size, random, gradient);
          for (std::size_t i = 0; i < weights.size(); ++i) weights[i] -= lr * gradient[i];
        }
        for (std::size_t i = 0; i < weights.size(); ++i) sum[i] += own * (anchor[i] - weights[i]);
        made += own;
      }
      for (std::size_t i = 0; i < anchor.size(); ++i) {
        const auto difference = static_cast<float>(sum[i] / made);
        momentum[i] = mu * momentum[i] + difference;
        anchor[i] -= outer_lr * (outer_->nesterov ? difference + mu * momentum[i] : momentum[i]);
      }
    }
    return anchor;
  }

  const TrainScenario scenario_;
  SimRuntime runtime_;
  transport::SimFabric fabric_;
  LearningProblem problem_;
  Random random_;
  std::int64_t target_ = 1;
  bool local_updates_ = false;
  std::optional<train::OuterOptimizer> outer_;  // where nothing is delayed
  struct AfterRound {
    std::vector<std::vector<float>> weights;  // of each trainer
    double steps = 0;                         // of them together, since the beginning
  };
  std::map<std::uint64_t, AfterRound> after_rounds_{};  // by epoch
  std::uint64_t made_ = 0;
  std::vector<std::shared_ptr<Trainer>> trainers_;
  std::vector<SimulatedNode> strangers_;
  std::vector<MemoryBudget> budgets_;            // of all hosts there ever were
  std::map<std::uint64_t, std::size_t> groups_;  // the largest of each epoch
  std::size_t rounds_ = 0, members_ = 0;
  double waited_ = 0, lived_ = 0;
  double shard_bytes_ = 0;  // that trainers which are judged have sent
  std::vector<double> samples_errors_;
  bool is_second_half_ = false;
  bool stopped_ = false;
  double entered_ = 0;  // the epoch in progress, in seconds from the beginning
  TrainScenarioReport report_;
  TaskGroup tasks_;
};

}  // namespace

std::ostream& operator<<(std::ostream& out, const TrainScenarioReport& report) {
  return out << log::format(
             "{} epochs ({} alone), groups of {:.1f} ({:.1f} at least), {:.0f} B/s per peer (DHT {:.0f}, shards "
             "{:.0f}, "
             "busiest {:.0f}), samples {:.1f} % off at most for 95 of 100, waiting {:.2f} %, loss {:.3e} (one process "
             "{:.3e}, first {:.3e}), {:.3f} astray, spread {:.2e}, {} newcomers ({} late), {} downloads, {} followed, "
             "{} offences, {:.2f} % apart, loss {:.4g} after a round ({:.4g} in one group), {} bytes held ({} hosts "
             "over budget), {:.1f} s",
             report.epochs, report.epochs_alone, report.mean_group, report.least_group, report.bytes_per_peer_second,
             report.dht_bytes, report.shard_bytes, report.shard_bytes_busiest, 100 * report.samples_error,
             100 * report.waiting, report.last_loss, report.loss_of_one, report.first_loss, report.astray,
             report.spread, report.newcomers, report.newcomers_late, report.downloads, report.followed, report.offences,
             100 * report.apart, report.loss_after_round, report.loss_of_one_group, report.most_held,
             report.over_budget, report.real_seconds);
}

TrainScenario small_training() {
  TrainScenario scenario;
  scenario.trainers = 5;
  scenario.duration = 2min;
  scenario.arrival = 2s;
  scenario.replaced_per_minute = 0;
  scenario.slowest_line = 100e6 / 8;
  scenario.shortest_batch = 500ms;
  scenario.longest_batch = 1s;
  scenario.batches_per_epoch = 10;
  return scenario;
}

TrainScenarioReport run_training(const TrainScenario& scenario) {
  SimulatedSwarm swarm(scenario);
  return swarm.run();
}

}  // namespace cohive::sim
