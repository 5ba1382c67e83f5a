// When the rounds of a run begin, how long they are waited for, and what they yield. Loop thread.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "growing_pause.hpp"
#include "run_context.hpp"
#include "update.hpp"

namespace cohive::train {

/// How long a group is waited for.
struct Search {
  std::uint64_t epoch = std::numeric_limits<std::uint64_t>::max();  ///< until the run has passed it
  averaging::Averager* next = nullptr;  ///< until `patience` has gone by since a member waits for us in a round of it
  Duration patience{};                  ///< without `next`: from the beginning of the search on
};

/// The outcome of one exchange.
struct Exchanged {
  std::shared_ptr<const averaging::RoundReport> round;  ///< null: nothing was averaged
  Effect effect = Effect::none;
  std::size_t group() const { return round ? round->group.size() : 0; }
};

class RunRounds {
 public:
  explicit RunRounds(RunContext& run) : run_(run) {}
  void start();

  /// While one exists no round begins by itself: this peer has no state of the run, or another one takes its place, or
  /// rounds of an epoch given up come to an end.
  class [[nodiscard]] Suspended {
   public:
    explicit Suspended(RunRounds& of) : rounds_(of) { ++rounds_.suspended_; }
    ~Suspended() { --rounds_.suspended_; }
    Suspended(const Suspended&) = delete;

   private:
    RunRounds& rounds_;
  };
  bool suspended() const noexcept { return suspended_ > 0; }

  /// Begins to look for groups as soon as the epoch's end is nearer than the time that it takes.
  void consider();
  /// Returns the bits by which a round of an exchange is divided, where so many trainers are expected.
  std::size_t bits_for(const Scheduled& scheduled, std::size_t expected) const;
  /// Returns how many members of all its groups together a round waits for, where so many trainers are expected.
  std::size_t members_for(const Scheduled& scheduled, std::size_t expected) const;
  /// Returns how long before the end of the epoch a group is looked for.
  Duration search_time(const GlobalProgress& global) const;
  /// A group that expects no more than came before a newcomer would begin without it.
  void expect_members();
  /// Begins the rounds of this epoch's end that have not begun.
  void begin_all(const GlobalProgress& global);
  void begin(Scheduled& scheduled, std::uint64_t epoch, std::size_t expected, Duration timeout,
             std::vector<averaging::Member> members = {});
  /// Begins one of the members of a round that has just ended.
  void begin_following(Scheduled& scheduled, std::uint64_t epoch, const averaging::RoundReport& before);

  /// One exchange, from the search for its group to what is done with the answer. While a group is being found,
  /// newcomers get copies of the model. A step is made without a group, too.
  /// \param update   whose trainer waits, and whose report tells of the round; null: it belongs to no end of an epoch
  /// \param release  lets that trainer go on
  Task<Exchanged> exchange(Scheduled& scheduled, Moment moment, Search search, Update* update = nullptr,
                           std::function<void()> release = nullptr);
  /// Rounds that have begun will not be used. Where a group has formed, its members must not wait.
  Task<void> abandon();
  /// This peer has tried to catch up, and is in `epoch` now: whether the members that told it to were right.
  /// \param none_shared  nobody has shared a state, so that it does not show
  void tried_to_catch_up(std::uint64_t epoch, bool none_shared);

  /// Others seem to be ahead, and nobody shares a state: from now on this peer counts for nothing in rounds most of
  /// whose members are ahead of it, until one of the parameters has given it theirs. Three of these that fail, and it
  /// counts again, whoever says what.
  void follow_others() noexcept { follows_ = kMostFollowed; }
  bool follows_others() const noexcept { return follows_ > 0; }
  /// Returns a round of the parameters, and forgets it, that has given this peer those of members that are ahead; null:
  /// there was none since the last call.
  std::shared_ptr<const averaging::RoundReport> take_followed() noexcept { return std::exchange(followed_, nullptr); }

 private:
  static constexpr int kMostFollowed = 3;  // rounds of the parameters that may fail to give this peer those of others
  /// The outcome of a search.
  struct Grouped {
    std::shared_ptr<averaging::Round> round;  // with a group; null: it has none, or was given up
    bool missed = false;                      // the others may have averaged without us
  };
  /// Epochs that differ: members of a round have said that this peer is behind them.
  struct Told {
    std::uint64_t behind, ahead;  // that of this peer, and the least of theirs
  };
  using Outcome = Result<std::shared_ptr<const averaging::RoundReport>>;
  bool is_nearly_over() const;
  static Task<void> watch_members(RunRounds& self, Scheduled& scheduled);
  static Task<void> watch_majority(RunRounds& self, Scheduled& scheduled);
  Task<Grouped> find_group(Scheduled& scheduled, std::shared_ptr<averaging::Round> round, Search search,
                           const Update* update);
  bool looks_at_all(const Scheduled& scheduled) const;
  std::optional<std::uint64_t> least_ahead(const averaging::Round& round, std::uint64_t epoch) const;
  bool is_left_behind(const averaging::Round& round, std::uint64_t epoch);
  Task<std::shared_ptr<const averaging::RoundReport>> average(Scheduled& scheduled,
                                                              std::shared_ptr<averaging::Round> round,
                                                              Exchange::Offer offer, Update* update);
  bool needs_state(const Exchange& what) const;
  std::shared_ptr<const averaging::RoundReport> judge(Scheduled& scheduled, Outcome result);
  void miss(Scheduled& scheduled);
  void count_round(Scheduled& scheduled, const averaging::RoundReport& result);

  RunContext& run_;
  int suspended_ = 0;
  GrowingPause doubt_ = doubt_of_members();
  std::optional<Told> told_;     // by them; it has not tried to catch up since
  std::vector<PeerId> company_;  // the members of the last exchange, if that was one of gradients of the whole run
  int follows_ = 0;              // rounds of the parameters that this peer waits for at most: see follow_others
  bool trails_ = false;          // most members of its last round were ahead, while it waited for these
  std::shared_ptr<const averaging::RoundReport> followed_;
};

}  // namespace cohive::train
