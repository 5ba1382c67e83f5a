// yamux: many streams over one connection.
// One reader task demultiplexes and never waits for an application; back-pressure is by window only. Writers encrypt
// straight from their buffers, one frame a turn. Source: docs/wire/libp2p.md, section 4.
#pragma once

#include <limits>
#include <list>
#include <map>

#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/transport/upgrade.hpp"
#include "core/detail/assertion.hpp"
#include "core/detail/token_bucket.hpp"
#include "secure_channel.hpp"
#include "yamux_frame.hpp"

namespace cohive::transport {

class YamuxConnection;

/// A part of a total. It leaves the total when it ends or is told to, and then goes on counting by itself.
class PartOf {
 public:
  explicit PartOf(std::size_t& total, std::size_t amount = 0) : total_(&total) { set(amount); }
  PartOf(const PartOf&) = delete;
  PartOf& operator=(const PartOf&) = delete;
  ~PartOf() { leave(); }
  std::size_t amount() const noexcept { return amount_; }
  void set(std::size_t amount) noexcept {
    COHIVE_ASSERT(!total_ || *total_ >= amount_);
    if (total_) *total_ += amount - amount_;
    amount_ = amount;
  }
  void add(std::size_t more) noexcept { set(amount_ + more); }
  void subtract(std::size_t less) noexcept {
    COHIVE_ASSERT(less <= amount_);
    set(amount_ - less);
  }
  void leave() noexcept {
    if (total_) *total_ -= amount_;
    total_ = nullptr;
  }

 private:
  std::size_t* total_;
  std::size_t amount_ = 0;
};

/// What a connection counts of its streams. Each stream holds its part.
struct YamuxTotals {
  std::size_t inbound = 0, outbound = 0;
  std::size_t unacknowledged = 0;  ///< our SYNs not answered yet
  std::size_t buffered = 0;        ///< bytes received and not yet read
  std::size_t granted_extra = 0;   ///< window growth beyond the initial one
  std::size_t writing = 0;         ///< write() calls in progress
};

/// What the connection and the stream's handle share; outlives both as long as either needs it.
struct YamuxStreamState {
  /// One direction of the stream.
  enum class Half : std::uint8_t { open, ended, reset };
  /// How far the peer knows of a stream that we opened; one that it opened is acknowledged.
  enum class Opening : std::uint8_t { unsent, sent, acknowledged };
  /// Where the stream's handle is. Without one, the peer still has some time to end its half.
  enum class Holder : std::uint8_t { backlog, application, none };

  YamuxStreamState(Runtime& runtime, YamuxConnection& owner, YamuxTotals& totals, std::uint32_t stream_id,
                   bool is_outbound, std::size_t window);
  YamuxConnection* connection;  // null once the stream or the connection has ended
  const std::uint32_t id;
  const bool outbound;
  Half in = Half::open, out = Half::open;
  Opening opening;
  Holder holder;
  TimePoint orphaned_at{};  // when the handle went
  std::size_t send_window;
  std::size_t receive_window;                                         // what the peer may still send
  std::size_t window_limit;                                           // what receive_window is refilled to
  std::size_t most_window = std::numeric_limits<std::size_t>::max();  // which window_limit does not outgrow
  std::size_t consumed = 0;  // read by the application since the last window update
  TimePoint last_update{};
  std::uint64_t ahead_in = 0;   // the flush, as the connection counts them, before which ahead_bytes were written
  std::size_t ahead_bytes = 0;  // that went ahead of the turns of other streams
  std::list<Slice> received;    // most streams never hold more than one
  PartOf open, unacknowledged, buffered, granted_extra, writing;
  MemoryBudget::Charge memory;  // of what is buffered
  MemoryBudget::Charge own;     // of a stream that the peer opened, until it leaves the connection
  Slice expected;               // where the next bytes belong, if the application has said so
  Slice tail;                   // where small payloads are collected; the last of `received` ends at tail_used
  std::size_t tail_used = 0;
  Condition readable, writable;
  std::optional<Error> failure;  // why the connection ended

  bool finished() const { return in != Half::open && out != Half::open; }
  /// A half that has ended in order stays so.
  void reset();
  /// The connection has no part in the stream any more.
  void leave();
  void store(Slice bytes);
  void drop_tail();
  void discard_received();
};

class YamuxConnection final : public Connection {
 public:
  /// \param security  a constant of the program
  /// \param account   of received bytes that no reader has taken; null: they are not counted
  YamuxConnection(Runtime& runtime, std::unique_ptr<SecureChannel> channel, Role role, const PeerId& peer,
                  std::string_view security, std::shared_ptr<const TransportOptions> options,
                  std::shared_ptr<const MemoryBudget::Account> account = nullptr);
  ~YamuxConnection() override;

