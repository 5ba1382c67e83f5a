#include "search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/dht/schema.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/proto/averaging.pb.h"
#include "redial.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kManyDeclared = 256;  // peers under one key: more than a group has members, and some
constexpr std::size_t kDeclaredReplicas = 3;
constexpr int kLooks = 8;               // for newcomers, between two searches, where many are declared
constexpr Duration kLookPause = 250ms;  // between these
constexpr std::size_t kMostInLastRound = 4096;
constexpr std::size_t kMostKeptKeys = 64;
constexpr std::size_t kMostQueued = 4 * kManyDeclared;
constexpr std::size_t kFewUnreachable = 3;  // leaders, after which those go first that this peer is in contact with

std::optional<PeerId> declared_peer(const msgpack::Value& subkey) {
  const auto* bytes = subkey.get_if<msgpack::Bin>();
  return bytes ? PeerId::from_bytes(as_bytes(bytes->data)) : std::nullopt;
}

constexpr double kNoExpiration = std::numeric_limits<double>::infinity();
constexpr double kClockTolerance = 3.0;          // seconds between peers' clocks
constexpr Duration kRefreshPause = 100ms;        // between two looks at the DHT
constexpr Duration kMembersWatchPeriod = 100ms;  // between two looks at the members that have gone
constexpr Duration kReportAge = 10s;             // a caller may count peers that left this long before it counted

}  // namespace

// ---- What searches have in common

SearchContext::SearchContext(FinderContext context)
    : finder(std::move(context)),
      runtime(finder.dht.runtime()),
      protocol(finder.protocol_prefix + "rpc_join_group"),
      keys(finder.options),
      reputation(finder.dht.host().reputation()),
      known(finder.dht.host().id(), finder.options.target_group_size, finder.options.min_matchmaking_time / 4,
            reputation),
      stragglers(runtime, reputation, finder.dht.host().id(), finder.options.straggler_timeout),
      lock(runtime, "join requests"),
      changed(runtime, "matchmaking"),
      background(runtime, "matchmaking") {
  keep_to_dictionary();
}

/// A plain value under our key would take the place of all declarations.
void SearchContext::keep_to_dictionary() {
  std::string key = keys.text();
  if (kept_keys_.size() >= kMostKeptKeys || !kept_keys_.insert(key).second) return;
  finder.dht.add_validator(std::make_shared<dht::SchemaValidator>(dht::dictionary_schema(std::move(key))));
}

void SearchContext::remember(const Group& group, bool reforms) {
  known.found(group, reforms && keys.reforms(), runtime.now());
  std::set<PeerId> members;
  for (const Member& member : group.members) members.insert(member.peer);
  // In a divided run a stranger costs one group, and most peers are strangers.
  stragglers.group_began(group.id, std::move(members), keys.reforms());
  look_around();
}

/// All of them come to the same leader.
void SearchContext::meet(const std::vector<Member>& members) {
  const auto leads = [](const Member& member) { return member.mode == PeerMode::node; };
  if (const auto leader = std::ranges::find_if(members, leads); leader != members.end())
    known.found({.members = members, .leader = leader->peer}, keys.reforms(), runtime.now());
}

void SearchContext::begin_search() {
  keep_to_dictionary();
  for (const PeerId& peer : known.take_contributors()) reputation.record_success(peer);
  known.drop_members([this](const PeerId& peer) { return !admits(peer); });
  const auto leader = known.leader();
  if (leader && *leader != own() && (!may_lead(*leader) || finder.dht.doubts(*leader))) known.forget();
  if (!keys.is_last()) return;
  for (const PeerId& peer : std::exchange(in_last_round_, {})) known.came(peer);
}

void SearchContext::goes_to_last(const PeerId& peer) {
  if (keys.is_last()) return;
  if (in_last_round_.size() >= kMostInLastRound) in_last_round_.clear();
  in_last_round_.insert(peer);
  known.left(peer, runtime.now());
  changed.notify_all();
}

void SearchContext::look_around() {
  if (looking_around_ || !known.leader() || (!known.is_full() && !known.is_led_here())) return;
  looking_around_ = true;
  background.spawn(look_for_newcomers(*this), "look for newcomers");
}

