// A peer that a test in another language drives: one JSON object per line on stdin, one reply per line on stdout.
//   {"id": 1, "command": "dht_get", ...}  ->  {"id": 1, "result": ...}  or  {"id": 1, "error": "..."}
// Commands run concurrently; the peer ends when stdin does. Binary data travels as hexadecimal.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "cohive/core/msgpack.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/p2p/host.hpp"

namespace cohive::interop {

struct AveragingPeer;  // see averaging.cpp

struct Peer {
  explicit Peer(Runtime& loop) : runtime(loop), network(transport::make_tcp_network(loop)) {}
  p2p::Host& host();  ///< throws when host_start was not called
  Dht& dht();         ///< throws when dht_start was not called

  Runtime& runtime;
  std::unique_ptr<transport::Network> network;
  std::unique_ptr<p2p::Host> host_;
  std::unique_ptr<Dht> dht_;
  std::shared_ptr<AveragingPeer> averaging_;
  std::shared_ptr<void> calls_;  ///< of rpc.cpp
};

/// Throws to report an error.
using Command = std::function<Task<nlohmann::json>(Peer&, nlohmann::json)>;
using Commands = std::map<std::string, Command>;

void add_host_commands(Commands& commands);
void add_dht_commands(Commands& commands);
void add_averaging_commands(Commands& commands);
void add_codec_commands(Commands& commands);
void add_rpc_commands(Commands& commands);
void add_echo_commands(Commands& commands);

/// Fields of a command.
Bytes bytes_of(const nlohmann::json& hex);
std::vector<Multiaddr> addresses_of(const nlohmann::json& texts);
PeerId peer_of(const nlohmann::json& text);
msgpack::Value value_from(const nlohmann::json& hex);  ///< of its msgpack
std::string hex_of(const msgpack::Value& value);       ///< of its msgpack
/// Throws the error of a failed Result.
template <class T>
T value_of(Result<T> result) {
  if (!result) throw ErrorException(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

}  // namespace cohive::interop
