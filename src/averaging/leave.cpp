#include "leave.hpp"

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/transport/errors.hpp"
#include "wire.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kMessageTimeout = 10s;
constexpr std::size_t kMaxUnaware = 4096;

}  // namespace

LeaveNotices::LeaveNotices(p2p::Host& host, const std::string& protocol_prefix)
    : host_(host), protocol_(protocol_prefix + "rpc_leave") {}

void LeaveNotices::serve(rpc::Server& server, std::function<void(const PeerId&, const std::string&)> left) {
  server.add_streaming(protocol_, [&runtime = host_.runtime(), left = std::move(left)](rpc::ServerStream& stream) {
    return serve_notice(runtime, stream, left);
  });
}

Task<Result<>> LeaveNotices::serve_notice(Runtime& runtime, rpc::ServerStream& stream,
                                          std::function<void(const PeerId&, const std::string&)> left) {
  auto message = co_await stream.receive(runtime.after(kMessageTimeout));
  if (!message) co_return message.error();
  const std::string group_id = *message ? to_string((*message)->view()) : std::string();
  if (group_id.size() > kMaxGroupId) co_return Error(cohive::Errc::malformed, stream.peer(), "a group that is left");
  log::info("averaging", "{} {}", stream.peer(), group_id.empty() ? "averages no more" : "gives up its round");
  left(stream.peer(), group_id);
  co_return ok();
}

Task<void> LeaveNotices::tell(std::vector<PeerId> peers, std::string group_id, Deadline deadline) {
  std::vector<Task<void>> calls;
  for (const PeerId& peer : peers)
    if (peer != host_.id() && !unaware_.contains(peer)) calls.push_back(tell_one(peer, group_id, deadline));
  co_await when_all(host_.runtime(), std::move(calls));
}

Task<void> LeaveNotices::tell_one(PeerId peer, std::string group_id, Deadline deadline) {
  auto told = co_await call(peer, std::move(group_id), deadline);
  if (told) co_return;
  if (told.error() == transport::Errc::protocol_not_supported && unaware_.size() < kMaxUnaware) unaware_.insert(peer);
  log::debug("averaging", "{} has not heard that this peer leaves: {}", peer, told.error());
}

Task<Result<>> LeaveNotices::call(PeerId peer, std::string group_id, Deadline deadline) {
  auto call = co_await rpc::open_call(host_, peer, protocol_, deadline);
  if (!call) co_return call.error();
  if (auto sent = co_await (*call)->send(as_bytes(group_id), deadline); !sent) co_return sent;
  if (auto ended = co_await (*call)->finish(deadline); !ended) co_return ended;
  auto heard = co_await (*call)->receive(deadline);  // the end, once it was heard
  if (!heard) co_return heard.error();
  co_return ok();
}

}  // namespace cohive::averaging