/// Counts also peers that have stopped looking for a moment: other groups re-form like ours.
Task<void> SearchContext::look_for_newcomers(SearchContext& self) {
  const auto done = on_exit([&self] { self.looking_around_ = false; });
  for (int look = 0; look < kLooks; ++look) {
    if (look > 0) co_await self.runtime.sleep_for(kLookPause);
    const auto declared = co_await self.find_declared();
    if (!declared) co_return;
    for (const auto& [subkey, entry] : declared->entries())
      if (const auto peer = declared_peer(subkey)) self.heard_of(*peer);
    if (!self.is_crowded()) co_return;  // else a newcomer is among many that may not exist
  }
}

/// All that have declared themselves under our key; of very many, some that are drawn anew each time, so that no number
/// of peers that do not exist makes a look at them costly.
Task<Result<dht::GetResult>> SearchContext::find_declared() {
  auto found = crowded_
                   ? co_await finder.dht.get_sampled(keys.text(), kDeclaredReplicas, {.most_entries = kManyDeclared})
                   : co_await finder.dht.get(keys.text(), true);
  if (found) crowded_ = std::max(found->held, found->entries().size()) > kManyDeclared;
  co_return found;
}

/// Behind slow links, one slow node of the DHT is enough, a declaration would be over before peers have found it: a
/// search takes about as long as the storing did. A node that has fallen silent delays the DHT only once.
void SearchContext::stored_in(Duration took) {
  const Duration usual = std::min(took, std::exchange(last_storing_, took)), time = finder.options.min_matchmaking_time;
  stretch_ = std::clamp<Duration>(usual * 2 - time / 2, 0s, time * 2);
}

std::string SearchReport::text() const {
  std::string result = "met " + std::to_string(candidates.size()) + (candidates.size() == 1 ? " peer" : " peers") +
                       " that wanted to lead";
  const auto add = [&](std::size_t count, const std::string& what) {
    if (count) result += ", " + std::to_string(count) + " " + what;
  };
  add(unreachable, "did not answer");
  for (const auto& [code, count] : refusals) {
    const bool differs = code == proto::MessageCode_Name(proto::BAD_SCHEMA_HASH);
    add(count, "refused us (" + code + (differs ? ": another model or optimizer than here" : "") + ")");
  }
  add(lost, "were lost while we followed");
  add(disbanded, "disbanded their group");
  result += "; " + std::to_string(joined) + (joined == 1 ? " peer" : " peers") + " joined us";
  add(left, "of them left");
  return result;
}

// ---- One search

Search::Search(SearchContext& context, Member own, const SearchPlan& plan, double end)
    : context_(context),
      options_(context.finder.options),
      runtime_(context.runtime),
      own_(std::move(own)),
      plan_(plan),
      end_(end),
      began_(runtime_.now()),
      grace_end_(runtime_.now() + options_.request_timeout / 2),
      strangers_end_(runtime_.now() + options_.min_matchmaking_time / 8),
      doubts_end_(runtime_.now() + options_.min_matchmaking_time),
      expected_members_(plan.expected_members),
      expected_since_(runtime_.now()),
      refresh_wanted_(runtime_, "wish to refresh leaders"),
      tasks_(runtime_, "search for a group") {}

Search::~Search() {
  end();
}

void Search::end() {
  if (std::exchange(ended_, true)) return;
  tasks_.cancel();
  for (const auto& [peer, follower] : followers_.followers()) context_.known.came(peer);
  if (!found_) context_.known.searched(runtime_.now());
  followers_.disband();  // but for followers that have a group
  if (declared_) context_.background.spawn(undeclare(context_, *declared_), "undeclare");
  declared_.reset();
  standing_ = Standing::free;
  context_.changed.notify_all();
}