  Result<StreamPtr> open_stream() override;
  Task<Result<StreamPtr>> accept_stream() override;
  const PeerId& peer() const override { return peer_; }
  const Multiaddr& local_address() const override { return channel_->raw().local_address(); }
  const Multiaddr& remote_address() const override { return channel_->raw().remote_address(); }
  bool outbound() const override { return role_ == Role::initiator; }
  std::string_view security() const override { return security_; }
  bool closed() const override { return closed_.is_set(); }
  Error close_reason() const override { return reason_; }
  bool ended_by_peer() const override { return remote_gone_; }
  Task<void> wait_closed() override;
  Task<void> flush(Deadline deadline) override;
  Task<void> finish(Error reason, Deadline deadline) override;
  void close(Error reason) noexcept override;
  void set_congestion_control(const std::string& name) noexcept override {
    channel_->raw().set_congestion_control(name);
  }
  ConnectionStats stats() const override;
  std::uint64_t send_quota() const override;
  std::uint64_t receive_quota() const override;
  std::size_t open_streams() const override { return totals_.inbound + totals_.outbound; }
  Duration round_trip() const override { return round_trip_; }

 private:
  friend class YamuxStream;
  using State = std::shared_ptr<YamuxStreamState>;
  using Header = yamux::Header;

  void end_streams(Error reason) noexcept;
  Task<void> read_loop();
  Task<void> flush_output();
  void adapt_queue(std::size_t bytes, Duration took);
  bool may_queue(const YamuxStreamState& stream, std::size_t left) const noexcept;
  void note_queueing(YamuxStreamState& stream, std::size_t size) noexcept;
  std::size_t most_ahead() const noexcept;
  std::size_t most_queued() const noexcept;
  void check_alive();
  bool keys_are_worn() const;
  bool may_reset();

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
  bool may_widen(const YamuxStreamState& stream) const;
  void widen(YamuxStreamState& stream, std::size_t window);
  void widen_early(YamuxStreamState& stream, std::size_t frame);
  void hint_bulk_receive(YamuxStreamState& stream);
  void grant(YamuxStreamState& stream, std::size_t window);
  void return_credit(YamuxStreamState& stream);
  void reset_stream(YamuxStreamState& stream);
  void release(YamuxStreamState& stream, bool begun);
  void forget(std::uint32_t id);
  void sweep_orphans();

  Runtime& runtime_;
  std::unique_ptr<SecureChannel> channel_;
  Role role_;
  PeerId peer_;
  std::string_view security_;
  std::shared_ptr<const TransportOptions> options_;
  std::shared_ptr<const MemoryBudget::Account> account_;  // null: not counted
  std::uint32_t next_id_;
  YamuxTotals totals_;
  std::map<std::uint32_t, State> streams_;
  std::list<StreamPtr> pending_;
  Condition acceptable_, writable_, openable_;
  Event closed_;  // for users; what they wrote may still be on its way out
  Event ended_;   // the channel is closed
  Error reason_;
  std::size_t dropped_ = 0;  // bytes received after the end
  TokenBucket resets_;       // that the peer may send, or have us send
  bool flooded_ = false;     // it has had us send more
  bool remote_gone_ = false;

  std::array<std::uint8_t, yamux::kHeaderSize> header_bytes_{};
  std::size_t header_have_ = 0;
  std::size_t payload_left_ = 0;
  std::uint16_t late_flags_ = 0;  // FIN of the frame whose payload is being read
  State payload_stream_;          // null while draining payload of an unknown stream
  std::size_t widest_ = 0;        // window that a stream of this connection has needed
  std::size_t queue_limit_;       // bytes that wait to be written, above which writers wait
  bool flushing_ = false;         // flush_output() runs
  std::uint64_t flushes_ = 1;     // so far, and one: 0 stands for none
  std::size_t ahead_ = 0;         // bytes that went ahead of the turns of other streams since the last flush

  TimePoint last_received_, ping_sent_;
  std::uint32_t ping_value_ = 0;
  bool ping_open_ = false;
  bool probing_ = false;  // keepalive_ fires when the answer is overdue
  Duration round_trip_{};
  Timer keepalive_;
  TaskGroup tasks_;
};

}  // namespace cohive::transport
