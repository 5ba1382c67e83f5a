/// \file
/// hivemind's RPC over libp2p streams: unary calls and streaming calls, as client and as server.
/// Source: docs/wire/hivemind.md, section 2; docs/wire/libp2p.md, section 7. Loop thread only.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohive/p2p/host.hpp"

namespace cohive::rpc {

/// Limits, with hivemind's values.
inline constexpr std::size_t kMaxUnaryFrame = 4 * 1024 * 1024;  ///< the protobuf, without its length prefix
inline constexpr std::size_t kMaxStreamRecord =
    16 * 1024 * 1024;                                         ///< ours; hivemind sets none, its parts stay below 1 MiB
inline constexpr std::size_t kMaxPrefetch = 2 * 1024 * 1024;  ///< received requests a handler has not asked for yet
inline constexpr std::size_t kMaxPrefetchedRequests = 32;     ///< the same, counted in requests
inline constexpr std::size_t kMaxCallsPerPeer = 256;          ///< inbound calls running at once
inline constexpr std::size_t kMaxBytesPerPeer = 64 * 1024 * 1024;  ///< requests that wait; unread replies, too
inline constexpr Duration kRequestReadTimeout = 30s;               ///< server: one complete request
/// Bytes of a handler's error that the caller is told.
inline constexpr std::size_t kMaxErrorText = 4096;

/// Calls `protocol` ("DHTProtocol.rpc_ping") at `peer` with a serialised request; returns the serialised reply.
/// Errors: rpc::Errc::handler_failed with the peer's text, rpc::Errc::busy, transport errors, Errc::timeout. Dropping
/// the task cancels the call at the callee.
Task<Result<std::string>> call_unary(p2p::Host& host, PeerId peer, std::string protocol, std::string request,
                                     Deadline deadline);

/// A streaming call in progress, seen from the caller. Dropping it cancels the call.
class ClientStream {
 public:
  virtual ~ClientStream() = default;
  /// Sends one request made of several buffers (gathered, not copied together). A send that failed or was dropped may
  /// have gone out in half: later ones fail too. receive() may still tell why the callee ended the call.
  virtual Task<Result<>> send(std::span<const ByteView> parts, Deadline deadline) = 0;
  /// The same for a message in one buffer, which the caller keeps until then.
  Task<Result<>> send(ByteView message, Deadline deadline);
  /// The same for a long message to a peer whose link may be slow: each 128 KiB of it have `timeout`; zero: no limit.
  virtual Task<Result<>> send_while_moving(std::span<const ByteView> parts, Duration timeout) = 0;
  /// END_OF_STREAM: no more requests. The stream stays open for replies.
  virtual Task<Result<>> finish(Deadline deadline) = 0;
  /// The next reply; nullopt when the callee ended. A reset is an error, an error record is handler_failed. After a
  /// timeout it may be called again. Since a callee that died may look as if it ended, count what must be complete.
  virtual Task<Result<std::optional<Slice>>> receive(Deadline deadline) = 0;
  /// Replies of many bytes will come: transport::Stream::hint_bulk_receive().
  virtual void hint_bulk_receive() = 0;
  /// Returns how many bytes have come, those of a message that is not complete yet included.
  virtual std::uint64_t received() const = 0;
  /// Returns the callee.
  virtual const PeerId& peer() const = 0;
  /// How many more bytes the callee can send on the connection of this call: a relay may grant so many only.
  virtual std::uint64_t receive_quota() const = 0;
};
/// A call that is owned.
using ClientStreamPtr = std::unique_ptr<ClientStream>;

/// Begins a streaming call. Errors: those of opening a stream; what the callee refuses shows at receive().
Task<Result<ClientStreamPtr>> open_call(p2p::Host& host, PeerId peer, std::string protocol, Deadline deadline);

/// A streaming call in progress, seen from the callee.
class ServerStream {
 public:
  virtual ~ServerStream() = default;
  /// The next request; nullopt after END_OF_STREAM. An error when the caller went away. After a timeout it may be
  /// called again.
  virtual Task<Result<std::optional<Slice>>> receive(Deadline deadline) = 0;
  /// Sends one reply made of several buffers. An error when the caller went away.
  virtual Task<Result<>> send(std::span<const ByteView> parts, Deadline deadline) = 0;
  /// The same for a message in one buffer, which the caller keeps until then.
  Task<Result<>> send(ByteView message, Deadline deadline);
  /// See ClientStream::send_while_moving.
  virtual Task<Result<>> send_while_moving(std::span<const ByteView> parts, Duration timeout) = 0;
  /// Requests of many bytes will come: transport::Stream::hint_bulk_receive().
  virtual void hint_bulk_receive() = 0;
  /// Returns how many bytes have come, those of a message that is not complete yet included.
  virtual std::uint64_t received() const = 0;
  /// Returns the caller, whom the connection has authenticated.
  virtual const PeerId& peer() const = 0;
};

/// Returning an error sends its text as the error reply; rpc::Errc::busy arrives as such at callers that know it. The
/// handler is dropped when the caller goes away.
using UnaryHandler = std::function<Task<Result<std::string>>(PeerId caller, std::string request)>;
/// Returning an error sends an error record. Then the stream ends, once the caller has ended its requests (or a second
/// later; ten after an error). The handler is dropped when the caller goes away (closes or resets, also after
/// END_OF_STREAM).
using StreamingHandler = std::function<Task<Result<>>(ServerStream& stream)>;

/// Handlers registered with a host for as long as this object lives, which ends before the host's. Running calls are
/// dropped with it, but those of a removed method go on. An exception of a handler is logged as a defect and sent as an
/// error. A handler bounds its own waits for requests: a caller may stay connected and silent.
class Server {
 public:
  /// Serves calls that come in at this host, which must outlive the server.
  explicit Server(p2p::Host& host);
  ~Server();
  /// Throws std::invalid_argument when the host already serves the protocol.
  void add_unary(std::string protocol, UnaryHandler handler);
  /// The same for calls of many messages.
  void add_streaming(std::string protocol, StreamingHandler handler);
  /// Refuses calls of the method from now on; calls that run go on.
  void remove(const std::string& protocol);
  /// Returns the host that serves the calls.
  p2p::Host& host() const noexcept { return host_; }

  struct Impl;

 private:
  p2p::Host& host_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::rpc
