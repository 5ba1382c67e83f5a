// The serving side. A handler lives as long as its caller: when the caller closes, resets, or sends more than it may,
// the handler is dropped. Source: hivemind wire spec, sections 2.2 and 2.3.
#include <deque>
#include <map>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/proto/rpc.pb.h"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/metrics.hpp"
#include "records.hpp"

namespace cohive::rpc {
namespace {

constexpr std::size_t kCallIdSize = 16;
constexpr Duration kReplyTimeout = 30s;

struct Outcomes {
  Outcomes(Metrics& metrics, const std::string& protocol)
      : ok(calls_counter(metrics, protocol, "server", "ok")),
        failed(calls_counter(metrics, protocol, "server", "failed")),
        cancelled(calls_counter(metrics, protocol, "server", "cancelled")),
        malformed(calls_counter(metrics, protocol, "server", "malformed")) {}
  Counter ok, failed, cancelled, malformed;
};

std::string error_text(const Error& error) { return error.message().substr(0, kMaxErrorText); }

/// Ends when the caller closes, resets or sends anything: each of these cancels a unary call.
Task<void> caller_leaves(transport::Stream& stream) { (void)co_await stream.read(Deadline::never()); }

class ServerStreamOverStream final : public ServerStream {
 public:
  explicit ServerStreamOverStream(transport::Stream& stream)
      : stream_(stream), changed_(stream.runtime(), "requests of a streaming call") {}

  Task<Result<std::optional<Slice>>> receive(Deadline deadline) override {
    for (;;) {
      if (!requests_.empty()) {
        Slice request = std::move(requests_.front());
        requests_.pop_front();
        queued_ -= request.size();
        changed_.notify_all();
        co_return std::optional<Slice>(std::move(request));
      }
      if (ended_) co_return std::optional<Slice>();
      if (!co_await changed_.wait(deadline)) co_return Error(cohive::Errc::timeout, stream_.peer(), "waiting for a request");
    }
  }
  Task<Result<>> send(std::span<const ByteView> parts, Deadline deadline) override {
    co_return co_await write_record(stream_, Marker::message, parts, deadline);
  }
  const PeerId& peer() const override { return stream_.peer(); }

  /// Reads ahead a little, so that a caller that leaves is noticed while the handler works. Returns when it has left.
  Task<Error> read_requests() {
    RecordReader reader(stream_);
    for (;;) {
      while (queued_ > kMaxPrefetch) co_await changed_.wait();
      auto record = co_await reader.next(Deadline::never());
      if (!record) co_return record.error();
      if (!*record) co_return Error(Errc::call_cancelled, stream_.peer());
      if ((*record)->marker == Marker::error) {
        ended_ = true;
      } else if (ended_) {
        co_return Error(Errc::message_after_end, stream_.peer());
      } else {
        queued_ += (*record)->payload.size();
        requests_.push_back(std::move((*record)->payload));
      }
      changed_.notify_all();
    }
  }

 private:
  transport::Stream& stream_;
  std::deque<Slice> requests_;
  std::size_t queued_ = 0;
  bool ended_ = false;
  Condition changed_;
};

}  // namespace

struct Server::Impl {
  explicit Impl(p2p::Host& h) : host(h), runtime(h.runtime()), tasks(runtime, "rpc server") {}

  /// Moves a call into our own group, so that it ends with the server, and bounds how many one peer runs.
  void start(transport::StreamPtr stream, Task<void> (*serve)(Impl&, transport::StreamPtr, std::string), std::string protocol) {
    auto& running = calls[stream->peer()];
    if (running >= kMaxCallsPerPeer) return;  // dropping the stream resets it
    ++running;
    tasks.spawn(counted(*this, stream->peer(), serve(*this, std::move(stream), std::move(protocol))), "rpc call");
  }

  struct Running {
    Impl& self;
    PeerId peer;
    ~Running() {
      if (--self.calls[peer] == 0) self.calls.erase(peer);
    }
  };
  static Task<void> counted(Impl& self, PeerId peer, Task<void> call) {
    Running running{self, peer};
    co_await call;
  }

  static Task<void> serve_unary(Impl& self, transport::StreamPtr stream, std::string protocol);
  static Task<void> serve_streaming(Impl& self, transport::StreamPtr stream, std::string protocol);

