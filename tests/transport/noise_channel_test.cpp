// The encrypted record layer on a wire that splits, damages, repeats and cuts records.
#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/transport/errors.hpp"
#include "memory_connection.hpp"
#include "transport/noise_channel.hpp"

namespace cohive::transport {
namespace {

constexpr NoiseChannel::Keys kOurs{.send = {1}, .receive = {2}};
constexpr NoiseChannel::Keys kTheirs{.send = {2}, .receive = {1}};

class Records : public ::testing::Test {
 protected:
  Records() : sender_(runtime_, far_.our_end(), kTheirs, {}), receiver_(runtime_, near_.our_end(), kOurs, {}) {}

  /// The bytes on the wire for one record.
  Bytes sealed(std::string_view text) {
    const ByteView parts[] = {as_bytes(text)};
    sender_.append(parts);
    EXPECT_TRUE(runtime_.run(sender_.flush()));
    return far_.received();
  }
  Result<Slice> receive() { return runtime_.run(receiver_.receive()); }
  std::string text() {
    auto slice = receive();
    EXPECT_TRUE(slice) << slice.error();
    return slice ? to_string(slice->view()) : "";
  }

  SimRuntime runtime_;
  test::Wire far_{runtime_}, near_{runtime_};
  NoiseChannel sender_, receiver_;
};

TEST_F(Records, SplitAndJoinedOnTheWireComeOutWhole) {
  const Bytes first = sealed("first");
  Bytes joined = sealed("second");
  const Bytes third = sealed(std::string(60'000, 'z'));
  joined.insert(joined.end(), third.begin(), third.end());
  TaskGroup group(runtime_);
  std::vector<std::string> got;
  group.spawn([](NoiseChannel& channel, std::vector<std::string>& out) -> Task<void> {
    for (;;) {
      auto slice = co_await channel.receive();
      if (!slice || slice->empty()) co_return;
      out.push_back(to_string(slice->view()));
    }
  }(receiver_, got));
  for (std::uint8_t byte : first) {
    near_.send({&byte, 1});
    runtime_.run_ready();
  }
  near_.send(joined);
  near_.finish();
  runtime_.run_ready();
  EXPECT_EQ(got, (std::vector<std::string>{"first", "second", std::string(60'000, 'z')}));
}

TEST_F(Records, PartsAreOneRecordOnTheWire) {
  const ByteView parts[] = {as_bytes("ab"), {}, as_bytes("cde")};
  sender_.append(parts);
  ASSERT_TRUE(runtime_.run(sender_.flush()));
  const Bytes wire = far_.received();
  EXPECT_EQ(wire.size(), 2u + 5 + 16);
  EXPECT_EQ(wire[1], 5 + 16);
  near_.send(wire);
  EXPECT_EQ(text(), "abcde");
}

TEST_F(Records, DamagedRecordIsRefused) {
  for (std::size_t at : {std::size_t{2}, std::size_t{6}, std::size_t{7}, std::size_t{22}}) {
    near_ = test::Wire(runtime_);
    NoiseChannel sender(runtime_, far_.our_end(), kTheirs, {}), receiver(runtime_, near_.our_end(), kOurs, {});
    const ByteView parts[] = {as_bytes("hello")};
    sender.append(parts);
    ASSERT_TRUE(runtime_.run(sender.flush()));
    Bytes wire = far_.received();
    wire[at] ^= 1;
    near_.send(wire);
    EXPECT_EQ(runtime_.run(receiver.receive()).error(), Errc::decryption_failed) << at;
    far_ = test::Wire(runtime_);
  }
}

TEST_F(Records, LargeRecordIsDecryptedWhereItsReaderWantsIt) {
  const std::string message = "head" + std::string(60'000, 'm');
  Slice memory = Slice::uninitialised(message.size() - 4);
  receiver_.place_with([&](ByteView first, std::size_t size) {
    EXPECT_EQ(as_text(first), message.substr(0, 16));
    EXPECT_EQ(size, message.size());
    return memory;
  });
  near_.send(sealed(message));
  EXPECT_EQ(text(), "head");
  const Slice rest = receive().value();
  EXPECT_EQ(rest.data(), memory.data());
  EXPECT_EQ(as_text(rest), message.substr(4));
  near_.send(sealed("small"));
  EXPECT_EQ(text(), "small");
}

TEST_F(Records, LargeRecordThatNobodyExpectsComesWhole) {
  const std::string message(60'000, 'm');
  receiver_.place_with([](ByteView, std::size_t) { return Slice(); });
  near_.send(sealed(message));
  EXPECT_EQ(text(), message);
}

TEST_F(Records, DamagedLargeRecordIsRefusedWhereverItWasToGo) {
  Slice memory = Slice::uninitialised(59'990);
  receiver_.place_with([&](ByteView, std::size_t) { return memory; });
  Bytes wire = sealed(std::string(60'000, 'm'));
  wire[30'000] ^= 1;
  near_.send(wire);
  EXPECT_EQ(receive().error(), Errc::decryption_failed);
}

TEST_F(Records, RepeatedAndReorderedRecordsAreRefused) {
  const Bytes first = sealed("first");
  near_.send(first);
  EXPECT_EQ(text(), "first");
  near_.send(first);
  EXPECT_EQ(receive().error(), Errc::decryption_failed);
}

TEST_F(Records, RecordTooShortForItsTagIsRefused) {
  near_.send(from_hex("000f00112233445566778899aabbccddee"));
  EXPECT_EQ(receive().error(), Errc::decryption_failed);
}

TEST_F(Records, EmptyRecordsAreSkipped) {
  near_.send(sealed(""));
  near_.send(sealed(""));
  near_.send(sealed("after"));
  EXPECT_EQ(text(), "after");
}

TEST_F(Records, EndBetweenRecordsIsCleanAndInsideOneIsNot) {
  near_.send(sealed("x"));
  near_.finish();
  EXPECT_EQ(text(), "x");
  EXPECT_TRUE(receive()->empty());

  near_ = test::Wire(runtime_);
  NoiseChannel receiver(runtime_, near_.our_end(), kOurs, {});
  near_.send(from_hex("00200102"));
  near_.finish();
  EXPECT_EQ(runtime_.run(receiver.receive()).error(), cohive::Errc::end_of_stream);
}

TEST_F(Records, BytesThatCameWithTheHandshakeAreReadFirst) {
  const Bytes early = sealed("early");
  NoiseChannel receiver(runtime_, near_.our_end(), kOurs, early);
  EXPECT_EQ(to_string(runtime_.run(receiver.receive())->view()), "early");
}

TEST_F(Records, SlicesStayIntactWhileMoreArrives) {
  std::vector<Slice> kept;
  for (int i = 0; i < 100; ++i) {
    near_.send(sealed(std::string(50'000, static_cast<char>('a' + i % 26))));
    kept.push_back(receive().value());
  }
  for (std::size_t i = 0; i < kept.size(); ++i)
    EXPECT_EQ(to_string(kept[i].view()), std::string(50'000, static_cast<char>('a' + i % 26))) << i;
}

/// A slice that was handed out shares its block with the channel for as long as the channel keeps that.
TEST_F(Records, NoBlockIsKeptForAPeerThatHasFallenSilent) {
  for (int i = 0; i < 8; ++i) {
    near_.send(sealed(std::string(60'000, 'x')));
    ASSERT_TRUE(receive());
  }
  near_.send(sealed(std::string(40'000, 'y')));
  const Slice last = receive().value();
  std::string heard;
  TaskGroup group(runtime_);
  group.spawn([](NoiseChannel& channel, std::string& out) -> Task<void> {
    if (const auto next = co_await channel.receive()) out = to_string(next->view());
  }(receiver_, heard));
  runtime_.run_for(500ms);
  EXPECT_FALSE(last.unique()) << "more may come at any moment";
  runtime_.run_for(2s);
  EXPECT_TRUE(last.unique());
  EXPECT_EQ(near_.room_of_the_waiting_read(), 0u) << "nor is there another one";
  near_.send(sealed("more"));
  runtime_.run_ready();
  EXPECT_EQ(heard, "more");
}

TEST_F(Records, SenderThatNeverPausesLeavesOthersTheirTurn) {
  for (int i = 0; i < 40; ++i) near_.send(sealed(std::string(60'000, 'x')));
  int turns = 0;
  bool done = false;
  TaskGroup group(runtime_);
  group.spawn([](NoiseChannel& channel, bool& finished) -> Task<void> {
    for (int i = 0; i < 40; ++i) (void)co_await channel.receive();
    finished = true;
  }(receiver_, done));
  group.spawn([](Runtime& runtime, const bool& finished, int& count) -> Task<void> {
    while (!finished) {
      ++count;
      co_await runtime.yield();
    }
  }(runtime_, done, turns));
  runtime_.run_ready();
  EXPECT_TRUE(done);
  EXPECT_GE(turns, 10);
}

}  // namespace
}  // namespace cohive::transport