Task<Result<Group>> Search::run(Deadline deadline) {
  if (options_.mode != PeerMode::client) tasks_.spawn(declare(*this), "declare");
  tasks_.spawn(watch_plan(*this), "wishes for a group");
  tasks_.spawn(watch_known_group(*this), "known group");
  tasks_.spawn(assemble_when_complete(*this), "complete group");
  if (const auto leader = unasked_leader()) co_await join_known_group(*leader, deadline);
  if (found_) co_return *found_;
  tasks_.spawn(refresh_queue(*this), "find leaders");
  while (runtime_.now() < deadline.at()) {
    const auto next = co_await within(runtime_, deadline, next_step(), "matchmaking");
    if (found_) co_return *found_;
    if (!next) break;
    if (next->kind == Next::Kind::members_left)
      co_return Error(Errc::members_left, options_.prefix + ": " + report_.text());
    if (next->kind == Next::Kind::known_leader) {
      co_await join_known_group(next->candidate.peer, deadline);
    } else if (next->kind == Next::Kind::guide) {
      co_await join_through(next->candidate.peer);
    } else if (next->kind == Next::Kind::ask) {
      co_await follow(next->candidate.peer, declared_ ? declared_->expiration : expiration_from_now());
    } else {  // our own declaration has run out: lead, if any peer follows
      const auto lock = co_await context_.lock.lock(deadline);
      if (found_) co_return *found_;
      if (!lock) break;
      assemble_or_disband();
    }
    if (found_) co_return *found_;
  }
  co_return Error(Errc::no_group, options_.prefix + ": " + report_.text());
}

/// Another member leads when the leader has ended.
std::optional<PeerId> Search::unasked_leader() const {
  const auto leader = context_.known.leader();
  return leader && *leader != context_.own() && !asked_leaders_.contains(*leader) ? leader : std::nullopt;
}

/// How long a leader may keep our request, so that there is time to find another group afterwards.
Duration Search::time_to_hold(double expiration) const {
  constexpr Duration kLongestHold = 60s;
  return std::clamp<Duration>(from_seconds(expiration - context_.now()) - options_.request_timeout, 1ms, kLongestHold);
}

Task<void> Search::join_known_group(PeerId leader, Deadline deadline) {
  asked_leaders_.insert(leader);
  const double expiration = expiration_from_now();
  co_await race(runtime_, follow(leader, expiration, time_to_hold(expiration)), until_deposed(*this, leader));
  if (found_) co_return;
  const auto lock = co_await context_.lock.lock(deadline);
  if (lock && complete()) assemble();  // of the peers that came while our request was held
}

/// Ends when another peer leads the known group, unless this one has accepted us: its end then shows by itself.
Task<void> Search::until_deposed(Search& self, PeerId leader) {
  while (self.context_.known.leader() == leader || self.standing_ == Standing::following)
    co_await self.context_.changed.wait();
}

double Search::expiration_from_now() const {
  const double soonest = context_.now() + to_seconds(options_.min_matchmaking_time + context_.stretch());
  const double due = std::max(soonest, plan_.scheduled_time.value_or(soonest));  // of no number, the soonest
  return std::min(due + to_seconds(plan_.lead_delay), end_);
}

/// When our group begins with the peers that are there: as we declared, or earlier for a follower that came straight to
/// us.
double Search::own_expiration() const {
  return std::min(declared_ ? declared_->expiration : kNoExpiration, followers_.earliest_expiration());
}

void Search::note(JoinOutcome outcome, const PeerId& leader, const std::string& detail) {
  context_.finder.metrics.joins[static_cast<std::size_t>(outcome)].increment();
  switch (outcome) {
    case JoinOutcome::grouped:
      return;
    case JoinOutcome::refused:
      ++report_.refusals[detail];
      break;
    case JoinOutcome::unreachable:
      ++report_.unreachable;
      break;
    case JoinOutcome::lost:
      ++report_.lost;
      break;
    case JoinOutcome::disbanded:
      ++report_.disbanded;
      break;
  }
  log::debug("averaging", "no group with {} as leader: {}, {}", leader,
             kJoinOutcomes[static_cast<std::size_t>(outcome)], detail);
}

std::set<PeerId> Search::partners() const {
  std::set<PeerId> others;
  for (const auto& [peer, follower] : followers_.followers()) others.insert(peer);
  if (standing_ == Standing::following) others.insert(leader_);
  return others;
}

// ---- In the DHT

