// A peer that speaks yamux in single frames.
#pragma once

#include <gtest/gtest.h>

#include "cohive/core/sim_runtime.hpp"
#include "cohive/transport/errors.hpp"
#include "memory_connection.hpp"
#include "transport/noise_channel.hpp"
#include "transport/yamux.hpp"

namespace cohive::transport::yamux_test {

enum Type : std::uint8_t { kData, kWindow, kPing, kGoAway };
enum Flag : std::uint16_t { kSyn = 1, kAck = 2, kFin = 4, kRst = 8 };
constexpr std::size_t kWindowSize = 256 * 1024;

struct Frame {
  int type = 0;
  int flags = 0;
  std::uint32_t id = 0, length = 0;
  Bytes payload;
  friend bool operator==(const Frame&, const Frame&) = default;
};
inline std::ostream& operator<<(std::ostream& out, const Frame& frame) {
  return out << "{type " << frame.type << ", flags " << frame.flags << ", stream " << frame.id << ", length "
             << frame.length << '}';
}

inline std::uint32_t number(const std::uint8_t* at) {
  return std::uint32_t{at[0]} << 24 | std::uint32_t{at[1]} << 16 | std::uint32_t{at[2]} << 8 | at[3];
}

inline KeyPair peer_key() {
  return KeyPair::ed25519_from_seed(Bytes(32, 9));
}

/// A connection of ours whose other end the test plays.
class YamuxPeer : public ::testing::Test {
 protected:
  void start(Role role = Role::responder, TransportOptions options = {},
             std::shared_ptr<const MemoryBudget::Account> account = nullptr,
             std::unique_ptr<SecureChannel> channel = nullptr) {
    if (!channel) channel = std::make_unique<NoiseChannel>(runtime_, wire_.our_end(), std::nullopt, Bytes());
    connection_ =
        std::make_unique<YamuxConnection>(runtime_, std::move(channel), role, peer_key().peer_id(), "plaintext",
                                          std::make_shared<const TransportOptions>(options), std::move(account));
    runtime_.run_ready();
    EXPECT_EQ(frames(), (std::vector<Frame>{{kPing, kSyn, 0, 1, {}}})) << "a ping measures the round trip at once";
  }

  void send(int type, int flags, std::uint32_t id, std::uint32_t length, ByteView payload = {},
            std::uint8_t version = 0) {
    Bytes frame{version, static_cast<std::uint8_t>(type), static_cast<std::uint8_t>(flags >> 8),
                static_cast<std::uint8_t>(flags)};
    for (std::uint32_t value : {id, length})
      for (int shift = 24; shift >= 0; shift -= 8) frame.push_back(static_cast<std::uint8_t>(value >> shift));
    frame.insert(frame.end(), payload.begin(), payload.end());
    wire_.send(frame);
    runtime_.run_ready();
  }
  void send_data(std::uint32_t id, ByteView payload, int flags = 0) {
    send(kData, flags, id, static_cast<std::uint32_t>(payload.size()), payload);
  }

  /// All frames that came from the connection since the last call.
  std::vector<Frame> frames() {
    runtime_.run_ready();
    const Bytes bytes = wire_.received();
    std::vector<Frame> result;
    for (std::size_t at = 0; at + 12 <= bytes.size();) {
      EXPECT_EQ(bytes[at], 0) << "version";
      Frame frame{
          bytes[at + 1], bytes[at + 2] << 8 | bytes[at + 3], number(&bytes[at + 4]), number(&bytes[at + 8]), {}};
      at += 12;
      if (frame.type == kData) {
        frame.payload.assign(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                             bytes.begin() + static_cast<std::ptrdiff_t>(at + frame.length));
        at += frame.length;
      }
      result.push_back(std::move(frame));
    }
    return result;
  }
  std::size_t payload_bytes() {
    std::size_t total = 0;
    for (const auto& frame : frames()) total += frame.payload.size();
    return total;
  }

  /// Credit for a stream, in the frames that came since the last look.
  std::size_t granted(std::uint32_t id) {
    std::size_t sum = 0;
    for (const auto& frame : frames())
      if (frame.type == kWindow && frame.id == id) sum += frame.length;
    return sum;
  }
  StreamPtr accept() { return runtime_.run(connection_->accept_stream()).value(); }
  StreamPtr open() { return connection_->open_stream().value(); }
  Result<Slice> read(Stream& stream) { return runtime_.run(stream.read(runtime_.after(1s))); }
  Bytes read_all(Stream& stream) {
    Bytes all;
    while (stream.readable()) {
      auto slice = read(stream);
      if (!slice || slice->empty()) break;
      all.insert(all.end(), slice->data(), slice->data() + slice->size());
    }
    return all;
  }
  Result<> write(Stream& stream, ByteView bytes, Duration patience = 1s) {
    return runtime_.run(stream.write(bytes, runtime_.after(patience)));
  }
  void expect_violation(std::string_view what) {
    ASSERT_TRUE(connection_->closed()) << what;
    EXPECT_EQ(connection_->close_reason(), Errc::muxer_violation) << what;
    EXPECT_NE(connection_->close_reason().message().find(peer_key().peer_id().text()), std::string::npos);
    EXPECT_TRUE(wire_.closed_by_us());
    EXPECT_EQ(connection_->stats().streams_in + connection_->stats().streams_out, 0u);
  }

  SimRuntime runtime_;
  test::Wire wire_{runtime_};
  std::unique_ptr<YamuxConnection> connection_;
};

/// The rules for streams; their tests are in several files.
class Yamux : public YamuxPeer {};

}  // namespace cohive::transport::yamux_test
