/// \file
/// A multiplexed stream and the connection it belongs to. Loop thread only.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/transport/path.hpp"

namespace cohive::transport {

class Connection;

/// A bidirectional stream. One reader and one writer at a time, which may be different tasks.
/// Dropping a stream whose both directions have not ended resets it.
class Stream {
 public:
  virtual ~Stream() { set_begun(false); }

  /// The next received bytes, shared with the receive buffer (no copy); empty at the end of the stream (remote FIN).
  /// Taking bytes returns flow-control credit. Errors: Errc::reset, Errc::closed (connection lost), Errc::timeout.
  virtual Task<Result<Slice>> read(Deadline deadline) = 0;
  /// Puts bytes back in front of what read() returns next.
  virtual void unread(Slice bytes) = 0;
  /// A hint that all that read() has not returned yet will be copied to `region`, in order, as far as it goes. Some of
  /// it may then be received there at once, and read() returns slices of the region's memory, each where it belongs.
  /// Until all of the region has come, or another one was named, it belongs to the stream, and unread() is not called.
  virtual void expect(Slice /*region*/) {}
  /// Sends all buffers as one byte sequence without joining them; returns once all is encrypted or queued, so the
  /// buffers are the caller's again. Waits for the peer's window and for its turn on the connection.
  virtual Task<Result<>> write(std::span<const ByteView> buffers, Deadline deadline) = 0;
  /// The same for one buffer.
  Task<Result<>> write(ByteView bytes, Deadline deadline);
  /// Lets the peer send at most so many bytes ahead of read(), where the window would grow further. The first 256 KiB
  /// are granted in any case.
  virtual void limit_window(std::size_t /*most*/) {}
  /// A hint that the peer is about to send much: it gets room for it now, instead of after the round trips in which the
  /// window would grow. The room is what earlier streams of the connection have needed, and 1 MiB at least.
  virtual void hint_bulk_receive() {}
  /// Half-close: no more bytes from us. Idempotent.
  virtual void close_write() noexcept = 0;
  /// Ends both directions at once.
  virtual void reset() noexcept = 0;

  /// Returns the authenticated peer at the other end.
  virtual const PeerId& peer() const = 0;
  /// Returns the transport address of the peer, without /p2p.
  virtual const Multiaddr& remote_address() const = 0;
  /// Returns the loop of the connection.
  virtual Runtime& runtime() const = 0;
  /// True while bytes wait to be read, or the end is known.
  virtual bool readable() const = 0;
  /// How many more bytes the connection below carries to us, as far as it is known: a relay may grant so many only.
  virtual std::uint64_t receive_quota() const { return std::numeric_limits<std::uint64_t>::max(); }

  /// The protocol negotiated on this stream.
  const std::string& protocol() const noexcept { return protocol_; }
  /// Notes what was negotiated.
  void set_protocol(std::string protocol) { protocol_ = std::move(protocol); }

  /// Has `counter` count the stream while it is merely begun, which it is from now on.
  void count_begun(std::shared_ptr<std::size_t> counter) {
    set_begun(false);
    begun_counter_ = std::move(counter);
    set_begun(true);
  }
  /// Notes whether all of a request has yet to come: until then the stream is no reason to keep its connection.
  void set_begun(bool begun) noexcept {
    if (!begun_counter_ || begun == begun_) return;
    begun_ = begun;
    begun ? ++*begun_counter_ : --*begun_counter_;
  }

 protected:
  /// Tells whether the stream is counted as merely begun.
  bool begun() const noexcept { return begun_; }

 private:
  std::string protocol_;
  std::shared_ptr<std::size_t> begun_counter_;
  bool begun_ = false;
};

/// A stream that is owned.
using StreamPtr = std::unique_ptr<Stream>;

/// Reads exact amounts and delimited messages from a stream. What was read beyond goes back to the stream with the
/// reader's end.
class StreamReader {
 public:
  /// Reads from `stream`, which outlives the reader.
  explicit StreamReader(Stream& stream) : stream_(stream) {}
  /// Gives bytes not consumed back to the stream.
  ~StreamReader();
  /// Errc::end_of_stream when the stream ends inside; never reads ahead more than one slice.
  Task<Result<Bytes>> read_exactly(std::size_t size, Deadline deadline);
  /// A varint-length-prefixed message; Errc::limit_exceeded before any memory is taken when longer than `limit`.
  /// Memory grows with received bytes, not with the announced length. nullopt: clean end before a message. After a
  /// timeout it goes on where it was.
  Task<Result<std::optional<Bytes>>> read_message(std::size_t limit, Deadline deadline);
  /// Reads the length of the next message alone, with the errors of read_message(), which then goes on: so its memory
  /// can be charged before it is taken.
  Task<Result<std::optional<std::size_t>>> read_length(std::size_t limit, Deadline deadline);
  /// True at a clean end of the stream with nothing left.
  Task<Result<bool>> at_end(Deadline deadline);

