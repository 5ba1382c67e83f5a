// The parts of a Run, which share this structure:
//   run.cpp          the trainer's face, opening and leaving
//   epochs.cpp       the end of an epoch: gradients, step, state, as far as delayed in the background
//   run_rounds.cpp   when rounds begin, how long they are waited for, what they yield
//                    (scheduled.hpp: the rounds of one exchange; exchanges/: what is averaged)
//   catching_up.cpp  peers that are new or behind
//   checkpoints.cpp  the state in files
//   run_status.cpp   what it tells of itself
//   all_clients.cpp  a run in which nobody can be dialled
#pragma once

#include <atomic>
#include <mutex>

#include "cohive/checkpoint/folder.hpp"
#include "cohive/core/status.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/train/metrics.hpp"
#include "cohive/train/run.hpp"
#include "history.hpp"
#include "kept_values.hpp"
#include "metrics_record.hpp"
#include "parameter_gate.hpp"
#include "run_report.hpp"
#include "scheduled.hpp"
#include "shared_model.hpp"
#include "wait_clock.hpp"

namespace cohive::train {

inline constexpr Duration kFirstRetry = 500ms;  // of a failed download
inline constexpr Duration kCopyPatience = 10s;  // for a copy of the state; a newcomer had better ask another donor then

/// How long a group is waited for.
struct Search {
  std::uint64_t epoch = std::numeric_limits<std::uint64_t>::max();  ///< until the run has passed it
  averaging::Averager* next = nullptr;  ///< until `patience` has gone by since a member waits for us in a round of it
  Duration patience{};                  ///< without `next`: from the beginning of the search on
};

/// Where a state comes from.
enum class Source { peer, file };

/// The batches of this peer in an epoch.
struct Counted {
  double samples = 0;
  std::uint64_t batches = 0;
};

/// What a search came to.
struct Grouped {
  std::shared_ptr<averaging::Round> round;  ///< with a group; null: it has none, or was given up
  bool missed = false;                      ///< the others may have averaged without us
};

/// What one exchange came to.
struct Exchanged {
  std::shared_ptr<const averaging::RoundReport> round;  ///< null: nothing was averaged
  Effect effect = Effect::none;
  std::size_t group() const { return round ? round->group.size() : 0; }
};

/// The work at the end of one epoch.
struct Update {
  Update(Runtime& runtime, std::uint64_t to, Counted of)
      : epoch(to), counted(of), released(runtime, "the end of an epoch"), done(runtime, "delayed work of an epoch") {}
  const std::uint64_t epoch;  ///< that it leads to
  const Counted counted;      ///< of this peer
  Event released;             ///< the trainer may go on
  Event done;
  bool late = false;         ///< other peers ended the epoch before we looked for a group
  bool missed = false;       ///< the other peers have averaged without us
  bool publishable = false;  ///< the next parameters are ready
  StepReport report;         ///< complete when done
  /// What has ended it early, such as an error of a device: thrown once to the trainer.
  std::exception_ptr failure = nullptr;
};

struct Run::Impl : std::enable_shared_from_this<Run::Impl> {
  Impl(Dht& d, std::shared_ptr<dht::RsaSignatureValidator> key, Replica& r, RunOptions opts);
  void start();

  // The trainer's face.
  Next count(std::int64_t batch);
  std::optional<StepReport> publish();
  Task<std::optional<averaging::SharedState>> copy_state(Duration patience, SharedModel::Beside beside = nullptr);

  // Epochs.
  Task<StepReport> synchronise();
  bool ready(const GlobalProgress& global) const;
  void note_progress();
  Counted take_batches();
  Task<void> end_epoch(StepReport& report);
  Task<bool> finish_update(StepReport& report);
  static Task<void> advance(Impl& self, std::shared_ptr<Update> update);
  Task<void> make(Update& update);
  Task<void> take_part(Update& update, std::size_t exchange);
  void release(Update& update);
  void enter_epoch(std::uint64_t epoch);
  void finished(Update& update);

  // Rounds.
  void consider_rounds();
  Duration search_time(const GlobalProgress& global) const;
  void expect_members();
  void begin_or_join();
  static Task<void> watch_progress(Impl& self);
  static Task<void> watch_members(Impl& self, Scheduled& scheduled);
  static Task<void> watch_clients(Impl& self);
  void begin_rounds(const GlobalProgress& global);
  void begin_round(Scheduled& scheduled, std::uint64_t epoch, std::size_t expected, Duration timeout);
  Scheduled* of_step() const;
  Scheduled* of_parameters() const;
  Task<Exchanged> exchange(Scheduled& scheduled, Moment moment, Search search, Update* update = nullptr);
  Task<Grouped> find_group(Scheduled& scheduled, std::shared_ptr<averaging::Round> round, Search search);
  std::shared_ptr<const averaging::RoundReport> judge(Scheduled& scheduled,
                                                      Result<std::shared_ptr<const averaging::RoundReport>> result);
  void miss(Scheduled& scheduled);
  void count_round(Scheduled& scheduled, const averaging::RoundReport& result);
  Task<void> abandon_rounds();
  Task<std::size_t> average_parameters(std::size_t expected, Duration timeout, Duration patience);

