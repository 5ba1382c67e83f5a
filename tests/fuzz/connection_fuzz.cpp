// A whole connection: a stranger that has said who it is, and then speaks yamux, multistream, the host's protocols,
// calls and DHT as it likes, on any number of streams, its own and those that the peer opens. Input: a list of steps,
// see take_step(). What the peer takes of memory is bounded by what came over the wire, and nothing stays behind.
#include "cohive/core/try.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/proto/rpc.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "connection_stranger.hpp"
#include "dht_validators.hpp"
#include "support/memory_peak.hpp"

namespace cohive::fuzz {
namespace {

constexpr int kMaxSteps = 200;
constexpr std::size_t kMaxWire = 18 << 20;  // a frame of 16 MiB, and what belongs to it
// Of memory for each byte of the wire, and once: streams, tasks, tables, buffers of fixed size.
constexpr std::size_t kBytesPerWireByte = 16, kBytesOfAConnection = 1 << 20;

const std::string kConnectionProtocols[] = {"DHTProtocol.rpc_ping",  "DHTProtocol.rpc_store", "DHTProtocol.rpc_find",
                                            "Test.rpc_unary",        "Test.rpc_stream",       "/ipfs/kad/1.0.0",
                                            "/ipfs/id/1.0.0",        "/ipfs/id/push/1.0.0",   "/ipfs/ping/1.0.0",
                                            "/libp2p/autonat/1.0.0", "/libp2p/dcutr",         "unknown to the peer"};

Task<Result<std::string>> say_again(PeerId, std::string request) {
  co_return request;
}

Task<Result<>> say_all_again(rpc::ServerStream& stream) {
  for (;;) {
    CO_TRY(auto request, co_await stream.receive(Deadline::never()));
    if (!request) co_return ok();
    CO_TRY(co_await stream.send(request->view(), Deadline::never()));
  }
}

std::size_t number(Input& input, int bytes) {
  std::size_t value = 0;
  for (int i = 0; i < bytes; ++i) value = value << 8 | input.byte();
  return value;
}

std::string with_length(std::string_view message) {
  std::string framed;
  append_varint(framed, message.size());
  return framed.append(message);
}

std::string as_record(std::uint8_t marker, std::string_view message) {
  std::string record(1, static_cast<char>(marker % 2));
  for (int shift = 56; shift >= 0; shift -= 8) record.push_back(static_cast<char>(message.size() >> shift & 255));
  return record.append(message);
}

std::string as_call(const std::string& protocol, std::string_view request) {
  proto::PersistentConnectionRequest call;
  call.set_call_id(std::string(16, 'i'));
  call.mutable_call_unary()->set_peer("");
  call.mutable_call_unary()->set_proto(protocol);
  call.mutable_call_unary()->set_data(std::string(request));
  return with_length(call.SerializeAsString());
}

/// A byte chooses the step; what it takes is behind it: numbers are big-endian, bytes have their length before them.
void take_step(Input& input, sim::Swarm& swarm, ConnectionStranger& stranger) {
  const auto protocol = [&] { return kConnectionProtocols[input.byte() % std::size(kConnectionProtocols)]; };
  const auto bytes = [&](int digits) { return as_text(input.take(number(input, digits))); };
  switch (input.byte() % 10) {
    case 0:
      return stranger.open(protocol());
    case 1: {  // stream, bytes
      const std::size_t stream = input.byte();
      return stranger.data(stream, as_bytes(bytes(2)));
    }
    case 2: {  // stream, message
      const std::size_t stream = input.byte();
      return stranger.data(stream, as_bytes(with_length(bytes(2))));
    }
    case 3: {  // stream, marker, record of a streaming call
      const std::size_t stream = input.byte();
      const std::uint8_t marker = input.byte();
      return stranger.data(stream, as_bytes(as_record(marker, bytes(2))));
    }
    case 4: {  // protocol, request of a call, on a stream of its own
      const std::string called = protocol();
      stranger.open(called);
      return stranger.data(input.byte(), as_bytes(as_call(called, bytes(2))));
    }
    case 5: {  // stream, bytes, bytes that come again, how often: makes long frames of short inputs
      const std::size_t stream = input.byte();
      stranger.data(stream, as_bytes(bytes(1)));
      const auto again = bytes(1);
      const std::size_t times = number(input, 3);
      return stranger.data(stream, as_bytes(again), again.empty() ? 0 : std::min(times, kMaxWire / again.size()));
    }
    case 6:
      return stranger.end(input.byte(), yamux::kFin);
    case 7:
      return stranger.end(input.byte(), yamux::kRst);
    case 8:
      return stranger.write(as_bytes(bytes(1)));  // frames of any kind, or parts of them
    default:
      return swarm.pass(100ms * input.byte());
  }
}

}  // namespace

COHIVE_FUZZ_TARGET(connection)(ByteView bytes) {
  (void)rsa_validator();
  (void)schema_validator();
  sim::Swarm swarm{{.seed = 3}};
  p2p::Host& peer = swarm.add_host();
  {
    rpc::Server server(peer);
    server.add_unary("Test.rpc_unary", say_again);
    server.add_streaming("Test.rpc_stream", say_all_again);
    Dht dht(peer);
    dht.add_validator(rsa_validator());
    dht.add_validator(schema_validator());
    ConnectionStranger stranger(swarm, peer);
    const MemoryPeak peak;
    Input input(bytes);
    for (int i = 0; i < kMaxSteps && !input.empty() && !stranger.over() && stranger.sent() < kMaxWire; ++i) {
      take_step(input, swarm, stranger);
      swarm.pass(1ms);
    }
    swarm.pass(5s);
    expect(peak.bytes() <= kBytesPerWireByte * stranger.sent() + kBytesOfAConnection, "memory is bounded by what came");
    stretch(stranger.sent());
    stranger.close();
    swarm.run(dht.close());
  }
  const std::string left = swarm.left_behind();
  if (!left.empty()) std::fputs(left.c_str(), stderr);
  expect(left.empty(), "every task and connection ends with its host");
}

}  // namespace cohive::fuzz
