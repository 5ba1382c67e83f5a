// Matchmaking: peers that want to average declare so in the DHT; each follows the one whose declaration expires first,
// and that leader announces the group.
//   all      -> DHT: {group key: {own id: true, expires e}}
//   follower -> rpc_join_group JoinRequest;   leader -> ACCEPTED, later BEGIN_ALLREDUCE or GROUP_DISBANDED
// A group that has averaged before forms again without the DHT: see reforming.cpp.
// Source: hivemind wire spec, sections 6.2 and 6.5.
#pragma once

#include <set>

#include "all_reduce.hpp"
#include "cohive/proto/averaging.pb.h"

namespace cohive::averaging {

class Matchmaking {
 public:
  Matchmaking(Dht& dht, const AveragerOptions& options, const AveragingMetrics& metrics, std::string join_protocol,
              std::string schema_hash);

  /// Looks for a group until `deadline`. One search at a time. `control` gives the scheduled time, which may change.
  /// The error says what was tried.
  Task<Result<Group>> look_for_group(std::string gather, const StepControl& control, Deadline deadline);
  /// Serves rpc_join_group.
  Task<Result<>> serve(rpc::ServerStream& stream);

  const std::string& bits() const { return bits_; }
  void set_bits(std::string bits) {
    if (bits != bits_) known_.reset();
    bits_ = std::move(bits);
  }
  bool looking() const { return looking_; }

  /// The group of the last search has averaged; `lost` are those that the others need not wait for the next time.
  void round_ended(const std::vector<PeerId>& lost);
  /// It has not: the next search begins anew.
  void forget_group() { known_.reset(); }

 private:
  struct Follower {
    Member member;
    std::size_t gathered_bytes = 0;
    codec::CodecSet codecs;        // that it offers
    double expiration = 0;         // until when it waits for us
    bool reforms = false;          // it remembers groups
    std::shared_ptr<Group> group;  // set when assembled
    bool remember = false;         // all members of that group remember it
    bool disbanded = false;
  };
  /// The last group, which all its members remember.
  struct Known {
    std::set<PeerId> members;
    PeerId leader;
  };
  struct Candidate {
    double expiration;
    PeerId peer;
    friend auto operator<=>(const Candidate&, const Candidate&) = default;
  };
  struct Search;
  /// What one search has met, for its error.
  struct Story {
    std::set<PeerId> candidates;
    std::size_t unreachable = 0, lost = 0, disbanded = 0, joined = 0, left = 0;
    std::map<std::string, std::size_t> refusals;
    std::string text() const;
  };

  std::string key() const { return options_.prefix + ".0b" + bits_; }
  double now() const { return dht_.now(); }
  double expiration_for(const StepControl& control, double search_end) const;
  void note_storing(Duration took);
  static Task<void> declare(Matchmaking& self, const StepControl& control, double search_end);
  static Task<void> undeclare(Matchmaking& self, std::string key, double expiration);
  static Task<void> refresh_queue(Matchmaking& self);
  Task<std::optional<Candidate>> next_candidate(double search_end);
  Task<std::optional<Group>> follow(Candidate leader, double expiration, double search_end, Duration hold = {});
  Task<std::optional<Group>> request_to_join(PeerId leader, double expiration, Duration hold,
                                             std::optional<PeerId>& redirected);
  proto::JoinRequest join_request(double expiration, Duration hold) const;
  Result<Group> group_from(const proto::MessageFromLeader& message, const PeerId& leader) const;
  void note(JoinOutcome outcome, const PeerId& leader, const std::string& detail);
  std::optional<proto::MessageFromLeader> reject(const PeerId& peer, const proto::JoinRequest& request) const;
  proto::MessageFromLeader last_word(const Follower& follower) const;
  codec::CodecSet offered_codecs() const;
  codec::CodecSet agreed_codecs() const;
  std::shared_ptr<Group> assemble();
  void disband();
  bool complete() const;
  double own_expiration() const;
  static Task<Result<>> send(rpc::ServerStream& stream, const proto::MessageFromLeader& message, Deadline deadline);

  // Re-forming a known group.
  void remember(const Group& group, bool reforms);
  bool leads_known_group() const { return known_ && known_->leader == dht_.host().id(); }
  bool expects(const PeerId& peer) const { return leads_known_group() && known_->members.contains(peer); }
  bool will_come(const PeerId& peer) const;
  bool known_group_is_here() const;
  Duration longest_hold(double expiration) const;
  bool ready() const { return looking_ && !assembled_ && declared_expiration_ != 0; }
  Task<Result<>> hold(rpc::ServerStream& stream, PeerId peer, Duration limit);
  void met(const PeerId& peer);
  void look_around();
  static Task<void> look_for_newcomers(Matchmaking& self);

  Dht& dht_;
  Runtime& runtime_;
  const AveragerOptions& options_;
  const AveragingMetrics& metrics_;
  Story story_;
  std::string protocol_, schema_hash_, bits_;
  Mutex lock_;         // one of: asking a leader, accepting a follower
  Condition changed_;  // of anything below
  bool looking_ = false;
  std::string gather_;
  std::map<PeerId, std::shared_ptr<Follower>> followers_;
  std::size_t gathered_bytes_ = 0;  // of the followers
  std::optional<PeerId> leader_;
  std::shared_ptr<Group> assembled_;
  std::string declared_key_;
  double declared_expiration_ = 0;  // 0: nothing declared
  std::uint64_t declarations_ = 0, updates_ = 0;
  std::set<Candidate> queue_;
  std::set<Candidate> tried_;
  double max_assured_ = 0;
  Duration last_storing_{};  // of a declaration in the DHT
  Duration stretch_{};       // of the time for which we declare, beyond min_matchmaking_time
  Condition refresh_wanted_;
  bool want_refresh_ = false;
  std::optional<Known> known_;
  std::set<PeerId> newcomers_;  // seen lately, and not in the known group: it waits for them once
  std::set<PeerId> lost_;       // in the last round: their declarations in the DHT mean nothing
  bool held_ = false;           // our request waits at the known leader: nobody's group begins here
  bool looking_around_ = false;
  std::size_t expected_ = 0;               // members of the group we look for
  TimePoint hold_end_ = TimePoint::max();  // of the requests that wait for our next search
  TimePoint grace_end_{};  // until then the members of the known group are expected to come by themselves
  TaskGroup background_;
};

}  // namespace cohive::averaging
