// Peers that are new, or behind: they download the state of a peer that is not.
//
// A newcomer takes the state of a run that others have begun, also where it is in the same epoch: until it has, it is
// in no round, and shares no state. Of two trainers one is the first (ProgressTracker::others_began). Where nobody
// shares a state, as clients do not, it goes on with its own, which counts for nothing beside members that are ahead
// until a round of the parameters has given it theirs.
// Where epochs are shorter than a download, a downloaded state is old when it comes, and so would be the next one. So
// the peer joins the next round of the state with weight 0, and takes what its members have averaged.
// Claims of strangers are proven by a state that can be downloaded, while training goes on. There is one pause for all
// claims together, and it grows until one has been proven: claims cost nothing, downloads do. Loop thread.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "cohive/core/combine.hpp"
#include "epochs.hpp"
#include "growing_pause.hpp"

namespace cohive::train {

class CatchingUp {
 public:
  /// Where a state comes from.
  enum class Source { peer, file };

  CatchingUp(RunContext& run, RunRounds& rounds, Epochs& epochs);
  void start();

  /// Tells whether this peer has a state of the run: the one that it began with, or that of others.
  bool joined() const noexcept { return !not_joined_; }
  /// The first trainer of a run begins it; one that is not joins it with its next batch.
  void begin_or_join();
  /// Takes the state of the run at the start of this peer, if others have begun it. One try, and a pause after a
  /// failure. Returns whether a state was loaded.
  Task<bool> join();

  /// Tells whether this peer is to load a state: the swarm's parameters are newer than ours, or a claim that they are
  /// has been proven.
  bool is_behind(const GlobalProgress& global) const { return proof_ || out_of_sync(global); }
  /// Loads the swarm's state; after a failure it makes the trainer wait, for its gradients would be of no use. Returns
  /// whether it did.
  Task<bool> catch_up();
  /// Goes on from the last round of the parameters that has given this peer those of members that are ahead (see
  /// RunRounds::follow_others). Returns false where there was none since the last call. After Epochs::settle.
  Task<bool> go_on_from_followed();
  /// The same as catch_up where the swarm is ahead, after a look at it.
  Task<bool> catch_up_if_behind();
  /// This peer takes the parameters and the epoch of a round of the state, where at least so many members are ahead of
  /// it.
  Task<bool> take_epoch_of(const Exchanged& exchanged, std::size_t least);

  /// Exchanges begin anew, or go on with the values that they keep. Returns the epoch. Nothing is changed on an error.
  Task<Result<std::uint64_t>> replace_model(averaging::DownloadedState state, std::vector<codec::Tensor> kept,
                                            Source source);
  /// Gives up the rounds that have begun, before a state is replaced that may be refused. A group that stands takes the
  /// sums of gradients with it: their samples go, too.
  Task<void> abandon_rounds();
  /// Another state has taken the place of that which claims were looked into for.
  void forget_proof() { proof_.reset(); }
  /// Goes on from `epoch`, whose state `write` puts into the replica on the pool.
  Task<void> restore(std::uint64_t epoch, std::function<void()> write);

 private:
  bool out_of_sync(const GlobalProgress& global) const;
  void has_joined();
  Task<void> wait_after_failure();
  Task<std::optional<bool>> holds_what_others_hold();
  Task<std::optional<bool>> holds_the_same(PeerId peer);
  static Task<void> compare_with_founders(CatchingUp& self);
  Task<Result<>> load_state();
  bool lacks_kept_alone() const;
  Task<Result<averaging::DownloadedState>> download(std::uint64_t least_epoch = 0,
                                                    std::vector<codec::Tensor> last = {});
  Task<void> write_kept(std::vector<codec::Tensor> values);
  Task<Result<std::uint64_t>> renew_kept(const averaging::DownloadedState& state, std::vector<codec::Tensor> values);
  Task<bool> is_borne_out(std::uint64_t epoch, std::uint64_t GlobalProgress::* by);
  Task<bool> follow_this_round();
  bool downloads_are_slow(const GlobalProgress& global) const;
  bool may_follow(const GlobalProgress& global) const;
  Task<void> follow_the_run();
  Task<bool> follow_next_round();
  Task<bool> follow(Scheduled& parameters, Search search);
  using Proving = Droppable<Result<averaging::DownloadedState>>;
  Task<std::optional<Result<averaging::DownloadedState>>> prove(std::uint64_t least_epoch);
  static Task<void> prove_claims(CatchingUp& self);

  RunContext& run_;
  RunRounds& rounds_;
  Epochs& epochs_;
  std::optional<RunRounds::Suspended> not_joined_;
  bool founder_ = true;                              // the state is the one that this peer began with
  std::uint64_t began_at_ = 0;                       // the epoch in which it had joined
  int fruitless_ = 0;                                // downloads in a row
  Duration downloading_{};                           // how long the last one took
  std::uint64_t followed_ = 0;                       // rounds since gradients were averaged
  std::uint64_t averaged_ = 0;                       // rounds of gradients, when it was last looked
  Duration retry_;                                   // of a failed download
  GrowingPause known_;                               // until trainers are asked that have declared nothing
  std::vector<PeerId> useless_donors_;               // whose last state was not taken
  std::optional<averaging::DownloadedState> proof_;  // of an epoch that others claimed
  Proving* proving_ = nullptr;                       // while it is on its way
};

}  // namespace cohive::train
