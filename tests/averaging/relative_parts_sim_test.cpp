// Rounds whose members send differences from what they have in common.
#include "cohive/averaging/relative_parts.hpp"

#include <cmath>

#include "averaging/averaging_fixture.hpp"
#include "scenarios/handed_tensors.hpp"

namespace cohive::averaging {
namespace {

using codec::Codec;
using Handing = HandedTensors::Way;
using Tensors = std::vector<std::vector<float>>;

constexpr std::size_t kHeld = 20'000;
constexpr float kMoved = 1e-3f;                  // the most that a member's values differ by from the common state
constexpr double kLost = 2.2 * 0.8e-2 * kMoved;  // of a value: blockwise8 is off by 0.8 % of the largest, twice

class RelativeRounds : public Averaging {
 protected:
  struct Member {
    Handing way = Handing::in_place;
    Tensors values;
    std::shared_ptr<CommonState> common;
    std::unique_ptr<HandedTensors> handed;
    double weight = 1;
    bool exact = true;  // its values become the average itself, without the rounding of a sum
  };

  AveragerOptions asking() {
    AveragerOptions options = quick();
    options.part_size_bytes = 1 << 14;
    options.one_average = true;
    return options;
  }
  Member& add_member(AveragerOptions options, Handing way = Handing::in_place, std::size_t size = kHeld) {
    Member& member = members.emplace_back();
    member.way = way;
    member.exact = way != Handing::differences;
    member.values = {std::vector<float>(size), std::vector<float>(7)};
    const auto infos = HandedTensors::infos_of(member.values);
    member.common = std::make_shared<CommonState>(infos);
    options.scheme = relative_all_reduce(member.common);
    add(options, size);
    return member;
  }
  /// Moves the values of each member to a place of its own.
  void move(float far) {
    ++moves_;
    for (std::size_t i = 0; i < members.size(); ++i)
      for (auto& tensor : members[i].values)
        for (std::size_t k = 0; k < tensor.size(); ++k)
          tensor[k] += far * std::sin(static_cast<float>((i + 2) * (k + 1) + 7 * moves_));
  }
  /// \param odd  a member that comes to another conclusion than the others, if any
  std::vector<Round> begin(bool relative, std::optional<std::size_t> odd = std::nullopt) {
    std::vector<Round> rounds;
    for (std::size_t i = 0; i < members.size(); ++i) {
      members[i].common->relative = relative != (i == odd);
      rounds.push_back(peers[i]->averager->begin({.codecs = [common = members[i].common](const auto&) {
        return common->relative ? RoundCodecs{.ordinary = Codec::blockwise8} : RoundCodecs{};
      }}));
    }
    for (auto& round : rounds)
      while (round.stage() == Round::Stage::looking_for_group) swarm.pass(10ms);
    for (std::size_t i = 0; i < members.size(); ++i) {
      Member& member = members[i];
      member.handed = std::make_unique<HandedTensors>(swarm.runtime(), member.way, member.values, nullptr);
      rounds[i].trigger(member.weight,
                        std::make_shared<RelativeParts>(swarm.runtime(), member.handed->parts(), member.common));
    }
    return rounds;
  }
  /// All members average, and hold what came of it.
  std::vector<RoundReport> average(bool relative) {
    auto rounds = begin(relative);
    std::vector<RoundReport> reports;
    for (auto& round : rounds) {
      auto result = swarm.run(round.result());
      EXPECT_TRUE(result) << result.error();
      if (result) reports.push_back(std::move(*result));
    }
    rounds.clear();
    for (Member& member : members) EXPECT_EQ(member.handed->take_results(), std::nullopt);
    return reports;
  }
  std::vector<double> mean() const {
    std::vector<double> mean(members[0].values[0].size());
    double weight = 0;
    for (const Member& member : members) {
      weight += member.weight;
      for (std::size_t k = 0; k < mean.size(); ++k) mean[k] += member.weight * static_cast<double>(member.values[0][k]);
    }
    for (double& value : mean) value /= weight;
    return mean;
  }
  void expect_one_state(const std::vector<double>& expected, double lost) {
    for (const Member& member : members) {
      EXPECT_TRUE(member.common->is_whole());
      EXPECT_EQ(member.common->values, members[0].common->values);
      if (member.exact) EXPECT_EQ(member.values, member.common->values);
      for (std::size_t k = 0; k < expected.size(); ++k)
        ASSERT_NEAR(static_cast<double>(member.values[0][k]), expected[k], lost) << k;
    }
  }
  double largest_error(const std::vector<double>& expected) const {
    double most = 0;
    for (std::size_t k = 0; k < expected.size(); ++k)
      most = std::max(most, std::abs(static_cast<double>(members[0].values[0][k]) - expected[k]));
    return most;
  }

