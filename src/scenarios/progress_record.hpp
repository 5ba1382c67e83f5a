// What a trainer reports of its progress, for peers that lie about theirs and for tests. Source: docs/wire/hivemind.md,
// section 4.4.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "cohive/core/bytes.hpp"
#include "cohive/core/msgpack.hpp"
#include "cohive/dht/dht.hpp"

namespace cohive::sim {

/// \param peer  bytes of a peer id, or what claims to be
/// \param time  Unix seconds
inline msgpack::Map progress_record(ByteView peer, msgpack::Value epoch, msgpack::Value samples, msgpack::Value rate,
                                    double time) {
  return {{{"peer_id", msgpack::Value::bin(peer)},
           {"epoch", std::move(epoch)},
           {"samples_accumulated", std::move(samples)},
           {"samples_per_second", std::move(rate)},
           {"time", time},
           {"client_mode", false}}};
}

/// Returns the id of a peer that does not exist.
PeerId invented_peer(std::uint64_t number);

/// Stores a report under any key at all nodes that `dht` knows: of a node's own keys the first one signs all that it
/// stores.
Task<void> store_under_key(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, std::string name,
                           msgpack::Map report, double expiration);

}  // namespace cohive::sim
