/// \file
/// Exchange: something that a run averages with the other trainers, such as its gradients or its parameters: when it is
/// due, what goes out, what is done with the answer, and what of it belongs into checkpoints and downloads. A run loops
/// over a list of them: gradients and parameters as hivemind has them, with local updates parameters alone, or one of
/// the caller's in place of the parameters (RunOptions::parameter_exchange).
///
///   prepare > a group is found > offer > the round > take
///   prepare > offer, and the trainer goes on > a group is found > the round > take       (Release::offered)
///
/// A run calls an exchange on the loop's thread, one function at a time; what takes long leaves the loop. An exception
/// ends the end of the epoch, and is thrown to the trainer; the run goes on with the next epoch.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohive/averaging/averager.hpp"
#include "cohive/checkpoint/safetensors.hpp"
#include "cohive/train/replica.hpp"

namespace cohive::train {

struct RunOptions;

/// Why an exchange takes place.
enum class Occasion {
  epoch_end,  ///< an epoch of this peer ends
  given_up,   ///< a group has formed that this peer has no use for: its members must not wait for it
  following,  ///< this peer takes what the others have, and gives nothing; where yields_parameters() alone
  extra       ///< beside the epochs, as at the end of the training
};

/// One time that an exchange takes place.
struct Moment {
  Occasion occasion = Occasion::epoch_end;  ///< why it does
  std::uint64_t epoch = 0;                  ///< that the end of an epoch leads to; else the present one
  double samples = 0;                       ///< of this peer in the epoch that ends
  std::uint64_t batches = 0;                ///< that these samples came in
  double seconds = 0;                       ///< that this peer has computed for them, without waits for the run
  /// The run is divided, and the round is that of one of several groups. It is the same for all members: groups of a
  /// divided run are looked for under keys of their own.
  bool divided = false;
};

/// When the trainer, which waits for the end of the epoch, may go on.
enum class Release {
  offered,   ///< what goes out is a copy, made before there is a group
  averaged,  ///< the round has ended
  done       ///< the answer is in place
};

/// Exchange::take() tells what it has come to.
enum class Effect {
  none,         ///< the run goes on
  publishable,  ///< Replica::publish() has something to do
  behind        ///< this peer does not hold what the others hold: it downloads their state
};

/// An exchange averages one thing in rounds of its own; derived classes say what that is.
class Exchange {
 public:
  Exchange() = default;
  virtual ~Exchange() = default;
  Exchange(const Exchange&) = delete;

  /// Returns what it averages, for logs, the status and checkpoints: "gradients". One name for each of a run.
  virtual const std::string& name() const = 0;
  /// Returns the averager whose rounds these are; it lives as long as this object.
  virtual averaging::Averager& averager() = 0;
  /// Begins to answer peers that look for a group; called once.
  virtual void start() { averager().start(); }

  // ---- When

  /// Tells whether it takes place at the end that leads to an epoch.
  virtual bool due(std::uint64_t epoch) const = 0;
  /// Tells whether the optimizer steps with it. Then it takes place without a group, too, and before the epoch is over.
  virtual bool makes_step() const { return false; }
  /// Tells whether a peer that misses a round, while others averaged, has to download their state.
  virtual bool needs_every_round() const { return makes_step(); }
  /// Tells whether it takes place beside the epochs, too: Occasion::extra. Not what makes a step.
  virtual bool takes_place_beside_epochs() const { return !makes_step(); }
  /// Tells whether what a round did not average is still there, and goes into the next one: its samples count there.
  virtual bool keeps_unaveraged() const { return false; }
  /// Tells whether a peer that gives nothing gets the parameters of the others by it.
  virtual bool yields_parameters() const { return false; }
  /// Tells whether its round at the end that leads to an epoch is one of the members of the round before it, in the
  /// order of exchanges: then it begins when that has ended, and not where there was none.
  virtual bool follows(std::uint64_t /*epoch*/) const { return false; }
  /// Tells whether large runs divide into groups that are drawn anew; else all trainers are one group.
  virtual bool is_divided() const { return true; }
  /// Tells whether another exchange does its work where the run is divided: then it does not begin at the end of
  /// epochs.
  virtual bool yields_to_divided_rounds() const { return false; }
  /// Tells how values travel in the round of these members, who all come to the same. Called once for each group,
  /// before what was offered is read. The second argument is Moment::divided.
  virtual averaging::RoundCodecs codecs(const std::vector<averaging::Member>&, bool /*divided*/) { return {}; }
  /// Returns how long the next round waits for any member, however late it was before.
  virtual Duration patience() const { return {}; }
  /// Returns what the members of a group tell each other: the epoch, alone or first in an array, where makes_step() or
  /// yields_parameters(), so that who is epochs behind learns it there.
  virtual msgpack::Value greeting(std::uint64_t epoch) const { return msgpack::Value(epoch); }

