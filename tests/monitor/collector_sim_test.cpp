// A run of simulated peers, looked at from outside.
#include "monitor/collector.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "cohive/testing/cheap_keys.hpp"
#include "common/program.hpp"
#include "dht/dht_swarm.hpp"
#include "monitor/run_doctor.hpp"
#include "monitor/view_json.hpp"
#include "monitor/watch.hpp"
#include "support/sanitizers.hpp"

namespace cohive::tools {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

class WatchedRun : public dht::DhtSwarm {
 protected:
  static msgpack::Value progress_record(const Dht& node, const PeerId& peer, std::uint64_t epoch, bool client) {
    return msgpack::Map{{{"peer_id", msgpack::Value::bin(peer.bytes())},
                         {"epoch", epoch},
                         {"samples_accumulated", std::uint64_t{10}},
                         {"samples_per_second", 2.0},
                         {"time", node.now()},
                         {"client_mode", client}}};
  }
  static msgpack::Value metrics_record(std::uint64_t epoch, double loss) {
    return msgpack::Map{{{"step", epoch},
                         {"samples_per_second", 2.0},
                         {"samples_accumulated", std::uint64_t{100}},
                         {"loss", loss * 4},
                         {"mini_steps", std::uint64_t{4}}}};
  }
  /// Reports as a trainer with that peer id does.
  void report(Dht& node, const dht::RsaSignatureValidator& key, const PeerId& peer, std::uint64_t epoch, double loss) {
    const msgpack::Bin owner{key.ownership_marker()};
    ASSERT_TRUE(store(node, "run_progress", owner, progress_record(node, peer, epoch, false), in(600)));
    ASSERT_TRUE(store(node, "run_metrics", owner, metrics_record(epoch, loss), in(600)));
  }
  Dht& add_monitor() {
    Dht& monitor = add({.client_mode = true});
    monitor.add_validator(std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(0)));
    return monitor;
  }
  /// Signs what a node stores by a key of its own.
  std::shared_ptr<dht::RsaSignatureValidator> key_of(Dht& node, std::size_t number) {
    auto key = std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(number));
    node.add_validator(key);
    return key;
  }
  /// Tells the losses of two trainers that are gone, for five minutes.
  void leave_losses() {
    for (std::size_t i = 1; i < 3; ++i) {
      const msgpack::Bin owner{key_of(*nodes[i], i)->ownership_marker()};
      ASSERT_TRUE(store(*nodes[i], "run_metrics", owner, metrics_record(5, 2), in(300)));
    }
  }
  static Task<void> watch(Dht& monitor, WatchOptions options) { (void)co_await watch_run(monitor, std::move(options)); }
  static Task<void> wait_for_change(Collector& collector, bool& told) {
    co_await collector.changed();
    told = true;
  }
  std::vector<std::string> said(const RunView& view) {
    std::vector<std::string> texts;
    for (const Warning& warning : view.warnings) texts.push_back(warning.message);
    return texts;
  }
};

TEST_F(WatchedRun, ShowsTrainersNodesAndWhoKnowsWhom) {
  add_many(4);
  for (std::size_t i = 1; i < 4; ++i) report(*nodes[i], *key_of(*nodes[i], i), swarm.host(i).id(), 5, 2);
  Collector collector(add_monitor(), {.run_id = "run"});
  swarm.run(collector.look());
  EXPECT_FALSE(collector.view().mapped);
  swarm.run(collector.crawl());
  const RunView& view = collector.view();
  EXPECT_EQ(view.epoch, 5u);
  EXPECT_EQ(view.trainers, 3u);
  EXPECT_EQ(view.loss, 2);
  EXPECT_EQ(view.target, 300) << "what the last epoch took";
  EXPECT_EQ(view.reachable, 4u);
  EXPECT_EQ(view.parts, std::vector<std::size_t>{4});
  ASSERT_EQ(view.peers.size(), 4u);
  EXPECT_GT(*view.peers[0].rtt, 0.01);
  EXPECT_EQ(view.peers[0].software, "cohive");
  EXPECT_EQ(view.links.size(), 12u) << "each knows each";
  EXPECT_THAT(said(view), IsEmpty());
}

