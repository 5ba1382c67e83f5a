// Rounds: the all-reduces of one averager, by the ids that travel (a group's, followed by a phase). Streams of senders
// that come early are held: before this peer has heard of their group, before its trigger, before it reaches their
// phase. How many are held, their bytes and the time are bounded; peers outside the group are refused. Source:
// docs/wire/hivemind.md, section 6.7.
#pragma once

#include <deque>
#include <functional>
#include <list>
#include <map>
#include <set>

#include "all_reduce.hpp"
#include "p2p/detail/network_shares.hpp"

namespace cohive::averaging {

class Rounds {
  struct Held;

 public:
  /// Bounds of what is held.
  struct Limits {
    Duration time = 120s;
    std::size_t streams_of_a_peer = 4;
    std::size_t streams = 2048;     ///< beyond, one of an unknown group is refused: of the network that has most
    std::size_t bytes = 128 << 20;  ///< beyond, the streams of the peer that has most of them are refused
  };
  Rounds(p2p::Host& host, Limits limits);
  explicit Rounds(p2p::Host& host) : Rounds(host, Limits()) {}

  /// A group may be on its way to us: streams of groups that are not known are held. For as long as the object lives.
  class Search {
   public:
    explicit Search(Rounds& rounds) : rounds_(rounds) { ++rounds_.searches_; }
    ~Search();
    Search(const Search&) = delete;

   private:
    Rounds& rounds_;
  };

  /// The round of a group, from its first word to its end. Streams of its members are held until the all-reduce that
  /// they are for has begun; when the round ends, streams that are left are refused, and all-reduces that have not been
  /// completed are cancelled.
  class Entry {
   public:
    Entry(Rounds& rounds, std::shared_ptr<const Group> group);
    ~Entry();
    Entry(const Entry&) = delete;
    /// The tensors are ready: from now on no member waits for our trigger.
    void triggered();
    /// Serves senders of the phase. False when the phase has been before.
    bool add(const std::string& id, std::shared_ptr<AllReduce> all_reduce);
    /// The round has succeeded: what is running goes on for members that need longer.
    void complete() { complete_ = true; }
    /// Whether a first part of the peer is on its way: which round it is for is known only when it is there.
    bool is_arriving(const PeerId& peer) const { return rounds_.is_arriving(peer); }
    /// Completes when all other members have given the round up.
    Task<void> until_alone();

   private:
    friend class Rounds;
    bool is_alone() const { return !left_.empty() && left_.size() + 1 == group_->members.size(); }
    void take(Held& held);
    void release(const Held& held);
    void wake_held();
    Rounds& rounds_;
    std::shared_ptr<const Group> group_;
    std::set<PeerId> members_;
    std::map<std::string, std::shared_ptr<AllReduce>> running_;  // by id
    std::map<PeerId, std::size_t> waiting_;                      // members: how many of their streams are held
    std::set<PeerId> left_;
    Condition left_changed_;
    bool triggered_ = false, complete_ = false;
  };

  /// Serves rpc_aggregate_part.
  Task<Result<>> serve(rpc::ServerStream& stream);
  /// Serves rpc_show_part: what the averages of a round, of this one or just before it, were made of.
  Task<Result<>> show(rpc::ServerStream& stream);
  /// Serves rpc_verdict.
  Task<Result<std::string>> hear(PeerId caller, std::string request);
  /// A peer has given up the round of a group; empty: it averages no more.
  void member_left(const PeerId& peer, const std::string& group_id);

  /// Completes when more than this share of the other members, one at least, have sent us parts of a round whose
  /// trigger is not set. Those count that `who_counts` says so of, with our own entry in the group; null: all.
  using WhoCounts = std::function<bool(const Member& waiting, const Member& own)>;
  Task<void> member_waiting(double share, WhoCounts who_counts = nullptr);
  /// Waits until all members have the results that they wait for.
  Task<void> drain(Deadline deadline);

 private:
  /// A stream that waits for its all-reduce.
  struct Held {
    Held(Rounds& rounds, const PeerId& from, std::string group, std::size_t size, MemoryBudget::Charge charge);
    PeerId peer;
    std::string id;
    std::size_t bytes;
    MemoryBudget::Charge memory;
    p2p::NetworkShares::Share of_peer;
    std::optional<p2p::NetworkShares::Share> of_network{};  // until its group is known
    Entry* entry = nullptr;                                 // of its group, where the peer is a member
    bool refused = false;                                   // to make room
    Condition changed;
  };
  using HeldList = std::list<Held>;
  /// A stream whose parts we average, or whose sender has not got all results yet.
  struct Served {
    Served(Runtime& runtime, const PeerId& from, std::shared_ptr<const Group> of)
        : peer(from), group(std::move(of)), superseded(runtime, "a later round of its sender") {}
    PeerId peer;
    std::shared_ptr<const Group> group;
    Event superseded;  // the peer takes part in a later round
  };
  enum class Verdict { wait, refuse_unknown, refuse_ended, refuse_stranger };

  /// What may still be shown of a round that has ended.
  struct KeptLedger {
    std::string id;
    std::shared_ptr<AuditLog> ledger;
  };
  void keep(KeptLedger kept);
  void forget_oldest();
  static Task<void> forget_first(Rounds& rounds);
  std::shared_ptr<AuditLog> find_ledger(const std::string& id) const;

  Task<Result<std::optional<Slice>>> receive_first(rpc::ServerStream& stream);
  static Task<void> until_superseded(Served& served);
  Entry* entry_of(const std::string& id) const;
  std::shared_ptr<AllReduce> find(const std::string& id) const;
  Verdict look_at(const Held& held) const;
  HeldList::iterator hold(const PeerId& peer, std::string id, std::size_t bytes, MemoryBudget::Charge memory);
  void release(HeldList::iterator held);
  void refuse(Held& held);
  void make_room();
  double waiting_share(const WhoCounts& who_counts) const;
  bool is_arriving(const PeerId& peer) const;

  p2p::Host& host_;
  Runtime& runtime_;
  const Limits limits_;
  Condition arrived_;  // a stream that is held, or the group of some
  Condition drained_;
  std::size_t searches_ = 0;
  std::vector<Entry*> entries_;
  std::deque<std::string> ended_;                 // groups of the last rounds
  std::list<const rpc::ServerStream*> arriving_;  // whose first message is being received
  p2p::NetworkShares peers_, networks_;           // of streams that are held
  HeldList held_;
  std::size_t streams_ = 0, bytes_ = 0;  // of those that are held and not refused
  std::deque<KeptLedger> kept_;          // the oldest first
  std::list<Served> served_;
  TaskGroup keeping_;
};

}  // namespace cohive::averaging