Task<void> Search::declare(Search& self) {
  SearchContext& context = self.context_;
  for (;;) {
    const Declaration declaration{context.keys.text(), self.expiration_from_now()};
    self.declared_ = declaration;
    ++self.declarations_;
    context.changed.notify_all();
    const msgpack::Value own = msgpack::Value::bin(context.own().bytes());
    const TimePoint begin = self.runtime_.now();
    (void)co_await context.finder.dht.store(declaration.key, own, true, declaration.expiration);
    context.stored_in(self.runtime_.now() - begin);
    while (context.now() < declaration.expiration)
      co_await self.runtime_.sleep_for(from_seconds(declaration.expiration - context.now()));
    if (context.now() >= self.end_) co_return;
    while (self.standing_ == Standing::following) co_await context.changed.wait();  // a follower does not offer to lead
  }
}

Task<void> Search::undeclare(SearchContext& context, Declaration declaration) {
  const msgpack::Value own = msgpack::Value::bin(context.own().bytes());
  const double later = std::nextafter(declaration.expiration, kNoExpiration);
  (void)co_await context.finder.dht.store(std::move(declaration.key), own, false, later);
}

Task<void> Search::refresh_queue(Search& self) {
  for (;;) {
    const double start = self.context_.now();
    auto declared = co_await self.context_.find_declared();
    if (!self.context_.is_crowded()) self.queue_.clear();
    self.max_assured_ = start + to_seconds(self.options_.min_matchmaking_time) - kClockTolerance;
    if (declared) self.take_declared(*declared);
    self.want_refresh_ = false;
    ++self.updates_;
    self.context_.changed.notify_all();
    co_await self.runtime_.sleep_for(kRefreshPause);
    while (!self.want_refresh_ || self.standing_ == Standing::following) co_await self.refresh_wanted_.wait();
  }
}

void Search::take_declared(const dht::GetResult& declared) {
  std::set<PeerId> drawn;  // anew: what was known of them is older
  if (context_.is_crowded())
    for (const auto& [subkey, entry] : declared.entries())
      if (const auto peer = declared_peer(subkey)) drawn.insert(*peer);
  std::erase_if(queue_, [&, now = context_.now()](const Candidate& one) {
    return one.expiration < now || drawn.contains(one.peer);
  });
  for (const auto& [subkey, entry] : declared.entries()) {
    const auto peer = declared_peer(subkey);
    if (!peer || *peer == context_.own()) continue;
    if (!entry.value.truthy()) continue;
    if (context_.is_crowded() && entry.expiration > end_) continue;  // it would never be asked
    if (queue_.size() >= kMostQueued && !context_.is_in_contact(*peer)) continue;
    context_.known.declared(*peer, runtime_.now());
    max_assured_ = std::max(max_assured_, entry.expiration - kClockTolerance);
    if (report_.candidates.size() < kMostQueued) report_.candidates.insert(*peer);
    context_.heard_of(*peer);
    const Candidate candidate{entry.expiration, *peer};
    if (!tried_.contains(candidate)) queue_.insert(candidate);
  }
}

// ---- The next step

/// The first in the queue that may lead us: not a member of the known group, which comes to us by itself.
std::optional<Search::Candidate> Search::first_candidate() {
  std::erase_if(queue_, [&](const Candidate& one) { return one.expiration < context_.now(); });
  const auto may_be_asked = [&](const Candidate& one) {
    const bool comes =
        followers_.contains(one.peer) || (context_.known.expects(one.peer) && runtime_.now() < grace_end_);
    return !comes && !context_.known.has_left(one.peer) && context_.admits(one.peer);
  };
  const auto may_lead = [&](const Candidate& one) { return may_be_asked(one) && context_.may_lead(one.peer); };
  const auto answers = [&](const Candidate& one) { return may_lead(one) && !context_.finder.dht.doubts(one.peer); };
  auto first = queue_.end();
  if (context_.is_crowded() || report_.unreachable >= kFewUnreachable)
    first = std::ranges::find_if(
        queue_, [&](const Candidate& one) { return answers(one) && context_.is_in_contact(one.peer); });
  if (first == queue_.end()) first = std::ranges::find_if(queue_, answers);
  // Peers that all slept lately may doubt each other.
  if (first == queue_.end() && runtime_.now() >= doubts_end_) first = std::ranges::find_if(queue_, may_lead);
  // A peer that cannot lead itself has no choice.
  if (first == queue_.end() && options_.mode == PeerMode::client) first = std::ranges::find_if(queue_, may_be_asked);
  return first == queue_.end() ? std::nullopt : std::optional(*first);
}

