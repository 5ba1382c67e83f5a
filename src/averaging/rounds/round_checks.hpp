// RoundChecks: an all-reduce lets it look at what is sent and answered. It asks at fixed places: before one of our
// parts leaves, when a part reaches us as its reducer, when we answer, and when we are answered. By default nothing is
// checked. Where contributions are clipped or trimmed, lengths of averages are (round_checks.cpp); where averages are
// verified (AveragerOptions::verified_share), reducers have to show what they were made of
// (verification/verified_round.hpp). Loop thread only.
#pragma once

#include <compare>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "averaging/verification/part_ledger.hpp"
#include "averaging/verification/recomputation.hpp"
#include "averaging/wire.hpp"
#include "cohive/averaging/averager.hpp"
#include "cohive/averaging/group.hpp"
#include "cohive/averaging/metrics.hpp"
#include "cohive/p2p/host.hpp"
#include "reducer.hpp"

namespace cohive::proto {
class Verdict;
}

namespace cohive::averaging {

/// Tells whether an error means that a member sent what no honest one does, however late or cut off it is: it is kept
/// out for a while. An honest one may send values that are not finite.
bool is_fault(const std::error_code& code);

/// One all-reduce among those of a host.
struct RoundIdentity {
  std::string prefix;  ///< of protocols: "<prefix>::<class>."
  std::string id;      ///< the group's, followed by the phase
  std::shared_ptr<const Group> group;
  std::size_t own_index = 0;
  const PeerId& peer(std::size_t member) const { return group->members[member].peer; }
};

class RoundChecks {
 public:
  /// The round that is checked.
  struct Setup : RoundIdentity {
    double weight = 1;                     ///< of this member
    std::vector<std::size_t> own_lengths;  ///< of the parts that this member reduces
    Duration patience{};                   ///< with a reducer; zero: none
    Deadline end = Deadline::never();      ///< of settle(): the answers that are believed still have to be applied
  };
  /// An answer is applied, left out, or kept until settle().
  enum class Fate { apply, keep_local, hold };
  /// A part as it came from a sender, or as it goes to its reducer.
  struct Place {
    std::size_t member = 0, index = 0;
    auto operator<=>(const Place&) const = default;
  };

  virtual ~RoundChecks() = default;

  /// Tells whether answers are compared with what was sent, so that its bytes are kept until then.
  virtual bool looks_at_answers() const { return false; }
  /// Returns what goes along with a part of ours, usually nothing. Errors: the round is cancelled.
  /// \param length  of the stretch, in values
  virtual Task<Result<std::string>> commit(Place to, codec::Codec codec, EncodedStretch stretch, std::size_t length);

  /// Looks at a sender's part before it is added. Errors: what it sent cannot count.
  virtual Task<Result<>> take(Place from, const PartMessage& message, EncodedPart part);
  /// Returns what counts as our own contribution to a part that we reduce; nullptr: our values as they are.
  virtual Task<Result<std::shared_ptr<Contribution>>> take_own(std::size_t index, std::shared_ptr<OwnContribution> own);
  /// Returns the hash that goes along with the average of a part that we reduce; empty: none.
  virtual std::string transcript_digest(std::size_t index, const PartSum& sum);

  /// Decides on the next answer of a reducer. Errors: it is none, or cannot be decoded.
  /// \param transcript_digest  as it came along
  virtual Task<Result<Fate>> look_at(std::size_t reducer, const AnsweredPart& part, std::string transcript_digest);
  /// Waits for what decides on the answers that are held, until Setup::end at the latest.
  /// \param is_expected  whether a member can still be waited for
  virtual Task<void> settle(std::function<bool(std::size_t member)> is_expected);
  /// Returns the answers of a reducer that were held, in order, after settle(); nullptr where none ever are.
  virtual const std::deque<AnsweredPart>* held(std::size_t reducer);
  /// Says why the answers of a reducer cannot be used, after settle(). Errc::wrong_average, malformed and bad_partition
  /// are its fault; others are of members that could not show what they had.
  virtual std::optional<Error> objection(std::size_t reducer) const;
  /// Counts the averages that were made again.
  virtual std::size_t checked() const { return 0; }
  /// Ends all use of what is held, and gives it up.
  virtual void end() {}

  /// Takes what a member has found. Errors: averages are not checked here, or it is not in the group.
  virtual Result<> hear(const PeerId& from, const proto::Verdict& verdict);
  /// Returns what may be shown to members, also when the round has ended; null where averages are not verified.
  virtual std::shared_ptr<AuditLog> ledger() const { return nullptr; }
};

/// Makes the checks that an averager's options ask for.
std::unique_ptr<RoundChecks> make_checks(p2p::Host& host, const AveragerOptions& options,
                                         const AveragingMetrics& metrics, RoundChecks::Setup setup);

}  // namespace cohive::averaging
