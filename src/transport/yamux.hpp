// yamux: many streams over one connection. Frame: version 0 | type | flags (2) | stream (4) | length (4), big-endian.
// One reader task demultiplexes and never waits for an application; back-pressure is by window only. Writers encrypt
// straight from their buffers, one frame a turn. Source: libp2p wire spec, section 4.
#pragma once

#include <list>
#include <map>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "secure_channel.hpp"

namespace cohive::transport {

class YamuxConnection;

/// What the connection and the stream's handle share; outlives both as long as either needs it.
struct YamuxStreamState {
  YamuxStreamState(Runtime& runtime, std::uint32_t stream_id, bool is_outbound, std::size_t window)
      : id(stream_id),
        outbound(is_outbound),
        send_window(window),
        receive_window(window),
        window_limit(window),
        readable(runtime, "stream data"),
        writable(runtime, "stream window") {}
  YamuxConnection* connection = nullptr;  // null once the connection is gone
  std::uint32_t id;
  bool outbound;
  bool syn_pending = false;   // our first frame carries SYN
  bool acknowledged = false;  // our SYN was sent and answered
  bool accepted = true;       // handed to the application
  bool writing = false;
  bool local_fin = false, remote_fin = false, was_reset = false, orphaned = false;
  TimePoint orphaned_at{};
  std::size_t send_window;
  std::size_t receive_window;  // what the peer may still send
  std::size_t window_limit;    // what receive_window is refilled to
  std::size_t consumed = 0;    // read by the application since the last window update
  TimePoint last_update{};
  std::list<Slice> received;  // most streams never hold more than one
  std::size_t received_bytes = 0;
  Slice expected;  // where the next bytes belong, if the application has said so
  Slice tail;      // where small payloads are collected; the last of `received` ends at tail_used
  std::size_t tail_used = 0;
  Condition readable, writable;
  std::optional<Error> failure;  // why the connection ended

  bool finished() const { return was_reset || (local_fin && remote_fin); }
  void store(Slice bytes);
  void drop_tail();
  void discard_received();
};

class YamuxConnection final : public Connection {
 public:
  YamuxConnection(Runtime& runtime, std::unique_ptr<SecureChannel> channel, Role role, PublicKey remote_key,
                  TransportOptions options);
  ~YamuxConnection() override;

  Result<StreamPtr> open_stream() override;
  Task<Result<StreamPtr>> accept_stream() override;
  const PeerId& peer() const override { return peer_; }
  const Bytes& peer_key() const override { return peer_key_; }
  const Multiaddr& local_address() const override { return channel_->raw().local_address(); }
  const Multiaddr& remote_address() const override { return channel_->raw().remote_address(); }
  bool outbound() const override { return role_ == Role::initiator; }
  bool closed() const override { return closed_.is_set(); }
  Error close_reason() const override { return reason_; }
  Task<void> wait_closed() override;
  Task<void> flush(Deadline deadline) override;
  Task<void> finish(Error reason, Deadline deadline) override;
  void close(Error reason) noexcept override;
  ConnectionStats stats() const override;
  Duration round_trip() const override { return round_trip_; }

 private:
  friend class YamuxStream;
  friend struct WriterTurn;
  using State = std::shared_ptr<YamuxStreamState>;
  struct Header {
    std::uint8_t version, type;
    std::uint16_t flags;
    std::uint32_t id, length;
  };
  static Header parse(const std::uint8_t* at);

  void end_streams(Error reason) noexcept;
  Task<void> read_loop();
  Task<void> flush_output();
  void adapt_queue(std::size_t bytes, Duration took);
  bool may_queue(std::size_t left) const noexcept;
  void check_alive();

  Slice place(ByteView first, std::size_t size) const;
  std::optional<Error> on_bytes(Slice bytes);
  std::optional<Error> on_header(const Header& header);
  std::optional<Error> on_payload(Slice bytes);
  std::optional<Error> on_ping(const Header& header);
  std::optional<Error> on_stream_frame(const Header& header);
  std::optional<Error> on_syn(const Header& header);
  void on_flags(const State& stream, std::uint16_t flags);
  Error violation(std::string what) const;

  void send_frame(std::uint8_t type, std::uint16_t flags, std::uint32_t id, std::uint32_t length,
                  std::span<const ByteView> payload = {});
  void send_control(YamuxStreamState& stream, std::uint16_t flags, std::uint32_t delta = 0);
  bool may_announce() const noexcept;
  std::uint16_t opening_flags(YamuxStreamState& stream);
  void return_credit(YamuxStreamState& stream);
  void reset_stream(YamuxStreamState& stream);
  void release(YamuxStreamState& stream);
  void forget(std::uint32_t id);
  void sweep_orphans();

  Runtime& runtime_;
  std::unique_ptr<SecureChannel> channel_;
  Role role_;
  PeerId peer_;
  Bytes peer_key_;
  TransportOptions options_;
  std::uint32_t next_id_;
  std::map<std::uint32_t, State> streams_;
  std::size_t inbound_ = 0, outbound_ = 0;
  std::size_t unacknowledged_ = 0;  // our SYNs not answered yet
  std::size_t buffered_ = 0;        // received and not yet read, all streams
  std::size_t granted_extra_ = 0;   // window growth beyond the initial one, all streams
  std::list<StreamPtr> pending_;
  Condition acceptable_, writable_, openable_;
  Event closed_;  // for users; what they wrote may still be on its way out
  Event ended_;   // the channel is closed
  Error reason_;
  std::size_t dropped_ = 0;  // bytes received after the end
  bool remote_gone_ = false;

  std::array<std::uint8_t, 12> header_bytes_{};
  std::size_t header_have_ = 0;
  std::size_t payload_left_ = 0;
  std::uint16_t late_flags_ = 0;  // FIN of the frame whose payload is being read
  State payload_stream_;          // null while draining payload of an unknown stream
  std::size_t writers_ = 0;       // write() calls in progress
  std::size_t queue_limit_;       // bytes that wait to be written, above which writers wait
  bool flushing_ = false;         // flush_output() runs

  TimePoint last_received_, ping_sent_;
  std::uint32_t ping_value_ = 0;
  bool ping_open_ = false;
  bool probing_ = false;  // keepalive_ fires when the answer is overdue
  Duration round_trip_{};
  Timer keepalive_;
  TaskGroup tasks_;
};

}  // namespace cohive::transport
