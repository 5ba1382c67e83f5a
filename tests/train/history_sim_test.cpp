// What a run remembers of itself: the same cause in the status, in the counters and in the log.
#include "train/history.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/log_output.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/status.hpp"
#include "train/wait_clock.hpp"

namespace cohive::train {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(History, AFailedRoundHasOneCauseEverywhere) {
  SimRuntime runtime(1);
  History history(runtime, {runtime.metrics(), "run"});
  const Error error(averaging::Errc::no_group);
  history.round_failed("gradients", cause_of_round_failure(error), error.message());
  const json round = json::parse(history.rounds()).at(0);
  EXPECT_EQ(round["outcome"], "failed");
  EXPECT_EQ(round["cause"], "no_group");
  EXPECT_EQ(round["message"], error.message());
  const json failure = json::parse(Status::of(runtime).json())["failures"].at(0);
  EXPECT_EQ(failure["kind"], "round");
  EXPECT_EQ(failure["cause"], "no_group");
  EXPECT_THAT(runtime.metrics().text(),
              HasSubstr(R"(cohive_train_failed_rounds_total{averager="gradients",cause="no_group",run_id="run"} 1)"));
  EXPECT_THAT(log::recent().back(), HasSubstr("train: averaging gradients: " + error.message()));
}

TEST(History, AFailedDownloadHasOneCauseEverywhere) {
  SimRuntime runtime(1);
  History history(runtime, {runtime.metrics(), "run"});
  const Error error(averaging::Errc::no_donor);
  history.download_failed(error);
  EXPECT_EQ(json::parse(Status::of(runtime).json())["failures"].at(0)["cause"], "no_donor");
  EXPECT_THAT(runtime.metrics().text(),
              HasSubstr(R"(cohive_train_failed_downloads_total{cause="no_donor",run_id="run"} 1)"));
  EXPECT_THAT(log::recent().back(), HasSubstr(error.message()));
}

TEST(History, CountersOfAllCausesBeginWithZero) {
  SimRuntime runtime(1);
  History history(runtime, {runtime.metrics(), "run"});
  history.count_failures_of("outer step");
  for (const auto code : {averaging::Errc::no_group, averaging::Errc::members_left, averaging::Errc::refused,
                          averaging::Errc::not_finite, averaging::Errc::nobody_reduces, averaging::Errc::bad_partition,
                          averaging::Errc::round_cancelled, averaging::Errc::bad_state})
    EXPECT_THAT(runtime.metrics().text(),
                HasSubstr("cause=\"" + cause_of_round_failure(Error(code)) + "\",run_id=\"run\"} 0"));
  EXPECT_EQ(cause_of_round_failure(Error(Errc::timeout)), "timeout");
  EXPECT_EQ(cause_of_download_failure(Error(averaging::Errc::bad_state)), "bad_state");
}

TEST(History, ARoundTellsItsMembersAndWhomItLost) {
  SimRuntime runtime(1);
  History history(runtime, {runtime.metrics(), "run"});
  const auto a = KeyPair::generate_ed25519().peer_id(), b = KeyPair::generate_ed25519().peer_id();
  averaging::RoundReport result;
  result.group_id = "\x01\xff";
  result.group = {averaging::Member{.peer = a, .bandwidth = {}, .data = {}},
                  averaging::Member{.peer = b, .bandwidth = {}, .data = {}}};
  result.matchmaking = 2s;
  result.allreduce = 500ms;
  result.parts_total = 4;
  history.round_averaged("parameters", std::make_shared<const averaging::RoundReport>(result));
  result.lost_senders = result.failed_reducers = {b};
  result.parts_failed = 2;
  history.round_averaged("parameters", std::make_shared<const averaging::RoundReport>(result));
  const json rounds = json::parse(history.rounds());
  EXPECT_EQ(rounds[0]["outcome"], "ok");
  EXPECT_EQ(rounds[0]["group_id"], "01ff");
  EXPECT_EQ(rounds[0]["members"], json({a.text(), b.text()}));
  EXPECT_EQ(rounds[0]["matchmaking_seconds"], 2.0);
  EXPECT_EQ(rounds[1]["outcome"], "partial");
  EXPECT_EQ(rounds[1]["lost"], json::array({b.text()}));
  EXPECT_THAT(rounds[1]["message"].get<std::string>(), HasSubstr("2 of 4 parts"));
}

TEST(History, KeepsTheLastRoundsAndEpochsAlone) {
  SimRuntime runtime(1);
  History history(runtime, {runtime.metrics(), "run"});
  for (int i = 0; i < 1000; ++i) {
    history.round_failed("gradients", "timeout", std::to_string(i));
    runtime.run_for(1s);
    EXPECT_EQ(history.epoch_ended({static_cast<std::uint64_t>(i), 100, 50, std::nan(""), 3, 0.25 * i}), 1.0);
  }
  const json rounds = json::parse(history.rounds()), epochs = json::parse(history.epochs());
  EXPECT_EQ(rounds.size(), History::kRounds);
  EXPECT_EQ(rounds.back()["message"], "999");
  EXPECT_EQ(epochs.size(), History::kEpochs);
  EXPECT_EQ(epochs.back()["epoch"], 999);
  EXPECT_EQ(epochs.back()["wait_seconds"], 0.25);
  EXPECT_TRUE(epochs.back()["loss"].is_null()) << "JSON has no word for a number that is none";
}

TEST(WaitClock, ChargesWhatAWaitingTrainerWaitsFor) {
  SimRuntime runtime(1);
  WaitClock clock(runtime, {runtime.metrics(), "run"});
  clock.turn_to(Wait::parameters);  // in the background
  runtime.run_for(5s);
  {
    const WaitClock::Waiting waiting(clock, Wait::progress);
    runtime.run_for(1s);
    clock.turn_to(Wait::gradients);
    runtime.run_for(2s);
    EXPECT_EQ(clock.total(), 3.0) << "the wait goes on";
    clock.turn_to(Wait::step);
  }
  runtime.run_for(5s);
  EXPECT_EQ(clock.total(), 3.0);
  EXPECT_EQ(clock.seconds()[static_cast<std::size_t>(Wait::gradients)], 2.0);
  EXPECT_THAT(runtime.metrics().text(),
              HasSubstr(R"(cohive_train_wait_seconds_total{reason="gradients",run_id="run"} 2)"));
  EXPECT_THAT(runtime.metrics().text(),
              HasSubstr(R"(cohive_train_wait_seconds_total{reason="parameters",run_id="run"} 0)"));
}

}  // namespace
}  // namespace cohive::train
