#include "matchmaking.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/proto/averaging.pb.h"
#include "core/detail/bounded_parse.hpp"
#include "p2p/detail/peer_account.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxJoinRequest = kMaxGatheredBytes + (64 << 10);
constexpr Duration kLongestHold = 60s;           // that we keep a request
constexpr std::size_t kMostWelcome = 256;        // newcomers whose requests are kept
constexpr std::size_t kMostOfNetwork = 64;       // of these
constexpr std::size_t kMostOfMember = 4;         // requests that are kept: it may have lost a connection
constexpr std::size_t kLargeRequest = 64 << 10;  // that is not kept for a newcomer
constexpr std::size_t kGroupsApart = 3;          // in a row, of half of those that are expected or fewer
constexpr Duration kWary = 10min;                // after a leader that made up members: the next one may be the same

double seconds_at(Runtime& runtime, Deadline deadline) {
  return deadline.is_never() ? std::numeric_limits<double>::infinity()
                             : runtime.wall_time() + to_seconds(deadline.remaining(runtime.now()));
}

proto::MessageFromLeader message_of(proto::MessageCode code) {
  proto::MessageFromLeader message;
  message.set_code(code);
  return message;
}

Task<Result<>> send(rpc::ServerStream& stream, proto::MessageFromLeader message, Deadline deadline) {
  const std::string bytes = message.SerializeAsString();
  co_return co_await stream.send(as_bytes(bytes), deadline);
}

}  // namespace

std::unique_ptr<GroupFinder> make_matchmaking(FinderContext context) {
  return std::make_unique<Matchmaking>(std::move(context));
}

Matchmaking::Matchmaking(FinderContext context) : context_(std::move(context)) {}

Matchmaking::~Matchmaking() {
  if (search_) search_->end();
}

void Matchmaking::serve(rpc::Server& server) {
  server.add_streaming(context_.protocol, [this](rpc::ServerStream& stream) { return serve_join(stream); });
}

// ---- Looking for a group

Task<Result<Group>> Matchmaking::find(Member self, const SearchPlan& plan, Deadline deadline) {
  if (search_) throw std::logic_error("two searches for a group at once");
  if (left_) co_return Error(Errc::left);
  if (context_.keys.begin(plan, context_.runtime)) context_.known.forget();
  if (!plan.meets.empty()) context_.meet(plan.meets);
  context_.begin_search();
  search_ = std::make_shared<Search>(context_, std::move(self), plan, seconds_at(context_.runtime, deadline));
  const auto searched = on_exit([this] {
    hold_end_ = TimePoint::max();
    std::exchange(search_, nullptr)->end();
  });
  auto group = co_await search_->run(deadline);
  if (group && (context_.keys.found(*group, context_.own()) || stays_apart(*group, plan))) context_.known.forget();
  co_return group;
}

/// Where most are elsewhere, groups that meet again would stay apart. One search that is not of a known group brings
/// them together. That so many are expected may be what hostile peers claim: then it costs little.
bool Matchmaking::stays_apart(const Group& group, const SearchPlan& plan) {
  apart_ = 2 * group.members.size() <= plan.expected_members ? apart_ + 1 : 0;
  if (apart_ < kGroupsApart) return false;
  apart_ = 0;
  return true;
}

void Matchmaking::round_ended(const RoundEnd& end) {
  context_.stragglers.round_ended(end);
  if (const auto forger = context_.known.round_ended(end)) {
    // It made them up, or they have all been lost, and it tells nobody which.
    log::info("averaging", "{} led a group of members that never came and cannot be reached: not following it",
              *forger);
    context_.stragglers.led_in_vain(*forger);
    context_.distrust_until = context_.runtime.now() + kWary;
  }
  context_.look_around();
}

void Matchmaking::stragglers_named(const PeerId& witness, const std::string& group_id,
                                   const std::vector<PeerId>& stragglers) {
  context_.stragglers.told(witness, group_id, stragglers);
}

// ---- Peers that leave

std::vector<PeerId> Matchmaking::partners() const {
  std::set<PeerId> partners = context_.known.last_members();
  partners.insert(held_.begin(), held_.end());
  if (search_) partners.merge(search_->partners());
  std::erase_if(partners, [this](const PeerId& peer) { return context_.known.has_left(peer); });
  return {partners.begin(), partners.end()};
}

