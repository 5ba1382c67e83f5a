#include "scenarios/uneven_swarm.hpp"

#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "cohive/testing/offences.hpp"
#include "cohive/testing/swarm.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/train/run.hpp"

namespace cohive::sim {
namespace {

constexpr std::int64_t kBatch = 8;
constexpr std::uint32_t kTensors = 64, kValues = 256;  // a part each, so that all trainers reduce some
constexpr double kLine = 100e6 / 8;
constexpr std::uint64_t kQuietRounds = 12;  // at the end: anchors that differ are repaired after ten

struct Trainer {
  std::size_t place = 0;  // one takes that of another which was ended
  Duration step{};
  std::string ip;
  std::unique_ptr<Dht> dht;
  std::unique_ptr<train::PlainReplica> replica;
  std::unique_ptr<train::Run> run;
  std::unique_ptr<TaskGroup> tasks;
  bool asleep = false;
  double made = 0, open = 0, offered = 0;  // samples; of these, those of this epoch, and of a round in progress
};

class UnevenSwarm {
 public:
  explicit UnevenSwarm(const UnevenRun& what) : what_(what), net_({.seed = what.seed, .latency = 25ms}) {
    first_ = std::make_unique<Dht>(net_.add_host());
    net_.run(first_->start({})).value();
    options_.run_id = "uneven";
    options_.matchmaking_time = 5s;
    options_.averaging_timeout = 30s;
    options_.use_local_updates = true;
    options_.outer_optimizer.emplace();
    options_.checkpoints.every = 0s;
    const auto fast = static_cast<double>(what.trainers - what.slow);
    options_.target_batch_size = static_cast<std::int64_t>(static_cast<double>(kBatch) * what.steps_per_round *
                                                           (fast + static_cast<double>(what.slow) / what.times_slower));
    if (what.tune) what.tune(options_);
    for (std::size_t i = 0; i < what.trainers; ++i) {
      trainers_.push_back(make(i));
      net_.pass(2s);
    }
    if (what.fault_every > 0s) faults_ = std::make_unique<TaskGroup>(net_.runtime(), "faults");
  }
  ~UnevenSwarm() {
    faults_.reset();
    for (auto& trainer : trainers_) end(*trainer);
    first_.reset();
  }

  UnevenReport run() {
    pass(what_.first);
    if (faults_) faults_->spawn(cause_faults(*this), "faults");
    for (auto* sum : {&made_, &slow_made_, &possible_, &lost_, &slow_lost_}) *sum = 0;
    downloads_ = rounds_ = 0;
    const Tally before = tally();
    pass(what_.then);
    faults_.reset();
    const Tally after = tally();
    const double seconds = to_seconds(what_.then);
    report_.counted = (made_ - lost_ - after.lost + before.lost) / seconds;
    report_.made = made_ / seconds;
    report_.possible = possible_ / seconds;
    report_.slow_share = 1 - (slow_lost_ + after.slow - before.slow) / slow_made_;
    report_.rounds = rounds_;
    report_.downloads = downloads_ + after.downloads - before.downloads;
    wake_all();
    pass_rounds(what_.fault_every > 0s ? kQuietRounds : 1);
    report_.equal_anchors = equal_anchors();
    report_.offences = offences(net_.runtime());
    return report_;
  }

 private:
  struct Tally {
    double lost = 0, slow = 0;
    std::uint64_t downloads = 0;
  };
  bool is_slow(const Trainer& one) const { return one.place < what_.slow; }
  void add_up(const Trainer& one, Tally& sum) const {
    if (!one.run) return;
    const auto stats = one.run->stats();
    const double lost = one.made - one.open - one.offered - stats.samples_averaged;
    sum.lost += lost;
    if (is_slow(one)) sum.slow += lost;
    sum.downloads += stats.state_downloads;
  }
  Tally tally() const {
    Tally sum;
    for (const auto& one : trainers_) add_up(*one, sum);
    return sum;
  }

