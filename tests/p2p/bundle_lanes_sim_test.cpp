// The lanes of a bundle, in memory: which of them are given up, and what is charged for what travels on them.
#include <gtest/gtest.h>

#include <deque>

#include "cohive/core/errors.hpp"
#include "p2p/bundle.hpp"
#include "strangers.hpp"

namespace cohive::p2p {
namespace {

/// One direction of a lane in memory. While it is held, nothing comes out of it, as on a path that is dead.
struct LanePipe {
  explicit LanePipe(Runtime& runtime) : changed(runtime, "lane in memory") {}
  void hold(bool on) {
    held = on;
    changed.notify_all();
  }
  std::deque<Slice> bytes;
  bool held = false, ended = false, was_reset = false;
  Condition changed;
};
using LanePipePtr = std::shared_ptr<LanePipe>;

/// One end of such a lane.
class MemoryLane final : public transport::Stream {
 public:
  MemoryLane(Runtime& runtime, LanePipePtr in, LanePipePtr out)
      : runtime_(runtime), in_(std::move(in)), out_(std::move(out)) {}
  ~MemoryLane() override { reset(); }

  Task<Result<Slice>> read(Deadline) override {
    const LanePipePtr in = in_;
    while (!gone_ && (in->held || (in->bytes.empty() && !in->ended && !in->was_reset))) co_await in->changed.wait();
    if (gone_ || (in->bytes.empty() && in->was_reset)) co_return Error(cohive::Errc::reset);
    if (in->bytes.empty()) co_return Slice();
    Slice slice = std::move(in->bytes.front());
    in->bytes.pop_front();
    co_return slice;
  }
  void unread(Slice bytes) override { in_->bytes.push_front(std::move(bytes)); }
  Task<Result<>> write(std::span<const ByteView> buffers, Deadline) override {
    if (gone_) co_return Error(cohive::Errc::reset);
    Bytes all;
    for (const ByteView buffer : buffers) all.insert(all.end(), buffer.begin(), buffer.end());
    out_->bytes.push_back(Slice::copy_of(all));
    out_->changed.notify_all();
    co_return ok();
  }
  void close_write() noexcept override {
    out_->ended = true;
    out_->changed.notify_all();
  }
  void reset() noexcept override {
    if (std::exchange(gone_, true)) return;
    out_->was_reset = true;
    out_->changed.notify_all();
    in_->changed.notify_all();
  }
  const PeerId& peer() const override { return peer_; }
  const Multiaddr& remote_address() const override { return address_; }
  Runtime& runtime() const override { return runtime_; }
  bool readable() const override { return !in_->bytes.empty(); }

 private:
  Runtime& runtime_;
  LanePipePtr in_, out_;
  bool gone_ = false;
  PeerId peer_;
  Multiaddr address_ = nowhere();
};

/// A bundle that sends to another one over two lanes: its first bytes over the first lane, while the first
/// acknowledgement comes over the second one.
struct TwoLanes : testing::Test {
  struct Lane {
    explicit Lane(Runtime& runtime)
        : there(std::make_shared<LanePipe>(runtime)), back(std::make_shared<LanePipe>(runtime)) {}
    void hold(bool on) {
      there->hold(on);
      back->hold(on);
    }
    bool given_up() const { return there->was_reset; }
    LanePipePtr there, back;
  };