void Matchmaking::peer_left(const PeerId& peer) {
  if (!knows(peer)) return;  // what unknown peers say about themselves means nothing to us
  context_.known.left(peer, context_.runtime.now());
  context_.changed.notify_all();
}

bool Matchmaking::knows(const PeerId& peer) const {
  return context_.known.knows(peer) || held_.contains(peer) || (search_ && search_->has_met(peer));
}

void Matchmaking::leave() {
  left_ = true;
  context_.changed.notify_all();
}

// ---- Leading

Task<Result<>> Matchmaking::serve_join(rpc::ServerStream& stream) {
  const PeerId peer = stream.peer();
  proto::JoinRequest request;
  {
    const auto received = co_await stream.receive(context_.runtime.after(context_.finder.options.request_timeout));
    if (!received || !*received || (*received)->size() > kMaxJoinRequest ||
        !parse_bounded(request, (*received)->view()))
      co_return Error(cohive::Errc::malformed, peer, "join request");
  }
  // The request stays with us when the bytes of the call have been given back.
  auto charge = p2p::charge_for(context_.finder.dht.host(), peer);
  if (!charge.add(request.ByteSizeLong())) co_return Error(cohive::Errc::limit_exceeded, peer, "no room for a request");
  context_.known.asked(peer, context_.runtime.now());
  const std::string& key = request.group_key();
  const bool may_come = key == context_.keys.text() || context_.keys.is_of_last(key);
  if (request.hold_ms() > 0 && may_come) {
    const bool member = context_.known.may_expect(peer) && held_.count(peer) < kMostOfMember;
    if (member || welcomes(peer, request)) {
      auto held = co_await hold(stream, peer, std::chrono::milliseconds(request.hold_ms()), member);
      if (!held) co_return held;
    } else if (auto elsewhere = guidance(peer)) {
      co_return co_await refuse(stream, request, std::move(*elsewhere));
    }
  }
  struct Membership {
    std::shared_ptr<Search> search;
    FollowerPtr follower;
    ~Membership() {
      if (search) search->remove(follower);
    }
  } membership;
  auto admitted = co_await admit(stream, request, membership.search, membership.follower);
  if (!admitted || !membership.search) co_return admitted;
  co_await await_fate(*membership.search, membership.follower);
  const auto told = final_response(*membership.follower, membership.search->leader());
  co_return co_await stream.send(as_bytes(*told), context_.runtime.after(context_.finder.options.request_timeout));
}

/// Accepts a peer, or refuses it: then `joined` stays empty.
Task<Result<>> Matchmaking::admit(rpc::ServerStream& stream, const proto::JoinRequest& request,
                                  std::shared_ptr<Search>& joined, FollowerPtr& follower) {
  const Duration patience = context_.finder.options.request_timeout;
  const auto lock = co_await context_.lock.lock(context_.runtime.after(patience * 2));
  if (!lock || !search_ || left_) co_return co_await refuse(stream, request, message_of(proto::NOT_LOOKING_FOR_GROUP));
  if (const auto refusal = search_->refusal(stream.peer(), request))
    co_return co_await refuse(stream, request, *refusal);
  auto made = follower_of(stream.peer(), request);
  if (!made) co_return co_await refuse(stream, request, message_of(proto::PROTOCOL_VIOLATION));
  if (!search_->has_room_for(**made)) co_return co_await refuse(stream, request, message_of(proto::GROUP_IS_FULL));
  follower = std::move(*made);
  joined = search_;
  joined->add(follower);
  auto accepted = co_await send(stream, message_of(proto::ACCEPTED), context_.runtime.after(patience));
  if (accepted) joined->assemble_if_complete();
  co_return accepted;
}

Task<Result<>> Matchmaking::refuse(rpc::ServerStream& stream, const proto::JoinRequest& request,
                                   proto::MessageFromLeader why) {
  const std::string& key = request.group_key();
  if (why.code() == proto::NOT_LOOKING_FOR_GROUP && fits(request)) {
    context_.known.asked(stream.peer(), context_.runtime.now());  // a search may have ended since
    context_.met(stream.peer());
  }
  if (context_.keys.is_of_last(key) && knows(stream.peer())) context_.goes_to_last(stream.peer());
  co_return co_await send(stream, std::move(why), context_.runtime.after(context_.finder.options.request_timeout));
}

