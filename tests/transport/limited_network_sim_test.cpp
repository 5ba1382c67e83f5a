// Caps on upload and download: what passes in which time, who waits for whom, and that nobody is taken for dead.
#include <gtest/gtest.h>

#include "cohive/core/combine.hpp"
#include "cohive/transport/sim_network.hpp"
#include "cohive/transport/upgrade.hpp"

namespace cohive::transport {
namespace {

class LimitedNetwork : public ::testing::Test {
 protected:
  struct Link {
    std::unique_ptr<RawConnection> ours, theirs;
  };
  /// A machine under the limits, and some without to talk to.
  void limit(BandwidthLimits limits) {
    network_ = limit_bandwidth(fabric_.add_machine(), limits);
    for (int i = 0; i < 3; ++i) {
      others_.push_back(fabric_.add_machine());
      listeners_.push_back(others_.back()->listen(Multiaddr::from_text("/ip4/0.0.0.0/tcp/1").value()).value());
    }
  }
  Link connect(std::size_t other) {
    const auto address =
        Multiaddr::from_text("/ip4/10.0.0." + std::to_string(other + 2) + "/tcp/1").value();  // the first is ours
    Link link;
    link.ours = run(network_->dial(address, runtime_.after(1s))).value();
    link.theirs = run(listeners_[other]->accept()).value();
    return link;
  }
  static Task<void> send(RawConnection& to, std::size_t size, Result<>& outcome) {
    const Bytes bytes(size, 7);
    const ByteView parts[] = {bytes};
    outcome = co_await to.write_all(parts);
  }
  static Task<void> receive(Runtime& runtime, RawConnection& from, std::size_t& received, TimePoint& last) {
    Bytes into(256 * 1024);
    for (;;) {
      auto count = co_await from.read_some(into);
      if (!count || *count == 0) co_return;
      received += *count;
      last = runtime.now();
    }
  }
  /// A transfer over a connection of its own.
  struct Transfer {
    Link link;
    std::size_t size, received = 0;
    TimePoint last{};
    Result<> outcome = ok();
    std::unique_ptr<TaskGroup> tasks = nullptr;
  };
  std::unique_ptr<Transfer> transfer(std::size_t other, std::size_t size, bool up = true) {
    auto one = std::make_unique<Transfer>(Transfer{connect(other), size});
    one->tasks = std::make_unique<TaskGroup>(runtime_);
    RawConnection &from = up ? *one->link.ours : *one->link.theirs, &to = up ? *one->link.theirs : *one->link.ours;
    one->tasks->spawn(receive(runtime_, to, one->received, one->last));
    one->tasks->spawn(send(from, size, one->outcome));
    return one;
  }
  template <class T>
  T run(Task<T> task) {
    return runtime_.run(std::move(task));
  }

