/// \file
/// The state file holds what a DHT node keeps over a restart: its node id, the peers it knew and its records. It is
/// replaced as a whole, so that a crash at any moment leaves the last complete one. It is written and read piece by
/// piece, whatever its size, and a damaged piece takes only the records in it along.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/result.hpp"
#include "cohive/dht/dht_id.hpp"

namespace cohive::dht {

/// Bounds what is kept of a node.
struct StateLimits {
  std::size_t max_bytes = 512 * 1024 * 1024;  ///< of keys and values; what expires first is left out
  std::size_t max_peers = 256;                ///< nodes of the routing table
};

/// A record as it travels between nodes, and as it is kept from one start of a node to the next.
struct WireRecord {
  DhtId key;              ///< the id of the key
  std::string tag;        ///< as on the wire: c0 for a regular value, empty for a whole dictionary
  std::string value;      ///< with its signatures
  double expiration = 0;  ///< Unix seconds
  bool in_cache = false;  ///< held in the cache: this node need not be near the key
};
/// A node of the routing table.
struct SavedPeer {
  DhtId id;                          ///< its place in the DHT
  PeerId peer;                       ///< its identity
  std::vector<Multiaddr> addresses;  ///< where it was reached: one at least
};
/// Holds what a node needs to come back as it was, beside its records.
struct SavedState {
  PeerId peer;                   ///< of this node: another identity gets another node id
  DhtId node_id;                 ///< the records are those near it
  std::vector<SavedPeer> peers;  ///< the routing table
};

/// Writes a state. Every function blocks on the disk: for start-up or a worker thread. Errors name the file:
/// cohive::Errc::io.
class StateWriter {
 public:
  /// Begins a new file beside the one of that name.
  static Result<StateWriter> create(std::filesystem::path path, const SavedState& state);
  /// Adds some records, a mebibyte or so.
  Result<> add(const std::vector<WireRecord>& records);
  /// Puts the file in place of the one that was there.
  Result<> finish();

  StateWriter(StateWriter&& other) noexcept;
  StateWriter& operator=(StateWriter&&) = delete;
  /// Leaves the one that was there, unless finish() succeeded.
  ~StateWriter();

 private:
  StateWriter(std::filesystem::path path, int file) : path_(std::move(path)), file_(file) {}
  Result<> append(std::string_view payload);
  Error failed(int error);
  std::filesystem::path path_;
  int file_;
};
/// Writes a state without records.
Result<> write_state(const std::filesystem::path& path, const SavedState& state);

/// Reads a state. Every function blocks on the disk, as above.
class StateReader {
 public:
  /// Errors name the file: Errc::not_found, Errc::io, Errc::malformed for one whose beginning is damaged, or that is no
  /// state at all.
  static Result<StateReader> open(const std::filesystem::path& path, StateLimits limits = {});
  /// Returns all that comes before the records.
  const SavedState& state() const noexcept { return state_; }
  /// Returns some more records; none at the end.
  std::vector<WireRecord> next();
  /// Tells, at the end, whether records were lost because the file is damaged.
  bool damaged() const noexcept { return damaged_; }

 private:
  StateReader(std::ifstream file, std::uint64_t size) : file_(std::move(file)), left_(size) {}
  std::optional<std::string> take_piece();
  bool read_all_of_version_1(const StateLimits& limits);
  std::ifstream file_;
  std::uint64_t left_;  // bytes
  SavedState state_;
  std::vector<WireRecord> waiting_;  // of a file that cannot be read piece by piece
  bool damaged_ = false, ended_ = false;
};

}  // namespace cohive::dht
