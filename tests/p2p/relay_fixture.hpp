// Relays and peers behind routers, for tests that let them meet.
#pragma once

#include <gmock/gmock.h>

#include "cohive/core/combine.hpp"
#include "cohive/core/metrics.hpp"
#include "cohive/p2p/errors.hpp"
#include "p2p/circuit_message.hpp"
#include "strangers.hpp"

namespace cohive::p2p {

using transport::StreamPtr;

inline const char* const kEcho = "/test/echo";

/// Answers a request with itself, once it is complete.
inline Task<void> echo_whole(StreamPtr stream) {
  Bytes request;
  for (;;) {
    auto bytes = co_await stream->read(stream->runtime().after(10min));
    if (!bytes) co_return;
    if (bytes->empty()) break;
    request.insert(request.end(), bytes->data(), bytes->data() + bytes->size());
  }
  if (co_await stream->write(request, stream->runtime().after(1min))) stream->close_write();
}

/// Sends `size` bytes and takes them back.
inline Task<Result<>> call(Host& from, PeerId to, std::size_t size, Duration patience = 1min) {
  const Deadline deadline = from.runtime().after(patience);
  auto stream = co_await from.open_stream(to, kEcho, deadline);
  if (!stream) co_return stream.error();
  const Bytes sent(size, 7);
  auto written = co_await (*stream)->write(sent, deadline);
  if (!written) co_return written.error();
  (*stream)->close_write();
  transport::StreamReader reader(**stream);
  auto back = co_await reader.read_exactly(size, deadline);
  if (!back) co_return back.error();
  co_return ok();
}

inline std::uint64_t counted(sim::Swarm& swarm, const std::string& line) {
  const std::string text = swarm.runtime().metrics().text();
  const auto at = text.find("\n" + line + " ");
  return at == std::string::npos ? 0 : std::stoull(text.substr(at + line.size() + 2));
}

class Relay : public testing::Test {
 protected:
  Host& add_relay(const std::string& ip, RelayServiceOptions options = {}) {
    return swarm.add_host_at(ip, {.force_reachability = Reachability::public_, .relay_service = options});
  }
  /// A peer behind a home router that knows its relays.
  Host& add_hidden(const std::vector<Host*>& relays, HostOptions options = {}) {
    const std::string number = std::to_string(++hidden_);
    swarm.fabric().set_nat("192.168.7." + number, "5.6.7." + number);
    options.force_reachability = Reachability::private_;
    options.hole_punching &= punching;
    for (Host* relay : relays) options.trusted_relays.push_back(address_of(*relay));
    Host& host = swarm.add_host_at("192.168.7." + number, options);
    host.set_handler(kEcho, echo_whole);
    return host;
  }
  static Multiaddr through(const Host& relay, const Host& target) {
    return circuit_through(relay.addresses().front(), relay.id()).with_peer(target.id());
  }
  /// What a relay answers to one message on its hop protocol.
  Result<proto::Hop> ask(Host& from, const Host& relay, Bytes message) {
    return swarm.run(ask_task(from, relay.id(), std::move(message)));
  }
  static Task<Result<proto::Hop>> ask_task(Host& from, PeerId relay, Bytes message) {
    const Deadline deadline = from.runtime().after(1min);
    auto stream = co_await from.open_stream(relay, kHopProtocol, deadline);
    if (!stream) co_return stream.error();
    if (!message.empty()) (void)co_await transport::write_message(**stream, message, deadline);
    co_return co_await read_relay_message<proto::Hop>(**stream, deadline);
  }
  static Bytes connect_to(const PeerId& target) {
    proto::Hop request;
    request.set_type(proto::Hop::CONNECT);
    request.mutable_peer()->set_id(target.binary());
    return to_bytes(request.SerializeAsString());
  }
  static Bytes to_bytes(const std::string& text) { return Bytes(text.begin(), text.end()); }
  static inline const Bytes kReserve{0x08, 0x00};

  sim::Swarm swarm;
  bool punching = true;
  int hidden_ = 0;
};

}  // namespace cohive::p2p
