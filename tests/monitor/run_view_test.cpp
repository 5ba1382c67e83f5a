// What a person is shown of a run: what peers agree on, and what is wrong, as sentences.
#include "monitor/run_view.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "cohive/averaging/metrics.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/log.hpp"
#include "cohive/proto/run_report.pb.h"
#include "monitor/exporter.hpp"
#include "monitor/trainer_reports.hpp"
#include "monitor/view_json.hpp"
#include "monitor/watch.hpp"

namespace cohive::tools {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

CrawledNode node_number(std::uint32_t number, std::vector<std::uint32_t> named) {
  const auto id_of = [](std::uint32_t n) { return dht::DhtId::of("node " + std::to_string(n)); };
  CrawledNode node{.id = id_of(number), .peer = peer_number(number), .reachable = true, .latency = 10ms};
  node.agent = "cohive/0.1";
  node.clock_ahead = 0;
  for (const std::uint32_t one : named) node.named.push_back(id_of(one));
  node.neighbours = named.size();
  return node;
}

/// Everybody knows everybody.
SwarmMap whole_swarm(std::uint32_t size) {
  SwarmMap map;
  std::vector<std::uint32_t> all(size);
  for (std::uint32_t i = 0; i < size; ++i) all[i] = i;
  for (std::uint32_t i = 0; i < size; ++i) map.nodes.push_back(node_number(i, all));
  return map;
}

RunView view_of(const RunRecords& records, const SwarmMap* map = nullptr) {
  return make_view({.run_id = "run"}, 1000, records, map);
}

std::vector<std::string> sentences(const RunView& view) {
  std::vector<std::string> texts;
  for (const Warning& warning : view.warnings) texts.push_back(warning.message);
  return texts;
}

// ---- What peers agree on

TEST(RunView, ShowsAllOfARunInShardsOfWhichItKnowsSome) {
  RunRecords records;
  records.trainers = {trainer_at(1, 7, 100, 10), trainer_at(2, 7, 50, 5)};
  records.all = train::ShardedRun{
      .epoch = 7, .samples = 9000, .samples_per_second = 300, .trainers = 400.2, .clients = 30.4, .some = {}};
  records.losses = {{.marker = "another", .step = 7, .samples = 100, .loss = 2}};
  const RunView view = view_of(records);
  EXPECT_EQ(view.epoch, 7u);
  EXPECT_EQ(view.trainers, 370u);
  EXPECT_EQ(view.clients, 30u);
  EXPECT_EQ(view.samples, 9000);
  EXPECT_EQ(view.samples_per_second, 300);
  EXPECT_EQ(view.loss, 2);
  EXPECT_EQ(view.target, std::nullopt) << "one of them has told how many samples its last epoch took";
  EXPECT_THAT(view.peers, SizeIs(2));
  EXPECT_THAT(sentences(view), IsEmpty());
}

TEST(RunView, AddsUpWhatTrainersDid) {
  RunRecords records;
  records.trainers = {trainer_at(1, 7, 100, 10), trainer_at(2, 7, 50, 5), trainer_at(3, 6, 1000, 1)};
  records.trainers[1].client = true;
  const RunView view = view_of(records);
  EXPECT_EQ(view.epoch, 7u);
  EXPECT_EQ(view.samples, 150) << "of this epoch";
  EXPECT_EQ(view.samples_per_second, 16);
  EXPECT_EQ(view.clients, 1u);
}

TEST(RunView, ThatAllTrainersAreClientsIsSaid) {
  RunRecords records;
  records.trainers = {trainer_at(1, 7), trainer_at(2, 7), trainer_at(3, 7)};
  for (auto& trainer : records.trainers) trainer.client = true;
  EXPECT_THAT(sentences(view_of(records)), ElementsAre(HasSubstr("all 3 trainers are clients")));
  records.trainers[1].client = false;
  EXPECT_THAT(sentences(view_of(records)), IsEmpty());
  records.trainers = {records.trainers[0]};
  EXPECT_THAT(sentences(view_of(records)), IsEmpty()) << "one alone misses nobody";
}

TEST(RunView, ASinglePeerSetsNoEpochHoweverHighItsClaim) {
  RunRecords records;
  records.trainers = {trainer_at(1, 7), trainer_at(2, 7), trainer_at(3, 1'000'000)};
  const RunView view = view_of(records);
  EXPECT_EQ(view.epoch, 7u);
  EXPECT_THAT(sentences(view),
              ElementsAre(HasSubstr("a peer claims epoch 1000000, which no other trainer has reached")));
}

/// Trainers at epoch 5, with losses of 2, 2.01 and so on.
RunRecords with_losses(std::uint32_t trainers) {
  RunRecords records;
  for (std::uint32_t i = 0; i < trainers; ++i) {
    records.trainers.push_back(trainer_at(i, 5));
    records.losses.push_back({.marker = "key " + std::to_string(i), .step = 5, .samples = 100, .loss = 2.0 + 0.01 * i});
  }
  return records;
}

TEST(RunView, ALossThatIsALieMovesTheLossLittle) {
  RunRecords records = with_losses(8);
  records.losses[0].loss = 1e30;
  records.losses[1].step = 900;  // of an epoch that is not there yet
  const RunView view = view_of(records);
  ASSERT_TRUE(view.loss);
  EXPECT_NEAR(*view.loss, 2.05, 0.03);
  EXPECT_EQ(view.loss_step, 5u);
}

TEST(RunView, OfThreeLossesALieIsLeftOut) {
  RunRecords records = with_losses(3);
  records.losses[1].loss = 1e14;
  EXPECT_EQ(view_of(records).loss, 2.02);
}

TEST(RunView, TheEpochEndsWhenTheTargetIsReached) {
  RunRecords records;
  records.trainers = {trainer_at(1, 7, 100, 10), trainer_at(2, 7, 100, 10)};
  EXPECT_FALSE(view_of(records).eta) << "nobody has said how many samples an epoch takes";
  const RunView told = make_view({.run_id = "run", .target = 600}, 1000, records, nullptr);
  EXPECT_EQ(told.eta, 20);
  EXPECT_FALSE(told.target_estimated);
  for (const char* marker : {"key 1", "key 2"})
    records.losses.push_back({.marker = marker, .step = 7, .samples = 400, .loss = 1});
  const RunView estimated = view_of(records);
  EXPECT_EQ(estimated.target, 800) << "as many as the epoch before took";
  EXPECT_TRUE(estimated.target_estimated);
}

TEST(RunView, AnEndThatCannotBeForeseenIsNotTold) {
  RunRecords records;
  records.trainers = {trainer_at(1, 0, 0, 3.36e-6)};
  const RunView view = make_view({.run_id = "run", .target = 336}, 1000, records, nullptr);
  EXPECT_FALSE(view.eta) << "a trainer that has just begun";
  EXPECT_TRUE(view_json(view, {})["eta_seconds"].is_null());
}

TEST(RunView, OfARunThatHasEndedIsKeptWhatWasSeenLast) {
  RunRecords records;
  records.trainers = {trainer_at(1, 7, 100, 10), trainer_at(2, 7, 50, 5)};
  records.losses = {{.marker = "key 1", .step = 7, .samples = 300, .loss = 0.5}};
  const RunView before = make_view({.run_id = "run", .target = 336}, 1000, records, nullptr);
  const RunView ended = make_view({.run_id = "run", .target = 336}, 1060, {}, nullptr, &before);
  EXPECT_EQ(ended.epoch, 7u);
  EXPECT_EQ(ended.samples, 150);
  EXPECT_EQ(ended.loss, 0.5);
  EXPECT_EQ(ended.trainers, 0u);
  EXPECT_EQ(ended.samples_per_second, 0);
  EXPECT_FALSE(ended.eta);
  EXPECT_EQ(ended.ended, 1000);
  EXPECT_THAT(sentences(ended), ElementsAre(AllOf(HasSubstr("the run has ended"), HasSubstr("60 s ago"))));
  const RunView later = make_view({.run_id = "run", .target = 336}, 1120, {}, nullptr, &ended);
  EXPECT_EQ(later.epoch, 7u);
  EXPECT_EQ(later.ended, 1000);
  const RunView again = make_view({.run_id = "run", .target = 336}, 1130, records, nullptr, &later);
  EXPECT_FALSE(again.ended);
  EXPECT_THAT(sentences(again), IsEmpty());
}

TEST(RunView, WhoComesAfterTheEndOfARunSeesHowFarItCameByTheLossesThatAreLeft) {
  RunRecords records = with_losses(3);
  records.trainers.clear();
  records.losses.push_back({.marker = "liar", .step = 900, .samples = 1, .loss = 1});
  const RunView view = view_of(records);
  EXPECT_EQ(view.epoch, 5u);
  EXPECT_TRUE(view.ended);
  EXPECT_TRUE(view.loss);
}

TEST(RunView, WhoComesAfterTheEndOfARunKeepsItAndWhenItWasSeenToHaveEnded) {
  RunRecords records = with_losses(3);
  records.trainers.clear();
  const RunView first = make_view({.run_id = "run"}, 1000, records, nullptr);
  ASSERT_TRUE(saw_the_run(first));
  const RunView second = make_view({.run_id = "run"}, 1060, records, nullptr, &first);
  EXPECT_EQ(second.ended, 1000);
  ASSERT_TRUE(saw_the_run(second));
  const RunView last = make_view({.run_id = "run"}, 1700, {}, nullptr, &second);
  EXPECT_EQ(last.ended, 1000) << "the losses have expired, too";
  EXPECT_EQ(last.epoch, 5u);
  EXPECT_THAT(sentences(last), ElementsAre(AllOf(HasSubstr("the run has ended"), HasSubstr("700 s ago"))));
  EXPECT_FALSE(saw_the_run(make_view({.run_id = "run"}, 1000, {}, nullptr)));
  EXPECT_FALSE(saw_the_run(make_view({.run_id = "run"}, 0, {}, nullptr, &last))) << "no look was answered yet";
}

TEST(RunView, NonsenseIsLeftOut) {
  using namespace msgpack;
  const auto record = [](double rate, double time, std::uint64_t samples = 1) {
    return Value(Map{{{"peer_id", Value::bin(peer_number(1).bytes())},
                      {"epoch", std::uint64_t{1}},
                      {"samples_accumulated", samples},
                      {"samples_per_second", rate},
                      {"time", time},
                      {"client_mode", false}}});
  };
  EXPECT_TRUE(progress_from("m", record(1, 5), 6));
  EXPECT_FALSE(progress_from("m", record(std::nan(""), 5), 6));
  EXPECT_FALSE(progress_from("m", record(-1, 5), 6));
  EXPECT_FALSE(progress_from("m", record(1e300, 5), 6));
  EXPECT_FALSE(progress_from("m", record(1, 5, std::uint64_t{1} << 63), 6));
  for (const double time : {1e300, -1e300, 8000.0, -8000.0})
    EXPECT_FALSE(progress_from("m", record(1, time), 6)) << "a clock that is off by hours, " << time;
  EXPECT_TRUE(progress_from("m", record(1, 7000), 6)) << "the other trainers believe it, too";
  EXPECT_FALSE(progress_from("m", Value(), 6)) << "a goodbye";
  const auto loss = [](double sum, std::uint64_t batches, std::uint64_t samples = 1) {
    return Value(Map{{{"step", std::uint64_t{1}},
                      {"samples_per_second", 1.0},
                      {"samples_accumulated", samples},
                      {"loss", sum},
                      {"mini_steps", batches}}});
  };
  EXPECT_EQ(loss_from("m", loss(6, 3))->loss, 2);
  EXPECT_FALSE(loss_from("m", loss(6, 0)));
  EXPECT_FALSE(loss_from("m", loss(std::nan(""), 3)));
  EXPECT_FALSE(loss_from("m", loss(-1e300, 3)));
  for (const double lie : {9e14, -9e14, 1e12}) EXPECT_FALSE(loss_from("m", loss(lie, 1))) << lie;
  EXPECT_FALSE(loss_from("m", loss(6, 3, std::uint64_t{1} << 63)));
}

TEST(RunView, ALargeSwarmShowsWhomTheFirstPeersKnowAndSomeLinksOfEachOther) {
  const SwarmMap map = whole_swarm(200);
  const std::size_t peers = map.nodes.size(), in_matrix = 60;  // as many as the page has rows for
  const RunView view = view_of({}, &map);
  ASSERT_THAT(view.peers, SizeIs(peers));
  EXPECT_THAT(view.links, SizeIs(ViewOptions().max_links));
  std::vector<std::size_t> links(peers), to_the_first(peers);
  for (const auto& [from, to] : view.links) {
    ++links[from];
    to_the_first[from] += to < in_matrix;
  }
  for (std::size_t row = 0; row < in_matrix; ++row) EXPECT_EQ(to_the_first[row], in_matrix - 1) << row;
  const std::size_t share = (ViewOptions().max_links - in_matrix * (in_matrix - 1)) / peers;
  for (std::size_t row = in_matrix; row < peers; ++row) {
    EXPECT_GE(links[row], share) << row;
    EXPECT_LE(links[row], share + 1) << row;
  }
  EXPECT_THAT(std::set(view.links.begin(), view.links.end()), SizeIs(view.links.size())) << "each is there once";
  EXPECT_EQ(view.parts, std::vector<std::size_t>{peers});
}

// ---- What trainers tell of their rounds

RunReport::Round round_of(const std::string& group, double time, double seconds = 1) {
  return {.time = time,
          .averager = "gradients",
          .group_id = group,
          .members = 3,
          .matchmaking = 0,
          .allreduce = seconds,
          .message = {}};
}

TEST(MergedRounds, AreOneForEachGroup) {
  std::map<PeerId, RunReport> reports;
  reports[peer_number(1)].rounds = {round_of("aa", 990), round_of("bb", 995)};
  reports[peer_number(2)].rounds = {round_of("aa", 991, 2), round_of("", 992)};
  reports[peer_number(2)].rounds[1].outcome = RunReport::Round::Outcome::failed;
  reports[peer_number(2)].rounds[0].outcome = RunReport::Round::Outcome::partial;
  reports[peer_number(3)].rounds = {round_of("", 993), round_of("cc", 1e300)};
  const auto rounds = merge_rounds(reports, 1000);
  std::vector<std::size_t> tellers;
  for (const auto& merged : rounds) tellers.push_back(merged.told_by.size());
  EXPECT_THAT(tellers, ElementsAre(2, 1, 1, 1))
      << "what has no group is of one peer each; a round of another age is a lie";
  EXPECT_EQ(rounds[0].round.allreduce, 2);
  EXPECT_EQ(rounds[0].round.outcome, RunReport::Round::Outcome::partial);
  EXPECT_THAT(merge_rounds(reports, 1000, 2), SizeIs(2));
}

TEST(MergedRounds, OfManyTrainersAreNotCrowdedOutByInventedOnes) {
  std::map<PeerId, RunReport> reports;
  for (int liar : {8, 9})
    for (int i = 0; i < 64; ++i)
      reports[peer_number(liar)].rounds.push_back(round_of(std::to_string(100 * liar + i), 999));
  for (int honest : {1, 2, 3}) reports[peer_number(honest)].rounds = {round_of("aa", 990), round_of("bb", 995)};
  const auto rounds = merge_rounds(reports, 1000, 10);
  ASSERT_THAT(rounds, SizeIs(10));
  EXPECT_EQ(rounds[0].round.group_id, "aa");
  EXPECT_EQ(rounds[1].round.group_id, "bb");
  reports[peer_number(8)].rounds = {round_of("cc", 1060)};
  for (const auto& merged : merge_rounds(reports, 1000, 1000)) EXPECT_LE(merged.round.time, 1000);
}

TEST(RoundTrips, HaveAShareForEachTrainerThatTellsThem) {
  RunRecords records;
  SwarmMap map = whole_swarm(4);
  for (std::uint32_t i = 0; i < 4; ++i) {
    records.trainers.push_back(trainer_at(i, 1));
    auto& links = map.reports[peer_number(i)].links;
    if (i < 3)
      links.assign(200, {peer_number((i + 1) % 4), 1});  // the same again and again
    else
      links = {{peer_number(0), .5}, {peer_number(1), .5}};
  }
  const RunView view = make_view({.run_id = "run", .max_links = 8}, 1000, records, &map);
  std::map<std::size_t, int> told;
  for (const auto& trip : view.round_trips) ++told[trip.from];
  EXPECT_THAT(told, ElementsAre(std::pair(0, 1), std::pair(1, 1), std::pair(2, 1), std::pair(3, 2)));
}

TEST(RunReports, AreBoundedAndNonsenseIsLeftOut) {
  EXPECT_FALSE(run_report_from(as_bytes(std::string(100'000, 'x'))));
  EXPECT_FALSE(run_report_from(as_bytes(std::string("\xff\xff nonsense"))));
  proto::RunReport told;
  const auto add = [&told](double time, float seconds, const std::string& outcome, const std::string& group) {
    auto& round = *told.add_rounds();
    round.set_time(time);
    round.set_averager("gradients");
    round.set_allreduce_seconds(seconds);
    round.set_outcome(outcome);
    round.set_group_id(group);
    round.set_message(std::string(2000, '\xff'));
  };
  add(1, 1, "ok", "ab");
  add(std::nan(""), 1, "ok", "ab");
  add(1, -1, "ok", "ab");
  add(1, 1e30f, "ok", "ab");
  add(1, 1, "best", "ab");
  add(1, 1, "ok", "<b>");
  auto& link = *told.add_links();
  link.set_peer_id(peer_number(1).binary());
  link.set_round_trip_seconds(std::nanf(""));
  told.add_links()->set_peer_id("nobody");
  const auto report = run_report_from(as_bytes(told.SerializeAsString()));
  ASSERT_TRUE(report);
  ASSERT_THAT(report->rounds, SizeIs(1));
  EXPECT_THAT(report->rounds[0].message, SizeIs(300));
  EXPECT_THAT(report->links, IsEmpty());
  told.clear_rounds();
  for (int i = 0; i < 100; ++i) add(1, 1, "ok", "");
  for (auto& round : *told.mutable_rounds()) round.clear_message();
  EXPECT_LT(run_report_from(as_bytes(told.SerializeAsString()))->rounds.size(), 100u);
  for (int i = 0; i < 500; ++i) add(1, 1, "ok", "");
  for (auto& round : *told.mutable_rounds()) round.clear_message();
  EXPECT_FALSE(run_report_from(as_bytes(told.SerializeAsString()))) << "more fields than a report has";
  told.set_schema_hash(std::string(1000, 'x'));
  EXPECT_FALSE(run_report_from(as_bytes(told.SerializeAsString())));
}

// ---- What is wrong

TEST(RunWarnings, AHealthyRunHasNone) {
  RunRecords records;
  for (std::uint32_t i = 0; i < 5; ++i) records.trainers.push_back(trainer_at(i, 3));
  const SwarmMap map = whole_swarm(6);
  const RunView view = view_of(records, &map);
  EXPECT_THAT(sentences(view), IsEmpty());
  EXPECT_EQ(view.parts, std::vector<std::size_t>{6});
  EXPECT_THAT(view.peers, SizeIs(6));
  EXPECT_EQ(view.peers[0].reachable, true);
}

TEST(RunWarnings, ARunThatNobodyTrains) {
  EXPECT_THAT(sentences(view_of({})),
              ElementsAre(AllOf(HasSubstr("no trainer reports"), HasSubstr("another --run-id"))));
}

TEST(RunWarnings, ASplitSwarm) {
  RunRecords records;
  records.trainers = {trainer_at(0, 3), trainer_at(5, 3)};
  SwarmMap map;
  for (std::uint32_t i = 0; i < 3; ++i) map.nodes.push_back(node_number(i, {0, 1, 2}));
  for (std::uint32_t i = 3; i < 8; ++i) map.nodes.push_back(node_number(i, {3, 4, 5, 6, 7}));
  const RunView view = view_of(records, &map);
  EXPECT_EQ(view.parts, (std::vector<std::size_t>{5, 3}));
  EXPECT_THAT(sentences(view),
              ElementsAre(HasSubstr("the swarm is split: parts of 5 and 3 nodes do not know each other")));
  // A node that both parts remember and that is gone joins nothing.
  map.nodes.push_back(node_number(8, {}));
  map.nodes.back().reachable = false;
  for (auto& node : map.nodes) node.named.push_back(map.nodes.back().id);
  EXPECT_EQ(view_of(records, &map).parts, (std::vector<std::size_t>{5, 3}));
}

TEST(RunWarnings, AClockThatIsOff) {
  RunRecords records;
  for (std::uint32_t i = 0; i < 4; ++i) records.trainers.push_back(trainer_at(i, 3));
  SwarmMap map = whole_swarm(4);
  map.nodes[2].clock_ahead = 10;
  EXPECT_THAT(sentences(view_of(records, &map)), ElementsAre(HasSubstr("the clock of " + peer_number(2).text() +
                                                                       " is 10.0 s ahead of this one: set it by NTP")));
  for (auto& node : map.nodes) node.clock_ahead = 10;
  EXPECT_THAT(sentences(view_of(records, &map)),
              ElementsAre(HasSubstr("the clock of this machine is 10.0 s behind those of most nodes")));
  // A client is never called; its report is from the future.
  map = whole_swarm(4);
  records.trainers.push_back(trainer_at(9, 3));
  records.trainers.back().client = true;
  records.trainers.back().age = -10;
  EXPECT_THAT(sentences(view_of(records, &map)), ElementsAre(HasSubstr("10.0 s ahead of this one")));
}

TEST(RunWarnings, TheFirstTrainerOfANewEpochIsNoLiar) {
  RunRecords records;
  records.trainers = {trainer_at(1, 5), trainer_at(2, 4), trainer_at(3, 4)};
  EXPECT_THAT(sentences(view_of(records)), IsEmpty());
  records.trainers[0].epoch = 6;
  EXPECT_THAT(sentences(view_of(records)), ElementsAre(HasSubstr("a peer claims epoch 6, which no other trainer")));
}

TEST(RunWarnings, PeersThatCannotBeReached) {
  RunRecords records;
  for (std::uint32_t i = 0; i < 4; ++i) records.trainers.push_back(trainer_at(i, 3));
  SwarmMap map = whole_swarm(3);
  map.trainers[peer_number(3)] = {};
  map.silent = {Multiaddr::from_text("/ip4/10.0.0.9/tcp/1").value()};
  const RunView view = view_of(records, &map);
  EXPECT_THAT(sentences(view), ElementsAre(HasSubstr("the initial peer /ip4/10.0.0.9/tcp/1 does not answer"),
                                           AllOf(HasSubstr("1 of 4 peers cannot be reached from here"),
                                                 HasSubstr(peer_number(3).text()))));
}

TEST(RunWarnings, TrainersOfAnotherModel) {
  RunRecords records;
  for (std::uint32_t i = 0; i < 4; ++i) records.trainers.push_back(trainer_at(i, 3));
  SwarmMap map = whole_swarm(4);
  for (std::uint32_t i = 0; i < 3; ++i) map.reports[peer_number(i)].schema_hash = "a";
  EXPECT_THAT(sentences(view_of(records, &map)), IsEmpty()) << "one does not tell";
  map.reports[peer_number(2)].schema_hash = "b";
  EXPECT_THAT(sentences(view_of(records, &map)),
              ElementsAre(AllOf(HasSubstr("1 trainer has another model or optimizer than 2 others, and cannot average"),
                                HasSubstr(peer_number(2).text()))));
}

TEST(RunWarnings, OldVersionsAndTrainersThatAreBehind) {
  RunRecords records;
  for (std::uint32_t i = 0; i < 4; ++i) records.trainers.push_back(trainer_at(i, 30));
  records.trainers[3].epoch = 12;
  SwarmMap map = whole_swarm(4);
  map.nodes[1].agent = "cohive/0.0.9";
  EXPECT_THAT(
      sentences(view_of(records, &map)),
      ElementsAre(AllOf(HasSubstr("1 trainer is 2 epochs or more behind epoch 30"), HasSubstr(peer_number(3).text())),
                  AllOf(HasSubstr("1 peer runs an older cohive than 0.1"), HasSubstr(peer_number(1).text()))));
  for (auto& node : map.nodes) node.agent = "cohive/0.1";
  map.nodes[1].agent = "cohive/99999999999999999999";
  map.nodes[2].agent = "cohive/9";
  records.trainers[3].epoch = 30;
  EXPECT_THAT(sentences(view_of(records, &map)), IsEmpty()) << "a version that a single peer claims makes nobody old";
}

// ---- How it is told

TEST(RunOutput, ATableFitsTheTerminalAndHoldsNoControlCharacters) {
  RunRecords records;
  for (std::uint32_t i = 0; i < 50; ++i) records.trainers.push_back(trainer_at(i, 3));
  const RunView view = make_view({.run_id = "run\x1b[2J", .target = 20000}, 1000, records, nullptr);
  const auto lines = table_of(view, 80, 24);
  EXPECT_THAT(lines, SizeIs(24));
  for (const std::string& line : lines) {
    EXPECT_LE(line.size(), 80u);
    EXPECT_THAT(line, Not(HasSubstr("\x1b")));
  }
  EXPECT_THAT(lines[1], HasSubstr("5000 of 20000 samples, ends in 30 s"));
  EXPECT_THAT(lines.back(), HasSubstr("and 31 more"));
}

TEST(RunOutput, MetricsOfSinglePeersAreBoundedAndComeAndGo) {
  Metrics metrics;
  RunExporter exporter(metrics, "run \"a\"", 2);
  RunRecords records;
  for (std::uint32_t i = 0; i < 3; ++i) records.trainers.push_back(trainer_at(i, 3));
  const auto text_with = [&] {
    exporter.update(view_of(records));
    return exporter.peer_text();
  };
  const std::string line = "cohive_swarm_trainer_epoch{run_id=\"run \\\"a\\\"\",peer=\"";
  EXPECT_THAT(text_with(), AllOf(HasSubstr(line + peer_number(0).text() + "\"} 3"),
                                 HasSubstr(line + peer_number(1).text()), Not(HasSubstr(peer_number(2).text()))));
  records.trainers.erase(records.trainers.begin());
  EXPECT_THAT(text_with(), AllOf(Not(HasSubstr(peer_number(0).text())), HasSubstr(line + peer_number(1).text()),
                                 HasSubstr(line + peer_number(2).text())));
  EXPECT_THAT(metrics.text(), HasSubstr("cohive_swarm_trainers{mode=\"node\",run_id=\"run \\\"a\\\"\"} 2"));
}

TEST(RunOutput, WhatIsNotKnownYetIsNoNumber) {
  Metrics metrics;
  RunExporter exporter(metrics, "run", 2);
  const auto unknown = [](const std::string& name, const std::string& label = "") {  // libraries write NaN and Nan
    return testing::ContainsRegex(name + "[{]" + label + "run_id=\"run\"[}] [Nn][Aa][Nn]\n");
  };
  EXPECT_THAT(metrics.text(), AllOf(unknown("cohive_swarm_epoch"), unknown("cohive_swarm_trainers", "mode=\"node\","),
                                    unknown("cohive_swarm_nodes", "reachable=\"yes\","),
                                    unknown("cohive_swarm_last_look_timestamp_seconds"),
                                    HasSubstr("cohive_swarm_warnings{kind=\"blind\",run_id=\"run\"} 0\n")));
  RunRecords records;
  for (std::uint32_t i = 0; i < 2; ++i) records.trainers.push_back(trainer_at(i, 3));
  exporter.update(view_of(records));
  EXPECT_THAT(metrics.text(),
              AllOf(HasSubstr("cohive_swarm_epoch{run_id=\"run\"} 3\n"),
                    HasSubstr("cohive_swarm_trainers{mode=\"client\",run_id=\"run\"} 0\n"),
                    Not(unknown("cohive_swarm_last_look_timestamp_seconds")), unknown("cohive_swarm_parts")))
      << "nobody has walked through the swarm";
}

TEST(RunOutput, RoundsThatTakeAnHourAreToldFromRoundsThatTakeAMinute) {
  Metrics metrics;
  const averaging::AveragingMetrics rounds(metrics, "run_grad_averager");
  rounds.allreduce_seconds.observe(1000);
  const std::string bucket = "cohive_averaging_allreduce_seconds_bucket{averager=\"run_grad_averager\",le=\"";
  EXPECT_THAT(metrics.text(), AllOf(HasSubstr(bucket + "600\"} 0\n"), HasSubstr(bucket + "1800\"} 1\n")));
}

TEST(RunOutput, TellsWhetherTheSwarmAnswers) {
  Metrics metrics;
  RunExporter exporter(metrics, "run", 2);
  const std::string line = "cohive_swarm_sees_run{run_id=\"run\"} ";
  EXPECT_THAT(metrics.text(), HasSubstr(line + "1\n")) << "the first look takes a while";
  exporter.sees_run(false);
  exporter.update({});
  EXPECT_THAT(metrics.text(), HasSubstr(line + "0\n"));
  exporter.sees_run(true);
  EXPECT_THAT(metrics.text(), HasSubstr(line + "1\n"));
}

}  // namespace
}  // namespace cohive::tools
