// Groups whose members send a sixty-fourth of their values, and are answered with a sixteenth of the average's.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "averaging/averaging_fixture.hpp"
#include "cohive/averaging/answer_residuals.hpp"

namespace cohive::averaging {
namespace {

using codec::Codec;

class SparseAverage : public Averaging {
 protected:
  AveragerOptions sparse(codec::CodecSpec spec = Codec::sparse2) {
    AveragerOptions options = quick();
    options.codec = Codec::float16;
    options.agreed_codec = spec;
    options.one_average = true;
    options.part_size_bytes = 1 << 18;
    return options;
  }
  /// Gives every peer values about some that all have in common.
  void draw_values() {
    std::mt19937 random(5);
    std::normal_distribution<float> normal;
    std::vector<float> common(peers[0]->a.size());
    for (float& value : common) value = normal(random);
    for (auto& peer : peers)
      for (std::size_t k = 0; k < common.size(); ++k) peer->a[k] = common[k] + 0.3f * normal(random);
  }
  bool all_have_the_same() const {
    return std::ranges::all_of(peers, [this](const auto& peer) {
      return std::memcmp(peer->a.data(), peers[0]->a.data(), peer->a.size() * sizeof(float)) == 0;
    });
  }
};

// ---- Bytes

class BitsOfSparseParts : public SparseAverage,
                          public ::testing::WithParamInterface<std::tuple<std::size_t, bool, double, double>> {};

/// What a client sends is all up, and what it gets is all down: it reduces nothing.
TEST_P(BitsOfSparseParts, AreFewAndAllMembersHoldTheSame) {
  const auto [members, fixed, most_up, most] = GetParam();
  codec::CodecSpec spec(Codec::sparse2);
  spec.fixed_places = fixed;
  auto options = sparse(spec);
  const std::size_t size = 32'768 * (members - 1);
  for (std::size_t i = 1; i < members; ++i) add(options, size);
  options.mode = PeerMode::client;
  add(options, size);
  std::vector<Result<RoundReport>> results;
  for (int round = 0; round < 3; ++round) {  // until reducers owe more than answers have room for
    draw_values();
    results = step_all(same());
    ASSERT_TRUE(results.back()) << results.back().error();
    EXPECT_TRUE(all_have_the_same());
  }
  for (const auto& result : results) {
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), members);
    EXPECT_TRUE(result->one_average);
    EXPECT_EQ(result->agreed_codecs, codec::CodecSet{Codec::sparse2});
    EXPECT_EQ(result->parts_failed, 0u);
  }
  const double values = static_cast<double>(size + 7);
  const double up = 8 * static_cast<double>(results.back()->bytes_sent) / values,
               down = 8 * static_cast<double>(results.back()->bytes_received) / values;
  RecordProperty("up", std::to_string(up));
  RecordProperty("down", std::to_string(down));
  EXPECT_LE(up, most_up);
  EXPECT_LE(up + down, most);
}
INSTANTIATE_TEST_SUITE_P(Rice, BitsOfSparseParts,
                         ::testing::Combine(::testing::Values(4, 16), ::testing::Values(false), ::testing::Values(0.16),
                                            ::testing::Values(0.7)));
INSTANTIATE_TEST_SUITE_P(Fixed, BitsOfSparseParts,
                         ::testing::Combine(::testing::Values(4), ::testing::Values(true), ::testing::Values(0.23),
                                            ::testing::Values(1.15)));

// ---- What comes later

/// Senders owe what they leave out, reducers what their answers leave out.
TEST_F(SparseAverage, EverythingIsDeliveredInTime) {
  constexpr int kRounds = 160;
  for (int i = 0; i < 3; ++i) add(sparse(), 12'288);
  draw_values();
  const auto wanted = mean_of_all();
  std::vector<std::vector<float>> values;
  for (auto& peer : peers) values.push_back(peer->a);
  std::vector<double> delivered(wanted.size());
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
    ASSERT_TRUE(all_have_the_same());
    for (std::size_t k = 0; k < wanted.size(); ++k) delivered[k] += static_cast<double>(peers[0]->a[k]) / kRounds;
    for (std::size_t i = 0; i < 3; ++i) peers[i]->a = values[i];
  }
  double off = 0, all = 0;
  for (std::size_t k = 0; k < wanted.size(); ++k) {
    off += std::abs(delivered[k] - wanted[k]);
    all += std::abs(wanted[k]);
  }
  EXPECT_LT(off, 0.25 * all) << "of one round alone more than nine tenths are missing";
}

