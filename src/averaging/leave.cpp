#include "leave.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kMessageTimeout = 10s;

Task<Result<>> call_leave(p2p::Host& host, PeerId peer, std::string protocol, Deadline deadline) {
  auto call = co_await rpc::open_call(host, peer, std::move(protocol), deadline);
  if (!call) co_return call.error();
  if (auto sent = co_await (*call)->send(ByteView(), deadline); !sent) co_return sent;
  if (auto ended = co_await (*call)->finish(deadline); !ended) co_return ended;
  auto heard = co_await (*call)->receive(deadline);  // the end, once it was heard
  if (!heard) co_return heard.error();
  co_return ok();
}

}  // namespace

std::string leave_protocol(const std::string& protocol_prefix) {
  return protocol_prefix + "rpc_leave";
}

Task<void> tell_leave(p2p::Host& host, PeerId peer, std::string protocol_prefix, Deadline deadline) {
  auto told = co_await call_leave(host, peer, leave_protocol(protocol_prefix), deadline);
  if (!told) log::debug("averaging", "{} has not heard that this peer leaves: {}", peer, told.error());
}

Task<Result<>> serve_leave(Runtime& runtime, rpc::ServerStream& stream, std::function<void(const PeerId&)> left) {
  auto message = co_await stream.receive(runtime.after(kMessageTimeout));
  if (!message) co_return message.error();
  log::info("averaging", "{} averages no more", stream.peer());
  left(stream.peer());
  co_return ok();
}

}  // namespace cohive::averaging
