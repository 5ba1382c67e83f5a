// A run with members: what peers that are none get of it.
#include "averaging/averaging_fixture.hpp"
#include "cohive/averaging/state_sharing.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/dht/members.hpp"
#include "cohive/proto/averaging.pb.h"
#include "cohive/rpc/metrics.hpp"
#include "cohive/rpc/rpc.hpp"

namespace cohive::averaging {
namespace {

class RunWithMembers : public Averaging {
 protected:
  RunWithMembers() {
    authorizer_of = [this](p2p::Host& host) {
      static const auto key = std::make_shared<const dht::RsaSignatureValidator>();
      return dht::members_by_secret(swarm.runtime(), secret, host.id(), key).value();
    };
  }
  /// A peer that does not know the secret.
  Peer& stranger(bool has_one_of_its_own) {
    may_fail_to_join = true;
    secret = "the secret of some other run";
    if (!has_one_of_its_own) authorizer_of = nullptr;
    return add(quick());
  }
  /// Calls a method at a member and says what comes back.
  static Task<Result<std::optional<Slice>>> ask(p2p::Host& host, PeerId member, std::string method,
                                                std::string request) {
    const Deadline deadline = host.runtime().after(10s);
    auto call = co_await rpc::open_call(host, member, "test::DecentralizedAverager." + method, deadline);
    if (!call) co_return call.error();
    if (auto sent = co_await (*call)->send(as_bytes(request), deadline); !sent) co_return sent.error();
    co_return co_await (*call)->receive(deadline);
  }
  double refused(const char* method) {
    auto& metrics =
        swarm.runtime().local<rpc::RpcMetrics>().server(std::string("test::DecentralizedAverager.") + method);
    return metrics.calls[static_cast<std::size_t>(rpc::Outcome::refused)].value();
  }
  std::string secret = "a secret of this run, which is long";
};

TEST_F(RunWithMembers, MembersAverageAndOneInClientModeIsAmongThem) {
  add(quick());
  add(quick());
  auto client = quick();
  client.mode = PeerMode::client;
  add(client);
  for (auto& result : step_all(same())) {
    ASSERT_TRUE(result) << result.error();
    EXPECT_EQ(result->group.size(), 3u);
    EXPECT_EQ(result->parts_failed, 0u);
  }
  EXPECT_NEAR(peers[2]->a[0], 1, 1e-5);
}

/// The part of the empty tensor falls to the first member of the group, which may be a client.
TEST_F(RunWithMembers, AFirstTensorWithoutElementsHoldsNobodyUpWhereClientsTakePart) {
  auto options = quick();
  options.prefix = "test";
  for (int i = 0; i < 4; ++i) {
    options.mode = i == 0 ? PeerMode::node : PeerMode::client;
    Peer& peer = join(options.mode == PeerMode::client);
    peer.b.assign(1000, static_cast<float>(i));
    peer.averager =
        std::make_unique<Averager>(*peer.dht, std::vector<AveragedTensor>{{peer.a, {0}}, {peer.b, {1000}}}, options);
    peer.averager->start();
  }
  bool client_first = false;
  for (int round = 0; round < 4; ++round) {
    for (const auto& result : step_all(same())) {
      ASSERT_TRUE(result) << result.error();
      ASSERT_EQ(result->group.size(), 4u);
      EXPECT_EQ(result->parts_failed, 0u);
      EXPECT_TRUE(result->lost_senders.empty());
      EXPECT_TRUE(result->stragglers.empty());
      EXPECT_LT(result->allreduce, options.sender_timeout);
      client_first |= result->group[0].mode == PeerMode::client;
    }
  }
  EXPECT_TRUE(client_first) << "else this test shows nothing";
  for (auto& peer : peers) EXPECT_NEAR(peer->b[0], 1.5f, 1e-5f);
}

class Stranger : public RunWithMembers, public ::testing::WithParamInterface<bool> {};

TEST_P(Stranger, GetsNoGroupAndNoStateAndStoresNothing) {
  for (int i = 0; i < 3; ++i) add(quick());
  StateSharing sharing(*peers[0]->dht, {.prefix = "test"});
  sharing.set_provider([]() -> std::optional<SharedState> {
    return SharedState{msgpack::Map{{{"epoch", 1}}}, {{codec::DType::uint8, {4}, false, Slice::copy_of(Bytes(4))}}};
  });
  sharing.start();
  ASSERT_TRUE(swarm.run(peers[1]->dht->store("test_progress", "ours", 1, peers[1]->dht->now() + 300)));
  stranger(GetParam());
  const auto results = step_all(same({.timeout = 15s}));
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(results[i]) << results[i].error();
    EXPECT_EQ(results[i]->group.size(), 3u);
  }
  EXPECT_FALSE(results[3]);

  // One that knows a member's address, and speaks the protocols without asking any check of its own.
  authorizer_of = nullptr;
  Dht& open = *join().dht;
  p2p::Host& host = open.host();
  ASSERT_TRUE(swarm.run(host.connect(swarm.host(0).visible_addresses().front(), swarm.after(5s))));
  proto::JoinRequest request;
  request.set_expiration(open.now() + 5);
  request.set_group_key("test.0b");
  for (const char* method : {"rpc_join_group", "rpc_download_state", "rpc_download_pieces", "rpc_aggregate_part"}) {
    const auto answer = swarm.run(ask(host, id(0), method, request.SerializeAsString()));
    EXPECT_FALSE(answer && *answer) << method;
    EXPECT_GE(refused(method), 1) << method;
  }
  (void)swarm.run(open.store("test_progress", "theirs", 1, open.now() + 600));  // stays with itself
  EXPECT_EQ(swarm.run(peers[2]->dht->get("test_progress", true))->entries().size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutASecret, Stranger, ::testing::Bool());

}  // namespace
}  // namespace cohive::averaging
