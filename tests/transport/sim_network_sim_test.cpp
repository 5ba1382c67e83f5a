#include "cohive/transport/resolver.hpp"
#include "cohive/transport/sim_network.hpp"

#include <gtest/gtest.h>

#include "cohive/core/combine.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::transport {
namespace {

using RawPtr = std::unique_ptr<RawConnection>;

Multiaddr at(const char* text) {
  return Multiaddr::from_text(text).value();
}

Task<Result<>> send(RawConnection& connection, std::string text) {
  const ByteView parts[] = {as_bytes(text)};
  co_return co_await connection.write_all(parts);
}

Task<Result<std::string>> receive(RawConnection& connection, std::size_t limit = 1 << 20) {
  Bytes buffer(limit);
  auto count = co_await connection.read_some(buffer);
  if (!count) co_return count.error();
  co_return to_string(ByteView(buffer).first(*count));
}

/// Everything until the end.
Task<Result<std::string>> receive_all(RawConnection& connection) {
  std::string all;
  for (;;) {
    auto some = co_await receive(connection);
    if (!some) co_return some.error();
    if (some->empty()) co_return all;
    all += *some;
  }
}

class SimNetwork : public ::testing::Test {
 protected:
  static constexpr const char* kAlice = "10.0.0.1";
  static constexpr const char* kBob = "10.0.0.2";

  Result<RawPtr> dial(const char* address, Duration limit = 10s) {
    return runtime.run(alice->dial(at(address), runtime.after(limit)));
  }
  /// A connection from alice to bob.
  std::pair<RawPtr, RawPtr> connect() {
    auto ours = dial("/ip4/10.0.0.2/tcp/4001").value();
    auto theirs = runtime.run(listener->accept()).value();
    return {std::move(ours), std::move(theirs)};
  }
  void set_link(SimLink link) { fabric.set_link(kBob, kAlice, link); }

