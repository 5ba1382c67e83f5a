#include "notices.hpp"

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/transport/errors.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kMessageTimeout = 10s;
constexpr std::size_t kMaxUnaware = 4096;
constexpr std::size_t kMaxNotice = 4096;

}  // namespace

void Notices::serve(rpc::Server& server, Hear hear) {
  server.add_streaming(protocol_, [&runtime = host_.runtime(), hear = std::move(hear)](rpc::ServerStream& stream) {
    return serve_notice(runtime, stream, hear);
  });
}

Task<Result<>> Notices::serve_notice(Runtime& runtime, rpc::ServerStream& stream, Hear hear) {
  auto record = co_await stream.receive(runtime.after(kMessageTimeout));
  if (!record) co_return record.error();
  if (*record && (*record)->size() > kMaxNotice) co_return Error(cohive::Errc::malformed, stream.peer(), "a notice");
  co_return hear(stream.peer(), *record ? (*record)->view() : ByteView());
}

Task<void> Notices::tell(std::vector<PeerId> peers, std::string record, Deadline deadline) {
  std::vector<Task<void>> calls;
  for (const PeerId& peer : peers)
    if (peer != host_.id() && !unaware_.contains(peer)) calls.push_back(tell_one(peer, record, deadline));
  co_await when_all(host_.runtime(), std::move(calls));
}

Task<void> Notices::tell_one(PeerId peer, std::string record, Deadline deadline) {
  auto told = co_await call(peer, std::move(record), deadline);
  if (told) co_return;
  if (told.error() == transport::Errc::protocol_not_supported && unaware_.size() < kMaxUnaware) unaware_.insert(peer);
  log::debug("averaging", "{} has not heard {}: {}", peer, protocol_, told.error());
}

Task<Result<>> Notices::call(PeerId peer, std::string record, Deadline deadline) {
  auto call = co_await rpc::open_call(host_, peer, protocol_, deadline);
  if (!call) co_return call.error();
  if (auto sent = co_await (*call)->send(as_bytes(record), deadline); !sent) co_return sent;
  if (auto ended = co_await (*call)->finish(deadline); !ended) co_return ended;
  auto heard = co_await (*call)->receive(deadline);  // the end, once it was heard
  if (!heard) co_return heard.error();
  co_return ok();
}

}  // namespace cohive::averaging
