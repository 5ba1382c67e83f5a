// A group finder of one's own in place of matchmaking: a list of peers that always form one group.
#include "cohive/averaging/group_finder.hpp"

#include <gtest/gtest.h>

#include "averaging/averaging_fixture.hpp"
#include "cohive/averaging/errors.hpp"

namespace cohive::averaging {
namespace {

/// Knows the members and numbers the rounds; nothing is asked of the network.
class FixedGroup final : public GroupFinder {
 public:
  struct Log {
    std::vector<RoundEnd> ends;
    std::set<PeerId> left;
    std::vector<std::size_t> expected;
    bool stopped = false;
  };
  FixedGroup(const std::vector<PeerId>& members, Log& log) : members_(members), log_(log) {}

  void serve(rpc::Server&) override {}
  Task<Result<Group>> find(Member self, const SearchPlan& plan, Deadline) override {
    log_.expected.push_back(plan.expected_members);
    if (members_.size() < 2) co_return Error(Errc::no_group, "nobody else is on the list");
    Group group;
    group.id = "round " + std::to_string(round_++);
    for (const PeerId& peer : members_) {
      Member& member = group.members.emplace_back();
      member.peer = peer;
      if (peer == self.peer) member = std::move(self);
    }
    group.leader = members_.front();
    co_return group;
  }
  void round_ended(const RoundEnd& end) override { log_.ends.push_back(end); }
  std::vector<PeerId> partners() const override { return members_; }
  void peer_left(const PeerId& peer) override { log_.left.insert(peer); }
  void leave() override { log_.stopped = true; }
  std::string group_bits() const override { return "fixed"; }

 private:
  const std::vector<PeerId>& members_;
  Log& log_;
  std::size_t round_ = 0;
};

class FixedGroups : public Averaging {
 protected:
  void add_fixed() {
    auto options = quick();
    auto& log = *logs.emplace_back(std::make_unique<FixedGroup::Log>());
    options.group_finder = [this, &log](FinderContext) { return std::make_unique<FixedGroup>(members, log); };
    add(options);
    members.push_back(id(peers.size() - 1));
  }
  void TearDown() override { peers.clear(); }  // before what their finders use

  std::vector<PeerId> members;
  std::vector<std::unique_ptr<FixedGroup::Log>> logs;
};

TEST_F(FixedGroups, AverageWithoutMatchmaking) {
  for (int i = 0; i < 3; ++i) add_fixed();
  for (int round = 0; round < 3; ++round) {
    const auto start = swarm.runtime().now();
    for (auto& result : step_all(same({.expected_members = 3}))) {
      ASSERT_TRUE(result) << result.error();
      EXPECT_EQ(result->group_id, "round " + std::to_string(round));
      EXPECT_EQ(result->leader, members[0]);
    }
    EXPECT_LT(swarm.runtime().now() - start, 500ms) << "nothing is declared, and no time waited for";
    for (auto& peer : peers) EXPECT_NEAR(peer->a[0], 1.0f, 1e-6);
  }
  EXPECT_EQ(peers[0]->averager->group_bits(), "fixed");
  for (const auto& log : logs) {
    EXPECT_EQ(log->expected, (std::vector<std::size_t>{3, 3, 3}));
    ASSERT_EQ(log->ends.size(), 3u);
    for (const auto& end : log->ends) EXPECT_TRUE(end.report && end.report->lost().empty());
  }
}

TEST_F(FixedGroups, AreToldHowTheirRoundsEnd) {
  for (int i = 0; i < 2; ++i) add_fixed();
  RoundOptions once;
  once.allow_retries = false;
  auto round = peers[0]->averager->begin(once);
  swarm.pass(1s);
  ASSERT_EQ(round.stage(), Round::Stage::awaiting_trigger);
  round.cancel();
  ASSERT_EQ(logs[0]->ends.size(), 1u);
  EXPECT_FALSE(logs[0]->ends[0].report) << "it has averaged nothing";
}

TEST_F(FixedGroups, HearOfPeersThatLeave) {
  for (int i = 0; i < 2; ++i) add_fixed();
  for (auto& result : step_all(same())) ASSERT_TRUE(result) << result.error();
  swarm.run(peers[0]->averager->leave(swarm.runtime().after(5s)));
  EXPECT_TRUE(logs[0]->stopped);
  EXPECT_EQ(logs[1]->left, std::set{members[0]});
  EXPECT_EQ(swarm.run(peers[0]->averager->step()).error(), Errc::left);
}

}  // namespace
}  // namespace cohive::averaging
