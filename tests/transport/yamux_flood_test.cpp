// Peers that open more yamux streams than the rules of a connection, or the memory, have room for.
#include "cohive/core/memory_budget.hpp"
#include "yamux_peer.hpp"

namespace cohive::transport {
namespace {

using namespace yamux_test;

TEST_F(Yamux, StreamsOpenedAndResetInQuickSuccessionLeaveNothing) {
  start(Role::responder, {.max_pending_streams = 8});
  for (std::uint32_t id = 1; id < 2000; id += 2) {
    send(kWindow, kSyn, id, 0);
    send(kWindow, kRst, id, 0);
  }
  EXPECT_FALSE(connection_->closed());
  EXPECT_EQ(connection_->stats().streams_in, 0u);
  send_data(2001, as_bytes("real"), kSyn);
  auto stream = accept();
  EXPECT_EQ(as_text(read(*stream)->view()), "real");
}

TEST_F(Yamux, AFloodOfStreamsOpenedAndResetEndsTheConnection) {
  start(Role::responder, {.max_resets_per_second = 10});
  std::uint32_t id = 1;
  const auto open_and_reset = [&](int times) {
    for (int i = 0; i < times && !connection_->closed(); ++i, id += 2) {
      send(kWindow, kSyn, id, 0);
      send(kWindow, kRst, id, 0);
    }
  };
  open_and_reset(100);
  EXPECT_FALSE(connection_->closed()) << "calls may be cancelled in numbers";
  runtime_.run_for(5s);
  open_and_reset(100);
  EXPECT_FALSE(connection_->closed());
  open_and_reset(100);
  EXPECT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), Errc::muxer_violation);
}

TEST_F(Yamux, AFloodOfStreamsThatWeHaveToResetEndsTheConnection) {
  start(Role::responder, {.max_resets_per_second = 10});
  const auto begun = std::make_shared<std::size_t>(0);
  std::uint32_t id = 1;
  const auto open_and_end = [&](int times) {
    for (int i = 0; i < times; ++i, id += 2) {
      send(kWindow, kSyn | kFin, id, 0);
      if (connection_->closed()) return;
      accept()->count_begun(begun);  // nothing is answered to a peer that asks for nothing
    }
  };
  open_and_end(100);
  EXPECT_EQ(frames().back(), (Frame{kWindow, kRst, id - 2, 0, {}}));
  EXPECT_FALSE(connection_->closed());
  runtime_.run_for(5s);
  open_and_end(100);
  EXPECT_FALSE(connection_->closed());
  open_and_end(100);
  EXPECT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), Errc::muxer_violation);
  EXPECT_EQ(*begun, 0u);
}

TEST_F(Yamux, StreamsThatWeEndInOrderOrResetAfterARequestAreNoFlood) {
  start(Role::responder, {.max_resets_per_second = 10});
  const auto begun = std::make_shared<std::size_t>(0);
  for (std::uint32_t id = 1; id < 2000; id += 2) {
    send_data(id, as_bytes("q"), kSyn | kFin);
    auto stream = accept();
    stream->count_begun(begun);
    if (id % 4 == 1) {
      stream->close_write();
    } else {
      stream->set_begun(false);
    }
  }
  EXPECT_FALSE(connection_->closed());
  EXPECT_EQ(connection_->stats().streams_in, 0u);
}

TEST_F(Yamux, AFloodOfSurplusStreamsEndsTheConnection) {
  start(Role::responder, {.max_inbound_streams = 3, .max_resets_per_second = 10});
  std::uint32_t id = 1;
  for (int i = 0; i < 3 + 160; ++i, id += 2) send(kWindow, kSyn, id, 0);
  EXPECT_FALSE(connection_->closed()) << "a client may ask for too much at once";
  send(kWindow, kSyn, id, 0);
  EXPECT_TRUE(connection_->closed());
  EXPECT_EQ(connection_->close_reason(), Errc::muxer_violation);
}

TEST_F(Yamux, SurplusStreamsAreResetOneByOne) {
  start(Role::responder, {.max_inbound_streams = 3, .max_pending_streams = 2});
  for (std::uint32_t id : {1u, 3u, 5u}) send(kWindow, kSyn, id, 0);
  EXPECT_EQ(frames().back(), (Frame{kWindow, kRst, 5, 0, {}})) << "too many wait to be accepted";
  auto first = accept(), second = accept();
  for (std::uint32_t id : {7u, 9u}) send(kWindow, kSyn, id, 0);
  const auto last = frames();
  EXPECT_EQ(last[0], (Frame{kWindow, kAck, 7, 0, {}}));
  EXPECT_EQ(last[1], (Frame{kWindow, kRst, 9, 0, {}})) << "too many are open";
}

// ---- Memory

Multiaddr far_away() {
  return Multiaddr::from_text("/ip4/192.0.2.1/tcp/4001").value();
}

TEST_F(Yamux, StreamsThatThePeerOpensAreCharged) {
  const MemoryBudget budget(4 << 20);
  start(Role::responder, {}, budget.account(peer_key().peer_id(), far_away()));
  std::vector<StreamPtr> streams;
  for (std::uint32_t id = 1; id < 400; id += 2) {
    send(kWindow, kSyn, id, 0);
    streams.push_back(accept());
  }
  EXPECT_GE(budget.held(), std::size_t{200} * 4096);
  const std::size_t of_all = budget.held();
  streams.resize(100);
  EXPECT_EQ(budget.held(), of_all / 2);
  connection_->close(Error(cohive::Errc::closed));
  EXPECT_EQ(budget.held(), 0u);
}

TEST_F(Yamux, StreamsThatTheMemoryBudgetHasNoRoomForAreResetAndNothingIsHeldAgainstThePeer) {
  const MemoryBudget budget(64 << 10);
  start(Role::responder, {.max_resets_per_second = 10}, budget.account(peer_key().peer_id(), far_away()));
  std::uint32_t id = 1;
  for (; id < 1000; id += 2) send(kWindow, kSyn, id, 0);
  EXPECT_EQ(frames().back(), (Frame{kWindow, kRst, id - 2, 0, {}}));
  EXPECT_GE(connection_->stats().streams_in, 8u);
  EXPECT_LE(budget.held(), std::size_t{64} << 10);
  EXPECT_FALSE(connection_->closed());
  while (connection_->stats().streams_in > 0) accept().reset();
  send(kWindow, kSyn, id, 0);
  EXPECT_EQ(frames().back(), (Frame{kWindow, kAck, id, 0, {}})) << "there is room again";
}

}  // namespace
}  // namespace cohive::transport
