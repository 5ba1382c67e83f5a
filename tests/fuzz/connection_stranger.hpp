// A stranger that has said who it is, on a connection without a cipher, and speaks yamux frame by frame. It reads all
// that the peer sends, and gives it window.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "cohive/core/combine.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/testing/swarm.hpp"
#include "fuzz.hpp"
#include "transport/yamux_frame.hpp"

namespace cohive::fuzz {

namespace yamux = transport::yamux;

class ConnectionStranger {
 public:
  static constexpr std::size_t kTheirs = 128;

  ConnectionStranger(sim::Swarm& swarm, p2p::Host& peer)
      : swarm_(swarm), network_(swarm.fabric().add_machine()), reading_(swarm.runtime()) {
    connection_ = swarm.run(network_->dial(peer.visible_addresses().front(), swarm.after(5s))).value();
    reading_.spawn(read(*this));
    const std::string key = KeyPair::ed25519_from_seed(Bytes(32, 9)).public_key().protobuf();
    std::string framed;
    append_varint(framed, key.size());
    write(as_bytes(framed + key));
    swarm.pass(1s);
  }

  /// Opens a stream and asks for a protocol on it.
  void open(const std::string& protocol) {
    ours_.push_back(next_);
    next_ += 2;
    write(frame({0, yamux::kWindowUpdate, yamux::kSyn, ours_.back(), 0}));
    std::string asked;
    for (const std::string_view line : {std::string_view("/multistream/1.0.0"), std::string_view(protocol)}) {
      append_varint(asked, line.size() + 1);
      asked.append(line) += '\n';
    }
    send(ours_.back(), as_bytes(asked));
  }

  /// Sends data on a stream as fast as the peer gives window; gives up where it gives none for a while.
  /// \param stream  the number of one of ours, or kTheirs and the number of one that the peer opened
  /// \param times  how often, one after the other
  void data(std::size_t stream, ByteView bytes, std::size_t times = 1) {
    if (const auto id = id_of(stream)) send(*id, bytes, times);
  }

  void end(std::size_t stream, yamux::Flag how) {
    if (const auto id = id_of(stream)) write(frame({0, yamux::kWindowUpdate, how, *id, 0}));
  }

  /// Whatever the bytes are.
  void write(ByteView head, ByteView more = {}) {
    if (over_) return;
    Bytes all = to_bytes(head);
    all.insert(all.end(), more.begin(), more.end());
    sent_ += all.size();
    const auto written = swarm_.run(write_soon(swarm_.runtime(), *connection_, std::move(all)));
    over_ |= !written;
  }

  void close() {
    reading_.cancel();
    connection_.reset();
  }

  std::size_t sent() const { return sent_; }
  bool over() const { return over_; }

 private:
  void send(std::uint32_t id, ByteView bytes, std::size_t times = 1) {
    if (bytes.empty()) return;
    constexpr std::size_t kLargest = 16 << 10;
    Bytes piece;
    for (std::size_t i = 0; i < times && !over_; ++i) {
      piece.insert(piece.end(), bytes.begin(), bytes.end());
      if (i + 1 < times && piece.size() < kLargest) continue;
      for (ByteView rest = piece; !rest.empty() && !over_;) {
        const std::size_t size = std::min({rest.size(), kLargest, window_of(id)});
        if (size == 0) return;
        window_[id] -= size;
        write(frame({0, yamux::kData, 0, id, static_cast<std::uint32_t>(size)}), rest.first(size));
        rest = rest.subspan(size);
      }
      piece.clear();
    }
  }

  std::optional<std::uint32_t> id_of(std::size_t stream) const {
    const auto& ids = stream >= kTheirs ? theirs_ : ours_;
    if (ids.empty()) return std::nullopt;
    return ids[stream % kTheirs % ids.size()];
  }

  static constexpr std::size_t kWindow = 256 << 10;

  static Bytes frame(yamux::Header header) {
    const auto bytes = header.bytes();
    return {bytes.begin(), bytes.end()};
  }

  static Task<Result<>> write_soon(Runtime& runtime, transport::RawConnection& to, Bytes bytes) {
    const ByteView view = bytes;
    co_return co_await within(runtime, runtime.after(2s), to.write_all(std::span(&view, 1)), "stranger's write");
  }

  std::size_t window_of(std::uint32_t id) {
    const auto window = window_.try_emplace(id, kWindow).first;
    for (int i = 0; i < 20 && window->second == 0 && !over_; ++i) swarm_.pass(50ms);
    return window->second;
  }

  static Task<void> read(ConnectionStranger& self) {
    Bytes room(64 << 10);
    for (;;) {
      const auto count = co_await self.connection_->read_some(room);
      if (!count || *count == 0) break;
      self.take(ByteView(room).first(*count));
      const Bytes credit = std::exchange(self.credit_, {});
      self.sent_ += credit.size();
      const ByteView view = credit;
      if (!credit.empty() && !co_await self.connection_->write_all(std::span(&view, 1))) break;
    }
    self.over_ = true;
  }

  /// The peer's key comes first, then frames.
  void take(ByteView bytes) {
    for (const std::uint8_t byte : bytes) {
      if (skip_ > 0) {
        --skip_;
      } else if (!greeted_) {
        greeted_ = true;
        skip_ = byte;
      } else {
        header_.push_back(byte);
        if (header_.size() == yamux::kHeaderSize) take_frame(yamux::Header::parse(std::exchange(header_, {}).data()));
      }
    }
  }

  void take_frame(const yamux::Header& header) {
    if (header.type != yamux::kPing && header.flags & yamux::kSyn) theirs_.push_back(header.id);
    if (header.type == yamux::kWindowUpdate) window_.try_emplace(header.id, kWindow).first->second += header.length;
    if (header.type != yamux::kData || header.length == 0) return;
    skip_ = header.length;
    const Bytes update = frame({0, yamux::kWindowUpdate, 0, header.id, header.length});
    credit_.insert(credit_.end(), update.begin(), update.end());
  }

  sim::Swarm& swarm_;
  std::unique_ptr<transport::Network> network_;
  std::unique_ptr<transport::RawConnection> connection_;
  TaskGroup reading_;
  std::vector<std::uint32_t> ours_, theirs_;  // the streams that we opened, and the peer
  std::map<std::uint32_t, std::size_t> window_;
  std::uint32_t next_ = 1;
  std::size_t sent_ = 0, skip_ = 0;
  bool over_ = false, greeted_ = false;
  Bytes header_, credit_;
};

}  // namespace cohive::fuzz
