// The serving side. A handler lives as long as its caller: when the caller closes, resets, or sends more than it may,
// the handler is dropped. Source: docs/wire/hivemind.md, sections 2.2 and 2.3; docs/wire/libp2p.md, section 7.
#include <deque>
#include <set>

#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/rpc.pb.h"
#include "cohive/rpc/errors.hpp"
#include "cohive/rpc/metrics.hpp"
#include "core/detail/assertion.hpp"
#include "core/detail/bounded_parse.hpp"
#include "records.hpp"

namespace cohive::rpc {
namespace {

/// The largest reply over a slow home link.
constexpr Duration kReplyTimeout = 60s;
/// After the last reply, for END_OF_STREAM, which some callers do not send.
constexpr Duration kRequestsEnd = 1s;
/// The same after an error: a caller leaves once it has read that.
constexpr Duration kErrorRead = 10s;
/// Counted for each queued request on top of its bytes.
constexpr std::size_t kRequestOverhead = 64;

/// What the caller reads: printable ASCII, because Python refuses text that is not UTF-8.
std::string error_text(const Error& error) {
  std::string text = error.message().substr(0, kMaxErrorText);
  for (char& c : text)
    if (c < ' ' || c > '~') c = '?';
  return text;
}

/// A defect in a handler is ours: it is logged here, and the caller learns only that it happened.
Error note_defect(const std::string& protocol, const char* what) {
  log::error("rpc", "the handler of {} threw: {}", protocol, log::quoted(what));
  return Error(cohive::Errc::internal, protocol);
}

/// Ends when the caller closes, resets or sends anything: each of these cancels a unary call.
Task<Result<Slice>> caller_leaves(transport::Stream& stream) {
  return stream.read(Deadline::never());
}

/// What one peer has running here.
struct Caller {
  Caller(Runtime& runtime, std::shared_ptr<const MemoryBudget::Account> memory_of)
      : bytes(runtime, kMaxBytesPerPeer, "room for requests"),
        replies(runtime, kMaxBytesPerPeer, "room for replies"),
        account(std::move(memory_of)) {}
  std::size_t calls = 0;
  Semaphore bytes;
  Semaphore replies;  // on their way: a caller that asks for much and does not read it would fill our memory
  std::shared_ptr<const MemoryBudget::Account> account;  // what all callers together may fill
};

class ServerStreamOverStream final : public ServerStream {
 public:
  ServerStreamOverStream(transport::Stream& stream, Caller& caller)
      : stream_(stream),
        reader_(stream),
        writer_(stream),
        caller_(caller),
        changed_(stream.runtime(), "requests of a streaming call") {}

  Task<Result<std::optional<Slice>>> receive(Deadline deadline) override {
    for (;;) {
      if (!requests_.empty()) {
        Slice request = std::move(requests_.front().bytes);
        requests_.pop_front();
        queued_ -= request.size();
        changed_.notify_all();
        co_return std::optional<Slice>(std::move(request));
      }
      if (ended_) co_return std::optional<Slice>();
      if (!co_await changed_.wait(deadline))
        co_return Error(cohive::Errc::timeout, stream_.peer(), "waiting for a request");
    }
  }
  Task<Result<>> send(std::span<const ByteView> parts, Deadline deadline) override {
    co_return co_await writer_.write(Marker::message, parts, deadline);
  }
  Task<Result<>> send_while_moving(std::span<const ByteView> parts, Duration timeout) override {
    co_return co_await writer_.write_while_moving(Marker::message, parts, timeout);
  }
  void hint_bulk_receive() override { stream_.hint_bulk_receive(); }
  std::uint64_t received() const override { return reader_.bytes(); }
  const PeerId& peer() const override { return stream_.peer(); }

