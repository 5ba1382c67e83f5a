// A swarm in which a test makes the requests of one node by hand.
#pragma once

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

/// An answer to a request, after a while.
inline Task<Result<std::string>> answer_after(Runtime& runtime, Duration pause, std::string reply) {
  co_await runtime.sleep_for(pause);
  co_return reply;
}

}  // namespace cohive::dht