  std::shared_ptr<Trainer> make(std::size_t place) {
    auto one = std::make_shared<Trainer>();
    one->place = place;
    one->step = std::chrono::duration_cast<Duration>(what_.step * (is_slow(*one) ? what_.times_slower : 1.0));
    one->dht = std::make_unique<Dht>(net_.add_host());
    one->ip = Swarm::ip(net_.size());
    net_.fabric().set_line(one->ip, {.upload = kLine, .download = kLine});
    one->replica = std::make_unique<train::PlainReplica>(net_.runtime(), std::vector<codec::Shape>(kTensors, {kValues}),
                                                         optim::SgdOptions{.lr = 0.01});
    one->run = std::make_unique<train::Run>(
        *one->dht, std::make_shared<dht::RsaSignatureValidator>(cheap_key(net_.size())), *one->replica, options_);
    one->tasks = std::make_unique<TaskGroup>(net_.runtime(), "trainer");
    one->tasks->spawn(train(*this, one), "trainer");
    return one;
  }
  void end(Trainer& one) {
    one.open = one.offered = 0;
    Tally sum;
    add_up(one, sum);
    lost_ += sum.lost;
    slow_lost_ += sum.slow;
    downloads_ += sum.downloads;
    one.tasks.reset();
    one.run.reset();
    one.replica.reset();
    one.dht.reset();
  }

  static Task<void> train(UnevenSwarm& self, std::shared_ptr<Trainer> me) {
    Runtime& runtime = self.net_.runtime();
    while (!co_await me->dht->start({self.net_.host(0).visible_addresses().front()})) co_await runtime.sleep_for(1s);
    me->run->start();
    (void)co_await me->run->catch_up();
    std::vector<float> gradient(kValues);
    const std::vector<std::span<const float>> gradients(kTensors, gradient);
    for (;;) {
      co_await runtime.sleep_for(me->step);
      while (me->asleep) co_await runtime.sleep_for(100ms);
      std::ranges::fill(gradient, static_cast<float>(runtime.random_unit() - 0.6));
      me->replica->step_locally(gradients);
      const auto samples = static_cast<double>(kBatch);
      self.made_ += samples;
      if (self.is_slow(*me)) self.slow_made_ += samples;
      me->made += samples;
      me->open += samples;
      const auto report = co_await me->run->step(kBatch);
      if (report.state_group > 0) me->offered = 0;
      if (report.epoch_changed && report.state_group == 0) me->offered = std::exchange(me->open, 0);
      if (report.epoch_changed) me->open = 0;
      self.rounds_ += report.state_group > 1;
    }
  }

  void pass(Duration time) {
    constexpr Duration kTick = 100ms;
    for (Duration passed{}; passed < time; passed += kTick) {
      net_.pass(kTick);
      for (const auto& one : trainers_)
        if (one->run && !one->asleep)
          possible_ += static_cast<double>(kBatch) * to_seconds(kTick) / to_seconds(one->step);
    }
  }

  /// Lets some rounds pass, and half of the one that follows, so that none is in progress.
  void pass_rounds(std::uint64_t rounds) {
    const Duration round = from_seconds(to_seconds(what_.step) * what_.steps_per_round);
    const std::uint64_t end = trainers_.front()->run->epoch() + rounds;
    const auto all_are_there = [&] {
      return std::ranges::all_of(trainers_, [end](const auto& one) { return one->run->epoch() >= end; });
    };
    for (Duration passed{}; passed < round * static_cast<int>(2 * rounds) && !all_are_there(); passed += 1s) pass(1s);
    pass(round / 2);
  }

