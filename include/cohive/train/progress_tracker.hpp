/// \file
/// ProgressTracker: how far the whole run is, through signed records in the DHT.
///   trainer -> DHT: {RUN_progress: {marker of its key: {peer_id, epoch, samples, rate, time, client}, 60 s}}
/// Source: docs/wire/hivemind.md, section 7.1. Loop thread only, except snapshot().
///
/// What a report is worth: identities cost nothing, so what strangers report proves nothing, however many they are. The
/// epoch of the run is the largest one that most of those trainers have reached that this one has averaged with, or
/// whose state it has taken. What others report beyond stays a claim (GlobalProgress::claimed) until a state proves it.
/// The key that signs a report is bound to the peer id in it: of several keys the first one has it. Members of the last
/// round whose reports do not come through the DHT are asked themselves. An auxiliary peer has no state to lose, and
/// believes more: see epoch_of_most.
#pragma once

#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohive/core/sync.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/train/performance_ema.hpp"

namespace cohive::train {

inline constexpr std::uint64_t kMostEpochs = std::uint64_t{1} << 48;  ///< of a run: larger numbers are refused

/// hivemind's defaults; the names of its tracker_opts.
struct TrackerOptions {
  std::string run_id;                   ///< the record in the DHT is run_id + "_progress"; see fault_of_name
  double target_batch_size = 0;         ///< samples per epoch of all peers; a record that claims more counts as so many
  bool client_mode = false;             ///< told to the swarm: this peer cannot be reached
  bool auxiliary = false;               ///< this peer trains nothing: its epoch is what most others report
  Duration min_refresh_period = 500ms,  ///< shortest time between two looks at the run; more for many peers
      max_refresh_period = 10s,         ///< longest time between them
      default_refresh_period = 3s;      ///< the time while no record is found, or the DHT does not answer
  double expected_drift_peers = 3,     ///< peers that may join before the epoch ends: looks come earlier by their share
      expected_drift_rate = 0.2;       ///< the same as a fraction of the peers; the larger of the two counts
  double performance_ema_alpha = 0.1;  ///< of the measured speed, see PerformanceEma
  Duration metadata_expiration = 60s;  ///< after which a report is forgotten; reports are renewed twice as often
  /// Trainers that a run has when it reports in shards (docs/wire/extensions.md, section 18). Below three quarters of
  /// it the run's one record is enough again. 0: never.
  std::size_t sharded_above = 64;
};

struct ProgressEntry;
struct ProgressSum;
struct ShardReport;
class MemberReports;
class ProgressShards;

/// The run as last seen.
struct GlobalProgress {
  std::uint64_t epoch = 0;        ///< what this peer and most of those that it has averaged with have reached; of an
                                  ///< auxiliary peer see ProgressTracker::epoch_of_most
  std::uint64_t claimed = 0;      ///< the largest that one of these claims; that anybody does, where none is in touch
  double samples = 0;             ///< accumulated towards this epoch by all peers
  double own_samples = 0;         ///< of these, by this peer
  double samples_per_second = 0;  ///< of all peers together, by their own reports; 0 before the first look
  std::size_t peers = 0,  ///< trainers with a record, this one included; of large runs an estimate. 0: none found
      clients = 0;        ///< of these, peers that cannot be reached
  std::size_t met = 0;    ///< others in sight that this peer has averaged with, or whose state it has taken
  /// There is a connection to one of these, or reports are drawn. All that an old report tells may be of peers that are
  /// gone or asleep, as after a long sleep: then this one knows no more of the run than a newcomer.
  bool in_touch = false;
  std::size_t expected = 0;  ///< of these, strangers with a connection and this peer, in the next round: see took_part
  std::size_t in_sight = 0;  ///< the same with any number of strangers, and some without a connection
  /// Others report samples of this epoch: `samples` is an estimate. Those of this peer alone are counted.
  bool others_train = false;
  std::uint64_t shard_bytes = 0;  ///< sent by this peer so far, for progress in shards: its own, and as a leader
  /// Unix seconds when the target will be reached; infinite before the first look at the run.
  double eta = std::numeric_limits<double>::infinity();
};

/// Tells the DHT how far this peer has come, and reads how far the run has. Loop thread only.
class ProgressTracker {
 public:
  /// Adds the validators of signature (`key`) and schema to `dht`, which must outlive the tracker.
  ProgressTracker(Dht& dht, std::shared_ptr<dht::RsaSignatureValidator> key, TrackerOptions options);
  ~ProgressTracker();
  /// Begins to report and to read the DHT, in the background, until close().
  void start();
  /// Stops reporting and withdraws the record of this peer, so that no member waits for it, and still follows what the
  /// others tell; should the DHT not answer until the deadline, the record stays until it expires. Idempotent.
  Task<void> withdraw(Deadline deadline);
  /// Withdraws the record as withdraw() does, and follows the run no longer. Idempotent.
  Task<void> close(Deadline deadline);