  /// Reads ahead a little, so that a caller that leaves is noticed while the handler works. Returns when it has left.
  Task<Error> read_requests() {
    for (;;) {
      while (queued_ > kMaxPrefetch || requests_.size() >= kMaxPrefetchedRequests) co_await changed_.wait();
      CO_TRY(auto header, co_await reader_.header(Deadline::never()));
      if (!header) co_return Error(Errc::call_cancelled, stream_.peer());
      const Marker marker = header->marker;
      auto units = co_await caller_.bytes.acquire(header->size + kRequestOverhead);
      MemoryBudget::Charge memory(caller_.account);
      if (!memory.add(header->size + kRequestOverhead))
        co_return Error(cohive::Errc::limit_exceeded, stream_.peer(), "memory for requests");
      CO_TRY(auto payload, co_await reader_.payload(Deadline::never()));
      stream_.set_begun(false);
      if (marker == Marker::error) {
        ended_ = true;
      } else if (ended_) {
        co_return Error(Errc::message_after_end, stream_.peer());
      } else if (!answered_) {
        queued_ += payload.size();
        requests_.push_back({std::move(payload), std::move(units), std::move(memory)});
      }
      changed_.notify_all();
    }
  }

  /// Everything is answered: further requests are thrown away, up to their end. Our end waits for that, because it
  /// closes the pipe of a Python caller, which then fails to write and loses what was answered.
  Task<void> requests_end(Deadline deadline) {
    answered_ = true;
    requests_.clear();
    queued_ = 0;
    changed_.notify_all();
    while (!ended_)
      if (!co_await changed_.wait(deadline)) break;
  }

  bool answered() const noexcept { return answered_; }
  RecordWriter& writer() noexcept { return writer_; }
  const RecordReader& reader() const noexcept { return reader_; }

