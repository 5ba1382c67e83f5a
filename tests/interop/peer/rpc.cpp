// Handlers that a test registers by what they do, and calls that it makes and drops. Requests and replies are bytes.
#include "cohive/rpc/rpc.hpp"

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "peer.hpp"

namespace cohive::interop {
namespace {

using nlohmann::json;

constexpr Duration kCallTimeout = 30s;

struct Count {
  std::size_t running = 0, finished = 0, dropped = 0, requests = 0;
};

struct Calls {
  explicit Calls(p2p::Host& host) : server(host) {}
  std::map<std::string, Count> served;                 // by protocol
  std::map<std::string, std::shared_ptr<Event>> made;  // by the name the test gave; set to drop the call
  rpc::Server server;                                  // first to go: its handlers count
};

Calls& calls_of(Peer& peer) {
  if (!peer.calls_) peer.calls_ = std::make_shared<Calls>(peer.host());
  return *std::static_pointer_cast<Calls>(peer.calls_);
}

/// A handler at work: dropped unless it says that it finished.
class Running {
 public:
  explicit Running(Count& count) : count_(count) { ++count_.running; }
  ~Running() {
    --count_.running;
    ++(finished_ ? count_.finished : count_.dropped);
  }
  void finish() { finished_ = true; }

 private:
  Count& count_;
  bool finished_ = false;
};

Task<Result<std::string>> serve_unary(Runtime& runtime, Count& count, json behaviour, PeerId caller,
                                      std::string request) {
  Running running(count);
  ++count.requests;
  const std::string kind = behaviour.at("does");
  if (kind == "wait") co_await runtime.sleep_for(1h);
  running.finish();
  if (kind == "fail") co_return Error(Errc::malformed, behaviour.at("text").get<std::string>());
  if (kind == "name the caller") co_return caller.binary();
  co_return request;
}

Task<Result<>> serve_streaming(Runtime& runtime, Count& count, json behaviour, rpc::ServerStream& call) {
  Running running(count);
  const std::string kind = behaviour.at("does");
  Bytes last;
  for (;;) {
    auto request = co_await call.receive(runtime.after(kCallTimeout));
    if (!request) co_return request.error();
    if (!*request) break;
    ++count.requests;
    const ByteView bytes = (*request)->view();
    last.assign(bytes.begin(), bytes.end());
    if (kind == "fail") {
      running.finish();
      co_return Error(Errc::malformed, behaviour.at("text").get<std::string>());
    }
    if (kind == "wait") co_await runtime.sleep_for(1h);
    const int replies = kind == "echo" ? 1 : kind == "repeat" ? behaviour.at("times").get<int>() : 0;
    for (int i = 0; i < replies; ++i) {
      auto sent = co_await call.send(last, runtime.after(kCallTimeout));
      if (!sent) co_return sent.error();
    }
  }
  if (kind == "collect") {
    auto sent = co_await call.send(last, runtime.after(kCallTimeout));
    if (!sent) co_return sent.error();
  }
  running.finish();
  co_return ok();
}

/// protocol, streaming, does: unary "echo", "fail" (text), "wait", "name the caller"; streaming "echo", "fail" at the
/// first request, "wait", "repeat" each request (times), "collect" (replies with the last request after the end)
Task<json> rpc_serve(Peer& peer, json request) {
  Calls& calls = calls_of(peer);
  const std::string protocol = request.at("protocol");
  Count& count = calls.served[protocol];
  if (request.value("streaming", false)) {
    calls.server.add_streaming(protocol, [&runtime = peer.runtime, &count, request](rpc::ServerStream& call) {
      return serve_streaming(runtime, count, request, call);
    });
  } else {
    calls.server.add_unary(protocol, [&runtime = peer.runtime, &count, request](PeerId caller, std::string input) {
      return serve_unary(runtime, count, request, caller, std::move(input));
    });
  }
  co_return json();
}

/// protocol: how the calls of it went here
Task<json> rpc_served(Peer& peer, json request) {
  const Count& count = calls_of(peer).served[request.at("protocol")];
  co_return json{{"running", count.running},
                 {"finished", count.finished},
                 {"dropped", count.dropped},
                 {"requests", count.requests}};
}

/// Awaits `call`, unless a test drops the call of this name.
template <class T>
Task<T> droppable(Peer& peer, std::string name, Task<T> call) {
  auto dropped = std::make_shared<Event>(peer.runtime, "drop");
  if (!name.empty()) calls_of(peer).made[name] = dropped;
  auto wait = [](std::shared_ptr<Event> event) -> Task<void> { co_await event->wait(); };
  auto ended = co_await race(peer.runtime, std::move(call), wait(dropped));
  if (ended.index() == 1) throw std::runtime_error("dropped");
  co_return std::move(std::get<0>(ended));
}

/// peer, protocol, request, name (for rpc_drop)
Task<json> rpc_call(Peer& peer, json request) {
  const Bytes input = bytes_of(request.at("request"));
  auto call = rpc::call_unary(peer.host(), peer_of(request.at("peer")), request.at("protocol"), to_string(input),
                              peer.runtime.after(kCallTimeout));
  const auto reply = value_of(co_await droppable(peer, request.value("name", std::string()), std::move(call)));
  co_return to_hex(as_bytes(reply));
}

Task<void> send_requests(Runtime& runtime, rpc::ClientStream& call, std::vector<Bytes> requests, int times, bool end) {
  for (int i = 0; i < times; ++i)
    for (const auto& one : requests)
      if (!co_await call.send(one, runtime.after(kCallTimeout))) co_return;
  if (end) (void)co_await call.finish(runtime.after(kCallTimeout));
}

Task<json> exchange(Peer& peer, json request) {
  auto call = value_of(co_await rpc::open_call(peer.host(), peer_of(request.at("peer")), request.at("protocol"),
                                               peer.runtime.after(kCallTimeout)));
  std::vector<Bytes> requests;
  for (const auto& one : request.at("requests")) requests.push_back(bytes_of(one));
  Nursery sending(peer.runtime, "requests");
  sending.spawn(
      send_requests(peer.runtime, *call, std::move(requests), request.value("times", 1), request.value("end", true)),
      "requests");
  json result{{"replies", json::array()}, {"count", 0}};
  const int at_most = request.value("take", -1);
  for (int count = 0; count != at_most; ++count) {
    auto reply = co_await call->receive(peer.runtime.after(kCallTimeout));
    if (!reply) {
      result["error"] = reply.error().message();
      break;
    }
    if (!*reply) break;
    if (!request.value("only_count", false)) result["replies"].push_back(to_hex((*reply)->view()));
    result["count"] = count + 1;
  }
  co_return result;
}

/// peer, protocol, requests, times (they are sent), end (whether the end is sent), take (replies, then the call is
/// dropped), only_count, name (for rpc_drop); replies, how many, and the error if the call ended in one
Task<json> rpc_stream(Peer& peer, json request) {
  std::string name = request.value("name", std::string());
  auto call = exchange(peer, std::move(request));
  co_return co_await droppable(peer, std::move(name), std::move(call));
}

/// name
Task<json> rpc_drop(Peer& peer, json request) {
  calls_of(peer).made.at(request.at("name"))->set();
  co_return json();
}

}  // namespace

void add_rpc_commands(Commands& commands) {
  commands["rpc_serve"] = rpc_serve;
  commands["rpc_served"] = rpc_served;
  commands["rpc_call"] = rpc_call;
  commands["rpc_stream"] = rpc_stream;
  commands["rpc_drop"] = rpc_drop;
}

}  // namespace cohive::interop
