// A protocol without messages: what one end sends, the other sends back, until the sender has closed its direction.
#include "cohive/core/combine.hpp"
#include "peer.hpp"

namespace cohive::interop {
namespace {

using nlohmann::json;

constexpr std::string_view kEcho = "/interop/echo/1.0.0";
constexpr Duration kPatience = 30s;

Task<void> serve(Runtime& runtime, transport::StreamPtr stream) {
  for (;;) {
    const auto received = co_await stream->read(runtime.after(kPatience));
    if (!received) co_return;
    if (received->empty()) break;
    const auto sent = co_await stream->write(received->view(), runtime.after(kPatience));
    if (!sent) co_return;
  }
  stream->close_write();
}

Task<Result<>> send(transport::Stream& stream, const Bytes& bytes, Deadline deadline) {
  auto sent = co_await stream.write(bytes, deadline);
  stream.close_write();
  co_return sent;
}

Task<Result<>> compare(transport::Stream& stream, const Bytes& expected, Deadline deadline) {
  Bytes received;
  for (;;) {
    const auto more = co_await stream.read(deadline);
    if (!more) co_return more.error();
    if (more->empty()) break;
    const ByteView bytes = more->view();
    received.insert(received.end(), bytes.begin(), bytes.end());
  }
  if (received != expected) co_return Error(Errc::malformed, "other bytes came back");
  co_return ok();
}

Task<json> echo_serve(Peer& peer, json) {
  peer.host().set_handler(std::string(kEcho), [&runtime = peer.runtime](transport::StreamPtr stream) {
    return serve(runtime, std::move(stream));
  });
  co_return json();
}

/// peer, bytes: sends so many, while they come back
Task<json> echo_call(Peer& peer, json request) {
  const Deadline deadline = peer.runtime.after(kPatience);
  const auto stream =
      value_of(co_await peer.host().open_stream(peer_of(request.at("peer")), std::string(kEcho), deadline));
  Bytes sent(request.at("bytes").get<std::size_t>());
  peer.runtime.random_bytes(sent);
  std::vector<Task<Result<>>> both;
  both.push_back(send(*stream, sent, deadline));
  both.push_back(compare(*stream, sent, deadline));
  for (auto& result : co_await when_all(peer.runtime, std::move(both))) value_of(std::move(result));
  co_return sent.size();
}

}  // namespace

void add_echo_commands(Commands& commands) {
  commands["echo_serve"] = echo_serve;
  commands["echo_call"] = echo_call;
}

}  // namespace cohive::interop