 private:
  struct Request {
    Slice bytes;
    Semaphore::Units room;
    MemoryBudget::Charge memory;
  };
  transport::Stream& stream_;
  RecordReader reader_;
  RecordWriter writer_;
  Caller& caller_;
  std::deque<Request> requests_;
  std::size_t queued_ = 0;
  bool ended_ = false, answered_ = false;
  Condition changed_;
};

/// A registered method; exactly one of the handlers is set.
struct Method {
  std::string protocol;
  UnaryHandler unary;
  StreamingHandler streaming;
  const MethodMetrics& metrics;
};
using MethodPtr = std::shared_ptr<const Method>;

Task<Result<std::string>> handle(const Method& method, PeerId caller, std::string request) {
  try {
    co_return co_await method.unary(caller, std::move(request));
  } catch (const std::exception& error) {
    co_return note_defect(method.protocol, error.what());
  }
}
Task<Result<>> handle(const Method& method, ServerStream& stream) {
  try {
    co_return co_await method.streaming(stream);
  } catch (const std::exception& error) {
    co_return note_defect(method.protocol, error.what());
  }
}

/// A request frame and the room it takes.
struct Request {
  proto::PersistentConnectionRequest frame;
  Semaphore::Units room;
  MemoryBudget::Charge memory;
};

/// nullopt when the caller did not send a complete and valid frame in time.
Task<std::optional<Request>> read_request(Runtime& runtime, transport::Stream& stream, Caller& caller) {
  const Deadline deadline = runtime.after(kRequestReadTimeout);
  transport::StreamReader reader(stream);
  const auto length = co_await reader.read_length(kMaxUnaryFrame, deadline);
  if (!length || !*length || **length <= kCallIdSize) co_return std::nullopt;  // every frame has a call id
  Request request;
  request.room = co_await caller.bytes.acquire(**length, deadline);
  if (!request.room) co_return std::nullopt;
  request.memory = MemoryBudget::Charge(caller.account);
  if (!request.memory.add(**length)) co_return std::nullopt;
  const auto bytes = co_await reader.read_message(kMaxUnaryFrame, deadline);
  if (!bytes) co_return std::nullopt;
  COHIVE_ASSERT(*bytes && (*bytes)->size() == **length);
  auto& frame = request.frame;
  if (!parse_bounded(frame, **bytes) || frame.call_id().size() != kCallIdSize || !frame.has_call_unary())
    co_return std::nullopt;
  co_return request;
}

/// The reply frame; `result` becomes an error when it is too large for one.
std::string make_reply(const std::string& call_id, Result<std::string>& result) {
  proto::PersistentConnectionRequest reply;
  reply.set_call_id(call_id);
  if (result) {
    reply.mutable_unary_response()->set_response(std::move(*result));
    if (reply.ByteSizeLong() > kMaxUnaryFrame) result = Error(Errc::frame_too_large, "reply");
  }
  if (!result) {
    auto& response = *reply.mutable_unary_response();
    response.set_error(error_text(result.error()));
    if (result.error() == Errc::busy) response.set_busy(true);
  }
  return reply.SerializeAsString();
}

Task<void> serve_unary(Runtime& runtime, transport::Stream& stream, const Method& method, Caller& caller) {
  CallRecord record(runtime, method.metrics);
  auto request = co_await read_request(runtime, stream, caller);
  if (!request) {
    record.outcome = Outcome::malformed;
    stream.close_write();  // as p2pd does: no reply
    co_return;
  }
  stream.set_begun(false);
  const std::string call_id = request->frame.call_id();
  std::string input = std::move(*request->frame.mutable_call_unary()->mutable_data());
  record.received = input.size();
  auto ended = co_await race(runtime, handle(method, stream.peer(), std::move(input)), caller_leaves(stream));
  if (ended.index() == 1) co_return;  // cancelled
  auto& result = std::get<0>(ended);
  const std::string reply = make_reply(call_id, result);
  if (!result) log::debug("rpc", "{} failed for {}: {}", method.protocol, stream.peer(), result.error());
  const auto room = caller.replies.try_acquire(reply.size());
  MemoryBudget::Charge memory(caller.account);
  if (!room || !memory.add(reply.size())) {
    log::debug("rpc", "{} refused: {} does not read its replies", method.protocol, stream.peer());
    record.outcome = Outcome::refused;
    co_return;  // dropping the stream resets it
  }
  auto sent = co_await transport::write_message(stream, as_bytes(reply), runtime.after(kReplyTimeout));
  if (!sent) co_return;
  record.sent = reply.size();
  record.outcome = result ? Outcome::ok : result.error() == Errc::busy ? Outcome::refused : Outcome::failed;
  stream.close_write();
}

Task<void> answer(Runtime& runtime, const Method& method, ServerStreamOverStream& call, CallRecord& record) {
  auto result = co_await handle(method, call);
  if (!result) {
    log::debug("rpc", "{} failed for {}: {}", method.protocol, call.peer(), result.error());
    proto::RPCError error;
    error.set_message(error_text(result.error()));
    const std::string bytes = error.SerializeAsString();
    const ByteView parts[] = {as_bytes(bytes)};
    const auto sent = co_await call.writer().write(Marker::error, parts, runtime.after(kReplyTimeout));
    if (!sent) log::debug("rpc", "{} does not hear of it: {}", call.peer(), sent.error());
  }
  // Half a message went out: only a reset tells the caller that the rest will not come.
  if (call.writer().unfinished()) co_return;
  record.end(result ? Outcome::ok : Outcome::failed);
  co_await call.requests_end(runtime.after(result ? kRequestsEnd : kErrorRead));
}

Task<void> serve_streaming(Runtime& runtime, transport::Stream& stream, const Method& method, Caller& caller) {
  CallRecord record(runtime, method.metrics);
  ServerStreamOverStream call(stream, caller);
  const auto end = on_exit([&] {
    record.sent = call.writer().bytes();
    record.received = call.reader().bytes();
    if (call.answered()) stream.close_write();  // also when the server ends first: what was answered arrives
  });
  auto ended = co_await race(runtime, answer(runtime, method, call, record), call.read_requests());
  if (!call.answered() && ended.index() == 1) {
    const Error& reason = std::get<1>(ended);
    log::debug("rpc", "{} cancelled: {}", method.protocol, reason);
    if (reason == Errc::malformed_frame || reason == Errc::frame_too_large || reason == Errc::message_after_end)
      record.outcome = Outcome::malformed;
  }
}

}  // namespace

struct Server::Impl {
  explicit Impl(p2p::Host& h) : host(h), runtime(h.runtime()), tasks(runtime, "rpc server") {}
  using Callers = std::unordered_map<PeerId, Caller>;