  /// Tells what this peer has accumulated in its current epoch.
  void report(std::uint64_t epoch, double samples);
  /// Tells that this peer begins to train in an epoch whose state it has taken: it is expected in the next round.
  void begin_anew(std::uint64_t epoch);
  /// Enters an epoch.
  void update_epoch(std::uint64_t epoch);
  /// Stores what this peer has last told without waiting for more, which takes up to half of the shortest period
  /// between two looks at the run: for a trainer that is about to look once.
  void report_at_once();
  /// Changes TrackerOptions::target_batch_size.
  void set_target(double samples);
  /// The measured speed of this peer. Loop thread.
  double own_samples_per_second() const { return ema_.samples_per_second(); }
  /// Goes on after a round for which this trainer has waited, and the members with it: neither it nor they have made
  /// samples meanwhile.
  void training_resumes();
  /// Notes peers that this one has averaged with, or whose state it has taken: what they report counts.
  void met(const std::vector<PeerId>& peers);
  /// Notes the members of a round of the whole run that has ended, as far as is known: met() tells which of them have
  /// done something in it. A trainer that was not among them is not expected in the next round until it reports again:
  /// what a peer reported before it vanished is kept for metadata_expiration. A stranger is expected less and less
  /// often. Where nobody else took part, this is true of the `lost` members alone: whoever made the group up did not
  /// name the trainers that it sent elsewhere.
  void took_part(const std::vector<PeerId>& members, const std::vector<PeerId>& lost = {});
  /// Takes those that claim more than `proven`, the epoch of the best state that could be had, for strangers until this
  /// peer averages with them again.
  void doubt_claims_above(std::uint64_t proven);
  /// Reads the DHT now.
  Task<void> refresh();
  /// Tells whether the run has been looked at since the start.
  bool looked() const noexcept { return looked_; }
  /// Tells whether others trained at the first look, which was before this peer reported: of two, one is the first.
  bool others_began() const noexcept { return others_began_; }
  /// A trainer in sight that shares its state.
  struct Trainer {
    PeerId peer;
    std::uint64_t epoch;
  };
  /// Returns them, those that this peer is connected with first.
  std::vector<Trainer> trainers() const;
  /// Returns the largest epoch that most of those others have reached that this peer has averaged with in the last
  /// hour, by their reports; where none of these reports, most of all others. Clients count. Its own epoch where nobody
  /// reports.
  std::uint64_t epoch_of_most() const;
  /// Returns the reporting trainers that rounds do not wait for. Loop thread.
  std::vector<PeerId> absent() const;
  /// Tells whether a trainer that this one has averaged with has not reached its epoch yet.
  bool someone_is_behind() const;
  /// Tells whether other trainers average with this one, or did so until `grace` ago. The loop's thread.
  bool in_company(Duration grace) const;
  /// Completes when the run is past `epoch`: for a peer that has averaged with nobody, most of those that it is
  /// connected with.
  Task<void> epoch_passed(std::uint64_t epoch);
  /// Completes with the next news of the run, or at the deadline.
  Task<void> news(Deadline deadline = Deadline::never());

  /// Any thread.
  GlobalProgress snapshot() const;
  /// Returns the loop of the DHT.
  Runtime& runtime() const { return runtime_; }