TEST_F(WatchedRun, TwoSwarmsUnderTheNameOfOneRunAreSeenToBeTwo) {
  add_many(3);
  auto& stranger = swarm.add_host();  // begins a swarm of its own
  Dht other(stranger);
  swarm.run(other.start({})).value();
  auto& watcher = swarm.add_host({.routing_server = false}, false);
  Dht monitor(watcher, {.client_mode = true});
  monitor.add_validator(std::make_shared<dht::RsaSignatureValidator>(sim::cheap_key(0)));
  const std::vector<Multiaddr> initial = {swarm.host(0).visible_addresses().front(),
                                          stranger.visible_addresses().front()};
  swarm.run(monitor.start(initial)).value();
  report(*nodes[1], *key_of(*nodes[1], 1), swarm.host(1).id(), 5, 2);
  std::vector<std::string> failed;
  const auto note = [&failed](const Finding& finding) {
    if (finding.status == Finding::Status::failed) failed.push_back(finding.step + ": " + finding.text);
  };
  EXPECT_EQ(swarm.run(diagnose_run(monitor, "run", initial, note)), 1);
  EXPECT_THAT(failed,
              ElementsAre(HasSubstr("swarm: the swarm is split: parts of 3 and 1 nodes do not know each other")));
  swarm.run(other.close());
}

TEST_F(WatchedRun, APeerThatIsGoneAndAnInitialPeerThatIsGoneAreNamed) {
  add_many(3);
  Dht& monitor = add_monitor();
  const auto gone = Multiaddr::from_text("/ip4/10.9.9.9/tcp/4001/p2p/" + swarm.host(0).id().text()).value();
  report(*nodes[1], *key_of(*nodes[1], 1), KeyPair::generate_ed25519().peer_id(), 5, 2);
  const auto other = KeyPair::generate_ed25519().peer_id();
  Collector collector(monitor, {.run_id = "run", .initial_peers = {gone.without_peer().with_peer(other)}});
  swarm.run(collector.look());
  swarm.run(collector.crawl());
  EXPECT_THAT(said(collector.view()),
              ElementsAre(HasSubstr("the initial peer /ip4/10.9.9.9/tcp/4001/p2p/" + other.text()),
                          HasSubstr("1 of 4 peers cannot be reached from here")));
}

TEST_F(WatchedRun, ALookThatFailsIsToldAndACrawlMakesUpForNone) {
  add_many(3);
  Dht& monitor = add_monitor();
  report(*nodes[1], *key_of(*nodes[1], 1), swarm.host(1).id(), 5, 2);
  Collector collector(monitor, {.run_id = "run"});
  swarm.run(collector.crawl());
  EXPECT_EQ(collector.view().time, 0) << "no report was read";
  EXPECT_THAT(said(collector.view()), IsEmpty()) << "nothing is known of trainers yet";
  swarm.run(collector.look());
  const double read = collector.view().time;
  EXPECT_GT(read, 0);
  swarm.fabric().partition({ip_of(3)}, {ip_of(0), ip_of(1), ip_of(2)});
  swarm.pass(11min);  // until what the monitor remembers has expired
  bool told = false;
  swarm.runtime().background().spawn(wait_for_change(collector, told), "a page");
  swarm.run(collector.look());
  swarm.pass(1ms);
  EXPECT_EQ(collector.failed_looks(), 1u);
  EXPECT_TRUE(told);
  EXPECT_FALSE(collector.sees_the_run()) << "a monitor that has seen nothing for so long is not ready";
  EXPECT_TRUE(collector.misses_the_run());
  const auto blind = HasSubstr("the swarm has not answered for ");
  ASSERT_FALSE(collector.view().warnings.empty());
  EXPECT_EQ(collector.view().warnings.front().kind, "blind");
  EXPECT_THAT(said(collector.view()).front(), blind);
  swarm.run(collector.crawl());
  EXPECT_EQ(collector.view().time, read) << "what is shown is as old as the reports";
  EXPECT_THAT(said(collector.view()).front(), blind) << "a crawl reads no reports";
  swarm.run(collector.look());
  EXPECT_EQ(std::ranges::count(said(collector.view()), said(collector.view()).front()), 1) << "it is said once";
  swarm.fabric().heal();
  for (int i = 0; i < 60 && !collector.sees_the_run(); ++i) {
    swarm.pass(1min);  // until dials that failed are tried again
    swarm.run(collector.look());
  }
  EXPECT_TRUE(collector.sees_the_run());
  EXPECT_FALSE(collector.misses_the_run());
  EXPECT_THAT(said(collector.view()), testing::Not(testing::Contains(blind)));
}

