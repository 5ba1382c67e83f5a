// Swarms with members: by a secret, and by a list.
#include "cohive/dht/members.hpp"

#include <gmock/gmock.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "checkpoint/temporary_folder.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/dht/errors.hpp"
#include "dht_swarm.hpp"

namespace cohive::dht {
namespace {

constexpr const char* kSecret = "a secret of the run, and long enough";

class Members : public DhtSwarm {
 protected:
  static std::shared_ptr<const RsaSignatureValidator> signer() {
    static const auto key = std::make_shared<const RsaSignatureValidator>();
    return key;
  }
  std::shared_ptr<Authorizer> by_secret(const PeerId& self, std::string_view secret = kSecret) {
    return members_by_secret(swarm.runtime(), secret, self, signer()).value();
  }
  /// A node of a swarm with members.
  template <class MakeAuthorizer>
  Result<> join(MakeAuthorizer make) {
    auto& host = swarm.add_host();
    nodes.push_back(std::make_unique<Dht>(host, DhtOptions{.authorizer = make(host)}));
    std::vector<Multiaddr> initial;
    if (nodes.size() > 1) initial = {swarm.host(0).visible_addresses().front()};
    return swarm.run(nodes.back()->start(initial));
  }
  Result<> join_by_secret(std::string_view secret = kSecret) {
    return join([&](p2p::Host& host) { return by_secret(host.id(), secret); });
  }
};

TEST_F(Members, WhoKnowsTheSecretIsServedAndNobodyElse) {
  ASSERT_TRUE(join_by_secret());
  ASSERT_TRUE(join_by_secret());
  ASSERT_TRUE(store(*nodes[0], "key", 1, in(60)));
  EXPECT_TRUE(get(*nodes[1], "key", true));
  EXPECT_FALSE(join_by_secret("another secret, of another run"));
  EXPECT_FALSE(join([](p2p::Host&) { return nullptr; }));
  (void)store(*nodes[2], "key", 2, in(120));  // with itself
  (void)store(*nodes[3], "key", 2, in(120));  // with itself
  EXPECT_EQ(*get(*nodes[1], "key", true)->value(), msgpack::Value(1));
  EXPECT_EQ(nodes[0]->table_size(), 1u);
}

TEST_F(Members, ATokenIsGoodForThePeerThatItNamesAndForAnHour) {
  auto& host = swarm.add_host();
  auto& thief = swarm.add_host();
  const auto members = by_secret(host.id());
  const AccessToken token = members->token();
  EXPECT_TRUE(by_secret(thief.id())->is_valid(token, host.id()));
  EXPECT_FALSE(members->is_valid(token, thief.id()));
  AccessToken changed = token;
  changed.username = thief.id().text();
  EXPECT_FALSE(members->is_valid(changed, thief.id()));
  changed = token;
  changed.expiration_time = "99999999999";
  EXPECT_FALSE(members->is_valid(changed, host.id()));
  swarm.pass(2h);
  EXPECT_FALSE(members->is_valid(token, host.id()));
  EXPECT_TRUE(members->is_valid(members->token(), host.id())) << "renewed";
}

TEST_F(Members, ATokenThatWasMadeWhileTheClockWasAheadIsMadeAnew) {
  auto& host = swarm.add_host();
  const auto members = by_secret(host.id());
  swarm.runtime().shift_wall_clock(24h);
  (void)members->token();
  swarm.runtime().shift_wall_clock(-24h);
  EXPECT_TRUE(members->is_valid(members->token(), host.id()));
}

TEST_F(Members, AShortSecretIsRefused) {
  EXPECT_EQ(members_by_secret(swarm.runtime(), "short", {}, signer()).error(), cohive::Errc::invalid_argument);
}

TEST_F(Members, ASecretThatEverybodyCanReadIsRefused) {
  const checkpoint::TemporaryFolder folder;
  const auto path = folder.path() / "secret";
  std::ofstream(path) << "  " << kSecret << "\n";
  ::chmod(path.c_str(), 0644);
  EXPECT_EQ(read_secret(path).error(), cohive::Errc::io);
  ::chmod(path.c_str(), 0400);
  EXPECT_EQ(read_secret(path).value(), kSecret);
}

class ListOfMembers : public Members {
 protected:
  void write(const std::vector<PeerId>& peers) {
    std::ofstream file(list);
    file << "# the run's members\n\n";
    for (const auto& peer : peers) file << peer.text() << " of one of us\n";
  }
  Result<> join_listed() {
    return join([&](p2p::Host& host) {
      listed.push_back(host.id());
      write(listed);
      swarm.pass(5s);  // the others look at the list again
      return members_by_list(swarm.runtime(), list, host.identity(), signer()).value();
    });
  }
  const checkpoint::TemporaryFolder folder;
  const std::filesystem::path list = folder.path() / "members";
  std::vector<PeerId> listed;
};

TEST_F(ListOfMembers, PeersCanJoinAfterTheirIdIsInTheFile) {
  ASSERT_TRUE(join_listed());
  ASSERT_TRUE(join_listed());
  EXPECT_FALSE(join([&](p2p::Host& host) {
    return members_by_list(swarm.runtime(), list, host.identity(), signer()).value();
  })) << "not listed";
  ASSERT_TRUE(join_listed());
  EXPECT_TRUE(store(*nodes[3], "key", 1, in(60)));
}

TEST_F(ListOfMembers, WhoIsTakenOffTheListIsOut) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(join_listed());
  ASSERT_TRUE(swarm.run(nodes[0]->ping(listed[2])));
  write({listed[0], listed[1]});
  swarm.pass(5s);
  EXPECT_FALSE(swarm.run(nodes[2]->ping(listed[0])));
  EXPECT_FALSE(swarm.run(swarm.host(0).check_member(listed[2], true, swarm.runtime().after(5s))));
  EXPECT_TRUE(swarm.run(nodes[1]->ping(listed[0])));
}

TEST_F(ListOfMembers, ABadListChangesNothing) {
  ASSERT_TRUE(join_listed());
  ASSERT_TRUE(join_listed());
  std::ofstream(list) << "not a peer\n";
  swarm.pass(5s);
  EXPECT_TRUE(swarm.run(nodes[1]->ping(listed[0])));
  std::filesystem::remove(list);
  swarm.pass(5s);
  EXPECT_TRUE(swarm.run(nodes[1]->ping(listed[0])));
  EXPECT_FALSE(members_by_list(swarm.runtime(), list, swarm.host(0).identity(), signer()));
}

}  // namespace
}  // namespace cohive::dht
