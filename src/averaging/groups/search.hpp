// Search: one search for a group. It declares that this peer looks for one, follows the peer whose declaration expires
// first, and leads the group when that is its own.
// Source: docs/wire/hivemind.md, sections 6.2 and 6.5.
#pragma once

#include <set>

#include "cohive/averaging/group_finder.hpp"
#include "cohive/averaging/metrics.hpp"
#include "cohive/dht/dht.hpp"
#include "cohive/p2p/host.hpp"
#include "core/detail/growing_pause.hpp"
#include "group_keys.hpp"
#include "known_group.hpp"
#include "leadership.hpp"
#include "stragglers.hpp"

namespace cohive::averaging {

/// What the searches of one averager have in common.
struct SearchContext {
  explicit SearchContext(FinderContext context);

  double now() const { return finder.dht.now(); }
  PeerId own() const { return finder.dht.host().id(); }
  /// Remembers a group, and looks for newcomers that it does not have.
  void remember(const Group& group, bool reforms);
  void look_around();
  /// Whether the peer may be in a group of ours: it has done nothing that an honest one does not do.
  bool admits(const PeerId& peer) const { return !reputation.is_banned(peer); }
  /// Whether this peer follows it where others may lead as well.
  bool may_lead(const PeerId& peer) const {
    const bool wary = (runtime.now() < distrust_until && reputation.has_any_history()) || stragglers.is_wary();
    return admits(peer) && !stragglers.leads_in_vain(peer) && !(wary && !reputation.has_history(peer));
  }
  /// Makes these the group that the next search is for.
  void meet(const std::vector<Member>& members);
  /// Begins anew with what was heard of the last round.
  void begin_search();
  /// Another peer averages under our key.
  void met(const PeerId& peer) {
    if (admits(peer)) known.met(peer);
  }
  /// The same is told of it in the DHT: it may not exist, where this peer has never been in contact with it.
  void heard_of(const PeerId& peer) {
    if (is_in_contact(peer) && !known.was_lost(peer)) met(peer);
  }
  /// A known peer takes part in its last round, with others whose last it is: until this one's own, it is not waited
  /// for.
  void goes_to_last(const PeerId& peer);
  /// Whether the peer exists, as far as this one has seen.
  bool is_in_contact(const PeerId& peer) const {
    return finder.dht.host().connected(peer) || reputation.has_history(peer);
  }
  /// The peers that have declared themselves under our key.
  Task<Result<dht::GetResult>> find_declared();
  /// Whether these are so many that some are drawn.
  bool is_crowded() const { return crowded_; }
  /// How long we declare ourselves, beyond min_matchmaking_time.
  Duration stretch() const { return stretch_; }
  /// A declaration has been stored in the DHT.
  void stored_in(Duration time);

  const FinderContext finder;
  Runtime& runtime;
  const std::string protocol;  // rpc_join_group
  GroupKeys keys;
  p2p::Reputation& reputation;
  KnownGroup known;
  Stragglers stragglers;
  TimePoint distrust_until = TimePoint::min();  // follows no stranger, where there are peers that have averaged with us
  Mutex lock;                                   // one of: asking a leader, accepting a follower
  Condition changed;                            // of anything about the search
  TaskGroup background;

 private:
  static Task<void> look_for_newcomers(SearchContext& self);
  void keep_to_dictionary();

  std::set<std::string> kept_keys_;
  std::set<PeerId> in_last_round_;  // of these, as far as was seen here
  Duration last_storing_{}, stretch_{};
  bool looking_around_ = false, crowded_ = false;
};

/// What one search has met, for its error.
struct SearchReport {
  std::set<PeerId> candidates;
  std::size_t unreachable = 0, lost = 0, disbanded = 0, joined = 0, left = 0;
  std::map<std::string, std::size_t> refusals;
  std::string text() const;
};

class Search {
 public:
  /// \param end  Unix seconds
  Search(SearchContext& context, Member own, const SearchPlan& plan, double end);
  ~Search();

  Task<Result<Group>> run(Deadline deadline);
  /// Undoes what the search has changed; peers that hold it find it ended.
  void end();

  /// The peers that wait for us, or that we wait for.
  std::set<PeerId> partners() const;
  /// Whether it has heard of the peer.
  bool has_met(const PeerId& peer) const { return partners().contains(peer) || report_.candidates.contains(peer); }