  /// Tells whether a member of a group ends an earlier epoch than this peer, by the greetings of both. It has missed
  /// the round of that epoch, and does not wait for anybody to end this one.
  virtual bool is_late(const averaging::Member& member, const averaging::Member& own) const;

  // ---- One round

  /// One offer goes out in one round.
  struct Offer {
    std::shared_ptr<averaging::TensorParts> parts;  ///< as Averager::schema() describes them
    double weight = 1;                              ///< of this peer
    bool finite = true;  ///< false: its values are not, others go out and weigh nothing, and the round has failed
  };

  /// Tells when the trainer may go on.
  virtual Release release(const Moment&) const { return Release::done; }
  /// Takes what the trainer may change before offer() is called. The trainer does not compute yet.
  virtual Task<void> hold() { co_return; }
  /// Called before a group is waited for.
  virtual Task<void> prepare(const Moment&) { co_return; }
  /// Returns what goes out. Nothing else changes the model until take() has ended, unless the trainer was released
  /// before.
  virtual Task<Offer> offer(const Moment&) = 0;
  /// Takes what came of an offer, whose parts have been given back.
  /// \param round  how it went; null: nothing was averaged, and TensorParts::finish() is up to this function
  virtual Task<Effect> take(const Moment&, const averaging::RoundReport* round) = 0;
  /// Drops what would have gone out, or was offered: this peer has missed the round, and downloads the state of the
  /// others.
  virtual Task<void> drop() { co_return; }

  // ---- What it keeps from round to round

  /// Values in host memory that are part of the run's state: newcomers download them, checkpoints hold them.
  struct Kept {
    std::string name;                   ///< within this exchange
    codec::Shape shape;                 ///< of the values
    std::span<float> values;            ///< read, and written when a state is loaded, between two rounds
    std::shared_ptr<const void> owner;  ///< keeps the memory
  };
  /// Lists these values: the same number, names and shapes at any time.
  virtual std::vector<Kept> kept() { return {}; }
  /// Changes a copy of the model's state, for newcomers or a checkpoint, where the model goes by more than kept() has.
  /// The values of kept() come behind it afterwards. Nothing else uses the model meanwhile.
  virtual Task<void> complete(averaging::SharedState&) { co_return; }
  /// Tells whether a peer of the run that has missed rounds lacks these values alone: it downloads them, and its model
  /// stays.
  virtual bool lacks_kept_alone() const { return false; }
  /// Called in place of a round that is due, where kept() has values and nobody was in sight for two epochs in a row:
  /// this peer goes on from what it has come to. Nothing else uses the model meanwhile.
  virtual Task<void> alone() { co_return; }
  /// Called before newer values of kept() are written, where the model stays; loaded() comes after. Nothing else uses
  /// the model meanwhile.
  virtual Task<void> renewing() { co_return; }
  /// Called before the state of another peer replaces the model, which may fail. Nothing else uses the model meanwhile.
  virtual Task<void> replacing() { co_return; }
  /// Called when the model was replaced, before the values of kept() are written, if the state has them. Nothing else
  /// uses the model meanwhile.
  virtual Task<void> reset() { co_return; }
  /// Called when the state of another peer has replaced the model, after the values of kept() were written.
  virtual Task<void> loaded() { co_return; }
  /// Downloads what a newcomer needs beside the state of the run, if anything.
  virtual Task<void> download(Deadline) { co_return; }
  /// Returns what later rounds of this peer alone go by, for a checkpoint. Called while no round changes it, but for
  /// one whose trainer was released when it was offered: then it is what that round began with.
  virtual Task<std::vector<checkpoint::NamedTensor>> save() { co_return std::vector<checkpoint::NamedTensor>(); }
  /// Goes on with what save() returned before a pause; reset() came before. Errors: for tensors that do not fit, then
  /// nothing is changed.
  virtual Task<Result<>> restore(std::vector<checkpoint::NamedTensor>) { co_return ok(); }
};

/// The objects that an exchange is made with; all of them outlive it.
struct ExchangeContext {
  Dht& dht;                   ///< where groups are found
  Replica& replica;           ///< with the parameters that it begins with
  const RunOptions& options;  ///< of the run
};
/// Makes an exchange of a run. Throws std::invalid_argument with a sentence for options that it cannot work with.
using ExchangeFactory = std::function<std::unique_ptr<Exchange>(const ExchangeContext&)>;

/// Returns the options of an exchange's averager, as those of the run say.
/// \param suffix      of the run's name: what peers with another exchange do not have
/// \param class_name  part of the protocol ids, as AveragerOptions has it
averaging::AveragerOptions averager_options(const RunOptions& options, const std::string& suffix,
                                            const std::string& class_name);

}  // namespace cohive::train