TEST_F(WatchedRun, AMonitorThatHasSeenNothingYetSaysSo) {
  add_many(3);
  Dht& monitor = add_monitor();
  swarm.fabric().partition({ip_of(3)}, {ip_of(0), ip_of(1), ip_of(2)});
  Collector collector(monitor, {.run_id = "run"});
  swarm.run(collector.look());
  EXPECT_EQ(collector.failed_looks(), 1u);
  EXPECT_THAT(said(collector.view()), ElementsAre("the swarm has not answered yet: nothing is known of the run"));
  EXPECT_EQ(collector.view().time, 0);
  EXPECT_FALSE(collector.sees_the_run());
  EXPECT_FALSE(collector.misses_the_run()) << "it has just begun";
  swarm.pass(6min);
  EXPECT_TRUE(collector.misses_the_run());
  EXPECT_FALSE(collector.sees_the_run());
}

TEST_F(WatchedRun, AMonitorThatLooksSeldomMissesNothingBetweenTwoLooks) {
  add_many(3);
  Collector collector(add_monitor(), {.run_id = "run", .period = 10min});
  swarm.run(collector.look());
  swarm.pass(29min);
  EXPECT_FALSE(collector.misses_the_run());
  swarm.pass(2min);
  EXPECT_TRUE(collector.misses_the_run());
}