 private:
  Task<Result<bool>> fill(Deadline deadline);  // false: end
  void consume(std::size_t count);
  Task<Result<>> append_until(Bytes& bytes, std::size_t size, Deadline deadline);
  Stream& stream_;
  Slice buffered_;
  Bytes prefix_, message_;             // of the message that is being read
  std::optional<std::size_t> length_;  // the same
};

/// Writes a varint-length-prefixed message.
Task<Result<>> write_message(Stream& stream, ByteView message, Deadline deadline);

/// What a connection has carried, and carries now.
struct ConnectionStats {
  std::uint64_t bytes_in = 0;   ///< on the wire
  std::uint64_t bytes_out = 0;  ///< on the wire
  std::size_t streams_in = 0;   ///< open now
  std::size_t streams_out = 0;  ///< the same; opened by this side
  std::size_t undelivered = 0;  ///< of bytes_out: not yet acknowledged by the other machine
  PathState path;
};

/// An authenticated, encrypted, multiplexed connection.
class Connection {
 public:
  virtual ~Connection() = default;
  /// A new stream, no protocol negotiated yet.
  virtual Result<StreamPtr> open_stream() = 0;
  /// The next stream opened by the peer; an error when the connection has ended.
  virtual Task<Result<StreamPtr>> accept_stream() = 0;
  /// Returns the peer, as the handshake has proven it.
  virtual const PeerId& peer() const = 0;
  /// Returns our end of the connection.
  virtual const Multiaddr& local_address() const = 0;
  /// Returns the peer's end, as we see it.
  virtual const Multiaddr& remote_address() const = 0;
  virtual bool outbound() const = 0;  ///< we dialled
  /// The protocol that authenticated the peer, "/noise" or "/tls/1.0.0".
  virtual std::string_view security() const = 0;
  /// Whether the connection has ended.
  virtual bool closed() const = 0;
  /// Returns why the connection has ended.
  virtual Error close_reason() const = 0;
  /// Tells whether the peer has announced that it ends the connection. A connection that is lost, as when the peer's
  /// process is killed, ends without that.
  virtual bool ended_by_peer() const = 0;
  /// Waits until the connection has ended, for whatever reason.
  virtual Task<void> wait_closed() = 0;
  /// Waits until everything written so far has been handed to the network.
  virtual Task<void> flush(Deadline deadline) = 0;
  /// An orderly end: all streams end now, as by close(); what was written before is still sent, and the connection
  /// closed once the peer has ended too, at the latest at the deadline. What it sends meanwhile is dropped.
  virtual Task<void> finish(Error reason, Deadline deadline) = 0;
  /// Ends the connection and all streams now. What the peer has not received yet may be lost.
  virtual void close(Error reason) noexcept = 0;
  /// Has the kernel send by this algorithm from now on: RawConnection::set_congestion_control.
  virtual void set_congestion_control(const std::string& name) noexcept = 0;
  /// Returns what the connection has carried.
  virtual ConnectionStats stats() const = 0;
  /// Streams open now, in both directions: what stats() says, at no cost.
  virtual std::size_t open_streams() const = 0;
  /// How many more bytes streams can send, as far as it is known: a relay may carry so many only.
  virtual std::uint64_t send_quota() const = 0;
  /// How many more bytes the peer's streams can send to us.
  virtual std::uint64_t receive_quota() const = 0;
  /// Last measured round trip, zero when none yet.
  virtual Duration round_trip() const = 0;
};

/// A connection that is owned.
using ConnectionPtr = std::unique_ptr<Connection>;

}  // namespace cohive::transport
