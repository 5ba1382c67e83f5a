#include "ping.hpp"

#include "cohive/p2p/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kPingSize = 32;
constexpr std::size_t kMaxPingStreams = 4;  // of one peer
constexpr Duration kPingIdle = 60s;

Task<void> echo(Runtime& runtime, transport::StreamPtr stream) {
  transport::StreamReader reader(*stream);
  for (;;) {
    auto request = co_await reader.read_exactly(kPingSize, runtime.after(kPingIdle));
    if (!request) break;
    auto written = co_await stream->write(*request, runtime.after(kPingIdle));
    if (!written) co_return;
    co_await runtime.yield();  // a peer that asks without pause does not keep other peers waiting
  }
  stream->close_write();
}

}  // namespace

void serve_ping(Handlers& handlers, Runtime& runtime) {
  handlers.add(
      kPingProtocol, [&runtime](transport::StreamPtr stream) { return echo(runtime, std::move(stream)); },
      kMaxPingStreams);
}

Task<Result<Duration>> ping(Host& host, PeerId peer, Deadline deadline) {
  auto stream = co_await host.open_stream(peer, kPingProtocol, deadline);
  if (!stream) co_return stream.error();
  // Negotiation must not count: it is over before the clock starts.
  Bytes sent(kPingSize);
  TimePoint start{};
  for (int round = 0; round < 2; ++round) {
    host.runtime().random_bytes(sent);
    start = host.runtime().now();
    auto written = co_await (*stream)->write(sent, deadline);
    if (!written) co_return written.error();
    transport::StreamReader reader(**stream);
    auto echoed = co_await reader.read_exactly(kPingSize, deadline);
    if (!echoed) co_return echoed.error();
    if (*echoed != sent) co_return Error(Errc::ping_mismatch, peer);
  }
  (*stream)->close_write();
  co_return host.runtime().now() - start;
}

}  // namespace cohive::p2p
