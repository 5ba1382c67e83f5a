/// \file
/// StateSharing: gives a trainer's state to newcomers, and downloads that of others. It stands beside an Averager of
/// the same prefix, or alone. Source: docs/wire/hivemind.md, sections 6.2 and 6.9.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohive/averaging/group.hpp"
#include "cohive/averaging/live_tensors.hpp"
#include "cohive/codec/compression.hpp"
#include "cohive/core/task.hpp"

namespace cohive::dht {
class Dht;
}
namespace cohive {
using dht::Dht;
}

namespace cohive::averaging {

/// A state as it is handed to peers that ask. The tensors' memory is shared, not copied: it must not change, unless
/// a reader reads it.
struct SharedState {
  msgpack::Value metadata;                         ///< a non-empty map
  std::vector<codec::Tensor> tensors;              ///< in the order in which newcomers get them
  std::vector<codec::CompressionInfo> infos = {};  ///< for compression strategies: one for each tensor, or none at all
  std::vector<std::string> names = {};  ///< of the tensors, for checkpoints (train/checkpoints.hpp); does not travel
  /// Tensors from this one on travel as they are, whatever StateSharingOptions::codec says.
  std::size_t exact_from = std::numeric_limits<std::size_t>::max();
  /// Other metadata, and in words whose they are.
  struct Other {
    msgpack::Value metadata;  ///< in place of the first ones
    std::string whose;        ///< "a trainer with ..."
  };
  std::optional<Other> if_refused = {};  ///< for a peer that has refused the state with `metadata`; unset: the same
  std::uint64_t version = 0;             ///< not 0: states of one peer with one version are equal, and are hashed once
  /// Reads the first tensors, which have no `data` then: their values are where the model has them. Unset: all have.
  std::shared_ptr<StateReader> reader = nullptr;
};

/// How far a download has come.
struct DownloadProgress {
  std::uint64_t bytes_done = 0;   ///< of the tensors in memory
  std::uint64_t bytes_total = 0;  ///< 0: unknown, as Python donors do not say
  std::size_t donors = 0;         ///< sending now
};

/// Bounds of a download.
struct DownloadOptions {
  Duration limit = 600s;                              ///< for the whole download
  std::uint64_t max_bytes = std::uint64_t{64} << 30;  ///< of tensors; more is refused
  std::size_t max_donors = 4;                         ///< at once
  /// Donors that claim more are asked when all other donors have failed.
  double max_priority = std::numeric_limits<double>::infinity();
  /// Donors that claim less are not asked.
  double min_priority = -std::numeric_limits<double>::infinity();
  std::vector<PeerId> without = {};  ///< peers that are not asked
  std::vector<PeerId> asleep = {};   ///< peers that may be: asked when all others have failed, and not waited for
  /// Peers that are known to average, and their priorities: asked once as if they had declared themselves, and no error
  /// where they share nothing. What is declared may be kept from this peer.
  std::vector<std::pair<PeerId, double>> known = {};
  /// Tensors of this peer: as many of the state, its last ones, alone are wanted in their place. Only what differs of
  /// them travels, and the others come without data. Not from Python donors. Empty: all are wanted.
  std::vector<codec::Tensor> last = {};
  /// Tells by the metadata of two states whether they may be of one run at about one time: donors whose states are not
  /// do not vote for each other. Called on threads of the pool; unset: they may.
  std::function<bool(const msgpack::Value&, const msgpack::Value&)> alike = {};
  std::function<void(const DownloadProgress&)> on_progress = {};  ///< on the loop thread, often: return soon
};

/// A state that was downloaded, and its donor.
struct DownloadedState {
  PeerId donor;                                 ///< the peer whose state it is
  msgpack::Value metadata;                      ///< see SharedState
  std::vector<codec::Tensor> tensors;           ///< in the donor's order
  std::uint64_t bytes = 0;                      ///< received
  std::map<PeerId, std::uint64_t> contributed;  ///< bytes received, by donor
  std::vector<PeerId> liars;                    ///< donors that sent what their own hashes refute, or broke other rules
  std::uint64_t resumed = 0;                    ///< bytes of tensors that were there when `donor` went on for another
};

/// Tells what another peer's state is, beside one's own.
struct StateComparison {
  msgpack::Value metadata;  ///< of the other peer's
  bool equal = false;       ///< the tensors that were compared
};

/// What is shared, and under which name.
struct StateSharingOptions {
  std::string prefix;                                ///< that of the averager beside it; see fault_of_name
  std::string class_name = "DecentralizedAverager";  ///< part of the protocol ids: must equal the Python peers' class
  /// The codecs in which this peer shares its state, of those that need no agreement. Statistics of an optimizer
  /// (codec::Role::optimizer) travel as they are unless a rule by role or by key names a codec for them: small squares
  /// become 0 in most codecs.
  codec::Compression codec = {};
  bool share = true;              ///< false: downloads only. Client-mode peers cannot share
  Duration declare_period = 30s;  ///< between two declarations in the DHT that a state is shared
};

/// Loop thread only.
class StateSharing {
 public:
  /// `dht` must outlive it. Throws std::invalid_argument for impossible options.
  StateSharing(Dht& dht, StateSharingOptions options);
  ~StateSharing();
  StateSharing(const StateSharing&) = delete;

  /// Registers handlers and begins to declare in the DHT that a state is shared.
  void start();

  /// Returns the state as it is now; nullopt: nothing is shared. Called on threads of the pool whenever a peer asks;
  /// the call may outlive this object, so it owns what it touches.
  using Provider = std::function<std::optional<SharedState>()>;
  /// Sets where states come from; null: nothing is shared.
  void set_provider(Provider provider);
  /// The same for states that have to be waited for: called on the loop.
  using AsyncProvider = std::function<Task<std::optional<SharedState>>()>;
  /// Sets where states come from, as set_provider() does; null: nothing is shared.
  void set_async_provider(AsyncProvider provider);
  /// Sets how recommendable the state is (hivemind: the epoch), and declares it.
  void set_priority(double priority);

  /// Downloads the state of the best donor that answers. If it is cohive, donors that hold the same bytes help: every
  /// piece is checked against the donor's hashes, a donor that sends other bytes is left out, and one that is lost
  /// costs what it was about to send. Python donors are asked one at a time.
  /// Errors: Errc::no_donor, Errc::bad_state, and those of the last donor.
  Task<Result<DownloadedState>> download(DownloadOptions options = {});
  /// Compares the first `tensors` tensors of `ours` with those that `peer` shares, by hashes: nothing is downloaded.
  /// Errors: protocol_not_supported of the transport module for a peer that is not cohive, Errc::no_donor.
  Task<Result<StateComparison>> compare(PeerId peer, SharedState ours, std::size_t tensors);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace cohive::averaging
