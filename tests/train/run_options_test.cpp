#include "cohive/train/run_options.hpp"

#include <gmock/gmock.h>

#include "cohive/train/power_sgd_averager.hpp"

namespace cohive::train {
namespace {

using ::testing::HasSubstr;

std::string refusal(auto change) {
  RunOptions options;
  change(options);
  try {
    check(options);
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

TEST(RunOptions, DefaultsAreFine) {
  EXPECT_EQ(refusal([](RunOptions&) {}), "");
  EXPECT_EQ(
      refusal([](RunOptions& o) { o.delay_grad_averaging = o.delay_optimizer_step = o.offload_optimizer = true; }), "");
}

TEST(RunOptions, ContradictionsSayWhatToChange) {
  EXPECT_THAT(refusal([](RunOptions& o) { o.delay_grad_averaging = true; }), HasSubstr("delay_grad_averaging needs"));
  EXPECT_EQ(refusal([](RunOptions& o) { o.delay_optimizer_step = true; }), "") << "where the parameters are";
  EXPECT_THAT(refusal([](RunOptions& o) { o.offload_gradients_early = true; }), HasSubstr("set offload_optimizer"));
  EXPECT_EQ(refusal([](RunOptions& o) { o.offload_gradients_early = o.offload_optimizer = true; }), "");
  EXPECT_THAT(
      refusal([](RunOptions& o) { o.offload_gradients_early = o.offload_optimizer = o.reuse_grad_buffers = true; }),
      HasSubstr("leave reuse_grad_buffers and"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.use_local_updates = o.reuse_grad_buffers = true; }),
              HasSubstr("leave reuse_grad_buffers out"));
  EXPECT_THAT(refusal([](RunOptions& o) {
                o.use_local_updates = o.delay_grad_averaging = o.delay_optimizer_step = o.offload_optimizer = true;
              }),
              HasSubstr("leave delay_grad_averaging out"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.use_local_updates = o.delay_optimizer_step = o.offload_optimizer = true; }),
              HasSubstr("leave delay_optimizer_step out"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.client_mode = o.auxiliary = true; }), HasSubstr("must be reachable"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.use_local_updates = o.auxiliary = true; }),
              HasSubstr("leave one of the two"));
  EXPECT_THAT(refusal([](RunOptions& o) {
                o.auxiliary = true;
                o.batch_size = 4;
              }),
              HasSubstr("leave batch_size out"));
}

TEST(RunOptions, LocalUpdatesAverageNoGradientsOfWhichSomethingCouldBeSaid) {
  const auto local = [](auto change) {
    return refusal([&](RunOptions& o) {
      o.use_local_updates = true;
      change(o);
    });
  };
  EXPECT_THAT(local([](RunOptions& o) { o.grad_averager_factory = power_sgd_averager({}); }),
              HasSubstr("leave grad_averager_factory out"));
  EXPECT_THAT(local([](RunOptions& o) { o.agreed_grad_compression = codec::Codec::block4; }),
              HasSubstr("leave agreed_grad_compression out"));
  EXPECT_THAT(local([](RunOptions& o) { o.grad_aggregation = averaging::TrimmedMean(); }),
              HasSubstr("set state_aggregation"));
  EXPECT_EQ(local([](RunOptions& o) { o.grad_aggregation = o.state_aggregation = averaging::TrimmedMean(); }), "");
  EXPECT_EQ(local([](RunOptions& o) { o.grad_compression = codec::Codec::float16; }), "") << "as hivemind takes it";
  for (const bool own : {false, true})
    EXPECT_EQ(local([own](RunOptions& o) {
                o.agreed_grad_compression = codec::Codec::block4;
                o.grad_aggregation = averaging::TrimmedMean();
                if (own)
                  o.parameter_exchange = [](const ExchangeContext&) { return nullptr; };
                else
                  o.outer_optimizer.emplace();
              }),
              "");
}

TEST(RunOptions, WhatIsFittedIsNotGiven) {
  const auto fits = [](RunOptions& o) {
    o.use_local_updates = o.fit_target_batch_size = o.fit_compression = true;
    o.outer_optimizer.emplace();
  };
  EXPECT_EQ(refusal(fits), "");
  EXPECT_THAT(refusal([](RunOptions& o) { o.fit_target_batch_size = true; }), HasSubstr("set outer_optimizer"));
  EXPECT_THAT(refusal([&](RunOptions& o) {
                fits(o);
                o.grad_compression = codec::Codec::float16;
              }),
              HasSubstr("leave grad_compression and"));
  EXPECT_THAT(refusal([&](RunOptions& o) {
                fits(o);
                o.agreed_grad_compression = codec::Codec::block4;
              }),
              HasSubstr("agreed_grad_compression out"));
}

