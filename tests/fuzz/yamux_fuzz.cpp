// yamux frames, against an application that reads and answers. Input: role, size of the pieces that arrive together,
// then the frames.
#include "transport/noise_channel.hpp"
#include "transport/yamux.hpp"

#include "cohive/core/sim_runtime.hpp"
#include "fuzz.hpp"
#include "transport/memory_connection.hpp"

namespace cohive::fuzz {
namespace {

using namespace transport;

Task<void> echo(StreamPtr stream) {
  const Deadline deadline = stream->runtime().after(5s);
  for (;;) {
    const auto slice = co_await stream->read(deadline);
    if (!slice) co_return;
    if (slice->empty()) break;
    if (!co_await stream->write(slice->view(), deadline)) co_return;
  }
  stream->close_write();
}

Task<void> serve(Connection& connection, TaskGroup& tasks) {
  for (;;) {
    auto stream = co_await connection.accept_stream();
    if (!stream) co_return;
    tasks.spawn(echo(std::move(*stream)));
  }
}

Task<void> speak(StreamPtr stream) {
  if (!co_await stream->write(as_bytes("hello"), stream->runtime().after(5s))) co_return;
  co_await echo(std::move(stream));
}

}  // namespace

COHIVE_FUZZ_TARGET(yamux)(ByteView bytes) {
  static const PeerId peer = KeyPair::ed25519_from_seed(Bytes(32, 9)).peer_id();
  Input input(bytes);
  const Role role = input.byte() % 2 ? Role::initiator : Role::responder;
  const std::size_t piece = 1 + input.byte();
  SimRuntime runtime;
  transport::test::Wire wire(runtime);
  auto channel = std::make_unique<NoiseChannel>(runtime, wire.our_end(), std::nullopt, Bytes());
  YamuxConnection connection(runtime, std::move(channel), role, peer, "plaintext",
                             std::make_shared<const TransportOptions>());
  TaskGroup tasks(runtime);
  tasks.spawn(serve(connection, tasks));
  if (auto stream = connection.open_stream()) tasks.spawn(speak(std::move(*stream)));
  runtime.run_ready();
  while (!input.empty()) {
    wire.send(input.take(piece));
    runtime.run_ready();
    (void)wire.received();
  }
  wire.finish();
  runtime.run_for(10s);
  expect(connection.closed(), "a connection ends with its wire");
  expect(tasks.empty(), "streams end with their connection");
  expect(connection.stats().streams_in + connection.stats().streams_out == 0, "no stream outlives its connection");
}

}  // namespace cohive::fuzz