  // Catching up.
  bool out_of_sync(const GlobalProgress& global) const;
  Task<bool> catch_up_if_behind();
  Task<bool> catch_up();
  Task<void> wait_after_failure();
  Task<bool> join();
  void has_joined();
  Task<std::optional<bool>> holds_what_others_hold();
  Task<std::optional<bool>> holds_the_same(PeerId peer);
  static Task<void> compare_with_founders(Impl& self);
  Task<Result<>> load_state();
  Task<void> follow_the_run();
  Task<bool> follow_round();
  Task<bool> take_epoch_of(const Exchanged& exchanged, std::size_t least);
  Task<Result<std::uint64_t>> replace_model(averaging::DownloadedState state, std::vector<codec::Tensor> kept,
                                            Source source);
  static Task<void> prove_claims(Impl& self);
  Task<bool> is_borne_out(std::uint64_t epoch, std::uint64_t GlobalProgress::* by);
  Task<Result<averaging::DownloadedState>> download(std::uint64_t least_epoch = 0);

  Task<void> restore(std::uint64_t epoch, std::function<void()> write);
  Task<void> drop_batches();
  void take_epoch(std::uint64_t epoch);

  // Checkpoints.
  Task<Result<>> open_checkpoints();
  bool checkpoint_due() const;
  void checkpoint_if_due();
  static Task<void> write_in_background(Impl& self, checkpoint::Metadata strings);
  Task<Result<std::filesystem::path>> write_checkpoint(checkpoint::Metadata strings, Duration patience);
  struct StateToSave {
    averaging::SharedState state;
    std::vector<checkpoint::NamedTensor> of_averager;
  };
  Task<Result<StateToSave>> state_to_save(Duration patience);
  Task<void> save_exchanges(std::vector<checkpoint::NamedTensor>& into);
  Task<void> restore_exchanges(const std::filesystem::path& file, std::vector<checkpoint::NamedTensor> saved);
  Task<Result<>> save_checkpoint(std::filesystem::path path);
  Task<Result<std::uint64_t>> load_checkpoint(std::filesystem::path path);
  Task<Result<std::uint64_t>> restore(std::filesystem::path path, checkpoint::TensorFile content, bool of_this_run);
  checkpoint::Metadata own_strings() const;
  // What it tells of itself.
  std::string status_json() const;
  double last_loss() const;
  void note_epoch(std::uint64_t entered);

  Task<std::size_t> finish();
  Task<void> close();

  Dht& dht;
  Runtime& runtime;
  Replica& replica;
  const RunOptions options;
  TrainMetrics metrics;
  WaitClock wait_clock;
  History history;
  ProgressTracker tracker;
  std::optional<MetricsRecord> metrics_record;        // where the loss is shared
  std::vector<std::unique_ptr<Scheduled>> exchanges;  // in the order in which they take place
  KeptValues kept;
  SharedModel model;
  std::shared_ptr<Update> update;  // the last one, until the trainer has seen its end

  /// The last checkpoint in the folder.
  struct Saved {
    std::filesystem::path path;
    std::uint64_t version;  // of the model
    checkpoint::Metadata strings;
  };
  std::shared_ptr<checkpoint::Folder> folder;
  Mutex saving;
  std::optional<Saved> saved;

  // What the trainer's thread and the loop share.
  mutable std::mutex mutex;
  std::uint64_t local_epoch = 0;
  Counted counted;               // in this epoch
  bool progress_posted = false;  // note_progress is on its way
  bool demanded = false;         // synchronise() is to be called whatever the progress
  TrainingStats counters;
  bool checkpointing = false;          // one is being written in the background
  std::uint64_t checkpoint_epoch = 0;  // when the last one was begun, or loaded
  TimePoint checkpoint_time{};         // the same
  checkpoint::Metadata loaded;         // the strings of the one that was loaded
  std::atomic<bool> loss_reported{false};
  ParameterGate gate;

  /// While one exists no round begins by itself: rounds of an epoch given up come to an end, or the state is replaced.
  struct RoundsSuspended {
    explicit RoundsSuspended(Impl& of) : run(of) { ++run.rounds_barred; }
    ~RoundsSuspended() { --run.rounds_barred; }
    RoundsSuspended(const RoundsSuspended&) = delete;
    Impl& run;
  };
  int rounds_barred = 0;

  bool joined = false;         // this peer has a state of the run: the one that it began with, or that of others
  bool founder = true;         // it is the one that it began with
  std::uint64_t began_at = 0;  // the epoch in which it had joined
  int fruitless = 0;           // downloads in a row
  bool caught_up = false;      // in this epoch, between two batches
  bool ended = false;
  Duration retry;                                   // of a failed download
  std::vector<PeerId> useless_donors;               // whose last state was not taken
  std::optional<averaging::DownloadedState> proof;  // of an epoch that others claimed
  RunReports reports;
  averaging::StateSharing sharing;  // its uploads use what is above
  Subscription status;
  TaskGroup tasks;
};

}  // namespace cohive::train