/// The next leader to ask, unless our own declaration comes due first.
Task<Result<Search::Next>> Search::next_step() {
  for (;;) {
    if (found_) co_return Next{Next::Kind::found};
    if (const auto leader = unasked_leader()) co_return Next{Next::Kind::known_leader, {0, *leader}};
    const auto head = first_candidate();
    const bool may_ask = head && *head < Candidate{own_expiration(), context_.own()};
    if (asked_guides_.empty() || (guided_at_ < updates_ && !may_ask))
      if (const auto guide = unasked_guide()) co_return Next{Next::Kind::guide, {0, *guide}};
    if (!head || context_.is_crowded() || (max_assured_ <= head->expiration && head->expiration <= end_)) {
      want_refresh_ = true;
      refresh_wanted_.notify_all();
    }
    if (may_ask) {
      queue_.erase(*head);
      tried_.insert(*head);
      co_return Next{Next::Kind::ask, *head};
    }
    const auto declarations = declarations_, updates = updates_;
    while (declarations == declarations_ && updates == updates_ && !found_ && !all_left() && !unasked_leader())
      co_await context_.changed.wait();
    if (found_ || unasked_leader()) continue;
    if (all_left()) co_return Next{Next::Kind::members_left};
    if (updates == updates_ && declarations > 0) co_return Next{Next::Kind::time_is_up};
  }
}

/// Whether all peers that were expected average no more, as far as is known: members of the last group and peers that
/// the owner of the round counts, which may not have heard of it yet.
bool Search::all_left() const {
  if (!context_.known.anyone_left() || followers_.size() > 0 || standing_ != Standing::free || updates_ == 0)
    return false;
  if (context_.known.anyone_remains()) return false;
  const bool candidates =
      std::ranges::any_of(queue_, [this](const Candidate& one) { return !context_.known.has_left(one.peer); });
  if (candidates) return false;
  if (expected_members_ == 0) return !context_.known.last_members().empty();
  return still_expected() <= 1;
}

/// The count of the round's owner, without peers that have left since.
std::size_t Search::still_expected() const {
  return expected_members_ - std::min(expected_members_, context_.known.left_since(expected_since_ - kReportAge));
}

/// A member of the known group whose process has ended counts as one that left.
Task<void> Search::watch_known_group(Search& self) {
  p2p::Host& host = self.context_.finder.dht.host();
  std::set<PeerId> redialled;
  for (;;) {
    for (const PeerId& peer : self.context_.known.counterparts()) {
      if (host.connected(peer))
        redialled.erase(peer);
      else if (!self.followers_.contains(peer) && redialled.insert(peer).second)
        self.tasks_.spawn(redial(self, peer), "redial");
    }
    if (self.complete()) self.context_.changed.notify_all();  // newcomers are waited for no longer
    co_await self.runtime_.sleep_for(kMembersWatchPeriod);
  }
}

Task<void> Search::redial(Search& self, PeerId peer) {
  if (!co_await is_refused(self.context_.finder.dht.host(), peer) || self.followers_.contains(peer)) co_return;
  log::info("averaging", "{} is not waited for: connections to it are refused", peer);
  self.context_.known.left(peer, self.runtime_.now());
  self.context_.changed.notify_all();
}

Task<void> Search::watch_plan(Search& self) {
  for (;;) {
    co_await self.plan_.changed.wait();
    self.expected_members_ = self.plan_.expected_members;
    self.expected_since_ = self.runtime_.now();
    self.context_.changed.notify_all();
  }
}

// ---- Leading

