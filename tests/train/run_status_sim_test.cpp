// What a run tells of itself, in the status and in the metrics of its process.
#include <gmock/gmock.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "cohive/core/metrics.hpp"
#include "cohive/core/status.hpp"
#include "train/training_swarm.hpp"

namespace cohive::train {
namespace {

using nlohmann::json;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

json runs_of(Runtime& runtime) {
  return json::parse(Status::of(runtime).json())["runs"];
}

/// A trainer that ends an epoch with each batch: nobody else is there.
struct Alone {
  Alone(sim::Swarm& swarm, Dht& dht, const std::string& run_id)
      : net(swarm),
        replica(swarm.runtime(), {{4}}, optim::SgdOptions{.lr = 1}),
        run(dht, std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(1)), replica, options_of(run_id)) {
    run.start();
  }
  static RunOptions options_of(const std::string& run_id) {
    RunOptions options;
    options.run_id = run_id;
    options.target_batch_size = 8;
    options.matchmaking_time = 1s;
    options.averaging_timeout = 5s;
    return options;
  }
  void end_epoch() {
    const std::uint64_t before = run.epoch();
    for (int tries = 0; run.epoch() == before && tries < 10; ++tries) {
      const std::vector<float> gradient(4, 1.0f);
      replica.add_gradients({gradient}, 8);
      (void)net.run(run.step(8));
      net.pass(1s);
    }
    ASSERT_GT(run.epoch(), before);
  }

  sim::Swarm& net;
  PlainReplica replica;
  Run run;
};

/// A process that trains two models.
class TwoRuns : public ::testing::Test {
 protected:
  TwoRuns() {
    EXPECT_TRUE(net.run(dht.start({})));
    one = std::make_unique<Alone>(net, dht, "one");
    other = std::make_unique<Alone>(net, dht, "other");
  }
  json runs() { return runs_of(net.runtime()); }
  std::string metrics() { return net.runtime().metrics().text(); }

  sim::Swarm net;
  Dht dht{net.add_host()};
  std::unique_ptr<Alone> one, other;
};

TEST_F(TwoRuns, ShowTheirOwnLosses) {
  one->run.report_loss(1.5);
  other->run.report_loss(2.5);
  one->end_epoch();
  EXPECT_EQ(runs()[0]["run_id"], "one");
  EXPECT_EQ(runs()[0]["loss"], 1.5);
  EXPECT_EQ(runs()[0]["epochs"][0]["loss"], 1.5);
  EXPECT_EQ(runs()[1]["run_id"], "other");
  EXPECT_EQ(runs()[1]["loss"], 2.5);
}

TEST_F(TwoRuns, CountTheirOwnSamples) {
  const auto samples = [this](const char* run_id) {
    return net.runtime().metrics().counter("cohive_train_samples_total", "", {{"run_id", std::string(run_id)}}).value();
  };
  one->end_epoch();
  EXPECT_EQ(samples("one"), 8);
  EXPECT_EQ(samples("other"), 0);
  other->end_epoch();
  EXPECT_EQ(samples("other"), 8);
}

TEST_F(TwoRuns, HaveNoLossInTheMetricsBeforeOneIsReported) {
  one->end_epoch();
  EXPECT_THAT(metrics(), Not(HasSubstr("cohive_train_loss")));
  EXPECT_TRUE(runs()[0]["loss"].is_null());
  EXPECT_TRUE(runs()[0]["epochs"][0]["loss"].is_null());
  one->run.report_loss(2.5);
  EXPECT_THAT(metrics(), HasSubstr("\ncohive_train_loss{run_id=\"one\"} 2.5\n"));
  EXPECT_THAT(metrics(), Not(HasSubstr("cohive_train_loss{run_id=\"other\"}")));
}

TEST_F(TwoRuns, ShowALossThatIsNoNumber) {
  one->run.report_loss(2.5);
  one->run.report_loss(kNaN);
  EXPECT_THAT(metrics(), ContainsRegex("\ncohive_train_loss.run_id=\"one\". [Nn][Aa][Nn]\n"));
  one->end_epoch();
  EXPECT_TRUE(runs()[0]["loss"].is_null()) << "JSON has no word for it";
  EXPECT_TRUE(runs()[0]["epochs"][0]["loss"].is_null());
  one->run.report_loss(2.5);
  EXPECT_EQ(runs()[0]["loss"], 2.5);
}

TEST(Waits, CountWhileTheyGoOn) {
  TrainingSwarm swarm(300'000);
  swarm.options.target_batch_size = 10'000'000;  // the epoch goes on
  swarm.net.set_limits({40e3, 0});               // bytes a second: a download takes half a minute
  swarm.add({.value = 5});
  swarm.pass(10s);
  const auto& newcomer = swarm.add({.value = 1});
  Runtime& runtime = swarm.net.runtime();
  const Counter counted = runtime.metrics().counter("cohive_train_wait_seconds_total", "",
                                                    {{"reason", "download"}, {"run_id", swarm.options.run_id}});
  swarm.pass(10s);
  EXPECT_GT(counted.value(), 2) << "it looks at the run every few seconds";
  const auto shown = [&] { return runs_of(runtime)[1]["wait_seconds"].value("download", 0.0); };
  const double before = shown();
  EXPECT_GT(before, 8);
  swarm.pass(5s);
  EXPECT_NEAR(shown() - before, 5, 0.01);
  EXPECT_EQ(newcomer.run->stats().state_downloads, 0u) << "the download goes on";
  EXPECT_TRUE(swarm.wait_for(5min, [&] { return newcomer.run->stats().state_downloads == 1; }));
}

}  // namespace
}  // namespace cohive::train