  /// One running call of a peer. A handler that ends its own server goes last, so the table is shared.
  struct Running {
    Running(const Impl& server, const transport::Stream& stream)
        : callers(server.callers),
          peer(stream.peer()),
          caller(callers->try_emplace(peer, server.runtime, server.host.memory().account(peer, stream.remote_address()))
                     .first->second) {
      ++caller.calls;
    }
    ~Running() {
      if (--caller.calls == 0) callers->erase(peer);
    }
    Running(const Running&) = delete;
    Running& operator=(const Running&) = delete;
    std::shared_ptr<Callers> callers;
    PeerId peer;
    Caller& caller;
  };

  /// Moves a call into our own group, so that it ends with the server, and bounds how many one peer runs.
  void start(transport::StreamPtr stream, MethodPtr method) {
    auto running = std::make_unique<Running>(*this, *stream);
    if (running->caller.calls > kMaxCallsPerPeer) {
      log::debug("rpc", "{} refused: {} runs too many calls", method->protocol, stream->peer());
      method->metrics.calls[static_cast<std::size_t>(Outcome::refused)].increment();
      return;  // dropping the stream resets it
    }
    stream->set_begun(true);
    tasks.spawn(serve(host, std::move(running), std::move(stream), std::move(method)), "rpc call");
  }

  static Task<void> serve(p2p::Host& host, std::unique_ptr<Running> counted, transport::StreamPtr call_stream,
                          MethodPtr call_method) {
    const auto running = std::move(counted);  // as a local variable it outlives what the call below holds
    const auto method = std::move(call_method);
    const auto stream = std::move(call_stream);
    Runtime& runtime = host.runtime();
    // What a peer that is no member sends to a swarm with members is not read. Unary calls carry their proof
    // themselves.
    if (!method->unary) {
      const auto member = co_await host.check_member(stream->peer(), true, runtime.after(kRequestReadTimeout));
      if (!member) {
        log::debug("rpc", "{} refused: {}", method->protocol, member.error());
        method->metrics.calls[static_cast<std::size_t>(Outcome::refused)].increment();
        co_return;  // dropping the stream resets it
      }
    }
    co_await (method->unary ? serve_unary(runtime, *stream, *method, running->caller)
                            : serve_streaming(runtime, *stream, *method, running->caller));
  }

  p2p::Host& host;
  Runtime& runtime;
  std::set<std::string> protocols;
  std::shared_ptr<Callers> callers = std::make_shared<Callers>();
  TaskGroup tasks;
};

namespace {
Task<void> nothing() {
  co_return;
}

void add(p2p::Host& host, Server::Impl& impl, std::string protocol, UnaryHandler unary, StreamingHandler streaming) {
  const MethodMetrics& metrics = host.runtime().local<RpcMetrics>().server(protocol);
  auto method = std::make_shared<const Method>(protocol, std::move(unary), std::move(streaming), metrics);
  host.set_handler(protocol, [&impl, method = std::move(method)](transport::StreamPtr stream) {
    impl.start(std::move(stream), method);
    return nothing();
  });
  impl.protocols.insert(std::move(protocol));
}
}  // namespace

Server::Server(p2p::Host& host) : host_(host), impl_(std::make_unique<Impl>(host)) {}

Server::~Server() {
  for (const auto& protocol : impl_->protocols) host_.remove_handler(protocol);
}

void Server::add_unary(std::string protocol, UnaryHandler handler) {
  add(host_, *impl_, std::move(protocol), std::move(handler), nullptr);
}

void Server::add_streaming(std::string protocol, StreamingHandler handler) {
  add(host_, *impl_, std::move(protocol), nullptr, std::move(handler));
}

void Server::remove(const std::string& protocol) {
  if (impl_->protocols.erase(protocol) > 0) host_.remove_handler(protocol);
}

Task<Result<>> ServerStream::send(ByteView message, Deadline deadline) {
  const ByteView parts[] = {message};
  co_return co_await send(std::span<const ByteView>(parts), deadline);
}

}  // namespace cohive::rpc
