// An encrypted stream between two processes over loopback, and the round trip of small calls.
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>

#include "bench/bench.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/rpc/rpc.hpp"

namespace cohive::bench {
namespace {

const char* const kSink = "/bench/sink/1";
const char* const kSource = "/bench/source/1";
const char* const kEcho = "Bench.rpc_echo";

Task<void> drain(transport::StreamPtr stream) {
  for (;;) {
    auto bytes = co_await stream->read(Deadline::never());
    if (!bytes || bytes->empty()) break;
  }
  stream->close_write();
}

/// Writes until the other side resets the stream.
Task<void> pour(transport::StreamPtr stream) {
  const Bytes block(1 << 20, 7);
  while (co_await stream->write(block, Deadline::never())) continue;
}

Task<Result<std::string>> echo(PeerId, std::string request) {
  co_return request;
}

/// The other process: serves until its parent closes the pipe's other end.
Task<void> serve(Runtime& runtime, int address_pipe, bool aes) {
  const auto network = transport::make_tcp_network(runtime);
  p2p::HostOptions options;
  options.transport.aes = aes;
  options.listen = {Multiaddr::from_text("/ip4/127.0.0.1/tcp/0").value()};
  p2p::Host host(*network, KeyPair::generate_ed25519(), options);
  host.start().value();
  host.set_handler(kSink, drain);
  host.set_handler(kSource, pour);
  rpc::Server server(host);
  server.add_unary(kEcho, echo);
  const std::string address = host.visible_addresses().front().text() + "\n";
  if (::write(address_pipe, address.data(), address.size()) < 0) co_return;
  (void)co_await wait_for_signal(runtime);
}

/// Bytes per second through one stream.
Task<double> stream_speed(Runtime& runtime, p2p::Host& host, PeerId peer, double seconds) {
  auto stream = (co_await host.open_stream(peer, kSink, runtime.after(10s))).value();
  const Bytes block(1 << 20, 7);
  std::uint64_t bytes = 0;
  const double start = now_seconds();
  while (now_seconds() - start < seconds) {
    (co_await stream->write(block, runtime.after(10s))).value();
    bytes += block.size();
  }
  stream->close_write();
  (co_await stream->read(runtime.after(10s))).value();  // everything has been read over there
  co_return static_cast<double>(bytes) / (now_seconds() - start);
}

Task<void> count_bytes(transport::StreamPtr stream, std::uint64_t& bytes) {
  for (;;) {
    auto slice = co_await stream->read(Deadline::never());
    if (!slice || slice->empty()) break;
    bytes += slice->size();
  }
}

/// Bytes per second each way, with both busy at once, as in an all-reduce.
Task<double> both_ways_speed(Runtime& runtime, p2p::Host& host, PeerId peer, double seconds) {
  std::uint64_t received = 0;
  Nursery incoming(runtime, "incoming stream");
  incoming.spawn(count_bytes((co_await host.open_stream(peer, kSource, runtime.after(10s))).value(), received),
                 "incoming stream");
  const double start = now_seconds();
  const double sent = co_await stream_speed(runtime, host, peer, seconds);
  co_return std::min(sent, static_cast<double>(received) / (now_seconds() - start));
}

Task<nlohmann::json> measure(Runtime& runtime, std::string address, Settings settings) {
  const auto network = transport::make_tcp_network(runtime);
  p2p::Host host(*network, KeyPair::generate_ed25519());
  host.start().value();
  const PeerId peer = (co_await host.connect(Multiaddr::from_text(address).value(), runtime.after(10s))).value();
  const double speed = co_await stream_speed(runtime, host, peer, settings.seconds);
  const double both_ways = co_await both_ways_speed(runtime, host, peer, settings.seconds);
  std::vector<double> trips;
  const double start = now_seconds();
  while (now_seconds() - start < settings.seconds / 2) {
    const double call_start = now_seconds();
    (co_await rpc::call_unary(host, peer, kEcho, "ping", runtime.after(5s))).value();
    trips.push_back(now_seconds() - call_start);
  }
  co_return nlohmann::json{{"stream_megabytes_per_second", speed / 1e6},
                           {"both_ways_megabytes_per_second", both_ways / 1e6},  // each way
                           {"unary_calls_per_second", static_cast<double>(trips.size()) / (now_seconds() - start)},
                           {"unary_p50_ms", percentile_ms(trips, 0.5)},
                           {"unary_p99_ms", percentile_ms(trips, 0.99)}};
}

nlohmann::json between_processes(const Settings& settings, bool aes) {
  int pipe_ends[2];
  if (::pipe(pipe_ends) != 0) throw std::runtime_error("pipe failed");
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(pipe_ends[0]);
    pin_to_core(0);
    auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
    runtime->run(serve(*runtime, pipe_ends[1], aes));
    ::_exit(0);
  }
  ::close(pipe_ends[1]);
  std::string address;
  for (char c; ::read(pipe_ends[0], &c, 1) == 1 && c != '\n';) address.push_back(c);
  ::close(pipe_ends[0]);
  pin_to_core(1);
  auto runtime = make_runtime({.seed = 0, .pool_threads = 1});
  auto result = runtime->run(measure(*runtime, address, settings));
  ::kill(child, SIGTERM);
  ::waitpid(child, nullptr, 0);
  return result;
}

}  // namespace

nlohmann::json transport(const Settings& settings) {
  nlohmann::json result{{"benchmark", "transport"}, {"chacha20_poly1305", between_processes(settings, false)}};
  if (crypto::has_fast_aes()) result["aes256_gcm"] = between_processes(settings, true);
  return result;
}

}  // namespace cohive::bench
