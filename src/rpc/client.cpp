// The calling side.
//   unary:     caller -> varint | PersistentConnectionRequest{callId, callUnary};  callee -> the same with
//   unaryResponse, FIN. streaming: caller -> records, END_OF_STREAM;  callee -> records, FIN.  The caller never
//   half-closes: a FIN from it is a cancellation. Source: docs/wire/hivemind.md, sections 2.2 and 2.3.
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/trace.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/rpc.pb.h"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/metrics.hpp"
#include "core/detail/bounded_parse.hpp"
#include "records.hpp"

namespace cohive::rpc {
namespace {

std::string new_call_id(Runtime& runtime) {
  Bytes id(kCallIdSize);
  runtime.random_bytes(id);
  id[6] = static_cast<std::uint8_t>((id[6] & 0x0f) | 0x40);  // UUID version 4
  id[8] = static_cast<std::uint8_t>((id[8] & 0x3f) | 0x80);
  return to_string(id);
}

Error handler_error(const PeerId& peer, std::string_view text, Errc code = Errc::handler_failed) {
  return Error(code, peer, log::quoted(text, kMaxErrorText));
}

Outcome outcome_of(const Error& error) {
  if (error == Errc::handler_failed) return Outcome::failed;
  if (error == cohive::Errc::timeout) return Outcome::timeout;
  if (error == Errc::busy) return Outcome::refused;
  if (error == Errc::malformed_frame || error == Errc::frame_too_large || error == cohive::Errc::malformed ||
      error == cohive::Errc::limit_exceeded)
    return Outcome::malformed;
  return Outcome::broken;
}

Result<std::string> parse_reply(ByteView bytes, const PeerId& peer, const std::string& protocol) {
  proto::PersistentConnectionRequest frame;
  if (!parse_bounded(frame, bytes) || !frame.has_unary_response())
    return Error(Errc::malformed_frame, peer, "reply to " + protocol);
  auto& response = *frame.mutable_unary_response();
  if (response.has_error())
    return handler_error(peer, response.error(), response.busy() ? Errc::busy : Errc::handler_failed);
  if (!response.has_response()) return Error(Errc::malformed_frame, peer, "empty reply to " + protocol);
  return std::move(*response.mutable_response());
}

Task<Result<std::string>> exchange(p2p::Host& host, PeerId peer, std::string protocol, std::string request,
                                   Deadline deadline, CallRecord& record) {
  proto::PersistentConnectionRequest frame;
  frame.set_call_id(new_call_id(host.runtime()));
  auto* call = frame.mutable_call_unary();
  call->set_peer(peer.binary());
  call->set_proto(protocol);
  call->set_data(std::move(request));
  if (frame.ByteSizeLong() > kMaxUnaryFrame) co_return Error(Errc::frame_too_large, peer, "request to " + protocol);

  CO_TRY(auto stream, co_await host.open_stream(peer, protocol, deadline));
  const std::string bytes = frame.SerializeAsString();
  frame.Clear();
  CO_TRY(co_await transport::write_message(*stream, as_bytes(bytes), deadline));
  record.sent += bytes.size();

  transport::StreamReader reader(*stream);
  CO_TRY(auto reply, co_await reader.read_message(kMaxUnaryFrame, deadline));
  if (!reply) co_return Error(Errc::call_cancelled, peer);
  record.received += reply->size();
  stream->close_write();
  co_return parse_reply(*reply, peer, protocol);
}

class ClientStreamOverHost final : public ClientStream {
 public:
  ClientStreamOverHost(const MethodMetrics& metrics, transport::StreamPtr stream)
      : record_(stream->runtime(), metrics),
        stream_(std::move(stream)),
        reader_(*stream_),
        writer_(*stream_),
        peer_(stream_->peer()) {}
  ~ClientStreamOverHost() override {
    record_.sent = writer_.bytes();
    record_.received = reader_.bytes();
  }

  Task<Result<>> send(std::span<const ByteView> parts, Deadline deadline) override {
    if (finished_) co_return Error(Errc::message_after_end, peer_);
    auto sent = co_await writer_.write(Marker::message, parts, deadline);
    if (!sent) record_.outcome = outcome_of(sent.error());
    co_return sent;
  }
  Task<Result<>> send_while_moving(std::span<const ByteView> parts, Duration timeout) override {
    if (finished_) co_return Error(Errc::message_after_end, peer_);
    auto sent = co_await writer_.write_while_moving(Marker::message, parts, timeout);
    if (!sent) record_.outcome = outcome_of(sent.error());
    co_return sent;
  }
  Task<Result<>> finish(Deadline deadline) override {
    if (std::exchange(finished_, true)) co_return ok();
    co_return co_await writer_.write(Marker::error, {}, deadline);
  }
  Task<Result<std::optional<Slice>>> receive(Deadline deadline) override {
    auto record = co_await reader_.next(deadline);
    if (!record) co_return failed(record.error());
    if (!*record) {
      if (record_.outcome != Outcome::failed) record_.outcome = Outcome::ok;
      stream_->close_write();
      co_return std::optional<Slice>();
    }
    if ((*record)->marker == Marker::message) co_return std::optional<Slice>(std::move((*record)->payload));
    proto::RPCError error;
    const ByteView payload = (*record)->payload;
    if (!parse_bounded(error, payload)) co_return failed(Error(Errc::malformed_frame, peer_, "error record"));
    co_return failed(handler_error(peer_, error.message()));
  }
  void hint_bulk_receive() override { stream_->hint_bulk_receive(); }
  std::uint64_t received() const override { return reader_.bytes(); }
  const PeerId& peer() const override { return peer_; }
  std::uint64_t receive_quota() const override { return stream_->receive_quota(); }

 private:
  Error failed(Error error) {
    record_.outcome = outcome_of(error);
    return error;
  }

  CallRecord record_;
  transport::StreamPtr stream_;
  RecordReader reader_;
  RecordWriter writer_;
  PeerId peer_;
  bool finished_ = false;
};

}  // namespace

Task<Result<std::string>> call_unary(p2p::Host& host, PeerId peer, std::string protocol, std::string request,
                                     Deadline deadline) {
  CallRecord record(host.runtime(), host.runtime().local<RpcMetrics>().client(protocol));
  TraceSpan span(host.runtime(), "call", "call");
  if (span) {
    span.note("method", protocol);
    span.note("peer", peer.text());
  }
  auto result = co_await exchange(host, peer, std::move(protocol), std::move(request), deadline, record);
  record.outcome = result ? Outcome::ok : outcome_of(result.error());
  if (!result) span.note("error", result.error().message());
  co_return result;
}

Task<Result<ClientStreamPtr>> open_call(p2p::Host& host, PeerId peer, std::string protocol, Deadline deadline) {
  const MethodMetrics& metrics = host.runtime().local<RpcMetrics>().client(protocol);
  auto member = co_await host.check_member(peer, false, deadline);
  if (!member) {
    metrics.calls[static_cast<std::size_t>(Outcome::refused)].increment();
    co_return member.error();
  }
  auto stream = co_await host.open_stream(peer, protocol, deadline);
  if (!stream) {
    metrics.calls[static_cast<std::size_t>(outcome_of(stream.error()))].increment();
    co_return stream.error();
  }
  co_return ClientStreamPtr(std::make_unique<ClientStreamOverHost>(metrics, std::move(*stream)));
}

Task<Result<>> ClientStream::send(ByteView message, Deadline deadline) {
  const ByteView parts[] = {message};
  co_return co_await send(std::span<const ByteView>(parts), deadline);
}

}  // namespace cohive::rpc