  static std::uint8_t pattern(std::size_t at) { return static_cast<std::uint8_t>(at * 131 + (at >> 13)); }
  void start(std::size_t memory = 64 << 20) {
    budget.emplace(memory);
    const PeerId peer = nobody(1).peer_id();
    sender.emplace(runtime, peer, budget->account(peer, nowhere()));
    receiver.emplace(runtime, peer, nullptr);
    for (const Lane* lane : {&first, &second})
      sender->add_lane(std::make_unique<MemoryLane>(runtime, lane->back, lane->there));
    for (const Lane* lane : {&second, &first})
      receiver->add_lane(std::make_unique<MemoryLane>(runtime, lane->there, lane->back));
    tasks.spawn(read_all(runtime, *receiver, received));
    runtime.run_ready();
  }
  void write(std::size_t size) {
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = pattern(sent.size() + i);
    sent.insert(sent.end(), bytes.begin(), bytes.end());
    written.reset();
    tasks.spawn(write_all(*sender, std::move(bytes), written));
  }
  void hold_acknowledgements(bool on) {
    for (const Lane* lane : {&first, &second}) lane->back->hold(on);
  }
  static Task<void> read_all(Runtime& runtime, Bundle& bundle, Bytes& out) {
    Bytes part(100'000);
    for (;;) {
      const auto count = co_await bundle.read_some(part);
      if (!count || *count == 0) co_return;
      out.insert(out.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(*count));
      co_await runtime.yield();
    }
  }
  static Task<void> write_all(Bundle& bundle, Bytes bytes, std::optional<Result<>>& out) {
    const ByteView parts[] = {bytes};
    out = co_await bundle.write_all(parts);
  }

  SimRuntime runtime;
  Lane first{runtime}, second{runtime};
  std::optional<MemoryBudget> budget;
  std::optional<Bundle> sender, receiver;
  Bytes sent, received;
  std::optional<Result<>> written;
  TaskGroup tasks{runtime};
};

TEST_F(TwoLanes, TheOneThatWorksIsKeptWhenTheOtherHasLostAnAcknowledgement) {
  start();
  second.hold(true);
  write(1'000);
  runtime.run_for(500ms);
  ASSERT_TRUE(received == sent) << "over the first lane";
  ASSERT_FALSE(second.back->bytes.empty()) << "the acknowledgement";
  ASSERT_EQ(sender->undelivered(), 1'000u);
  runtime.run_for(20s);
  EXPECT_EQ(sender->undelivered(), 0u);
  EXPECT_FALSE(first.given_up());
  write(1'000'000);
  runtime.run_for(20s);
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(sender->undelivered(), 0u);
  EXPECT_FALSE(first.given_up());
  EXPECT_TRUE(second.given_up()) << "it has brought no chunk";
}

TEST_F(TwoLanes, TheOneThatBringsNothingIsGivenUpOnceTheOtherHasBroughtItsChunk) {
  start();
  first.hold(true);
  write(1'000);
  runtime.run_for(3500ms);
  EXPECT_TRUE(received == sent);
  EXPECT_FALSE(first.given_up()) << "something may come over it yet";
  runtime.run_for(5s);
  EXPECT_TRUE(first.given_up());
  EXPECT_FALSE(second.given_up());
  EXPECT_EQ(sender->undelivered(), 0u);
}

TEST_F(TwoLanes, AreBothKeptWhileThePeerSleeps) {
  start();
  first.hold(true);
  second.hold(true);
  write(200'000);
  runtime.run_for(15s);
  EXPECT_FALSE(first.given_up() || second.given_up());
  first.hold(false);
  second.hold(false);
  runtime.run_for(10s);
  EXPECT_FALSE(first.given_up() || second.given_up());
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(sender->undelivered(), 0u);
}

TEST_F(TwoLanes, AreChargedForWhatThePeerHasNotAcknowledged) {
  start();
  hold_acknowledgements(true);
  write(2'000'000);
  runtime.run_for(1s);
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(budget->held(), 2'000'000u);
  hold_acknowledgements(false);
  runtime.run_for(1s);
  EXPECT_EQ(budget->held(), 0u);
  hold_acknowledgements(true);
  write(100'000);
  runtime.run_for(1s);
  EXPECT_EQ(budget->held(), 100'000u);
  sender->close();
  EXPECT_EQ(budget->held(), 0u);
}

TEST_F(TwoLanes, WaitForAcknowledgementsWhereThePeerMayFillNoMoreMemory) {
  start(1 << 20);
  hold_acknowledgements(true);
  write(2'000'000);
  runtime.run_for(1s);
  EXPECT_FALSE(written.has_value());
  EXPECT_FALSE(sender->ended().is_set());
  EXPECT_GT(budget->held(), 400'000u);
  EXPECT_LE(budget->held(), budget->total() / 2) << "what arrives has more right to it";
  hold_acknowledgements(false);
  runtime.run_for(2s);
  EXPECT_TRUE(written && *written);
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(budget->held(), 0u);
}

TEST_F(TwoLanes, GoOnHoweverLittleMemoryIsLeft) {
  start(1'000);
  write(2'000'000);
  runtime.run_for(5s);
  EXPECT_TRUE(written && *written);
  EXPECT_TRUE(received == sent);
  EXPECT_EQ(budget->held(), 0u);
}

}  // namespace
}  // namespace cohive::p2p