  /// Three kinds of faults in turn, of trainers that are drawn: one is killed, or vanishes with its machine; one is
  /// stopped for a moment; a machine is suspended.
  static Task<void> cause_faults(UnevenSwarm& self) {
    Runtime& runtime = self.net_.runtime();
    for (int fault = 0;; ++fault) {
      co_await runtime.sleep_for(self.what_.fault_every);
      const auto drawn = static_cast<std::size_t>(runtime.random_unit() * static_cast<double>(self.trainers_.size()));
      auto& one = self.trainers_[drawn];
      if (one->asleep || !one->run) continue;
      ++self.report_.faults;
      if (const int kind = fault % 3; kind > 0) {
        const Duration longest = kind == 1 ? self.what_.longest_stop : self.what_.longest_sleep;
        self.faults_->spawn(suspend(self, one, longest), "a trainer asleep");
        continue;
      }
      fault % 2 ? self.net_.fabric().kill(one->ip) : self.net_.fabric().crash(one->ip);
      self.end(*one);
      self.faults_->spawn(replace(self, one->place), "a new trainer");
    }
  }
  static Task<void> replace(UnevenSwarm& self, std::size_t place) {
    co_await self.net_.runtime().sleep_for(self.what_.restart);
    self.trainers_[place] = self.make(place);
  }
  static Task<void> suspend(UnevenSwarm& self, std::shared_ptr<Trainer> one, Duration longest) {
    Runtime& runtime = self.net_.runtime();
    one->asleep = true;
    self.cut_off_sleepers();
    co_await runtime.sleep_for(from_seconds(runtime.random_unit() * to_seconds(longest)));
    one->asleep = false;
    self.cut_off_sleepers();
  }
  void cut_off_sleepers() {
    net_.fabric().heal();
    for (const auto& sleeper : trainers_) {
      if (!sleeper->asleep) continue;
      std::set<std::string> others;
      for (std::size_t i = 1; i <= net_.size(); ++i)
        if (Swarm::ip(i) != sleeper->ip) others.insert(Swarm::ip(i));
      net_.fabric().partition({sleeper->ip}, others);
    }
  }
  void wake_all() {
    for (const auto& one : trainers_) {
      one->asleep = false;
      if (!one->run) trainers_[one->place] = make(one->place);
    }
    cut_off_sleepers();
  }

  bool equal_anchors() {
    std::string folder = (std::filesystem::temp_directory_path() / "cohive-XXXXXX").string();
    if (!::mkdtemp(folder.data())) return false;
    std::set<std::string> anchors;
    for (const auto& one : trainers_) one->tasks.reset();
    for (const auto& one : trainers_) {
      (void)net_.run(one->run->settle());
      const auto file = std::filesystem::path(folder) / "state.safetensors";
      if (!net_.run(one->run->save_checkpoint(file))) {
        anchors.clear();
        break;
      }
      const auto state = *checkpoint::read_file(file);
      const auto found =
          std::ranges::find(state.tensors, "exchange.outer_step.anchor.0", &checkpoint::NamedTensor::name);
      anchors.insert(std::string(as_text(found->tensor.data.view())));
    }
    std::filesystem::remove_all(folder);
    return anchors.size() == 1;
  }

  const UnevenRun what_;
  Swarm net_;
  train::RunOptions options_;
  std::unique_ptr<Dht> first_;  // belongs to nobody
  std::vector<std::shared_ptr<Trainer>> trainers_;
  std::unique_ptr<TaskGroup> faults_;
  double made_ = 0, slow_made_ = 0, possible_ = 0;
  double lost_ = 0, slow_lost_ = 0;  // of trainers that were ended
  std::uint64_t downloads_ = 0;      // the same
  std::size_t rounds_ = 0;
  UnevenReport report_;
};

}  // namespace

std::string UnevenReport::text() const {
  return log::format(
      "{:.1f} samples per second count of {:.1f} made and {:.1f} possible ({:.1f} %), {:.1f} % of slow trainers' "
      "samples, {} faults, {} rounds, {} downloads, {} offences, anchors {}",
      counted, made, possible, 100 * counted / possible, 100 * slow_share, faults, rounds, downloads, offences,
      equal_anchors ? "equal" : "apart");
}

UnevenReport run_uneven(const UnevenRun& run) {
  UnevenSwarm swarm(run);
  return swarm.run();
}

}  // namespace cohive::sim
