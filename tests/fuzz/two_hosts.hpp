// A fresh simulated swarm of two hosts for each input: a stranger, whose bytes are the input, and the peer that has to
// bear them.
#pragma once

#include "cohive/core/combine.hpp"
#include "cohive/testing/swarm.hpp"
#include "fuzz.hpp"

namespace cohive::fuzz {

class TwoHosts {
 public:
  TwoHosts() {
    swarm.run(stranger.connect(peer.visible_addresses().front(), swarm.after(5s))).value();
    swarm.pass(1s);  // until both know each other
  }

  /// The stranger opens a stream, writes the bytes and ends it; what the peer answers is read to the end.
  void send(const std::string& protocol, ByteView bytes) {
    swarm.run(write_all(stranger, peer.id(), protocol, to_bytes(bytes), swarm.after(10s)));
  }
  /// The stranger answers whatever it is asked through `protocol` with these bytes.
  void answer(const std::string& protocol, ByteView bytes) {
    stranger.remove_handler(protocol);
    stranger.set_handler(
        protocol, [data = to_bytes(bytes)](transport::StreamPtr stream) { return reply(std::move(stream), data); });
  }
  /// To be called at the end: nothing may stay behind.
  void finish() {
    const std::string left = swarm.left_behind();
    if (!left.empty()) std::fputs(left.c_str(), stderr);
    expect(left.empty(), "every task and connection ends with its host");
  }

  sim::Swarm swarm{{.seed = 3}};
  p2p::Host& peer = swarm.add_host();
  p2p::Host& stranger = swarm.add_host();

 private:
  static Task<void> read_to_end(transport::Stream& stream, Deadline deadline) {
    for (;;) {
      const auto slice = co_await stream.read(deadline);
      if (!slice || slice->empty()) co_return;
    }
  }
  static Task<void> write_all(p2p::Host& host, PeerId to, std::string protocol, Bytes bytes, Deadline deadline) {
    auto stream = co_await host.open_stream(to, protocol, deadline);
    if (!stream) co_return;
    if (!co_await (*stream)->write(ByteView(bytes), deadline)) co_return;
    (*stream)->close_write();
    co_await read_to_end(**stream, deadline);
  }
  static Task<void> reply(transport::StreamPtr stream, Bytes bytes) {
    const Deadline deadline = stream->runtime().after(10s);
    if (!co_await stream->write(ByteView(bytes), deadline)) co_return;
    stream->close_write();
    co_await read_to_end(*stream, deadline);
  }
};

}  // namespace cohive::fuzz