TEST(RunOptions, SparseDifferencesGoWithAnOuterStepWithoutMomentum) {
  const auto sparse = [](RunOptions& o) {
    o.use_local_updates = true;
    o.outer_optimizer = OuterOptimizer{.momentum = 0};
    o.agreed_grad_compression = codec::Codec::sparse2;
    o.grad_aggregation = averaging::MeanOfSenders{1};
  };
  EXPECT_EQ(refusal(sparse), "");
  EXPECT_THAT(refusal([&](RunOptions& o) {
                sparse(o);
                o.outer_optimizer->momentum = 0.5;
              }),
              HasSubstr("set outer_optimizer.momentum to 0"));
  EXPECT_THAT(refusal([&](RunOptions& o) {
                sparse(o);
                o.verified_share = 0.1;
              }),
              HasSubstr("leave verified_share out"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.agreed_grad_compression = codec::Codec::sparse2; }),
              HasSubstr("set outer_optimizer, or take top_k"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.grad_aggregation = averaging::MeanOfSenders(); }),
              HasSubstr("MeanOfSenders is for sparse2"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.state_aggregation = averaging::MeanOfSenders(); }),
              HasSubstr("of parameters none is"));
}

TEST(RunOptions, FullStateEveryGoesWithRoundsOfParametersThatTravelAsTheyAre) {
  const auto full = [](RunOptions& o) { o.full_state_every = 10; };
  EXPECT_EQ(refusal(full), "");
  EXPECT_THAT(refusal([&](RunOptions& o) {
                full(o);
                o.use_local_updates = true;
                o.outer_optimizer.emplace();
              }),
              HasSubstr("outer_optimizer has others"));
  EXPECT_THAT(refusal([&](RunOptions& o) {
                full(o);
                o.parameter_exchange = [](const ExchangeContext&) { return nullptr; };
              }),
              HasSubstr("leave full_state_every out"));
  EXPECT_THAT(refusal([&](RunOptions& o) {
                full(o);
                o.state_averaging_compression = codec::Codec::float16;
              }),
              HasSubstr("leave state_averaging_compression out"));
  EXPECT_THAT(refusal([&](RunOptions& o) {
                full(o);
                o.state_aggregation = averaging::ClippedMean();
              }),
              HasSubstr("ClippedMean goes by lengths"));
  EXPECT_EQ(refusal([&](RunOptions& o) {
              full(o);
              o.state_aggregation = averaging::TrimmedMean();
            }),
            "");
}

TEST(RunOptions, NumbersThatMakeNoSenseAreRefusedByName) {
  EXPECT_THAT(refusal([](RunOptions& o) { o.run_id = "a.b"; }), HasSubstr("run_id"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.run_id = ""; }), HasSubstr("run_id"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.run_id = "a\xff"; }), HasSubstr("run_id must be UTF-8"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.run_id = "a\nb"; }), HasSubstr("run_id"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.target_batch_size = 0; }), HasSubstr("target_batch_size"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.batch_size = 0; }), HasSubstr("batch_size"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.target_group_size = 1; }), HasSubstr("target_group_size"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.average_state_every = 0; }), HasSubstr("average_state_every"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.full_state_every = -1; }), HasSubstr("full_state_every"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.performance_ema_alpha = 0; }), HasSubstr("performance_ema_alpha"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.verified_share = 1.5; }), HasSubstr("verified_share"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.matchmaking_time = 0s; }), HasSubstr("matchmaking_time"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.averaging_timeout = 0s; }), HasSubstr("averaging_timeout"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.next_chunk_timeout = 0s; }), HasSubstr("next_chunk_timeout"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.allreduce_timeout = 0s; }), HasSubstr("allreduce_timeout"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.load_state_timeout = 0s; }), HasSubstr("load_state_timeout"));
  EXPECT_THAT(refusal([](RunOptions& o) { o.shutdown_timeout = -1s; }), HasSubstr("shutdown_timeout"));
}

}  // namespace
}  // namespace cohive::train
