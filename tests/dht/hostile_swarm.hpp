// A swarm in which a test makes the requests of one node by hand.
#pragma once

#include <functional>

#include "cohive/proto/dht.pb.h"
#include "cohive/rpc/rpc.hpp"
#include "dht_swarm.hpp"

namespace cohive::dht {

class HostileSwarm : public DhtSwarm {
 protected:
  Result<std::string> call(Dht& from, std::size_t to, const char* method, const std::string& request) {
    return swarm.run(rpc::call_unary(from.host(), swarm.host(to).id(), method, request, swarm.after(3s)));
  }
  static void put(proto::StoreRequest& request, std::string key, std::string tag, std::string value, double expiration,
                  bool in_cache = false) {
    request.add_keys(std::move(key));
    request.add_subkeys(std::move(tag));
    request.add_values(std::move(value));
    request.add_expiration_time(expiration);
    request.add_in_cache(in_cache);
  }
  std::vector<bool> stored(Dht& from, std::size_t to, const proto::StoreRequest& request) {
    proto::StoreResponse reply;
    EXPECT_TRUE(reply.ParseFromString(call(from, to, "DHTProtocol.rpc_store", request.SerializeAsString()).value()));
    return {reply.store_ok().begin(), reply.store_ok().end()};
  }
};

/// Answers finds of one key with dictionaries that a test makes up.
class LyingReplica {
 public:
  /// Fills in the value.
  using Answer = std::function<void(proto::FindResult&)>;
  LyingReplica(p2p::Host& host, const DhtId& key, Answer answer)
      : key_(key.binary()), answer_(std::move(answer)), server_(host) {
    server_.add_unary("DHTProtocol.rpc_ping", [this](PeerId, std::string) { return ping(); });
    server_.add_unary("DHTProtocol.rpc_find", [this](PeerId, std::string request) { return find(std::move(request)); });
  }
  Multiaddr address() { return server_.host().visible_addresses().front(); }

 private:
  Task<Result<std::string>> ping() {
    proto::PingResponse reply;
    reply.mutable_peer()->set_node_id(std::string(20, 'l'));
    co_return reply.SerializeAsString();
  }
  Task<Result<std::string>> find(std::string bytes) {
    proto::FindRequest request;
    (void)request.ParseFromString(bytes);
    proto::FindResponse reply;
    reply.mutable_peer()->set_node_id(std::string(20, 'l'));
    for (const auto& key : request.keys()) {
      auto* result = reply.add_results();
      if (key != key_) continue;
      result->set_type(proto::FOUND_DICTIONARY);
      result->set_expiration_time(server_.host().runtime().wall_time() + 100);
      answer_(*result);
    }
    co_return reply.SerializeAsString();
  }
  std::string key_;
  Answer answer_;
  rpc::Server server_;
};

/// An answer to a request, after a while.
inline Task<Result<std::string>> answer_after(Runtime& runtime, Duration pause, std::string reply) {
  co_await runtime.sleep_for(pause);
  co_return reply;
}

}  // namespace cohive::dht