/// Only then it pays what its answers left out: another member that reduces them does not know of it.
TEST_F(SparseAverage, EachMemberReducesTheSameValuesInEveryRound) {
  for (int i = 0; i < 4; ++i) add(sparse(), 12'288);
  std::vector<PeerId> order;
  for (int round = 0; round < 6; ++round) {
    draw_values();
    const auto results = step_all(same());
    ASSERT_TRUE(results[0]) << results[0].error();
    ASSERT_EQ(results[0]->group.size(), 4u);
    std::vector<PeerId> now;
    for (const auto& member : results[0]->group) now.push_back(member.peer);
    if (round == 0) order = now;
    EXPECT_EQ(now, order) << "round " << round;
  }
}

/// Else a reducer's own values would be the average wherever nobody has sent any, as large as they are.
TEST_F(SparseAverage, AReducersOwnValuesCountAsThoseOfOthersDo) {
  auto options = sparse();
  options.aggregation = MeanOfSenders();
  for (int i = 0; i < 3; ++i) add(options, 3 * 4096);
  draw_values();
  for (const auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
  ASSERT_TRUE(all_have_the_same());
  const auto moved = std::ranges::count_if(peers[0]->a, [](float value) { return value != 0; });
  EXPECT_LE(moved, 3 * 3 * 64) << "the places of three senders";
  EXPECT_GE(moved, 3 * 64);
}

/// What it sends fails at its trigger, before some of the others have begun: it reduces for them all the same.
TEST_F(SparseAverage, AMemberWithNanReducesForOthersThatComeLater) {
  constexpr std::size_t kSize = 4 * 32'768;
  auto options = sparse();
  options.part_size_bytes = 1 << 16;  // a quarter of the values in float16: each member reduces some
  for (int i = 0; i < 4; ++i) add(options, kSize);
  draw_values();
  peers[3]->a.assign(kSize, std::nanf(""));
  auto rounds = begin_all({.allow_retries = false});
  swarm.pass(4s);
  for (const auto& round : rounds) ASSERT_EQ(round.stage(), Round::Stage::awaiting_trigger);
  swarm.fabric().set_line(sim::Swarm::ip(3), {.upload = 8e3});
  for (std::size_t i : {0u, 1u, 3u}) rounds[i].trigger();
  swarm.pass(300ms);
  rounds[2].trigger();
  for (std::size_t i = 0; i < 3; ++i) {
    const auto result = swarm.run(rounds[i].result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->parts_failed, 0u);
    EXPECT_EQ(result->lost_senders, std::vector{id(3)});
    EXPECT_LT(result->allreduce, options.reducer_timeout / 2);
  }
}

TEST_F(SparseAverage, CannotBeMadeAgain) {
  auto options = sparse();
  options.prefix = "test";
  options.verified_share = 0.5;
  join();
  EXPECT_THROW(Averager(*peers[0]->dht, std::vector<TensorInfo>{{.shape = {10}}}, options), std::invalid_argument);
}

// ---- A reducer's residuals

TEST(AnswerResiduals, AreForgottenWhereAnotherMemberReduces) {
  const std::vector<TensorInfo> infos{{.shape = {10'000}}, {.shape = {300}}};
  AnswerResiduals owed(infos);
  const std::vector<float> average(8000, 0.5f), zeros(8000);
  const Slice nothing = codec::encode(Codec::sparse2, zeros);
  owed.reduce({{0, 1000, 8000}});
  ASSERT_TRUE(owed.commit({0, 1000, 8000}, Codec::sparse2, average, nothing));
  std::vector<float> out(8000);
  owed.correct({0, 1000, 8000}, average, out);
  EXPECT_EQ(out, std::vector<float>(8000, 1.0f)) << "nothing was delivered, so it is owed";
  owed.reduce({{0, 0, 2000}, {0, 5000, 5000}, {1, 0, 300}});
  const auto left = owed.values(0);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool kept = (i >= 1000 && i < 2000) || (i >= 5000 && i < 9000);
    ASSERT_EQ(left[i], kept ? 0.5f : 0.0f) << i;
  }
}

}  // namespace
}  // namespace cohive::averaging