  // ---- For peers that ask to join
  /// True when peers may join: something is declared, and no group is found.
  bool ready() const { return looking() && declared_; }
  /// True while our request waits at the leader that we know.
  bool is_held() const { return standing_ == Standing::held; }
  /// Why a peer may not join; nullopt when it may.
  std::optional<proto::MessageFromLeader> refusal(const PeerId& peer, const proto::JoinRequest& request) const;
  /// Whether what the members gather stays within bounds with this one.
  bool has_room_for(const Follower& follower) const { return followers_.has_room_for(follower); }
  void add(const FollowerPtr& follower);
  void remove(const FollowerPtr& follower);
  /// Makes the group when no peer is left to wait for.
  void assemble_if_complete();
  /// The follower's time is up: makes the group with the peers that are here, or gives them up.
  void assemble_or_disband(const Follower& follower);
  /// When our own declaration expires.
  double expiration() const;
  std::optional<PeerId> leader() const {
    return standing_ == Standing::following ? std::optional(leader_) : std::nullopt;
  }

 private:
  /// What this peer is to other peers of its search.
  enum class Standing {
    free,
    held,      ///< our request waits at the leader that we know: no group begins here
    following  ///< `leader_` has accepted us
  };
  struct Declaration {
    std::string key;
    double expiration = 0;
  };
  struct Candidate {
    double expiration;
    PeerId peer;
    friend auto operator<=>(const Candidate&, const Candidate&) = default;
  };
  struct Next {
    enum class Kind { ask, known_leader, guide, time_is_up, found, members_left } kind;
    Candidate candidate{};
  };

  /// A guide may keep our request in vain.
  struct Asked {
    explicit Asked(detail::GrowingPause until_again) : pause(until_again) {}
    detail::GrowingPause pause;
    std::size_t times = 0;
    TimePoint last{};
  };

  bool looking() const { return !ended_ && !found_; }
  bool complete() const;
  bool has_company() const;
  bool awaits_company() const;
  bool all_left() const;
  std::size_t still_expected() const;
  void assemble();
  void assemble_or_disband();
  double own_expiration() const;
  double expiration_from_now() const;
  void note(JoinOutcome outcome, const PeerId& leader, const std::string& detail);

  static Task<void> declare(Search& self);
  static Task<void> undeclare(SearchContext& context, Declaration declaration);
  static Task<void> refresh_queue(Search& self);
  static Task<void> watch_plan(Search& self);
  static Task<void> watch_known_group(Search& self);
  static Task<void> redial(Search& self, PeerId peer);
  static Task<void> assemble_when_complete(Search& self);
  static Task<void> until_deposed(Search& self, PeerId leader);
  void take_declared(const dht::GetResult& declared);
  std::optional<PeerId> unasked_leader() const;
  std::optional<PeerId> unasked_guide() const;
  bool may_be_guide(const PeerId& peer) const;
  Task<void> join_known_group(PeerId leader, Deadline deadline);
  Task<void> join_through(PeerId guide);
  Task<void> ask_guide(PeerId guide, double expiration, double hold_end);
  static Task<void> until_found(Search& self);
  Duration time_to_hold(double expiration) const;
  Task<Result<Next>> next_step();
  std::optional<Candidate> first_candidate();
  Task<void> follow(PeerId leader, double expiration, Duration hold = {});
  Task<std::optional<Group>> request_to_join(PeerId leader, double expiration, Duration hold,
                                             std::optional<PeerId>& redirected);
  Task<std::optional<Group>> await_group(rpc::ClientStream& call, double expiration, std::optional<PeerId>& redirected);
  proto::JoinRequest join_request(double expiration, Duration hold) const;
  Result<Group> group_from(const proto::MessageFromLeader& message, const PeerId& leader) const;

  SearchContext& context_;
  const GroupOptions& options_;
  Runtime& runtime_;
  const Member own_;
  const SearchPlan& plan_;
  const double end_;
  bool ended_ = false;
  std::optional<Group> found_;
  SearchReport report_;

  std::optional<Declaration> declared_;
  std::uint64_t declarations_ = 0;
  Standing standing_ = Standing::free;
  PeerId leader_;
  Leadership followers_;
  const TimePoint began_;
  TimePoint grace_end_;      // until then the members of the known group are expected to come by themselves
  TimePoint strangers_end_;  // until then a group that has not met before is not complete: the count may be old
  TimePoint doubts_end_;     // until then no peer is asked to lead that did not answer lately
  std::size_t expected_members_ = 0;
  TimePoint expected_since_;  // when the owner of the round said so

  std::set<PeerId> asked_leaders_;   // of the known group
  std::vector<PeerId> not_looking_;  // peers that found no time for us: their group may
  std::map<PeerId, Asked> asked_guides_;
  std::uint64_t guided_at_ = 0;  // the updates when the last one was asked
  std::set<Candidate> queue_, tried_;
  std::uint64_t updates_ = 0;  // of the queue
  double max_assured_ = 0;
  Condition refresh_wanted_;
  bool want_refresh_ = false;
  TaskGroup tasks_;
};

}  // namespace cohive::averaging
