#include "train/shards/sums.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "cohive/proto/progress.pb.h"

namespace cohive::train {
namespace {

constexpr double kTimeOfSums = 1'700'000'000, kWholeEpoch = 8192;

KeyPair key_of(std::uint8_t number) {
  return KeyPair::ed25519_from_seed(Bytes(32, number));
}

/// Trainers that have been at it for ten seconds, a quarter of them four times as fast.
std::vector<ShardReport> trainers(std::size_t count) {
  std::vector<ShardReport> all;
  for (std::size_t i = 0; i < count; ++i) {
    const double speed = i % 4 == 0 ? 16 : 4;
    all.push_back({7, 10 * speed, speed, kTimeOfSums, false});
  }
  return all;
}

ProgressSum shard(double samples, std::uint64_t epoch = 7) {
  return {epoch, samples, samples / 10, kTimeOfSums, 64, 2, 4};
}

TEST(ShardReports, AreReadAsTheirTrainerSignedThem) {
  const ShardReport told{7, 96, 4.5, kTimeOfSums, true};
  const auto read = open_report(as_bytes(seal_report(key_of(1), "run", told)), "run", kTimeOfSums + 5);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->trainer, key_of(1).peer_id());
  EXPECT_EQ(read->report.epoch, 7u);
  EXPECT_EQ(read->report.samples, 96);
  EXPECT_EQ(read->report.samples_per_second, 4.5);
  EXPECT_EQ(read->report.time, kTimeOfSums);
  EXPECT_TRUE(read->report.client);
}

TEST(ShardReports, TakeAHundredAndFiftyBytes) {
  EXPECT_LE(seal_report(key_of(1), "run", {1000, 4096, 31.25, kTimeOfSums, false}).size(), 160u);
}

TEST(ShardReports, OfAnotherRunOrChangedOnTheWayAreRefused) {
  std::string envelope = seal_report(key_of(1), "run", {7, 96, 4.5, kTimeOfSums, false});
  EXPECT_FALSE(open_report(as_bytes(envelope), "another", kTimeOfSums));
  for (char& byte : envelope) {
    byte = static_cast<char>(byte ^ 1);
    EXPECT_FALSE(open_report(as_bytes(envelope), "run", kTimeOfSums));
    byte = static_cast<char>(byte ^ 1);
  }
  EXPECT_TRUE(open_report(as_bytes(envelope), "run", kTimeOfSums));
}

TEST(ShardReports, ThatCannotBeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  const ShardReport impossible[] = {{7, -1, 4, kTimeOfSums},
                                    {7, nan, 4, kTimeOfSums},
                                    {7, infinite, 4, kTimeOfSums},
                                    {7, 96, -4, kTimeOfSums},
                                    {7, 96, nan, kTimeOfSums},
                                    {7, 96, 1e16, kTimeOfSums},
                                    {7, 96, 4, nan},
                                    {7, 96, 4, kTimeOfSums - 3600},
                                    {7, 96, 4, kTimeOfSums + 3600},
                                    {~std::uint64_t{0}, 96, 4, kTimeOfSums}};
  for (const ShardReport& report : impossible)
    EXPECT_FALSE(open_report(as_bytes(seal_report(key_of(1), "run", report)), "run", kTimeOfSums))
        << report.epoch << " " << report.samples << " " << report.samples_per_second << " " << report.time;
}

TEST(ShardSums, GrowWithTheTrainersSpeeds) {
  const auto sum = sum_up(trainers(64), kWholeEpoch, kTimeOfSums);
  EXPECT_EQ(sum.epoch, 7u);
  EXPECT_EQ(sum.trainers, 64);
  EXPECT_DOUBLE_EQ(sum.samples_per_second, 16 * 16 + 48 * 4);
  EXPECT_DOUBLE_EQ(sum.samples, 10 * sum.samples_per_second);
  EXPECT_DOUBLE_EQ(sum_up(trainers(64), kWholeEpoch, kTimeOfSums + 3).samples, 13 * sum.samples_per_second);
}

TEST(ShardSums, AreOfTheEpochThatMostHaveReached) {
  auto all = trainers(10);
  for (std::size_t i = 0; i < 4; ++i) all[i].epoch = 8;
  EXPECT_EQ(sum_up(all, kWholeEpoch, kTimeOfSums).epoch, 7u);
  all[4].epoch = all[5].epoch = 8;
  const auto sum = sum_up(all, kWholeEpoch, kTimeOfSums);
  EXPECT_EQ(sum.epoch, 8u);
  EXPECT_LT(sum.samples, 10 * sum.samples_per_second) << "of six trainers";
  for (auto& report : all) report.client = report.epoch == 8;
  EXPECT_EQ(sum_up(all, kWholeEpoch, kTimeOfSums).epoch, 7u) << "clients follow";
}

TEST(ShardSums, DoNotShrinkWhileTheFirstTrainersEndTheEpoch) {
  auto all = trainers(64);
  const double before = sum_up(all, kWholeEpoch, kTimeOfSums).samples;
  for (std::size_t i = 0; i < 24; ++i) all[i] = {8, 0, all[i].samples_per_second, kTimeOfSums, false};
  const auto sum = sum_up(all, kWholeEpoch, kTimeOfSums);
  EXPECT_EQ(sum.epoch, 7u);
  EXPECT_NEAR(sum.samples, before, 1e-6 * before);
  std::vector<ProgressSum> shards(16, shard(1000));
  for (std::size_t i = 0; i < 7; ++i) shards[i] = shard(10, 8);
  const auto run = total_of(shards, 4, kTimeOfSums);
  EXPECT_EQ(run.epoch, 7u);
  EXPECT_DOUBLE_EQ(run.samples, 16'000);
}

TEST(ShardSums, OfLeadersThatKnowFewOfAShardsTrainersAreLeftOut) {
  const auto of = [](double trainers) { return ProgressSum{.samples = 10 * trainers, .trainers = trainers}; };
  const auto left = [](std::vector<std::vector<ProgressSum>> shards) {
    leave_out_partial(shards);
    std::vector<std::vector<double>> trainers;
    for (const auto& views : shards) {
      trainers.emplace_back();
      for (const ProgressSum& view : views) trainers.back().push_back(view.trainers);
    }
    return trainers;
  };
  using Kept = std::vector<std::vector<double>>;
  EXPECT_EQ(left({{of(60), of(61), of(1)}, {of(1), of(3), of(58)}, {of(64), of(40)}}),
            (Kept{{60, 61}, {58}, {64, 40}}));
  EXPECT_EQ(left({{of(60), of(61), of(60)}, {of(4), of(3)}}), (Kept{{60, 61, 60}, {4, 3}})) << "nobody knows more";
  EXPECT_EQ(left({{of(5), of(90), of(88)}}), (Kept{{90, 88}})) << "of one shard";
  EXPECT_EQ(left({}), Kept{});
}

TEST(ShardSums, AreNewsWhereOthersReckonSomethingElse) {
  const ProgressSum before = shard(1000);  // a hundred a second
  const auto is_news_then = [&](const ProgressSum& sum) { return is_news(sum, before, 10'000, kTimeOfSums + 10); };
  const auto later = [](double samples, double trainers = 64) {
    ProgressSum sum = shard(samples);
    sum.time += 10;
    sum.trainers = trainers;
    return sum;
  };
  EXPECT_FALSE(is_news_then(later(2000)));
  EXPECT_FALSE(is_news_then(later(2100)));
  EXPECT_FALSE(is_news_then(later(2000, 60))) << "who has gone is missed in the samples";
  EXPECT_TRUE(is_news_then(later(1800)));
  EXPECT_TRUE(is_news_then(later(2200)));
  EXPECT_TRUE(is_news_then(later(2000, 70)));
  EXPECT_TRUE(is_news_then(shard(2000, 8)));
  EXPECT_FALSE(is_news(later(60'000), before, 10'000, kTimeOfSums + 200)) << "beyond the target nothing counts";
}

TEST(ShardSums, OneThatLiesChangesTheRunByFivePercentAtMost) {
  const double honest = sum_up(trainers(64), kWholeEpoch, kTimeOfSums).samples;
  const double run = 16 * honest, speed = 16 * honest / 10;
  for (const ShardReport& lie :
       {ShardReport{7, 1e18, 1e14, kTimeOfSums}, ShardReport{7, kWholeEpoch, 1e14, kTimeOfSums - 500},
        ShardReport{1 << 20, 0, 0, kTimeOfSums}, ShardReport{8, 0, 1e14, kTimeOfSums},
        ShardReport{7, 0, 1e14, kTimeOfSums + 100}}) {
    auto all = trainers(64);
    all[3] = lie;
    const auto sum = sum_up(all, kWholeEpoch, kTimeOfSums);
    EXPECT_EQ(sum.epoch, 7u);
    EXPECT_NEAR(sum.samples, honest, run / 20);
    EXPECT_NEAR(sum.samples_per_second, honest / 10, speed / 20);
  }
}

TEST(ShardSums, OfOneLyingLeaderOfThreeCountForNothing) {
  for (const ProgressSum& lie : {shard(1e17), shard(0), shard(1000, 1 << 20), shard(1000, 0)}) {
    const ProgressSum views[] = {shard(1000), lie, shard(1004)};
    const auto middle = middle_of(views, kTimeOfSums);
    ASSERT_TRUE(middle);
    EXPECT_EQ(middle->epoch, 7u);
    EXPECT_NEAR(middle->samples, 1000, 5);
  }
  EXPECT_FALSE(middle_of({}, kTimeOfSums));
}

TEST(ShardSums, AWholeShardThatLiesChangesARunOfSixteenByFivePercentAtMost) {
  const double honest = total_of(std::vector<ProgressSum>(16, shard(1000)), 4, kTimeOfSums).samples;
  EXPECT_DOUBLE_EQ(honest, 16'000);
  for (const ProgressSum& lie : {shard(1e17), shard(0), shard(1e17, 8)}) {
    std::vector<ProgressSum> shards(16, shard(1000));
    shards[5] = lie;
    EXPECT_NEAR(total_of(shards, 4, kTimeOfSums).samples, honest, honest / 20);
  }
  std::vector<ProgressSum> shards(16, shard(1000));
  shards[5] = {1 << 20, 0, 0, kTimeOfSums, 1e7, 0, 4};
  const auto run = total_of(shards, 4, kTimeOfSums);
  EXPECT_EQ(run.epoch, 7u);
  EXPECT_NEAR(run.trainers, 16 * 64, 16 * 64 / 20);
}

TEST(ShardSums, AMissingShardCountsAsTheOthersDo) {
  EXPECT_DOUBLE_EQ(total_of(std::vector<ProgressSum>(15, shard(1000)), 4, kTimeOfSums).samples, 16'000);
}

TEST(ShardSums, ThatCannotBeAreRefused) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const ProgressSum& sum :
       {ProgressSum{7, -1, 1, kTimeOfSums, 1, 1, 4}, ProgressSum{7, nan, 1, kTimeOfSums, 1, 1, 4},
        ProgressSum{7, 1, nan, kTimeOfSums, 1, 1, 4}, ProgressSum{7, 1, 1, nan, 1, 1, 4},
        ProgressSum{7, 1, 1, kTimeOfSums, 1e9, 1, 4}, ProgressSum{7, 1, 1, kTimeOfSums, 1, 1, 11}}) {
    proto::ProgressSum message;
    encode_sum(sum, message);
    EXPECT_FALSE(decode_sum(message, kTimeOfSums));
  }
}

TEST(Shards, HoldAboutAsManyTrainersEach) {
  std::map<std::uint32_t, int> counts;
  for (std::uint32_t i = 0; i < 1000; ++i) {
    Bytes seed(32);
    std::memcpy(seed.data(), &i, sizeof i);
    const ShardName name = shard_of("run", KeyPair::ed25519_from_seed(seed).peer_id(), 4);
    EXPECT_EQ(name.bits, 4);
    EXPECT_LT(name.number, 16u);
    ++counts[name.number];
  }
  EXPECT_EQ(counts.size(), 16u);
  for (const auto& [number, count] : counts) EXPECT_NEAR(count, 62, 30);
}

TEST(Shards, AreOneMoreBitOnlyWhereTheyAreFullAndOneLessWhereTheyAreEmpty) {
  EXPECT_EQ(bits_for(90, 0), 0);
  EXPECT_EQ(bits_for(129, 0), 1);
  EXPECT_EQ(bits_for(1000, 0), 4);
  EXPECT_EQ(bits_for(10'000, 0), 7);
  for (double trainers = 300; trainers < 760; trainers += 50) EXPECT_EQ(bits_for(trainers, 3), 3) << trainers;
  EXPECT_EQ(bits_for(250, 3), 2);
  EXPECT_EQ(bits_for(1e7, 3), kMostBits);
}

}  // namespace
}  // namespace cohive::train