 private:
  using Entry = ProgressEntry;
  static Task<void> report_loop(ProgressTracker& self);
  static Task<void> fetch_loop(ProgressTracker& self);
  Task<void> store_record(bool goodbye, std::optional<Deadline> deadline = std::nullopt);
  void publish();
  /// Leaves the time since the last report out of the measured speed: it went into something else than training.
  void restart_timer();
  void fetch_soon();
  void set(const GlobalProgress& progress);
  std::vector<Entry> entries_of(const dht::GetResult& record) const;
  bool most_have_left_the_record(std::size_t reporting) const;
  bool is_met(const PeerId& peer) const;
  bool is_absent(const PeerId& peer) const;
  bool is_there(const PeerId& peer, double reported, double seconds) const;
  bool is_gone(const PeerId& peer, double reported) const;
  void count_expected(GlobalProgress& progress) const;
  void dial_strangers();
  static Task<void> dial(ProgressTracker& self, PeerId stranger);
  bool trains() const;
  ShardReport own_report() const;
  bool is_misjudged() const;
  ShardReport report_for_others() const;
  void enter_shards(Duration patience);
  Task<bool> found_in_shards();
  static Task<void> look_for_shards(ProgressTracker& self);
  void note_way(std::size_t peers, bool sum_seen);
  Task<void> refresh_from_shards();
  void count_run(const ProgressSum& run, GlobalProgress& global);
  Task<void> leave_shards(Duration away);
  Task<Result<dht::GetResult>> read_record();
  void bind_peers(std::vector<Entry>& entries);
  void take_answers(std::vector<Entry>& entries);
  std::vector<PeerId> missing_members() const;
  void ask_missing_members();
  static Task<void> ask_them(ProgressTracker& self);
  void take_in();
  void note_reports(const std::vector<Entry>& entries);
  void agree_on_epoch(const std::vector<Entry>& entries, GlobalProgress& global);
  struct Speed {
    double samples_per_second;
    TimePoint forgotten;
  };
  /// What drawn trainers count for.
  struct Speeds {
    double usual = 1;  ///< the mean speed of all that are known, in that of those that were drawn
    double most = std::numeric_limits<double>::infinity();  ///< that one of them is believed
  };
  Speeds compare_speeds(const std::vector<Entry>& entries);
  void add_up(const std::vector<Entry>& entries, GlobalProgress& global);
  double until_target(const GlobalProgress& global) const;
  std::size_t credible(std::size_t peers) const;
  std::size_t readers_of(const GlobalProgress& progress) const;
  Duration least_period(std::size_t readers) const;
  bool looked_ = false, others_began_ = false;
  bool drawn_ = false;  // the trainers in sight are some of them
  double uptime() const { return to_seconds(runtime_.now().time_since_epoch()); }  // whatever the clock is set to

  Dht& dht_;
  Runtime& runtime_;
  std::shared_ptr<dht::RsaSignatureValidator> key_;
  TrackerOptions options_;
  PerformanceEma ema_;
  std::uint64_t epoch_ = 0;
  double samples_ = 0;
  /// What another trainer of this epoch has reported.
  struct Other {
    double samples, samples_per_second, time;  // when, by its own clock
  };
  std::vector<Other> others_;
  double resumed_ = 0;                         // Unix seconds
  std::optional<std::uint64_t> active_epoch_;  // of the run, when we last reported samples
  bool unpublished_ = false, urgent_ = false, fetch_now_ = false, stored_ = false, withdrawn_ = false;
  bool sharded_ = false;  // whether it reports in shards
  bool exchanging_ = false;
  // In shards: the last look, the last answer, the last one of a run that is large enough, and the next try.
  TimePoint exchanged_{}, answered_{}, large_at_{}, not_before_{};
  double changed_at_ = 0, batch_ = 0;  // Unix seconds of the last change of samples_, and how many then
  std::uint64_t heard_ = 0;            // the epoch of most strangers with a connection
  double newest_expiration_ = 0;       // of our own report, by whatever our clock was
  Condition changed_, fetch_wanted_, seen_;
  TimePoint started_{}, next_fetch_{}, entered_{};  // the epoch
  mutable std::mutex mutex_;
  GlobalProgress global_;
  std::optional<TimePoint> company_left_;  // when the last one of other trainers did
  struct Report {
    double time;  // by the clock of its peer
    std::uint64_t epoch;
    bool client;
  };
  struct Absence {
    double reported;    // the time of its last report then
    int rounds = 0;     // that it has missed since it was met last, one for each report
    TimePoint until{};  // a stranger is not expected before
  };
  dht::GetResult record_;                       // as it was read last
  std::unordered_map<PeerId, Report> reports_;  // the latest ones
  std::unordered_map<PeerId, Absence> absent_;
  std::unordered_map<PeerId, double> lost_;  // of reporting peers, when the last connection broke: Unix seconds
  Subscription losses_;
  std::unordered_map<PeerId, std::string> bound_,  // peer ids to the markers of the keys that report for them
      met_;                                        // the same as it was then; empty: it had not reported yet
  std::unordered_map<PeerId, TimePoint> dialled_;  // strangers without a connection, and when they are dialled again
  std::vector<PeerId> members_, unlisted_;         // of the last round; those whose reports only they have told us
  bool dialling_ = false, asking_ = false;
  std::unordered_map<std::string, Speed> speeds_;  // of trainers that were drawn, by the same
  std::unique_ptr<ProgressShards> shards_;
  std::unique_ptr<MemberReports> answers_;
  TaskGroup tasks_;
};

}  // namespace cohive::train
