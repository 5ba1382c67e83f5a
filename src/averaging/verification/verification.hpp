// A member's look at what the reducers of its group have made. Answers are held until their reducers are believed: for
// some parts, drawn by this member alone, the reducer has to show what it had of every sender, and the average is made
// again. Then members tell each other which averages they have found wrong, and look at those of their own.
// Source: docs/wire/extensions.md, section 12. Loop thread only.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "averaging/rounds/round_checks.hpp"
#include "cohive/averaging/group.hpp"
#include "cohive/averaging/metrics.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/core/task_group.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/rpc/rpc.hpp"

namespace cohive::averaging {

class Verification {
 public:
  struct Setup : RoundChecks::Setup {
    double share = 0;  ///< of the parts that are made again
    Aggregation aggregation;
  };
  /// A reducer, and where a part comes in its work.
  using Place = RoundChecks::Place;

  Verification(p2p::Host& host, const AveragingMetrics& metrics, Setup setup);

  /// Takes a reducer's next answer, and begins to check it when it is drawn, or odd: large lies are found by every
  /// member that is told them.
  /// \param transcript_digest  SHA-256 of its transcript
  Task<Result<>> hold(std::size_t reducer, AnsweredPart part, Digest transcript_digest = {});
  /// The answers of a reducer, in order.
  const std::deque<AnsweredPart>& held(std::size_t reducer) { return held_[reducer].parts; }

  /// Waits for the checks, tells the other members of them, and hears theirs, for a while. What has not been shown by
  /// Setup::end is not believed: Errc::timeout.
  /// \param is_expected  whether a member can still be waited for
  Task<void> await_verdicts(std::function<bool(std::size_t member)> is_expected);
  /// Why the answers of a reducer cannot be used, after await_verdicts(). Errc::wrong_average, malformed and
  /// bad_partition are its fault; others are of members that could not show what they had.
  std::optional<Error> objection(std::size_t reducer) const;
  /// Averages that were made again.
  std::size_t checked() const { return begun_.size(); }

  /// Takes what a member has found.
  Result<> hear(const PeerId& from, const proto::Verdict& verdict);
  /// Ends all use of what is held, and gives it up.
  void end() {
    tasks_.cancel();
    held_.clear();
  }

 private:
  struct Held {
    std::deque<AnsweredPart> parts;        // whose places in memory stay
    std::deque<Digest> transcript_digest;  // of the same parts
    std::size_t odd = 0;                   // that were checked for that
  };

  bool can_be_checked(const AnsweredPart& part) const;
  bool is_sampled(Place place) const;
  void begin_check(Place place);
  static Task<void> check(Verification& self, Place place);
  Task<Result<>> examine(Place place);
  Result<Transcript> accept_transcript(ByteView bytes, Place place) const;
  Task<Result<>> add_contribution(std::shared_ptr<Recomputation> again, Place place, std::size_t entry, Slice record);
  void object(std::size_t reducer, const Error& why, Place place);
  Deadline halfway() const;
  Task<void> await_checks(Deadline end);
  static Task<void> tell(Verification& self, std::size_t member, std::string verdict);
  std::string own_verdict() const;
  bool all_heard(const std::function<bool(std::size_t)>& is_expected) const;
  void follow_complaints();
  const PeerId& peer(std::size_t member) const { return setup_.peer(member); }

  p2p::Host& host_;
  Runtime& runtime_;
  const AveragingMetrics& metrics_;
  const Setup setup_;
  const Digest secret_;  // of the draw
  const TimePoint began_;
  std::map<std::size_t, Held> held_;                    // by reducer
  std::set<Place> begun_;                               // checks
  std::set<Place> pending_;                             // of these, those that have not ended
  std::size_t telling_ = 0;                             // members that are being told our verdict
  std::map<std::size_t, Error> objections_;             // by reducer
  std::vector<Place> wrong_;                            // what this member complains of
  std::map<std::size_t, std::vector<Place>> verdicts_;  // by member: its complaints
  Condition changed_;
  std::map<std::size_t, Semaphore> turns_;  // by reducer: whoever shows nothing holds up its own checks alone
  Semaphore at_once_;
  TaskGroup tasks_;
};

}  // namespace cohive::averaging
