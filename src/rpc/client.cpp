// The calling side.
//   unary:     caller -> varint | PersistentConnectionRequest{callId, callUnary};  callee -> the same with unaryResponse, FIN.
//   streaming: caller -> records, END_OF_STREAM;  callee -> records, FIN.  The caller never half-closes: a FIN from it
//   is a cancellation. Source: hivemind wire spec, sections 2.2 and 2.3.
#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/proto/rpc.pb.h"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/metrics.hpp"
#include "records.hpp"

namespace cohive::rpc {
namespace {

constexpr std::size_t kCallIdSize = 16;

std::string new_call_id(Runtime& runtime) {
  Bytes id(kCallIdSize);
  runtime.random_bytes(id);
  id[6] = static_cast<std::uint8_t>((id[6] & 0x0f) | 0x40);  // UUID version 4
  id[8] = static_cast<std::uint8_t>((id[8] & 0x3f) | 0x80);
  return to_string(id);
}

Error handler_error(const PeerId& peer, std::string_view text) {
  return Error(Errc::handler_failed, peer, log::quoted(text, kMaxErrorText));
}

Task<Result<std::string>> exchange(p2p::Host& host, PeerId peer, std::string protocol, std::string request, Deadline deadline) {
  proto::PersistentConnectionRequest frame;
  frame.set_call_id(new_call_id(host.runtime()));
  auto* call = frame.mutable_call_unary();
  call->set_peer(peer.binary());
  call->set_proto(protocol);
  call->set_data(std::move(request));
  if (frame.ByteSizeLong() > kMaxUnaryFrame) co_return Error(Errc::frame_too_large, peer, "request to " + protocol);

  auto stream = co_await host.open_stream(peer, protocol, deadline);
  if (!stream) co_return stream.error();
  const std::string bytes = frame.SerializeAsString();
  auto sent = co_await transport::write_message(**stream, as_bytes(bytes), deadline);
  if (!sent) co_return sent.error();

  transport::StreamReader reader(**stream);
  auto reply = co_await reader.read_message(kMaxUnaryFrame, deadline);
  if (!reply) co_return reply.error();
  if (!*reply) co_return Error(Errc::call_cancelled, peer);
  if (!frame.ParseFromArray((*reply)->data(), static_cast<int>((*reply)->size())) || !frame.has_unary_response())
    co_return Error(Errc::malformed_frame, peer, "reply to " + protocol);
  (*stream)->close_write();
  auto& response = *frame.mutable_unary_response();
  if (response.has_error()) co_return handler_error(peer, response.error());
  if (!response.has_response()) co_return Error(Errc::malformed_frame, peer, "empty reply to " + protocol);
  co_return std::move(*response.mutable_response());
}

class ClientStreamOverHost final : public ClientStream {
 public:
  explicit ClientStreamOverHost(transport::StreamPtr stream) : stream_(std::move(stream)), reader_(*stream_), peer_(stream_->peer()) {}

  Task<Result<>> send(std::span<const ByteView> parts, Deadline deadline) override {
    if (finished_) co_return Error(Errc::message_after_end, peer_);
    co_return co_await write_record(*stream_, Marker::message, parts, deadline);
  }
  Task<Result<>> finish(Deadline deadline) override {
    if (std::exchange(finished_, true)) co_return ok();
    co_return co_await write_record(*stream_, Marker::error, {}, deadline);
  }
  Task<Result<std::optional<Slice>>> receive(Deadline deadline) override {
    auto record = co_await reader_.next(deadline);
    if (!record) co_return record.error();
    if (!*record) {
      stream_->close_write();
      co_return std::optional<Slice>();
    }
    if ((*record)->marker == Marker::message) co_return std::optional<Slice>(std::move((*record)->payload));
    proto::RPCError error;
    error.ParseFromArray((*record)->payload.data(), static_cast<int>((*record)->payload.size()));
    co_return handler_error(peer_, error.message());
  }
  const PeerId& peer() const override { return peer_; }

 private:
  transport::StreamPtr stream_;
  RecordReader reader_;
  PeerId peer_;
  bool finished_ = false;
};

}  // namespace

Task<Result<std::string>> call_unary(p2p::Host& host, PeerId peer, std::string protocol, std::string request, Deadline deadline) {
  auto result = co_await exchange(host, peer, protocol, std::move(request), deadline);
  const char* outcome = result ? "ok" : result.error() == cohive::Errc::timeout ? "timeout" : "failed";
  calls_counter(host.runtime().metrics(), protocol, "client", outcome).increment();
  co_return result;
}

Task<Result<ClientStreamPtr>> open_call(p2p::Host& host, PeerId peer, std::string protocol, Deadline deadline) {
  auto stream = co_await host.open_stream(peer, protocol, deadline);
  calls_counter(host.runtime().metrics(), protocol, "client", stream ? "opened" : "failed").increment();
  if (!stream) co_return stream.error();
  co_return ClientStreamPtr(std::make_unique<ClientStreamOverHost>(std::move(*stream)));
}

Task<Result<>> ClientStream::send(ByteView message, Deadline deadline) {
  const ByteView parts[] = {message};
  co_return co_await send(std::span<const ByteView>(parts), deadline);
}

}  // namespace cohive::rpc