TEST_F(WatchedRun, ASwarmThatDoesNotAnswerIsNoRunWithoutTrainers) {
  add_many(3);
  Dht& monitor = add_monitor();
  swarm.fabric().partition({ip_of(3)}, {ip_of(0), ip_of(1), ip_of(2)});
  testing::internal::CaptureStdout();
  try {
    swarm.run(watch_run(monitor, {.collector = {.run_id = "run"}, .once = true}));
    ADD_FAILURE() << "a look that failed was told as one that did not";
  } catch (const Exit& exit) {
    EXPECT_EQ(exit.code, kFailed);
    EXPECT_THAT(exit.message, HasSubstr("cannot be read"));
  }
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST_F(WatchedRun, StandsStillWhereNobodyReportsAnyMore) {
  add_many(3);
  const auto owner = msgpack::Bin{key_of(*nodes[1], 1)->ownership_marker()};
  // As long as trainers' reports live.
  ASSERT_TRUE(
      store(*nodes[1], "run_progress", owner, progress_record(*nodes[1], swarm.host(1).id(), 5, false), in(60)));
  Collector collector(add_monitor(), {.run_id = "run"});
  swarm.pass(40s);
  swarm.run(collector.look());
  EXPECT_THAT(said(collector.view()), IsEmpty());
  swarm.pass(12s);
  swarm.run(collector.look());
  EXPECT_THAT(said(collector.view()), ElementsAre(HasSubstr("no trainer has reported for 45 s: the run stands still")));
}

TEST_F(WatchedRun, WhoComesAfterTheEndOfARunSaysHowLongAgoItWasAndForgetsNothing) {
  add_many(3);
  leave_losses();
  Collector collector(add_monitor(), {.run_id = "run"});
  swarm.run(collector.look());
  const auto ended = collector.view().ended;
  ASSERT_TRUE(ended);
  EXPECT_EQ(*ended, collector.view().time);
  EXPECT_EQ(collector.view().epoch, 5u);
  swarm.pass(60s);
  swarm.run(collector.look());
  EXPECT_GE(collector.view().time, *ended + 60);
  EXPECT_EQ(collector.view().ended, ended);
  swarm.pass(10min);  // the losses expire
  swarm.run(collector.look());
  EXPECT_EQ(collector.view().ended, ended);
  EXPECT_EQ(collector.view().epoch, 5u);
  EXPECT_EQ(collector.view().loss, 2);
  EXPECT_THAT(said(collector.view()), ElementsAre(HasSubstr("the run has ended")));
}

TEST_F(WatchedRun, LinesAboutARunThatHasEndedAgreeOnWhen) {
  add_many(3);
  leave_losses();
  Dht& monitor = add_monitor();
  testing::internal::CaptureStdout();
  TaskGroup lines(swarm.runtime(), "lines");
  lines.spawn(watch(monitor, {.collector = {.run_id = "run", .period = 10s}, .json = true}), "lines");
  swarm.pass(35s);
  lines.cancel();
  std::istringstream printed(testing::internal::GetCapturedStdout());
  std::vector<double> ends;
  for (std::string line; std::getline(printed, line);)
    ends.push_back(nlohmann::json::parse(line).at("ended").get<double>());
  ASSERT_GE(ends.size(), 3u);
  EXPECT_THAT(ends, testing::Each(ends.front()));
}

TEST_F(WatchedRun, AHistoryGoesOnWhereTheLastMonitorEnded) {
  add_many(2);
  LookHistory history("run");
  RunView seen;
  seen.time = 1000;
  seen.epoch = 7;
  seen.trainers = 2;
  ASSERT_TRUE(history.add(seen));
  Collector collector(add_monitor(), {.run_id = "run"}, std::move(history));
  EXPECT_EQ(collector.looks().size(), 1u);
  swarm.run(collector.look());
  EXPECT_EQ(collector.view().ended, 1000);
  EXPECT_EQ(collector.view().epoch, 7u);
}

TEST_F(WatchedRun, ACrawlLeavesOutWhatItHasNoTimeFor) {
  add_many(12);
  Dht& monitor = add_monitor();
  const auto nodes_in = [&](Duration patience) {
    return swarm.run(crawl(monitor, {.parallel = 1, .details = true, .patience = patience})).size();
  };
  EXPECT_EQ(nodes_in(1h), 12u);
  const std::size_t some = nodes_in(200ms);
  EXPECT_GT(some, 0u);
  EXPECT_LT(some, 12u);
}

/// A node that names twenty ids as its own, and that of another node.
class ManyIds {
 public:
  ManyIds(p2p::Host& host, dht::DhtId victim) : host_(host), victim_(victim), server_(host) {
    server_.add_unary("DHTProtocol.rpc_ping", [this](PeerId, std::string) { return ping(); });
    server_.add_unary("DHTProtocol.rpc_find", [this](PeerId, std::string request) { return find(std::move(request)); });
  }

 private:
  static std::string id(int number) { return std::string(20, static_cast<char>('a' + number)); }
  Task<Result<std::string>> ping() {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(id(0));
    reply.set_dht_time(host_.runtime().wall_time());
    reply.set_available(true);
    co_return reply.SerializeAsString();
  }
  Task<Result<std::string>> find(std::string bytes) {
    proto::FindRequest request;
    request.ParseFromString(bytes);
    proto::FindResponse reply;
    reply.mutable_peer()->set_node_id(id(0));
    for (int key = 0; key < request.keys_size(); ++key) {
      auto* result = reply.add_results();
      for (int number = 1; number <= 20; ++number) name(*result, id(number));
      name(*result, victim_.binary());
    }
    co_return reply.SerializeAsString();
  }
  void name(proto::FindResult& result, const std::string& id) const {
    result.add_nearest_node_ids(id);
    result.add_nearest_peer_ids(host_.id().binary());
  }
  p2p::Host& host_;
  const dht::DhtId victim_;
  rpc::Server server_;
};

TEST_F(WatchedRun, ANodeIsOnTheMapOnceWhateverIdsItInvents) {
  add_many(3);
  auto& host = swarm.add_host();
  const ManyIds liar(host, nodes[1]->node_id());
  Dht monitor(swarm.add_host({.routing_server = false}, false), {.client_mode = true});
  swarm.run(monitor.start({host.visible_addresses().front(), swarm.host(0).visible_addresses().front()})).value();
  const auto found = swarm.run(crawl(monitor, {}));
  std::map<PeerId, std::size_t> times;
  for (const CrawledNode& node : found) {
    ++times[node.peer];
    EXPECT_TRUE(node.reachable) << node.peer.text();
  }
  EXPECT_EQ(found.size(), 4u) << "the liar, and the three nodes that there are";
  EXPECT_EQ(times[host.id()], 1u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(times[swarm.host(i).id()], 1u) << i;
  swarm.run(monitor.close());
}

TEST_F(WatchedRun, ALineOfTheHistoryThatWasCutOffSwallowsNoOther) {
  add_many(2);
  report(*nodes[1], *key_of(*nodes[1], 1), swarm.host(1).id(), 5, 2);
  const std::string path = testing::TempDir() + "/cut-history-" + std::to_string(::getpid()) + ".jsonl";
  std::ofstream(path) << "{\"run_id\": \"run\", \"ti";
  {
    Collector collector(add_monitor(), {.run_id = "run", .history_path = path});
    swarm.run(collector.look());
  }
  LookHistory again("run");
  EXPECT_EQ(again.load(path).value(), 1u) << "the line that was cut off";
  EXPECT_EQ(again.looks().size(), 1u);
  std::filesystem::remove(path);
}

TEST_F(WatchedRun, ALookWhileTrainersAreAskedReplacesTheirRecords) {
  const std::size_t trainers = 40;  // more than are asked at once
  add_many(static_cast<int>(trainers));
  std::vector<dht::StoreItem> items;
  for (std::size_t i = 0; i < trainers; ++i)
    items.push_back({.key = "run_progress",
                     .subkey = msgpack::Bin{"trainer " + std::to_string(i)},
                     .value = progress_record(*nodes[0], swarm.host(i).id(), 5, false),
                     .expiration = in(600)});
  for (const auto& stored : swarm.run(nodes[1]->store_many(std::move(items)))) ASSERT_TRUE(stored) << stored.error();
  Collector collector(add_monitor(), {.run_id = "run", .period = 10ms});
  TaskGroup looks(swarm.runtime(), "looks");
  looks.spawn(Collector::look_again_and_again(collector), "looks");
  swarm.pass(1s);
  swarm.run(collector.crawl());
  looks.cancel();
  EXPECT_EQ(collector.view().trainers, trainers);
}

TEST_F(WatchedRun, AThousandTrainersInASwarmOfHundredNodesAreShown) {
  const std::uint32_t trainers = kSanitized ? 100 : 1000;
  add_many(kSanitized ? 10 : 100);
  std::vector<dht::StoreItem> items;
  for (std::uint32_t i = 0; i < trainers; ++i) {
    Bytes seed(32, 3);
    std::memcpy(seed.data(), &i, sizeof i);
    const PeerId peer = KeyPair::ed25519_from_seed(seed).peer_id();
    // Subkeys that name no owner need no signature: a thousand of them would take long.
    const msgpack::Bin owner{"trainer " + std::to_string(i)};
    auto progress = progress_record(*nodes[0], peer, 5, true);
    items.push_back({.key = "run_progress", .subkey = owner, .value = std::move(progress), .expiration = in(600)});
    items.push_back({.key = "run_metrics", .subkey = owner, .value = metrics_record(5, 2), .expiration = in(600)});
  }
  for (const auto& stored : swarm.run(nodes[1]->store_many(std::move(items)))) ASSERT_TRUE(stored) << stored.error();
  Collector collector(add_monitor(), {.run_id = "run"});
  swarm.run(collector.look());
  swarm.run(collector.crawl());
  const RunView& view = collector.view();
  EXPECT_EQ(view.clients, trainers);
  EXPECT_EQ(view.epoch, 5u);
  EXPECT_EQ(view.loss, 2);
  EXPECT_EQ(view.samples, 10.0 * trainers);
  EXPECT_EQ(view.reachable, nodes.size() - 1) << "the monitor is no node";
  EXPECT_EQ(view.parts.size(), 1u);
  EXPECT_EQ(view.peers.size(), trainers + nodes.size() - 1);
  EXPECT_LT(view_json(view, collector.looks()).dump().size(), 1'000'000u) << "the page takes it every two seconds";
}

}  // namespace
}  // namespace cohive::tools
