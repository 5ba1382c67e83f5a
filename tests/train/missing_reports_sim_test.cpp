// Reports that the record of a run does not have, or not the latest ones: the members themselves tell theirs.
#include "progress_trackers.hpp"

namespace cohive::train {
namespace {

/// Refuses reports of others, as if those who hold the record kept them back.
class Withholding final : public dht::RecordValidator {
 public:
  explicit Withholding(std::string own) : own_(std::move(own)) {}
  bool validate(const dht::Record& record) const override {
    return record.expiration <= last || record.subkey.find(own_) != std::string::npos;
  }
  int priority() const override { return 100; }
  double last = 0;  // reports that expire later are kept back

 private:
  const std::string own_;
};

class MissingReports : public Progress {
 protected:
  void SetUp() override {
    add();  // a bootstrap node, which does not train
    for (int i = 0; i < 3; ++i) add_trainer();
    train_all(2, 5);
    for (std::size_t i = 1; i < nodes.size(); ++i) trainers.push_back(swarm.host(i).id());
    for (std::size_t i = 0; i < trackers.size(); ++i) {
      std::vector<PeerId> others = trainers;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      trackers[i]->met(others);
      trackers[i]->took_part(trainers);
    }
    swarm.pass(5s);  // until all reports are in the record
    withholding = std::make_shared<Withholding>(keys[0]->ownership_marker());
    nodes[1]->add_validator(withholding);
  }
  /// All of them, but for `but`.
  void train_all(std::uint64_t epoch, int seconds, const ProgressTracker* but = nullptr) {
    for (int i = 0; i < seconds; ++i) {
      swarm.pass(1s);
      for (auto& tracker : trackers)
        if (tracker.get() != but) tracker->report(epoch, samples[tracker.get()] += 10);
    }
  }
  void enter(std::uint64_t epoch) {
    samples.clear();
    for (auto& tracker : trackers) tracker->update_epoch(epoch);
  }
  ProgressTracker& victim() { return *trackers[0]; }

  std::vector<PeerId> trainers;
  std::shared_ptr<Withholding> withholding;
};

TEST_F(MissingReports, ComeFromTheMembersWhereTheRecordHasOldOnes) {
  withholding->last = in(59);
  enter(3);
  train_all(3, 20);
  const auto [seen, real] = std::pair(victim().snapshot(), trackers[1]->snapshot());
  EXPECT_EQ(seen.peers, 3u);
  EXPECT_TRUE(seen.others_train);
  EXPECT_NEAR(seen.eta, real.eta, 3) << "it would train on long after the others have all samples";
}

TEST_F(MissingReports, ComeFromTheMembersWhereTheRecordHasNone) {
  withholding->last = 0;
  enter(3);
  train_all(3, 20);
  const auto [seen, real] = std::pair(victim().snapshot(), trackers[1]->snapshot());
  EXPECT_EQ(seen.expected, 3u);
  EXPECT_NEAR(seen.eta, real.eta, 3);
  EXPECT_NEAR(seen.samples_per_second, real.samples_per_second, 3);
}

TEST_F(MissingReports, TellThatOthersHaveEndedTheEpoch) {
  withholding->last = in(59);
  enter(3);
  for (auto& tracker : trackers)
    if (tracker.get() != &victim()) tracker->update_epoch(4);
  train_all(4, 10, &victim());
  EXPECT_EQ(victim().snapshot().epoch, 4u);
}

TEST_F(MissingReports, OfOneThatTrainsNoMoreAreForgotten) {
  withholding->last = 0;
  enter(3);
  train_all(3, 10);
  ASSERT_EQ(victim().snapshot().peers, 3u);
  swarm.run(trackers[2]->withdraw(swarm.after(5s)));
  train_all(3, 20, trackers[2].get());
  EXPECT_EQ(victim().snapshot().peers, 2u) << "rounds would wait for it";
}

TEST_F(MissingReports, AreNotAskedOfStrangers) {
  withholding->last = 0;
  victim().took_part({trainers[0], trainers[1]});
  enter(3);
  train_all(3, 20);
  EXPECT_EQ(victim().snapshot().peers, 2u);
}

}  // namespace
}  // namespace cohive::train