  std::deque<Member> members;

 private:
  int moves_ = 0;
};

struct RelativeGroup {
  const char* name;
  Aggregation how;
  double verified_share;
};
class RelativeRoundsOf : public RelativeRounds, public ::testing::WithParamInterface<RelativeGroup> {};

TEST_P(RelativeRoundsOf, EndInTheSameBitsForAllAndAsNearAsTheCodecIsToDifferences) {
  auto options = asking();
  options.aggregation = GetParam().how;
  options.verified_share = GetParam().verified_share;
  for (const Handing way : {Handing::in_place, Handing::elsewhere, Handing::differences}) add_member(options, way);
  if (options.verified_share == 0) {
    options.mode = PeerMode::client;
    add_member(options);
    options.mode = PeerMode::auxiliary;
    add_member(options).weight = 0;
  }
  const bool means = std::holds_alternative<Mean>(options.aggregation);
  move(1);
  auto expected = mean();
  average(false);
  expect_one_state(expected, means ? 1e-6 : 1);
  double most = 0;
  for (int round = 0; round < 3; ++round) {
    move(kMoved);
    expected = mean();
    for (const auto& report : average(true)) {
      EXPECT_TRUE(report.one_average);
      EXPECT_EQ(report.parts_failed, 0u);
      EXPECT_TRUE(report.liars.empty());
      if (options.verified_share > 0) EXPECT_GT(report.parts_checked, 0u);
    }
    expect_one_state(expected, means ? kLost : 2 * kMoved);
    most = std::max(most, largest_error(expected));
  }
  EXPECT_GT(most, 1e-3 * kMoved) << "in 8 bits";
}
INSTANTIATE_TEST_SUITE_P(RelativeRounds, RelativeRoundsOf,
                         ::testing::Values(RelativeGroup{"Mean", Mean(), 0}, RelativeGroup{"Checked", Mean(), 1},
                                           RelativeGroup{"Trimmed", TrimmedMean{0.3}, 0},
                                           RelativeGroup{"Centered", CenteredClip{5, 3}, 0}),
                         [](const auto& test) { return test.param.name; });

class RelativeBits : public RelativeRounds, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(RelativeBits, AreAtMostEightAndAHalfForEachValueEachWay) {
  const std::size_t size = 65'536 * GetParam();  // a code book has 1 KiB, which fewer values would feel
  auto options = asking();
  options.part_size_bytes = 1 << 19;
  for (std::size_t i = 0; i < GetParam(); ++i) add_member(options, Handing::in_place, size);
  average(false);
  move(kMoved);
  std::uint64_t sent = 0, received = 0;
  for (const auto& report : average(true)) {
    ASSERT_EQ(report.group.size(), GetParam());
    sent += report.bytes_sent;
    received += report.bytes_received;
  }
  // Each value goes to its reducer from each other member, and back.
  const double values = 2.0 * static_cast<double>((size + 7) * (GetParam() - 1));
  EXPECT_LE(8 * static_cast<double>(sent) / values, 8.5);
  EXPECT_LE(8 * static_cast<double>(received) / values, 8.5);
}
INSTANTIATE_TEST_SUITE_P(RelativeRounds, RelativeBits, ::testing::Values(4, 16));

TEST_F(RelativeRounds, WhoseReducerDiesLeaveOwnValuesThereAndNoCommonState) {
  auto options = asking();
  options.part_size_bytes = 512;
  for (int i = 0; i < 4; ++i) add_member(options, i % 2 ? Handing::elsewhere : Handing::in_place);
  average(false);
  move(kMoved);
  const auto before = std::vector<Tensors>{members[0].values, members[1].values, members[2].values};
  swarm.fabric().set_default_link({.latency = 10ms, .bandwidth = 2e4});
  auto rounds = begin(true);
  ASSERT_NO_FATAL_FAILURE(crash_the_fourth_amid(rounds));
  rounds.clear();
  std::size_t averaged = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(members[i].handed->take_results(), std::nullopt);
    EXPECT_FALSE(members[i].common->is_whole());
    EXPECT_EQ(members[i].common->checksum, 0u);
    for (std::size_t k = 0; k < kHeld; ++k) {
      const float held = members[i].values[0][k], own = before[i][0][k];
      averaged += held != own;
      ASSERT_LE(std::abs(held - own), 2.1f * kMoved) << "a mean of values that are near, or its own one";
    }
  }
  EXPECT_GT(averaged, 3 * kHeld / 2);
}

TEST_F(RelativeRounds, WithAMemberThatAsksForNoOneAverageHaveTheRightMeanAndNoCommonState) {
  for (int i = 0; i < 3; ++i) {
    auto options = asking();
    options.one_average = i != 1;
    add_member(options);
  }
  move(1);
  average(false);
  for (Member& member : members) EXPECT_FALSE(member.common->is_whole());
  // Whoever has a common state nevertheless has the right one.
  for (Member& member : members) member.common->values = members[0].values;
  move(kMoved);
  const auto expected = mean();
  for (const auto& report : average(true)) EXPECT_FALSE(report.one_average);
  for (const Member& member : members) {
    EXPECT_FALSE(member.common->is_whole());
    for (std::size_t k = 0; k < kHeld; ++k)
      ASSERT_NEAR(static_cast<double>(member.values[0][k]), expected[k], 2 * kLost) << k;
  }
}

/// As its leader has told it something else about another member than it has told the others. The parameter: what it
/// makes of it.
class DividedMembers : public RelativeRounds, public ::testing::WithParamInterface<bool> {};

TEST_P(DividedMembers, MixNoDifferencesWithValues) {
  auto options = asking();
  options.part_size_bytes = 512;  // so that each of them reduces some
  for (int i = 0; i < 4; ++i) add_member(options);
  for (Member& member : members) std::ranges::fill(member.values[0], 5.0f);
  average(false);
  move(kMoved);
  auto rounds = begin(!GetParam(), 2);
  for (auto& round : rounds) {
    const auto result = swarm.run(round.result());
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 4u);
    EXPECT_GT(result->parts_failed, 0u);
    EXPECT_TRUE(result->liars.empty());
  }
  rounds.clear();
  for (Member& member : members) {
    EXPECT_EQ(member.handed->take_results(), std::nullopt);
    EXPECT_FALSE(member.common->is_whole());
    for (const float value : member.values[0]) ASSERT_NEAR(value, 5, 2 * kMoved);
  }
}
INSTANTIATE_TEST_SUITE_P(RelativeRounds, DividedMembers, ::testing::Bool());

TEST_F(RelativeRounds, LeaveAMemberOutWhoseValuesAreNotFinite) {
  has_hostile_peers = true;
  for (int i = 0; i < 3; ++i) add_member(asking());
  average(false);
  move(kMoved);
  members[2].values[0][5] = NAN;
  auto rounds = begin(true);
  for (auto& round : rounds) (void)swarm.run(round.result());
  rounds.clear();
  for (Member& member : members) EXPECT_EQ(member.handed->take_results(), std::nullopt);
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t k = 0; k < kHeld; ++k)
      ASSERT_LE(std::abs(members[i].values[0][k]), 1.1f * kMoved) << "neither a NaN nor anything far";
}

}  // namespace
}  // namespace cohive::averaging
