#include <iostream>
#include <thread>

#include "cohive/core/combine.hpp"
#include "peer.hpp"

namespace cohive::interop {

p2p::Host& Peer::host() {
  if (!host_) throw std::logic_error("call host_start first");
  return *host_;
}
Dht& Peer::dht() {
  if (!dht_) throw std::logic_error("call dht_start first");
  return *dht_;
}

Bytes bytes_of(const nlohmann::json& hex) {
  return from_hex(hex.get<std::string>());
}
msgpack::Value value_from(const nlohmann::json& hex) {
  return value_of(msgpack::decode(bytes_of(hex)));
}
std::string hex_of(const msgpack::Value& value) {
  return to_hex(as_bytes(msgpack::encode(value)));
}

std::vector<Multiaddr> addresses_of(const nlohmann::json& texts) {
  std::vector<Multiaddr> addresses;
  for (const auto& text : texts) addresses.push_back(value_of(Multiaddr::from_text(text.get<std::string>())));
  return addresses;
}

PeerId peer_of(const nlohmann::json& text) {
  const auto peer = PeerId::from_text(text.get<std::string>());
  if (!peer) throw std::invalid_argument("not a peer id: " + text.get<std::string>());
  return *peer;
}

namespace {

Task<nlohmann::json> answer(Peer& peer, const Commands& commands, nlohmann::json request) {
  nlohmann::json reply{{"id", request.value("id", nlohmann::json())}};
  try {
    const auto command = commands.find(request.at("command").get<std::string>());
    if (command == commands.end()) throw std::invalid_argument("unknown command");
    reply["result"] = co_await command->second(peer, request);
  } catch (const std::exception& error) {
    reply["error"] = error.what();
  }
  co_return reply;
}

Task<void> serve_line(Peer& peer, const Commands& commands, std::string line) {
  auto reply = co_await answer(peer, commands, nlohmann::json::parse(line, nullptr, false));
  std::cout << reply.dump() << std::endl;
}

Task<void> serve(Runtime& runtime, const Commands& commands) {
  Peer peer(runtime);
  Event ended(runtime, "stdin");
  Nursery calls(runtime, "commands");
  std::thread reader([&] {
    for (std::string line; std::getline(std::cin, line);)
      runtime.post([&, line] { calls.spawn(serve_line(peer, commands, line), "command"); });
    runtime.post([&] { ended.set(); });
  });
  co_await ended.wait();
  reader.join();
  calls.cancel();
  peer.averaging_.reset();
  if (peer.dht_) co_await peer.dht_->close();
  peer.dht_.reset();
  peer.calls_.reset();
  if (peer.host_) co_await peer.host_->close();
}

}  // namespace
}  // namespace cohive::interop

int main() {
  using namespace cohive;
  interop::Commands commands;
  interop::add_host_commands(commands);
  interop::add_dht_commands(commands);
  interop::add_averaging_commands(commands);
  interop::add_codec_commands(commands);
  interop::add_rpc_commands(commands);
  interop::add_echo_commands(commands);
  const auto runtime = make_runtime();
  runtime->run(interop::serve(*runtime, commands));
}