  SimRuntime runtime_{5};
  SimFabric fabric_{runtime_, {.latency = 1ms}};
  std::vector<std::unique_ptr<Network>> others_;
  std::vector<std::unique_ptr<Listener>> listeners_;
  std::unique_ptr<Network> network_;
};

TEST_F(LimitedNetwork, UploadKeepsToItsRate) {
  limit({.upload = 100'000});
  const TimePoint start = runtime_.now();
  const auto one = transfer(0, 1'000'000);
  runtime_.run_for(30s);
  EXPECT_EQ(one->received, 1'000'000u);
  EXPECT_NEAR(to_seconds(one->last - start), 10, 0.2);
}

TEST_F(LimitedNetwork, DownloadKeepsToItsRate) {
  limit({.download = 100'000});
  const TimePoint start = runtime_.now();
  const auto one = transfer(0, 1'000'000, false);
  runtime_.run_for(30s);
  EXPECT_EQ(one->received, 1'000'000u);
  EXPECT_NEAR(to_seconds(one->last - start), 10, 0.2);
}

TEST_F(LimitedNetwork, TheOtherDirectionIsFree) {
  limit({.upload = 1000});
  const TimePoint start = runtime_.now();
  const auto one = transfer(0, 10'000'000, false);
  runtime_.run_for(1s);
  EXPECT_EQ(one->received, 10'000'000u);
  EXPECT_LT(one->last - start, 100ms);
}

TEST_F(LimitedNetwork, AllConnectionsShareOneCapAlike) {
  limit({.upload = 300'000});
  const std::unique_ptr<Transfer> transfers[] = {transfer(0, 10'000'000), transfer(1, 10'000'000),
                                                 transfer(2, 10'000'000)};
  std::size_t before[3];
  runtime_.run_for(1s);
  for (int i = 0; i < 3; ++i) before[i] = transfers[i]->received;
  runtime_.run_for(10s);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(double(transfers[i]->received - before[i]), 1e6, 2e4) << i;
}

TEST_F(LimitedNetwork, WhatOneDoesNotNeedTheOthersGet) {
  limit({.upload = 300'000});
  const auto small = transfer(0, 50'000), large = transfer(1, 2'950'000);
  runtime_.run_for(10200ms);
  EXPECT_EQ(small->received, 50'000u);
  EXPECT_EQ(large->received, 2'950'000u);
}

TEST_F(LimitedNetwork, AFewBytesDoNotWaitBehindTensors) {
  limit({.upload = 100'000});
  const auto first = transfer(0, 10'000'000), second = transfer(1, 10'000'000);
  Link link = connect(2);
  for (int i = 0; i < 20; ++i) {
    runtime_.run_for(777ms);
    Bytes into(100);
    const TimePoint start = runtime_.now();
    Result<> sent = ok();
    run(send(*link.ours, 100, sent));
    ASSERT_EQ(run(link.theirs->read_some(into)).value(), 100u);
    EXPECT_LT(runtime_.now() - start, 50ms) << "the turn that had begun, and the way";
  }
}

TEST_F(LimitedNetwork, AfterAPauseLittleMoreThanTheRatePasses) {
  limit({.upload = 100'000});
  runtime_.run_for(10min);
  const auto one = transfer(0, 1'000'000);
  runtime_.run_for(1s);
  EXPECT_NEAR(static_cast<double>(one->received), 100'000, 10'000);
}

TEST_F(LimitedNetwork, ClosingWakesThoseWhoWaitForTheirTurn) {
  limit({.upload = 1000, .download = 1000});
  const auto up = transfer(0, 1'000'000), down = transfer(1, 1'000'000, false);
  runtime_.run_for(1s);
  up->link.ours->close();
  down->link.ours->close();
  runtime_.run_for(1s);
  EXPECT_EQ(up->outcome.error(), cohive::Errc::closed);
  EXPECT_TRUE(up->tasks->empty());
  EXPECT_TRUE(down->tasks->empty());
}

TEST_F(LimitedNetwork, ATransferSlowerThanTheWriteTimeOutIsNotTakenForAStall) {
  // One write of the connection takes longer than its time-out, and others take their share of the cap.
  limit({.upload = 8000});
  auto raw = connect(0);
  const auto second = transfer(1, 1'000'000), third = transfer(2, 1'000'000);
  const auto key = KeyPair::ed25519_from_seed(Bytes(32, 1)), their_key = KeyPair::ed25519_from_seed(Bytes(32, 2));
  std::vector<Task<Result<ConnectionPtr>>> upgrades;
  upgrades.push_back(upgrade(Upgrader(runtime_, key), std::move(raw.ours), Role::initiator, std::nullopt));
  upgrades.push_back(upgrade(Upgrader(runtime_, their_key), std::move(raw.theirs), Role::responder, std::nullopt));
  auto connections = run(when_all(runtime_, std::move(upgrades)));
  auto stream = connections[0].value()->open_stream().value();
  const Bytes bytes(200'000, 7);
  run(stream->write(bytes, Deadline::never())).value();
  auto accepted = run(connections[1].value()->accept_stream()).value();
  std::size_t received = 0;
  while (received < bytes.size()) {
    auto slice = run(accepted->read(runtime_.after(10min)));
    ASSERT_TRUE(slice) << slice.error() << " after " << received << " bytes";
    received += slice->size();
  }
  EXPECT_FALSE(connections[0].value()->closed());
}

Task<void> send_endlessly(StreamPtr stream) {
  const Bytes bytes(1'000'000, 7);
  while (co_await stream->write(bytes, Deadline::never())) {
  }
}

/// Sends back what the first stream says, and throws away what comes on the others.
Task<void> serve(StreamPtr stream, bool echo) {
  for (;;) {
    auto bytes = co_await stream->read(Deadline::never());
    if (!bytes || bytes->empty()) co_return;
    if (echo) (void)co_await stream->write(bytes->view(), Deadline::never());
  }
}

TEST_F(LimitedNetwork, ARequestDoesNotWaitBehindTheTransfersOfItsConnection) {
  for (const double upload : {0., 100'000.}) {  // a link that is slow by itself, and one under a cap
    SimRuntime runtime{5};
    SimFabric fabric{runtime, {.latency = 10ms}};
    if (upload == 0) fabric.set_line("10.0.0.1", {.upload = 100'000});
    auto ours = limit_bandwidth(fabric.add_machine(), {.upload = upload});
    auto theirs = fabric.add_machine();
    auto listener = theirs->listen(Multiaddr::from_text("/ip4/0.0.0.0/tcp/1").value()).value();
    auto address = Multiaddr::from_text("/ip4/10.0.0.2/tcp/1").value();
    std::vector<Task<Result<ConnectionPtr>>> upgrades;
    upgrades.push_back(upgrade(Upgrader(runtime, KeyPair::ed25519_from_seed(Bytes(32, 1))),
                               runtime.run(ours->dial(address, runtime.after(1s))).value(), Role::initiator,
                               std::nullopt));
    upgrades.push_back(upgrade(Upgrader(runtime, KeyPair::ed25519_from_seed(Bytes(32, 2))),
                               runtime.run(listener->accept()).value(), Role::responder, std::nullopt));
    auto connections = runtime.run(when_all(runtime, std::move(upgrades)));
    Connection &near = *connections[0].value(), &far = *connections[1].value();
    TaskGroup tasks(runtime);
    auto requests = near.open_stream().value();
    for (int i = 0; i < 9; ++i) {
      auto stream = i == 0 ? nullptr : near.open_stream().value();
      runtime.run((stream ? *stream : *requests).write(Bytes(1, 0), Deadline::never())).value();
      tasks.spawn(serve(runtime.run(far.accept_stream()).value(), i == 0));
      if (stream) tasks.spawn(send_endlessly(std::move(stream)));
    }
    runtime.run(requests->read(runtime.after(1s))).value();
    runtime.run_for(20s);  // the windows have grown
    for (int i = 0; i < 10; ++i) {
      const TimePoint start = runtime.now();
      runtime.run(requests->write(Bytes(100, 0), Deadline::never())).value();
      auto answer = runtime.run(requests->read(runtime.after(10s)));
      ASSERT_TRUE(answer) << answer.error();
      EXPECT_LT(runtime.now() - start, 500ms) << "upload " << upload;
      runtime.run_for(777ms);
    }
  }
}

TEST_F(LimitedNetwork, ALinkThatCarriesNothingIsStillNoticed) {
  limit({.upload = 100'000});
  const auto one = transfer(0, 10'000'000);
  runtime_.run_for(1s);
  fabric_.crash("10.0.0.2");
  runtime_.run_for(30s);
  ASSERT_FALSE(one->outcome);
  EXPECT_EQ(one->outcome.error(), cohive::Errc::timeout);
}

}  // namespace
}  // namespace cohive::transport
