// Leaders and owners of parts that take more than is theirs.
#include "averaging/averaging_fixture.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"

namespace cohive::averaging {
namespace {

/// Declares itself before anybody else, accepts everybody, and announces groups in which it has the fastest link.
class ForgingLeader {
 public:
  ForgingLeader(Dht& dht) : dht_(dht), server_(dht.host()) {
    server_.add_streaming("test::DecentralizedAverager.rpc_join_group",
                          [this](rpc::ServerStream& stream) { return lead(*this, stream); });
  }
  Task<void> declare() {
    (void)co_await dht_.store("test.0b", msgpack::Value::bin(dht_.host().id().bytes()), true, dht_.now() + 1.5);
  }
  int forged = 0;

 private:
  static Task<Result<>> lead(ForgingLeader& self, rpc::ServerStream& stream) {
    Runtime& runtime = self.dht_.runtime();
    CO_TRY(auto bytes, co_await stream.receive(runtime.after(5s)));
    proto::JoinRequest request;
    if (!bytes || !request.ParseFromString(to_string(bytes->view()))) co_return Error(cohive::Errc::malformed);
    proto::MessageFromLeader accepted;
    accepted.set_code(proto::ACCEPTED);
    CO_TRY(co_await stream.send(as_bytes(accepted.SerializeAsString()), runtime.after(5s)));
    proto::MessageFromLeader begin;
    begin.set_code(proto::BEGIN_ALLREDUCE);
    begin.set_group_id(std::string(20, 'f'));
    begin.add_ordered_peer_ids(self.dht_.host().id().binary());
    begin.add_gathered(encode_gathered({.peer = {}, .bandwidth = 1e12}));
    begin.add_ordered_peer_ids(stream.peer().binary());
    begin.add_gathered(encode_gathered({.peer = {}, .bandwidth = 0.0}));
    ++self.forged;
    co_return co_await stream.send(as_bytes(begin.SerializeAsString()), runtime.after(5s));
  }
  Dht& dht_;
  rpc::Server server_;
};

TEST_F(Averaging, ALeaderThatChangesWhatAMemberSaidHasNoGroup) {
  for (int i = 0; i < 3; ++i) add(quick());
  ForgingLeader liar(*join().dht);
  swarm.run(liar.declare());
  std::vector<Task<Result<RoundResult>>> rounds;
  for (std::size_t i = 0; i < 3; ++i) rounds.push_back(peers[i]->averager->step({.timeout = 30s}));
  const auto results = swarm.run(when_all(swarm.runtime(), std::move(rounds)));
  EXPECT_GT(liar.forged, 0);
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_NE(results[i]->leader, id(3));
    for (const Member& member : results[i]->group) EXPECT_NE(member.peer, id(3));
  }
}

TEST_F(Averaging, AMemberThatClaimsAFastLinkDoesNotReduceEverythingWhereLiarsAreBorne) {
  auto options = quick();
  options.aggregation = TrimmedMean{0.3};
  options.bandwidth = 1.0;
  for (int i = 0; i < 5; ++i) add(options);
  options.bandwidth = 1e18;
  add(options);
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    ASSERT_EQ(result->group.size(), 6u);
    EXPECT_EQ(result->parts_failed, 0u);
    std::size_t fast = 0;
    while (result->group[fast].peer != id(5)) ++fast;
    if (result->exchanged[fast].bytes_sent > 0)
      EXPECT_LE(result->exchanged[fast].bytes_sent, result->bytes_sent / 2) << "a third of the values, of five reducers";
  }
  for (auto& peer : peers)
    for (float value : peer->a) ASSERT_NEAR(value, 2.5, 1e-5);
}

TEST_F(Averaging, AWeightThatOverflowsASumVoidsNoRound) {
  for (int i = 0; i < 3; ++i) add(quick());
  auto steps = same();
  steps[2].weight = 1e308;
  const auto results = step_all(steps);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->lost_senders, std::vector{id(2)});
    EXPECT_EQ(results[i]->parts_failed, 0u) << "the liar still reduces";
  }
}

}  // namespace
}  // namespace cohive::averaging
