// Matchmaking: peers that want to average declare so in the DHT; each follows the one whose declaration expires first,
// and that leader announces the group.
//   all      -> DHT: {group key: {own id: true, expires e}}
//   follower -> rpc_join_group JoinRequest;   leader -> ACCEPTED, later BEGIN_ALLREDUCE or GROUP_DISBANDED
// A group that has averaged before forms again without the DHT: see known_group.hpp. One search is in search.hpp.
// Source: docs/wire/hivemind.md, sections 6.2 and 6.5.
#pragma once

#include <map>
#include <set>
#include <string>

#include "search.hpp"

namespace cohive::averaging {

class Matchmaking final : public GroupFinder {
 public:
  explicit Matchmaking(FinderContext context);
  ~Matchmaking() override;

  void serve(rpc::Server& server) override;
  Task<Result<Group>> find(Member self, const SearchPlan& plan, Deadline deadline) override;
  void round_ended(const RoundEnd& end) override;
  void stragglers_named(const PeerId& witness, const std::string& group_id,
                        const std::vector<PeerId>& stragglers) override;
  std::optional<Duration> timeout_for(const PeerId& member) const override {
    return context_.stragglers.patience(member);
  }
  std::vector<PeerId> partners() const override;
  void peer_left(const PeerId& peer) override;
  void leave() override;
  std::string group_bits() const override { return context_.keys.bits(); }

 private:
  Task<Result<>> serve_join(rpc::ServerStream& stream);
  bool stays_apart(const Group& group, const SearchPlan& plan);
  bool welcomes(const PeerId& newcomer, const proto::JoinRequest& request);
  std::optional<proto::MessageFromLeader> guidance(const PeerId& newcomer) const;
  bool fits(const proto::JoinRequest& request) const;
  Task<Result<>> hold(rpc::ServerStream& stream, PeerId peer, Duration limit, bool member);
  Task<Result<>> admit(rpc::ServerStream& stream, const proto::JoinRequest& request, std::shared_ptr<Search>& joined,
                       FollowerPtr& follower);
  Task<Result<>> refuse(rpc::ServerStream& stream, const proto::JoinRequest& request, proto::MessageFromLeader why);
  Task<void> await_fate(Search& search, FollowerPtr follower);
  bool knows(const PeerId& peer) const;
  bool ready() const { return search_ && search_->ready(); }

  SearchContext context_;
  std::shared_ptr<Search> search_;         // the one in progress; peers that joined it keep it
  std::multiset<PeerId> held_;             // peers whose requests we keep
  std::map<PeerId, std::string> welcome_;  // newcomers among them, with their networks
  TimePoint hold_end_ = TimePoint::max();  // of these requests
  bool left_ = false;
  std::size_t apart_ = 0;  // groups in a row
};

}  // namespace cohive::averaging
