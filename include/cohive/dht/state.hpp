/// \file
/// What a DHT node keeps over a restart: its node id, its records and the peers it knew, in one file. The file is
/// replaced as a whole, so that a crash at any moment leaves the last complete one.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/result.hpp"
#include "cohive/dht/dht_id.hpp"

namespace cohive::dht {

/// Beyond these a state is cut off when saved, and a file is refused.
struct StateLimits {
  std::size_t max_bytes = 64 * 1024 * 1024;  ///< of keys and values; what expires first is left out
  std::size_t max_peers = 256;  ///< nodes of the routing table
};

/// A record that the node held.
struct SavedRecord {
  DhtId key;  ///< the id of the key
  std::string tag;    ///< as on the wire: c0 for a regular value, empty for a whole dictionary
  std::string value;  ///< with its signatures
  double expiration = 0;  ///< Unix seconds
  bool cached = false;  ///< from the cache: this node need not be near the key
};
/// A node of the routing table.
struct SavedPeer {
  DhtId id;  ///< its place in the DHT
  PeerId peer;  ///< its identity
  std::vector<Multiaddr> addresses;  ///< where it was reached
};
/// What a node needs to come back as it was.
struct SavedState {
  PeerId peer;    ///< of this node: another identity gets another node id
  DhtId node_id;  ///< the records are those near it
  std::vector<SavedRecord> records;  ///< that had not expired
  std::vector<SavedPeer> peers;  ///< the routing table
};

/// Errors name the file: Errc::not_found, Errc::io, Errc::malformed for one that is damaged or no state at all.
/// Blocks on the disk: for start-up or a worker thread.
Result<SavedState> read_state(const std::filesystem::path& path, StateLimits limits = {});
/// Writes the file as a whole or not at all. Blocks: for a thread that may wait. Errors: cohive::Errc::io.
Result<> write_state(const std::filesystem::path& path, const SavedState& state);

}  // namespace cohive::dht
