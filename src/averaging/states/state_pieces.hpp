// A state in pieces, from several donors at once; between cohive peers only. It has a protocol of its own, so that a
// Python donor refuses it when the stream is opened and nothing of hivemind's own exchange had to change.
//   client -> the root it wants, or none;  donor -> [still preparing] ..., root and size of its manifest
//   no root wanted: donor -> the manifest, in chunks;  another root wanted than the donor's: the donor ends the call
//   client -> piece numbers, several ahead;  donor -> those pieces, in that order;  the client drops the call.
// A piece is believed by its hash (manifest.hpp). The pieces of a donor that was the only one from the beginning are
// taken on trust, and hashed once another donor is to go on.
#pragma once

#include <algorithm>

#include "cohive/averaging/metrics.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/rpc/rpc.hpp"
#include "manifest.hpp"
#include "uploads.hpp"

namespace cohive::averaging {

/// A state that is being shared: it stays what it is while downloads of it go on.
struct Snapshot {
  std::shared_ptr<const SharedState> state;
  std::shared_ptr<StateReader> reader;  ///< of this download, where the model still has the state
  std::shared_ptr<const Manifest> manifest;
  std::shared_ptr<const std::string> bytes;  ///< the manifest as it travels
  StateRoot root;
};

/// Makes snapshots of what the provider returns: one at a time for all newcomers, on other threads. Hashes are kept for
/// the next newcomer that asks for the same version.
class Snapshots {
 public:
  Snapshots(Runtime& runtime, codec::Compression compression)
      : runtime_(runtime), compression_(std::move(compression)), tasks_(runtime, "state snapshots") {}

  void set_provider(StateSharing::AsyncProvider provider) { provider_ = std::move(provider); }
  bool sharing() const noexcept { return static_cast<bool>(provider_); }
  /// What the provider returns now, without hashes.
  Task<std::optional<SharedState>> state();
  /// Nothing: not ready by then, ask again. A null state: nothing is shared.
  Task<std::optional<Result<Snapshot>>> get(Deadline deadline);
  /// Takes a reader back, off the loop: what it has not read takes its time to be freed.
  void give_back(std::shared_ptr<StateReader> reader);

 private:
  struct Making {
    explicit Making(Runtime& runtime) : done(runtime, "state snapshot") {}
    Event done;
    Result<Snapshot> result = Error(cohive::Errc::internal, "state snapshot");
  };
  static Task<void> make(Snapshots& self, std::shared_ptr<Making> making);
  Task<Result<Snapshot>> make();
  Task<Result<Snapshot>> make(TimePoint keep_from);

  Runtime& runtime_;
  codec::Compression compression_;
  StateSharing::AsyncProvider provider_;
  std::shared_ptr<Making> making_;
  Snapshot last_;  // without the state
  std::uint64_t last_version_ = 0;
  TaskGroup tasks_;
};

/// Serves one call. \param whole  set when the client was sent as many pieces as there are
Task<Result<>> serve_pieces(Runtime& runtime, rpc::ServerStream& stream, Snapshots& snapshots, Uploads& uploads,
                            const StateMetrics& metrics, bool& whole);

/// A call to a donor that has told its root.
struct DonorCall {
  rpc::ClientStreamPtr call;
  StateRoot root;
  Manifest manifest;  ///< unless the root was asked for
};
/// \param wanted  only this root; the donor's may be another
/// Errors: transport::Errc::protocol_not_supported for a donor that is not cohive; no_donor; malformed and
/// limit_exceeded for a donor that breaks the rules.
Task<Result<DonorCall>> call_donor(p2p::Host& host, PeerId donor, std::string protocol, StateRoot wanted,
                                   Duration chunk_timeout, std::uint64_t max_bytes);

/// See StateSharing::compare.
Task<Result<StateComparison>> compare_with(p2p::Host& host, PeerId peer, std::string protocol, Duration chunk_timeout,
                                           std::shared_ptr<const SharedState> ours, std::size_t tensors);

/// What has arrived of a state, by content.
class PartialState {
 public:
  /// \param last  see DownloadOptions
  explicit PartialState(std::vector<codec::Tensor> last = {}) : last_(std::move(last)) {}

  /// Tells whether a state has the tensors that are wanted of it.
  bool fits(const Manifest& manifest) const;
  /// Returns the bytes of those tensors.
  std::uint64_t wanted_of(const Manifest& manifest) const;
  /// Hashes the pieces that were taken on trust, off the loop; pieces that are not what the manifest says are missing
  /// again.
  Task<void> verify(Runtime& runtime);
  /// From now on this state is being fetched. Pieces of an earlier one that it shares stay, and what this peer has of
  /// it is copied, off the loop. To be verified before, and, where this peer has tensors of it, after.
  Task<void> adopt(Runtime& runtime, StateRoot root, Manifest manifest);

  const StateRoot& root() const noexcept { return root_; }
  const Manifest& manifest() const noexcept { return manifest_; }
  bool has(std::size_t piece) const { return have_[piece]; }
  bool complete() const noexcept { return missing_ == 0; }
  std::uint64_t bytes() const noexcept { return bytes_; }
  /// Memory of the piece's tensor, taken now if it is the tensor's first. Errors: limit_exceeded when there is none.
  Result<Slice> memory_of(std::size_t piece);
  /// The piece is in its place, as its hash says or on trust.
  void note(std::size_t piece, bool on_trust = false);
  /// The tensors of a complete state; nothing is left here.
  std::vector<codec::Tensor> take();

 private:
  void begin(StateRoot root, Manifest manifest);
  void leave_out_what_is_not_wanted();
  Task<void> try_own_values(Runtime& runtime);

  std::vector<codec::Tensor> last_;
  StateRoot root_;
  Manifest manifest_;
  std::vector<Slice> memory_;  // of each tensor
  std::vector<bool> have_;
  std::vector<std::uint32_t> on_trust_;  // of the pieces we have
  std::size_t missing_ = 0;
  std::uint64_t bytes_ = 0;
};

/// What a download tells while it runs and at its end.
struct DownloadReport {
  std::function<void(const DownloadProgress&)> on_progress;
  DownloadProgress progress;
  std::map<PeerId, std::uint64_t> contributed;  ///< bytes as they travelled
  std::vector<PeerId> liars;                    ///< sent what is not what they had promised
  /// Tells whether the peer is among `liars`.
  bool names(const PeerId& peer) const { return std::ranges::find(liars, peer) != liars.end(); }
  void changed() const {
    if (on_progress) on_progress(progress);
  }
};

struct PieceSource {
  std::string protocol;
  Duration chunk_timeout{};
  std::uint64_t max_bytes = 0;
  std::size_t max_donors = 1;                                                    ///< at once
  std::function<bool(const msgpack::Value&, const msgpack::Value&)> alike = {};  ///< see DownloadOptions
  bool vouched = false;  ///< several donors have told the same of the state: nothing of it is taken on trust
};

/// Fetches what is missing from `first` and from those of `others` that hold the same bytes. Ends when the state is
/// complete, or with the last error when no donor is left.
Task<Result<>> fetch_pieces(p2p::Host& host, DonorCall first, std::vector<PeerId> others, const PieceSource& source,
                            PartialState& partial, DownloadReport& report);

/// Whether the error shows what no honest donor sends, however slow, late or cut off it is: bytes that do not parse, or
/// that its own hashes refute. A state of another size than ours is none: it may be of another model.
bool shows_a_liar(const Error& error);

}  // namespace cohive::averaging
