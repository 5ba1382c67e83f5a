// Peers that take the whole state and ask for it again, as hivemind's trainers do with a state that they refuse.
#include "cohive/core/status.hpp"
#include "shared_states.hpp"

namespace cohive::averaging {
namespace {

class RepeatedDownloadsOf : public SharedStates {
 protected:
  void SetUp() override {
    add();
    SharedState state{msgpack::Map{{{"epoch", 5}, {"form", "first"}}},
                      {{codec::DType::uint8, {1000}, false, Slice::copy_of(Bytes(1000, 7))}}};
    state.if_refused = {msgpack::Map{{{"epoch", 5}, {"form", "other"}}}, "a trainer of another kind"};
    donor_ = &donor(std::move(state), 5);
    asker_ = &swarm.add_host();
    ASSERT_TRUE(swarm.run(asker_->connect(swarm.host(1).visible_addresses().front(), swarm.after(5s))));
  }

  /// Downloads as hivemind does. Returns the metadata's form.
  std::string ask() {
    DownloadReport report;
    const std::string protocol = "test::DecentralizedAverager.rpc_download_state";
    const auto state = swarm.run(receive_state(*asker_, donor_->id(), protocol, 5s, 1 << 20, report));
    EXPECT_TRUE(state) << state.error();
    const auto* form = state ? state->metadata.get_if<msgpack::Map>()->find("form") : nullptr;
    return form ? *form->get_if<std::string>() : "";
  }
  /// The warnings about this peer.
  std::size_t warnings() {
    const std::string status = Status::of(swarm.runtime()).json();
    std::size_t count = 0;
    for (auto at = status.find("has taken the whole state"); at != std::string::npos;
         at = status.find("has taken the whole state", at + 1))
      ++count;
    return count;
  }

  StateSharer* donor_ = nullptr;
  p2p::Host* asker_ = nullptr;
};

TEST_F(RepeatedDownloadsOf, OnePeerAreToldOfAndItIsGivenTheOtherForm) {
  EXPECT_EQ(ask(), "first");
  EXPECT_EQ(ask(), "first");
  EXPECT_EQ(warnings(), 0u) << "a second one is usual";
  EXPECT_EQ(ask(), "other");
  EXPECT_EQ(warnings(), 1u);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(ask(), "other");
  EXPECT_EQ(warnings(), 1u) << "once is enough";
  swarm.pass(30min);
  EXPECT_EQ(ask(), "other") << "when it falls behind";
}

TEST_F(RepeatedDownloadsOf, AProcessThatIsStartedAgainAndAgainAreNoRefusals) {
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(ask(), "first");
    swarm.pass(20s);
  }
  EXPECT_EQ(warnings(), 1u) << "but it is looked at";
}

TEST_F(RepeatedDownloadsOf, APeerThatIsBehindEveryTimeAreNoRefusals) {
  for (int epoch = 5; epoch < 15; epoch += 2) {
    donor_->sharing->set_priority(epoch);
    EXPECT_EQ(ask(), "first");
    EXPECT_EQ(ask(), "first");
  }
}

TEST_F(RepeatedDownloadsOf, ManyPeersAreNoRefusals) {
  for (int i = 0; i < 300; ++i) {
    asker_ = &swarm.add_host();
    ASSERT_TRUE(swarm.run(asker_->connect(swarm.host(1).visible_addresses().front(), swarm.after(5s))));
    EXPECT_EQ(ask(), "first");
  }
  EXPECT_EQ(warnings(), 0u);
}

TEST_F(RepeatedDownloadsOf, APeerOfCohiveAreToldOf) {
  StateSharer& late = newcomer();
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(download(late));
  EXPECT_EQ(warnings(), 0u);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(download(late));
  EXPECT_EQ(warnings(), 1u);
}

}  // namespace
}  // namespace cohive::averaging
