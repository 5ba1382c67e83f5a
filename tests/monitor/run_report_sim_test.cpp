// What trainers tell a monitor of their rounds, and what it makes of it.
#include "monitor/run_report.hpp"

#include <gmock/gmock.h>

#include "cohive/rpc/errors.hpp"
#include "cohive/train/plain_replica.hpp"
#include "cohive/transport/errors.hpp"
#include "monitor/merged_rounds.hpp"
#include "train/four_trainers.hpp"
#include "train/run_report.hpp"

namespace cohive::tools {
namespace {

using testing::Each;
using testing::Field;
using testing::IsEmpty;
using testing::SizeIs;

class SixtyFourValues final : public train::TrainedModel {
 public:
  explicit SixtyFourValues(Runtime& runtime) : replica_(runtime, {{64}}, optim::SgdOptions{.lr = 0.1}) {}
  train::Replica& replica() override { return replica_; }
  void compute(std::uint64_t, std::size_t) override {
    const std::vector<float> ones(64, 1);
    replica_.add_gradients({ones}, double{train::kSamples});
  }
  std::vector<float> parameters() override { return {replica_.parameter(0).begin(), replica_.parameter(0).end()}; }

 private:
  train::PlainReplica replica_;
};

class ToldByTrainers : public ::testing::Test {
 protected:
  ToldByTrainers() { trainers.train(3); }
  /// What one trainer tells another.
  Result<RunReport> ask(std::size_t who, std::string run_id = "four") {
    p2p::Host& host = trainers[0].dht->host();
    return trainers.run(read_run_report(host, peer(who), std::move(run_id), host.runtime().after(5s)));
  }
  PeerId peer(std::size_t number) { return trainers[number].dht->host().id(); }

  train::FourTrainers trainers{
      [](Runtime& runtime, const train::RunOptions&) { return std::make_unique<SixtyFourValues>(runtime); }};
};

TEST(ToldToStrangers, FailuresAreToldWithoutTheAddressesOfPeers) {
  EXPECT_EQ(train::without_addresses(
                "12D3KooWa: /ip4/192.168.7.3/tcp/4001/p2p/12D3KooWb: connection refused; /ip6/fd00::7/tcp/1, "
                "10.0.0.9:4001 and [fd00::7]:4001 (/dns4/host.lan/tcp/5): cannot connect"),
            "12D3KooWa: (address) connection refused; (address), (address) and (address) ((address)): cannot connect");
  EXPECT_EQ(train::without_addresses("3 of 4 members in 1.25 s"), "3 of 4 members in 1.25 s");
}

TEST_F(ToldByTrainers, RoundsAreThoseOfTheGroup) {
  std::map<PeerId, RunReport> reports;
  for (std::size_t i = 1; i < train::kTrainers; ++i) {
    const auto report = ask(i);
    ASSERT_TRUE(report) << report.error();
    EXPECT_THAT(report->links, SizeIs(train::kTrainers - 1)) << "each has met each";
    reports.emplace(peer(i), *report);
  }
  EXPECT_EQ(reports.at(peer(1)).schema_hash, reports.at(peer(2)).schema_hash);
  EXPECT_THAT(reports.at(peer(1)).schema_hash, SizeIs(20));
  const auto rounds = merge_rounds(reports, trainers[0].dht->now());
  ASSERT_THAT(rounds, SizeIs(6)) << "of gradients and of parameters, for each epoch";
  for (const auto& [round, told_by] : rounds) {
    EXPECT_EQ(round.outcome, RunReport::Round::Outcome::ok);
    EXPECT_EQ(round.members, train::kTrainers);
    EXPECT_GT(round.allreduce, 0);
    EXPECT_THAT(told_by, SizeIs(3));
  }
}

TEST_F(ToldByTrainers, NothingIsToldOfAnotherRun) {
  EXPECT_EQ(ask(1, "another").error(), transport::Errc::protocol_not_supported);
}

}  // namespace
}  // namespace cohive::tools