  SimRuntime runtime{7};
  SimFabric fabric{runtime, {.latency = 10ms}};
  std::unique_ptr<Network> alice = fabric.add_machine();
  std::unique_ptr<Network> bob = fabric.add_machine();
  std::unique_ptr<Listener> listener = bob->listen(at("/ip4/0.0.0.0/tcp/4001")).value();
};

TEST_F(SimNetwork, ADialTakesARoundTripAndBytesTakeHalfOfIt) {
  const auto start = runtime.now();
  auto [ours, theirs] = connect();
  EXPECT_EQ(runtime.now() - start, 20ms);
  EXPECT_EQ(ours->remote_address(), at("/ip4/10.0.0.2/tcp/4001"));
  EXPECT_EQ(theirs->remote_address(), ours->local_address());
  ASSERT_TRUE(runtime.run(send(*ours, "hello")));
  EXPECT_EQ(runtime.run(receive(*theirs)).value(), "hello");
  EXPECT_EQ(runtime.now() - start, 30ms);
  EXPECT_EQ(fabric.bytes_carried(), 5u);
}

TEST_F(SimNetwork, ListensOnlyOnItsOwnAddressAndFreePorts) {
  EXPECT_EQ(bob->listen(at("/ip4/0.0.0.0/tcp/4001")).error().code(), make_error_code(Errc::address_in_use));
  EXPECT_EQ(bob->listen(at("/ip4/10.0.0.1/tcp/4002")).error(), cohive::Errc::io);
  EXPECT_EQ(bob->listen(at("/ip4/0.0.0.0/udp/1/quic-v1")).error().code(), make_error_code(Errc::address_unsupported));
  auto any = bob->listen(at("/ip4/10.0.0.2/tcp/0")).value();
  EXPECT_NE(any->address().tcp_endpoint()->port, 0);
  EXPECT_EQ(any->dialable_addresses(), std::vector<Multiaddr>{any->address()});
  listener.reset();
  EXPECT_TRUE(bob->listen(at("/ip4/0.0.0.0/tcp/4001")));
}

TEST_F(SimNetwork, WhereNobodyListensADialIsRefused) {
  EXPECT_EQ(dial("/ip4/10.0.0.2/tcp/4002").error().system(), std::errc::connection_refused) << "as a real one";
  EXPECT_EQ(dial("/ip4/10.0.0.2/tcp/4002").error().code(), make_error_code(Errc::refused));
  EXPECT_EQ(dial("/ip4/10.0.0.9/tcp/4001").error().code(), make_error_code(Errc::refused));
  EXPECT_EQ(dial("/ip4/10.0.0.2/udp/1/quic-v1").error().code(), make_error_code(Errc::address_unsupported));
  listener->close();
  EXPECT_EQ(dial("/ip4/10.0.0.2/tcp/4001").error().code(), make_error_code(Errc::refused));
  EXPECT_EQ(runtime.run(listener->accept()).error(), cohive::Errc::closed);
  EXPECT_EQ(fabric.open_connections(), 0u);
}

TEST_F(SimNetwork, BandwidthSetsTheTimeALongMessageTakes) {
  set_link({.latency = 10ms, .bandwidth = 1e6});
  auto [ours, theirs] = connect();
  TaskGroup group(runtime);
  const auto start = runtime.now();
  group.spawn([](RawConnection& c) -> Task<void> {
    (void)co_await send(c, std::string(5'000'000, 'x'));
    c.close();
  }(*ours));
  EXPECT_EQ(runtime.run(receive_all(*theirs)).value().size(), 5'000'000u);
  EXPECT_EQ(runtime.now() - start, 5s + 10ms);
}

/// Bytes that wait in a slow sender's queue are not on the receiver's line yet.
TEST_F(SimNetwork, WhatASlowSenderHasQueuedHoldsUpNobodyElse) {
  fabric.set_line(kAlice, {.upload = 10'000});
  fabric.set_line(kBob, {.download = 1'000'000});
  const auto carol = fabric.add_machine();
  auto [slow, from_slow] = connect();
  auto fast = runtime.run(carol->dial(at("/ip4/10.0.0.2/tcp/4001"), runtime.after(1s))).value();
  auto from_fast = runtime.run(listener->accept()).value();
  runtime.run(send(*slow, std::string(30'000, 's'))).value();
  const TimePoint sent = runtime.now();
  runtime.run(send(*fast, std::string(1000, 'f'))).value();
  EXPECT_EQ(runtime.run(receive(*from_fast)).value().size(), 1000u);
  EXPECT_EQ(runtime.now() - sent, 11ms) << "the way, and a millisecond on the line";
  std::size_t received = 0;
  while (received < 30'000) received += runtime.run(receive(*from_slow)).value().size();
  EXPECT_NEAR(to_seconds(runtime.now() - sent), 3, 0.1);
}

TEST_F(SimNetwork, AFullLineCarriesAsMuchAsItCan) {
  fabric.set_line(kBob, {.download = 100'000});
  const auto carol = fabric.add_machine();
  auto [first, from_first] = connect();
  auto second = runtime.run(carol->dial(at("/ip4/10.0.0.2/tcp/4001"), runtime.after(1s))).value();
  auto from_second = runtime.run(listener->accept()).value();
  const TimePoint sent = runtime.now();
  TaskGroup senders(runtime);
  for (auto* one : {&first, &second})
    senders.spawn([](RawConnection& to) -> Task<void> {
      (void)co_await send(to, std::string(100'000, 'x'));
      to.end_writing();
    }(**one));
  EXPECT_EQ(runtime.run(receive_all(*from_first)).value().size(), 100'000u);
  EXPECT_EQ(runtime.run(receive_all(*from_second)).value().size(), 100'000u);
  EXPECT_NEAR(to_seconds(runtime.now() - sent), 2, 0.05);
}

TEST_F(SimNetwork, JitterNeverReordersBytes) {
  set_link({.latency = 5ms, .jitter = 50ms});
  auto [ours, theirs] = connect();
  std::string expected;
  for (int i = 0; i < 200; ++i) {
    const std::string text = std::to_string(i) + ",";
    expected += text;
    ASSERT_TRUE(runtime.run(send(*ours, text)));
    runtime.run_for(1ms);
  }
  ours->close();
  EXPECT_EQ(runtime.run(receive_all(*theirs)).value(), expected);
}

TEST_F(SimNetwork, AWriterWaitsForAReaderThatDoesNotRead) {
  auto [ours, theirs] = connect();
  std::optional<Result<>> sent;
  TaskGroup group(runtime);
  group.spawn([](RawConnection& c, std::optional<Result<>>& out) -> Task<void> {
    out = co_await send(c, std::string(3 << 20, 'x'));
  }(*ours, sent));
  runtime.run_for(1h);
  EXPECT_FALSE(sent);
  EXPECT_EQ(fabric.bytes_carried(), 1u << 20);
  std::size_t got = 0;
  while (got < 3u << 20) got += runtime.run(receive(*theirs, 100'000)).value().size();
  ASSERT_TRUE(sent);
  EXPECT_TRUE(*sent);
}

TEST_F(SimNetwork, ClosingDeliversWhatWasSentAndThenTheEnd) {
  auto [ours, theirs] = connect();
  ASSERT_TRUE(runtime.run(send(*ours, "last words")));
  ours.reset();
  EXPECT_EQ(runtime.run(receive_all(*theirs)).value(), "last words");
  EXPECT_EQ(runtime.run(receive(*theirs)).value(), "");
  theirs.reset();
  EXPECT_EQ(fabric.open_connections(), 0u);
}

TEST_F(SimNetwork, ClosingEndsPendingReadsOnTheSameSideAtOnce) {
  auto [ours, theirs] = connect();
  std::optional<Result<std::string>> read;
  TaskGroup group(runtime);
  group.spawn([](RawConnection& c, std::optional<Result<std::string>>& out) -> Task<void> {
    out = co_await receive(c);
  }(*ours, read));
  runtime.run_ready();
  ours->close();
  runtime.run_ready();
  ASSERT_TRUE(read);
  EXPECT_EQ(read->error(), cohive::Errc::closed);
}

TEST_F(SimNetwork, TheOtherSideLearnsOfACloseOnlyAfterTheLatency) {
  auto [ours, theirs] = connect();
  theirs->close();
  EXPECT_TRUE(runtime.run(send(*ours, "lost")));
  runtime.run_for(19ms);
  EXPECT_TRUE(runtime.run(send(*ours, "lost too")));
  runtime.run_for(1ms);
  EXPECT_EQ(runtime.run(send(*ours, "refused")).error(), cohive::Errc::closed);
  EXPECT_EQ(runtime.run(receive(*ours)).value(), "");
  EXPECT_EQ(runtime.run(receive(*ours)).value(), "");
}

TEST_F(SimNetwork, WhoEndsItsSideStillReads) {
  auto [ours, theirs] = connect();
  ASSERT_TRUE(runtime.run(send(*ours, "question")));
  ours->end_writing();
  ours->end_writing();
  EXPECT_EQ(runtime.run(send(*ours, "more")).error(), cohive::Errc::closed);
  EXPECT_EQ(runtime.run(receive_all(*theirs)).value(), "question");
  ASSERT_TRUE(runtime.run(send(*theirs, "answer")));
  theirs->close();
  EXPECT_EQ(runtime.run(receive_all(*ours)).value(), "answer");
}

// As a real socket that is closed with unread bytes.
TEST_F(SimNetwork, ClosingOverUnreadBytesTakesBackWhatHasNotBeenSent) {
  set_link({.latency = 10ms, .bandwidth = 1e6});
  auto [ours, theirs] = connect();
  ASSERT_TRUE(runtime.run(send(*theirs, "nobody reads this")));
  runtime.run_for(1s);
  const std::string answer(500'000, 'x');
  ASSERT_TRUE(runtime.run(send(*ours, answer.substr(0, 1000))));
  runtime.run_for(5ms);
  ASSERT_TRUE(runtime.run(send(*ours, answer)));
  ours->close();
  EXPECT_EQ(runtime.run(receive(*theirs)).value(), answer.substr(0, 1000));
  EXPECT_EQ(runtime.run(receive(*theirs)).error(), cohive::Errc::closed);
  EXPECT_EQ(runtime.run(send(*theirs, "anyone?")).error(), cohive::Errc::closed);
}

TEST_F(SimNetwork, BytesThatComeAfterACloseTakeBackWhatHasNotBeenSent) {
  set_link({.latency = 10ms, .bandwidth = 1e6});
  auto [ours, theirs] = connect();
  const std::string answer(500'000, 'x');
  ASSERT_TRUE(runtime.run(send(*ours, answer)));
  ours->close();
  ASSERT_TRUE(runtime.run(send(*theirs, "nobody reads this")));
  EXPECT_EQ(runtime.run(receive_all(*theirs)).error(), cohive::Errc::closed);
}

TEST_F(SimNetwork, APartitionStallsConnectionsAndDialsUntilItHeals) {
  auto [ours, theirs] = connect();
  ASSERT_TRUE(runtime.run(send(*ours, "on its way ")));
  fabric.partition({kAlice}, {kBob});
  ASSERT_TRUE(runtime.run(send(*ours, "and behind")));
  auto outcome = race(runtime, receive(*theirs), [](Runtime& r) -> Task<void> { co_await r.sleep_for(1h); }(runtime));
  EXPECT_EQ(runtime.run(std::move(outcome)).index(), 1u);
  const auto start = runtime.now();
  EXPECT_EQ(dial("/ip4/10.0.0.2/tcp/4001", 3s).error(), cohive::Errc::timeout);
  EXPECT_EQ(runtime.now() - start, 3s);
  EXPECT_EQ(runtime.run(alice->dial(at("/ip4/10.0.0.2/tcp/4001"), Deadline::never())).error(), cohive::Errc::timeout);
  fabric.heal();
  EXPECT_EQ(runtime.run(receive(*theirs)).value(), "on its way and behind");
  EXPECT_TRUE(dial("/ip4/10.0.0.2/tcp/4001"));
}

TEST_F(SimNetwork, ADialUnderWayWhenThePartitionComesTimesOut) {
  std::optional<Result<RawPtr>> result;
  TaskGroup group(runtime);
  group.spawn([](Network& network, Deadline deadline, std::optional<Result<RawPtr>>& out) -> Task<void> {
    out = co_await network.dial(at("/ip4/10.0.0.2/tcp/4001"), deadline);
  }(*alice, runtime.after(5s), result));
  runtime.run_for(5ms);
  fabric.partition({kBob}, {kAlice});
  runtime.run_for(10s);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->error(), cohive::Errc::timeout);
}

TEST_F(SimNetwork, ACrashedMachineIsSilentAKilledOneResets) {
  auto [ours, theirs] = connect();
  fabric.crash(kBob);
  auto outcome = race(runtime, receive(*ours), [](Runtime& r) -> Task<void> { co_await r.sleep_for(1h); }(runtime));
  EXPECT_EQ(runtime.run(std::move(outcome)).index(), 1u);
  EXPECT_EQ(dial("/ip4/10.0.0.2/tcp/4001", 2s).error(), cohive::Errc::timeout);

  auto carol = fabric.add_machine();
  auto door = carol->listen(at("/ip4/0.0.0.0/tcp/1")).value();
  auto connection = dial("/ip4/10.0.0.3/tcp/1").value();
  const auto start = runtime.now();
  fabric.kill("10.0.0.3");
  EXPECT_EQ(runtime.run(receive(*connection)).error(), cohive::Errc::closed);
  EXPECT_EQ(runtime.now(), start);
  EXPECT_EQ(dial("/ip4/10.0.0.3/tcp/1").error().code(), make_error_code(Errc::refused));
}

TEST_F(SimNetwork, AFailingLinkFailsDialsInItsShare) {
  set_link({.latency = 1ms, .connect_failure = 0.5});
  int failed = 0;
  for (int i = 0; i < 200; ++i) failed += !dial("/ip4/10.0.0.2/tcp/4001");
  EXPECT_GT(failed, 60);
  EXPECT_LT(failed, 140);
}

TEST_F(SimNetwork, ConnectionsDieAfterTheirLifetime) {
  set_link({.latency = 1ms, .mean_lifetime = 60s});
  std::vector<std::pair<RawPtr, RawPtr>> connections;
  for (int i = 0; i < 100; ++i) connections.push_back(connect());
  runtime.run_for(60s);
  int dead = 0;
  for (auto& [ours, theirs] : connections) dead += !runtime.run(send(*ours, "x"));
  EXPECT_GT(dead, 40);
  EXPECT_LT(dead, 90);
}

TEST_F(SimNetwork, ATapSeesEveryByteAndMayCutTheConnection) {
  std::string seen;
  fabric.set_tap([&](const std::string& from, const std::string& to, ByteView bytes) {
    seen += from + ">" + to + ":" + to_string(bytes) + " ";
    return bytes.size() < 5;
  });
  auto [ours, theirs] = connect();
  ASSERT_TRUE(runtime.run(send(*ours, "abc")));
  ASSERT_TRUE(runtime.run(send(*theirs, "def")));
  EXPECT_EQ(runtime.run(receive(*ours)).value(), "def");
  (void)runtime.run(send(*ours, "too long"));
  EXPECT_EQ(runtime.run(receive(*theirs)).error(), cohive::Errc::closed);
  EXPECT_EQ(seen, "10.0.0.1>10.0.0.2:abc 10.0.0.2>10.0.0.1:def 10.0.0.1>10.0.0.2:too long ");
}

TEST_F(SimNetwork, NamesCannotBeResolvedNumbersStay) {
  const auto resolver = make_resolver(runtime);
  EXPECT_FALSE(runtime.run(resolver->resolve(at("/dns4/example.com/tcp/1"), runtime.after(1s))));
  const auto address = at("/ip4/10.0.0.2/tcp/1");
  EXPECT_EQ(runtime.run(resolver->resolve(address, runtime.after(1s))).value(), std::vector<Multiaddr>{address});
}

/// Peers that dial, chat and part at random; returns when each message arrived.
std::vector<std::pair<Duration, std::string>> history(std::uint64_t seed) {
  SimRuntime runtime(seed);
  SimFabric fabric(runtime,
                   {.latency = 10ms, .jitter = 30ms, .bandwidth = 1e5, .connect_failure = 0.1, .mean_lifetime = 2s});
  std::vector<std::pair<Duration, std::string>> log;
  const auto start = runtime.now();
  std::vector<std::unique_ptr<Network>> machines;
  std::vector<std::unique_ptr<Listener>> listeners;
  TaskGroup group(runtime);
  auto serve = [](Runtime& r, TimePoint t0, Listener& listener, auto& out) -> Task<void> {
    for (;;) {
      auto connection = co_await listener.accept();
      if (!connection) co_return;
      auto text = co_await receive_all(**connection);
      out.emplace_back(r.now() - t0, text ? *text : "broken");
    }
  };
  auto chat = [](Runtime& r, Network& network, int name) -> Task<void> {
    for (int i = 0; i < 10; ++i) {
      const auto to = Multiaddr::from_ip_tcp("10.0.0." + std::to_string(1 + r.random()() % 10), 1).value();
      auto connection = co_await network.dial(to, r.after(1s));
      if (!connection) continue;
      for (int k = 0; k < 5; ++k)
        (void)co_await send(**connection, std::to_string(name) + "." + std::to_string(k) + " ");
      co_await r.sleep_for(from_seconds(r.random_unit()));
    }
  };
  for (int i = 0; i < 10; ++i) {
    machines.push_back(fabric.add_machine());
    listeners.push_back(machines.back()->listen(at("/ip4/0.0.0.0/tcp/1")).value());
    group.spawn(serve(runtime, start, *listeners.back(), log));
    group.spawn(chat(runtime, *machines.back(), i));
  }
  runtime.run_for(5s);
  fabric.partition({"10.0.0.1", "10.0.0.2"}, {"10.0.0.3", "10.0.0.4", "10.0.0.5"});
  runtime.run_for(5s);
  fabric.heal();
  fabric.kill("10.0.0.7");
  runtime.run_for(1min);
  return log;
}

TEST(SimFabric, TheSameSeedGivesTheSameHistory) {
  const auto first = history(11);
  EXPECT_GT(first.size(), 20u);
  EXPECT_EQ(first, history(11));
  EXPECT_NE(first, history(12));
}

TEST(SimFabric, CarriesManyConnectionsAndLeavesNothingBehind) {
  SimRuntime runtime;
  SimFabric fabric(runtime);
  constexpr int kMachines = 300;
  std::vector<std::unique_ptr<Network>> machines;
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<RawPtr> connections;
  for (int i = 0; i < kMachines; ++i) {
    machines.push_back(fabric.add_machine());
    listeners.push_back(machines.back()->listen(at("/ip4/0.0.0.0/tcp/1")).value());
  }
  TaskGroup group(runtime);
  auto dial = [](Runtime& r, Network& network, Multiaddr to, std::vector<RawPtr>& out) -> Task<void> {
    auto connection = co_await network.dial(to, r.after(10s));
    if (connection) out.push_back(std::move(*connection));
  };
  for (auto& machine : machines)
    for (int i = 0; i < 100; ++i)
      group.spawn(dial(runtime, *machine, listeners[(i * 7) % kMachines]->address(), connections));
  runtime.run_for(10s);
  EXPECT_EQ(connections.size(), 100u * kMachines);
  EXPECT_EQ(fabric.open_connections(), 100u * kMachines);
  connections.clear();
  listeners.clear();
  EXPECT_EQ(fabric.open_connections(), 0u);
  EXPECT_EQ(runtime.task_count(), 0u);
}

}  // namespace
}  // namespace cohive::transport