  p2p::Host& host;
  Runtime& runtime;
  std::map<std::string, UnaryHandler> unary;
  std::map<std::string, StreamingHandler> streaming;
  std::map<std::string, Outcomes> outcomes;
  std::unordered_map<PeerId, std::size_t> calls;
  TaskGroup tasks;
};

Task<void> Server::Impl::serve_unary(Impl& self, transport::StreamPtr stream, std::string protocol) {
  const Outcomes outcomes = self.outcomes.at(protocol);
  proto::PersistentConnectionRequest frame;
  {
    transport::StreamReader reader(*stream);
    auto message = co_await reader.read_message(kMaxUnaryFrame, self.runtime.after(kRequestReadTimeout));
    if (!message || !*message || !frame.ParseFromArray((*message)->data(), static_cast<int>((*message)->size())) ||
        frame.call_id().size() != kCallIdSize || !frame.has_call_unary()) {
      outcomes.malformed.increment();
      stream->close_write();  // as p2pd does: no reply
      co_return;
    }
  }
  const UnaryHandler handler = self.unary.at(protocol);
  auto ended = co_await race(self.runtime, handler(stream->peer(), std::move(*frame.mutable_call_unary()->mutable_data())),
                             caller_leaves(*stream));
  if (ended.index() == 1) {
    outcomes.cancelled.increment();
    co_return;
  }
  auto& result = std::get<0>(ended);
  proto::PersistentConnectionRequest reply;
  reply.set_call_id(frame.call_id());
  if (result) {
    reply.mutable_unary_response()->set_response(std::move(*result));
    if (reply.ByteSizeLong() > kMaxUnaryFrame) result = Error(Errc::frame_too_large, "reply");
  }
  if (!result) {
    log::debug("rpc", "{} failed for {}: {}", protocol, stream->peer(), result.error());
    reply.mutable_unary_response()->set_error(error_text(result.error()));
  }
  (result ? outcomes.ok : outcomes.failed).increment();
  auto sent = co_await transport::write_message(*stream, as_bytes(reply.SerializeAsString()), self.runtime.after(kReplyTimeout));
  if (sent) stream->close_write();
}

Task<void> Server::Impl::serve_streaming(Impl& self, transport::StreamPtr stream, std::string protocol) {
  const Outcomes outcomes = self.outcomes.at(protocol);
  ServerStreamOverStream call(*stream);
  const StreamingHandler handler = self.streaming.at(protocol);
  auto ended = co_await race(self.runtime, handler(call), call.read_requests());
  if (ended.index() == 1) {
    outcomes.cancelled.increment();
    log::debug("rpc", "{} cancelled: {}", protocol, std::get<1>(ended));
    co_return;
  }
  auto& result = std::get<0>(ended);
  (result ? outcomes.ok : outcomes.failed).increment();
  if (!result) {
    log::debug("rpc", "{} failed for {}: {}", protocol, stream->peer(), result.error());
    proto::RPCError error;
    error.set_message(error_text(result.error()));
    const std::string bytes = error.SerializeAsString();
    const ByteView parts[] = {as_bytes(bytes)};
    auto sent = co_await write_record(*stream, Marker::error, parts, self.runtime.after(kReplyTimeout));
    if (!sent) co_return;
  }
  stream->close_write();
}

Server::Server(p2p::Host& host) : host_(host), impl_(std::make_unique<Impl>(host)) {}

Server::~Server() {
  for (const auto& [protocol, outcomes] : impl_->outcomes) host_.remove_handler(protocol);
}

void Server::add_unary(std::string protocol, UnaryHandler handler) {
  host_.set_handler(protocol, [impl = impl_.get(), protocol](transport::StreamPtr stream) -> Task<void> {
    impl->start(std::move(stream), &Impl::serve_unary, protocol);
    co_return;
  });
  impl_->outcomes.emplace(protocol, Outcomes(host_.runtime().metrics(), protocol));
  impl_->unary.emplace(std::move(protocol), std::move(handler));
}

void Server::add_streaming(std::string protocol, StreamingHandler handler) {
  host_.set_handler(protocol, [impl = impl_.get(), protocol](transport::StreamPtr stream) -> Task<void> {
    impl->start(std::move(stream), &Impl::serve_streaming, protocol);
    co_return;
  });
  impl_->outcomes.emplace(protocol, Outcomes(host_.runtime().metrics(), protocol));
  impl_->streaming.emplace(std::move(protocol), std::move(handler));
}

void Server::remove(const std::string& protocol) {
  host_.remove_handler(protocol);
  impl_->unary.erase(protocol);
  impl_->streaming.erase(protocol);
  impl_->outcomes.erase(protocol);
}

Task<Result<>> ServerStream::send(ByteView message, Deadline deadline) {
  const ByteView parts[] = {message};
  co_return co_await send(std::span<const ByteView>(parts), deadline);
}

}  // namespace cohive::rpc
