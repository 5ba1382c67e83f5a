// A moderated swarm: members by token, and what others may not do.
#include "cohive/dht/authorization.hpp"

#include "cohive/core/keys.hpp"
#include "cohive/dht/errors.hpp"
#include "cohive/rpc/rpc.hpp"
#include "dht/signed_calls.hpp"
#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

/// Everybody is a member whose token names them so.
class Club final : public Authorizer {
 public:
  explicit Club(std::string name) : Authorizer(std::make_shared<RsaSignatureValidator>()), name_(std::move(name)) {}
  AccessToken token() override { return {name_, key().public_key(), "never", "by the club"}; }
  bool is_valid(const AccessToken& token, const PeerId&) const override {
    return token.username == "member" && token.signature == "by the club";
  }

 private:
  std::string name_;
};

DhtOptions member() {
  return {.authorizer = std::make_shared<Club>("member")};
}

TEST_F(DhtSwarm, MembersOfAModeratedSwarmStoreAndGet) {
  for (int i = 0; i < 4; ++i) add(member());
  ASSERT_TRUE(store(*nodes[1], "key", 1, in(60)));
  ASSERT_TRUE(store(*nodes[2], "dictionary", "a", 2, in(60)));
  EXPECT_EQ(*get(*nodes[3], "key", true)->value(), msgpack::Value(1));
  EXPECT_EQ(get(*nodes[0], "dictionary", true)->entries().size(), 1u);
  EXPECT_EQ(nodes[0]->table_size(), 3u);
}

TEST_F(DhtSwarm, OutsidersOfAModeratedSwarmAreNeitherServedNorBelieved) {
  add(member());
  add(member());
  ASSERT_TRUE(store(*nodes[0], "key", 1, in(60)));
  const auto club = swarm.host(0).visible_addresses().front();
  for (const auto& authorizer : {std::shared_ptr<Authorizer>(), std::shared_ptr<Authorizer>(new Club("impostor"))}) {
    auto& host = swarm.add_host();
    Dht outsider(host, {.authorizer = authorizer});
    EXPECT_FALSE(swarm.run(outsider.start({club})));
    EXPECT_FALSE(swarm.run(outsider.get("key", true)));
    EXPECT_EQ(outsider.table_size(), 0u);
    // Nor does a member take an outsider for a node.
    const auto asked = swarm.run(nodes[1]->ping(host.id()));
    ASSERT_FALSE(asked);
    EXPECT_EQ(nodes[1]->table_size(), 1u);
  }
}

class SignedMessages : public ::testing::Test {
 protected:
  SimRuntime runtime{1};
  std::shared_ptr<Authorizer> caller_club = std::make_shared<Club>("member");
  std::shared_ptr<Authorizer> callee_club = std::make_shared<Club>("member");
  const PeerId peer = KeyPair::ed25519_from_seed(Bytes(32)).peer_id();
  SignedCalls caller{runtime, caller_club}, callee{runtime, callee_club};
};

TEST_F(SignedMessages, ARequestCountsOnceAndOnlyNearItsTime) {
  const auto first = caller.sign_request("request");
  EXPECT_TRUE(callee.check_request(peer, as_bytes(first.bytes)));
  EXPECT_FALSE(callee.check_request(peer, as_bytes(first.bytes))) << "replayed";
  const auto second = caller.sign_request("request");
  runtime.run_for(61s);
  EXPECT_FALSE(callee.check_request(peer, as_bytes(second.bytes))) << "too old";
}

TEST_F(SignedMessages, AnyChangedByteIsNoticed) {
  const auto request = caller.sign_request("request");
  for (std::size_t at = 0; at < request.bytes.size(); at += 3) {
    std::string bad = request.bytes;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    EXPECT_FALSE(callee.check_request(peer, as_bytes(bad))) << at;
  }
  EXPECT_FALSE(callee.check_request(peer, as_bytes(request.bytes + "more")));
  EXPECT_FALSE(callee.check_request(peer, {}));
  ASSERT_EQ(callee.check_request(peer, as_bytes(request.bytes)).value(), request.nonce)
      << "the failures used nothing up";
  const std::string reply = callee.sign_reply("reply", request.nonce);
  EXPECT_TRUE(caller.check_reply(peer, as_bytes(reply), request.nonce));
  EXPECT_FALSE(caller.check_reply(peer, as_bytes(reply), "another")) << "the reply to another request";
  EXPECT_FALSE(caller.check_reply(peer, as_bytes(reply + "x"), request.nonce));
  EXPECT_FALSE(caller.check_reply(peer, as_bytes("reply"), request.nonce));
}

}  // namespace
}  // namespace cohive::dht