bool Search::complete() const {
  if (!looking() || standing_ != Standing::free) return false;
  if (options_.target_group_size && followers_.size() + 1 >= options_.target_group_size) return true;
  const std::size_t least = std::max(options_.min_group_size, still_expected());
  // Others that are expected may come, too: hivemind's do that have averaged the gradients with nobody.
  const bool others_may_come =
      followers_.size() + 1 < least && runtime_.now() < plan_.hurried + options_.min_matchmaking_time / 8;
  if (has_company() && !others_may_come) return true;
  if (awaits_company()) return false;
  if (context_.known.is_led_here())
    return context_.known.is_here(followers_.followers(), least, began_, runtime_.now());
  if (plan_.early) return false;
  return expected_members_ > 1 && followers_.size() + 1 >= least && runtime_.now() >= strangers_end_;
}

void Search::assemble() {
  const auto assembled = followers_.assemble(
      runtime_, own_, {context_.finder.offered, context_.keys.reforms(), options_.caps_shares, options_.one_average});
  context_.remember(assembled->group, assembled->reforms);
  found_ = assembled->group;
  context_.changed.notify_all();
}

/// A group may be complete because a member has left, or because fewer are expected.
Task<void> Search::assemble_when_complete(Search& self) {
  for (;;) {
    while (!self.complete()) co_await self.context_.changed.wait();
    const auto lock = co_await self.context_.lock.lock();
    self.assemble_if_complete();
  }
}

void Search::assemble_if_complete() {
  if (complete()) assemble();
}

/// Whether all are here that the owner of the round has named, and have not left since.
bool Search::has_company() const {
  const auto is_here = [this](const PeerId& peer) {
    return peer == context_.own() || followers_.contains(peer) || context_.known.has_left(peer);
  };
  return !plan_.company.empty() && followers_.size() + 1 >= options_.min_group_size &&
         std::ranges::all_of(plan_.company, is_here);
}

/// Peers that do not remember groups, as hivemind's, look for one of the parameters only when they have averaged the
/// gradients. A group that begins before leaves them behind.
bool Search::awaits_company() const {
  const TimePoint end = plan_.hurried + options_.min_matchmaking_time / 2;
  return !plan_.company.empty() && !has_company() && runtime_.now() < end;
}

void Search::assemble_or_disband(const Follower& follower) {
  if (follower.fate == Follower::Fate::waiting && looking()) assemble_or_disband();
}

void Search::assemble_or_disband() {
  if (followers_.size() + 1 >= options_.min_group_size && !plan_.early && !awaits_company()) return assemble();
  followers_.disband();
  context_.changed.notify_all();
}

std::optional<proto::MessageFromLeader> Search::refusal(const PeerId& peer, const proto::JoinRequest& request) const {
  const auto because = [](proto::MessageCode code) {
    proto::MessageFromLeader message;
    message.set_code(code);
    return message;
  };
  if (!context_.admits(peer)) return because(proto::PROTOCOL_VIOLATION);
  if (!looking()) return because(proto::NOT_LOOKING_FOR_GROUP);
  if (request.schema_hash().empty() || !std::isfinite(request.expiration()) || options_.mode == PeerMode::client)
    return because(proto::PROTOCOL_VIOLATION);
  if (request.schema_hash() != context_.finder.schema_hash) return because(proto::BAD_SCHEMA_HASH);
  if (request.group_key() != context_.keys.text()) return because(proto::BAD_GROUP_KEY);
  if (!declared_) return because(proto::NOT_DECLARED);
  // A peer that waits for us less long is not kept longer: see own_expiration.
  const bool may_be_earlier = context_.known.may_expect(peer) && request.reforms();
  if (!may_be_earlier && own_expiration() > patience_of(request)) return because(proto::BAD_EXPIRATION_TIME);
  if (standing_ == Standing::following) {
    auto message = because(proto::NOT_A_LEADER);
    message.set_suggested_leader(leader_.binary());
    return message;
  }
  if (peer == context_.own() || followers_.contains(peer)) return because(proto::DUPLICATE_PEER_ID);
  if (!followers_.has_room_for(request, options_.target_group_size)) return because(proto::GROUP_IS_FULL);
  return std::nullopt;
}

void Search::add(const FollowerPtr& follower) {
  followers_.add(follower);
  ++report_.joined;
}

void Search::remove(const FollowerPtr& follower) {
  if (followers_.remove(follower) && follower->fate == Follower::Fate::waiting) ++report_.left;
}

double Search::expiration() const {
  return declared_ ? declared_->expiration : 0;
}

}  // namespace cohive::averaging