/// Waits until a follower has a group or has none.
Task<void> Matchmaking::await_fate(Search& search, FollowerPtr follower) {
  const auto waiting = [&] { return follower->fate == Follower::Fate::waiting; };
  const double expires = std::min(search.expiration(), follower->expiration);
  while (waiting() && context_.now() < expires)
    co_await context_.changed.wait(context_.runtime.after(from_seconds(expires - context_.now()) + 1ms));
  if (!waiting()) co_return;
  const auto lock = co_await context_.lock.lock(context_.runtime.after(context_.finder.options.request_timeout));
  if (lock) search.assemble_or_disband(*follower);
}

bool Matchmaking::fits(const proto::JoinRequest& request) const {
  return request.schema_hash() == context_.finder.schema_hash && request.group_key() == context_.keys.text();
}

/// Tells whether a newcomer's request is kept for the next group, which it may join where it is led here.
bool Matchmaking::welcomes(const PeerId& newcomer, const proto::JoinRequest& request) {
  if (!context_.known.is_led_here() || !fits(request) || !context_.admits(newcomer)) return false;
  if (held_.contains(newcomer) || welcome_.size() >= kMostWelcome || request.ByteSizeLong() > kLargeRequest)
    return false;
  const std::string network = p2p::network_of_peer(context_.finder.dht.host(), newcomer);
  const auto is_near = [&](const auto& one) { return one.second == network; };
  if (std::cmp_greater_equal(std::ranges::count_if(welcome_, is_near), kMostOfNetwork)) return false;
  context_.met(newcomer);
  return context_.known.is_led_here();  // a full group does not meet again
}

/// Where a newcomer finds the group that it asks for; nothing where it may join one here. Peers whose group has not met
/// find each other in the DHT: who joins the first one that it meets divides them.
std::optional<proto::MessageFromLeader> Matchmaking::guidance(const PeerId& newcomer) const {
  const auto leader = context_.known.leader();
  if (leader == context_.own() || (search_ && search_->leader())) return std::nullopt;
  const bool looks_elsewhere = ready() && !search_->is_held();
  if (!leader || looks_elsewhere || context_.finder.dht.doubts(*leader) || *leader == newcomer)
    return message_of(proto::NOT_LOOKING_FOR_GROUP);
  auto elsewhere = message_of(proto::NOT_A_LEADER);
  elsewhere.set_suggested_leader(leader->binary());
  return elsewhere;
}

/// Keeps a request until we look for a group ourselves. Those of members of the known group end all with the first, so
/// that the peers that waited for us in vain find each other in time; one that is much shorter than usual ends alone.
Task<Result<>> Matchmaking::hold(rpc::ServerStream& stream, PeerId peer, Duration limit, bool member) {
  Runtime& runtime = context_.runtime;
  if (ready() && context_.lock.available() > 0) co_return ok();
  TimePoint own_end = runtime.now() + std::min(limit, kLongestHold);
  const GroupOptions& options = context_.finder.options;
  const bool usual = limit >= (options.min_matchmaking_time - options.request_timeout) / 2;
  TimePoint& end = member && usual ? hold_end_ : own_end;
  end = std::min(end, own_end);
  const auto may_come = [&] { return member ? context_.known.may_expect(peer) : context_.known.is_led_here(); };
  if (!ready() && runtime.now() >= end) co_return ok();
  const auto kept = held_.insert(peer);
  if (!member) welcome_[peer] = p2p::network_of_peer(context_.finder.dht.host(), peer);
  const auto released = on_exit([&] {
    held_.erase(kept);
    if (!member) welcome_.erase(peer);
  });
  const Deadline answered = runtime.after(context_.finder.options.request_timeout);
  auto sent = co_await send(stream, message_of(proto::NO_CODE), answered);
  while (sent && !left_ && !ready() && may_come() && runtime.now() < end) co_await context_.changed.wait(Deadline(end));
  co_return sent;
}

}  // namespace cohive::averaging
