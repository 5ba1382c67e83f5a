#include "matchmaking.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::averaging {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kClockTolerance = 3.0;       // seconds between peers' clocks
constexpr Duration kRefreshPause = 100ms;     // between two looks at the DHT
constexpr std::size_t kMaxJoinRequest = 1 << 20;
constexpr std::size_t kMaxGroup = 4096;
constexpr std::size_t kGroupIdSize = 20;
constexpr Duration kRequestEnd = 1s;          // for END_OF_STREAM, which some callers do not send

double seconds_at(Runtime& runtime, Deadline deadline) {
  return deadline.is_never() ? kForever : runtime.wall_time() + to_seconds(deadline.remaining(runtime.now()));
}

proto::MessageFromLeader message_of(proto::MessageCode code) {
  proto::MessageFromLeader message;
  message.set_code(code);
  return message;
}

}  // namespace

Matchmaking::Matchmaking(Dht& dht, const AveragerOptions& options, std::string protocol, std::string schema)
    : dht_(dht), runtime_(dht.runtime()), options_(options), protocol_(std::move(protocol)), schema_hash_(std::move(schema)),
      bits_(options.initial_group_bits), lock_(runtime_, "join requests"), changed_(runtime_, "matchmaking"),
      refresh_wanted_(runtime_, "wish to refresh leaders"), background_(runtime_, "matchmaking") {}

// ---- Looking for a group

/// What a search changes, undone however it ends.
struct Matchmaking::Search {
  Matchmaking& self;
  TaskGroup tasks;
  Search(Matchmaking& m, std::string gather) : self(m), tasks(m.runtime_, "search for a group") {
    self.looking_ = true;
    self.gather_ = std::move(gather);
    self.assembled_.reset();
    self.leader_.reset();
    self.tried_.clear();
    self.queue_.clear();
    self.max_assured_ = 0;
  }
  ~Search() {
    tasks.cancel();
    self.looking_ = false;
    if (!self.assembled_) self.disband();
    if (self.declared_expiration_ != 0)
      self.background_.spawn(undeclare(self, self.declared_key_, self.declared_expiration_), "undeclare");
    self.declared_expiration_ = 0;
    self.leader_.reset();
    self.changed_.notify_all();
  }
};

Task<Result<Group>> Matchmaking::look_for_group(std::string gather, std::optional<double> scheduled_time, Deadline deadline) {
  if (looking_) throw std::logic_error("two searches for a group at once");
  const double minimum = to_seconds(options_.min_matchmaking_time);
  const double scheduled = scheduled_time.value_or(now() + minimum);
  const double search_end = seconds_at(runtime_, deadline);
  Search search(*this, std::move(gather));
  if (options_.mode != PeerMode::client) search.tasks.spawn(declare(*this, scheduled, search_end), "declare");
  search.tasks.spawn(refresh_queue(*this), "find leaders");
  while (runtime_.now() < deadline.at()) {
    auto candidate = co_await within(
        runtime_, deadline,
        [](Matchmaking& self, double end) -> Task<Result<std::optional<Candidate>>> { co_return co_await self.next_candidate(end); }(*this, search_end),
        "matchmaking");
    if (assembled_) co_return *assembled_;
    if (!candidate) break;
    auto lock = co_await lock_.lock(deadline);
    if (!lock) break;
    if (assembled_) co_return *assembled_;
    if (!*candidate) {  // our own declaration has run out: lead, if anybody follows
      if (followers_.size() + 1 >= options_.min_group_size) co_return *assemble();
      disband();
      continue;
    }
    const double expiration = declared_expiration_ != 0 ? declared_expiration_ : std::min(std::max(scheduled, now() + minimum), search_end);
    lock.release();
    auto group = co_await request_to_join(**candidate, expiration, search_end);
    if (group) {
      assembled_ = std::make_shared<Group>(std::move(*group));
      co_return *assembled_;
    }
  }
  co_return Error(Errc::no_group, options_.prefix);
}

Task<void> Matchmaking::declare(Matchmaking& self, double scheduled, double search_end) {
  for (;;) {
    const double expiration = std::min(std::max(scheduled, self.now() + to_seconds(self.options_.min_matchmaking_time)), search_end);
    self.declared_key_ = self.key();
    self.declared_expiration_ = expiration;
    ++self.declarations_;
    self.changed_.notify_all();
    const msgpack::Value own = msgpack::Value::bin(self.dht_.host().id().bytes());
    (void)co_await self.dht_.store(self.declared_key_, own, true, expiration);
    while (self.now() < expiration) co_await self.runtime_.sleep_for(from_seconds(expiration - self.now()));
    if (self.now() >= search_end) co_return;
  }
}

Task<void> Matchmaking::undeclare(Matchmaking& self, std::string key, double expiration) {
  const msgpack::Value own = msgpack::Value::bin(self.dht_.host().id().bytes());
  (void)co_await self.dht_.store(std::move(key), own, false, std::nextafter(expiration, kForever));
}

Task<void> Matchmaking::refresh_queue(Matchmaking& self) {
  for (;;) {
    const double start = self.now();
    auto declared = co_await self.dht_.get(self.key(), true);
    self.queue_.clear();
    self.max_assured_ = start + to_seconds(self.options_.min_matchmaking_time) - kClockTolerance;
    if (declared) {
      for (const auto& [subkey, entry] : declared->entries()) {
        const auto* bytes = subkey.get_if<msgpack::Bin>();
        const auto peer = bytes && entry.value.truthy() ? PeerId::from_bytes(as_bytes(bytes->data)) : std::nullopt;
        if (!peer || *peer == self.dht_.host().id()) continue;
        self.max_assured_ = std::max(self.max_assured_, entry.expiration - kClockTolerance);
        const Candidate candidate{entry.expiration, *peer};
        if (!self.tried_.contains(candidate)) self.queue_.insert(candidate);
      }
    }
    self.want_refresh_ = false;
    ++self.updates_;
    self.changed_.notify_all();
    co_await self.runtime_.sleep_for(kRefreshPause);
    while (!self.want_refresh_ || self.leader_) co_await self.refresh_wanted_.wait();
  }
}

/// The next leader to ask, or nullopt when our own declaration came due first.
Task<std::optional<Matchmaking::Candidate>> Matchmaking::next_candidate(double search_end) {
  for (;;) {
    if (assembled_) co_return std::nullopt;
    while (!queue_.empty() && queue_.begin()->expiration < now()) queue_.erase(queue_.begin());
    const Candidate* head = queue_.empty() ? nullptr : &*queue_.begin();
    if (!head || (max_assured_ <= head->expiration && head->expiration <= search_end)) {
      want_refresh_ = true;
      refresh_wanted_.notify_all();
    }
    const Candidate own{declared_expiration_ != 0 ? declared_expiration_ : kForever, dht_.host().id()};
    if (head && *head < own) {
      const Candidate chosen = *head;
      queue_.erase(queue_.begin());
      tried_.insert(chosen);
      co_return chosen;
    }
    const auto declarations = declarations_, updates = updates_;
    while (declarations == declarations_ && updates == updates_ && !assembled_) co_await changed_.wait();
    if (updates == updates_ && declarations != declarations_ && declarations > 0) co_return std::nullopt;
  }
}

Task<std::optional<Group>> Matchmaking::request_to_join(Candidate leader, double expiration, double search_end) {
  std::set<PeerId> asked;
  std::optional<PeerId> next = leader.peer;
  while (next && *next != dht_.host().id() && asked.insert(*next).second && now() < search_end) {
    const PeerId peer = *std::exchange(next, std::nullopt);
    auto lock = co_await lock_.lock(runtime_.after(options_.request_timeout));
    if (!lock || assembled_) co_return std::nullopt;
    const Deadline first_reply = runtime_.after(options_.request_timeout);
    auto call = co_await rpc::open_call(dht_.host(), peer, protocol_, first_reply);
    if (!call) {
      log::debug("averaging", "cannot ask {} to join: {}", peer, call.error());
      co_return std::nullopt;
    }
    proto::JoinRequest request;
    request.set_schema_hash(schema_hash_);
    request.set_expiration(expiration);
    request.set_gather(gather_);
    request.set_client_mode(options_.mode == PeerMode::client);
    request.set_group_key(key());
    if (!co_await (*call)->send(as_bytes(request.SerializeAsString()), first_reply)) co_return std::nullopt;
    if (!co_await (*call)->finish(first_reply)) co_return std::nullopt;
    auto reply = co_await (*call)->receive(first_reply);
    proto::MessageFromLeader message;
    if (!reply || !*reply || !message.ParseFromArray((*reply)->data(), static_cast<int>((*reply)->size()))) co_return std::nullopt;
    if (message.code() != proto::ACCEPTED) {
      log::debug("averaging", "{} refused: {}", peer, proto::MessageCode_Name(message.code()));
      co_return std::nullopt;
    }
    struct Following {
      Matchmaking& self;
      ~Following() {
        self.leader_.reset();
        self.refresh_wanted_.notify_all();
        self.changed_.notify_all();
      }
    } following{*this};
    leader_ = peer;
    disband();  // our followers are sent to our leader
    lock.release();

    const Duration patience = from_seconds(std::max(0.0, expiration - now())) + options_.request_timeout;
    reply = co_await (*call)->receive(runtime_.after(patience));
    if (!reply || !*reply || !message.ParseFromArray((*reply)->data(), static_cast<int>((*reply)->size()))) co_return std::nullopt;
    if (message.code() == proto::BEGIN_ALLREDUCE) {
      Group group{message.group_id(), {}, {message.gathered().begin(), message.gathered().end()}, peer};
      for (const auto& bytes : message.ordered_peer_ids()) {
        const auto member = PeerId::from_bytes(as_bytes(bytes));
        if (!member || std::find(group.peers.begin(), group.peers.end(), *member) != group.peers.end()) co_return std::nullopt;
        group.peers.push_back(*member);
      }
      const bool in_it = std::find(group.peers.begin(), group.peers.end(), dht_.host().id()) != group.peers.end();
      if (!in_it || group.peers.size() != group.gathered.size() || group.peers.size() > kMaxGroup || group.id.size() > 64) co_return std::nullopt;
      co_return group;
    }
    if (message.code() == proto::GROUP_DISBANDED || message.code() == proto::CANCELLED) next = PeerId::from_bytes(as_bytes(message.suggested_leader()));
  }
  co_return std::nullopt;
}

// ---- Leading

std::shared_ptr<Group> Matchmaking::assemble() {
  auto group = std::make_shared<Group>();
  Bytes id(kGroupIdSize);
  runtime_.random_bytes(id);
  group->id = to_string(id);
  group->leader = dht_.host().id();
  std::vector<std::pair<PeerId, std::string>> members{{dht_.host().id(), gather_}};
  for (const auto& [peer, follower] : followers_) members.emplace_back(peer, follower->gather);
  std::shuffle(members.begin(), members.end(), runtime_.random());
  for (auto& [peer, gather] : members) {
    group->peers.push_back(peer);
    group->gathered.push_back(std::move(gather));
  }
  for (const auto& [peer, follower] : followers_) follower->group = group;
  assembled_ = group;
  changed_.notify_all();
  return group;
}

void Matchmaking::disband() {
  for (const auto& [peer, follower] : followers_) follower->disbanded = true;
  followers_.clear();
  changed_.notify_all();
}

std::optional<proto::MessageFromLeader> Matchmaking::reject(const PeerId& peer, const proto::JoinRequest& request) const {
  if (!looking_ || assembled_) return message_of(proto::NOT_LOOKING_FOR_GROUP);
  if (request.schema_hash().empty() || !std::isfinite(request.expiration()) || options_.mode == PeerMode::client)
    return message_of(proto::PROTOCOL_VIOLATION);
  if (request.schema_hash() != schema_hash_) return message_of(proto::BAD_SCHEMA_HASH);
  if (request.group_key() != key()) return message_of(proto::BAD_GROUP_KEY);
  if (declared_expiration_ == 0) return message_of(proto::NOT_DECLARED);
  if (declared_expiration_ > (request.expiration() == 0 ? kForever : request.expiration())) return message_of(proto::BAD_EXPIRATION_TIME);
  if (leader_) {
    auto message = message_of(proto::NOT_A_LEADER);
    message.set_suggested_leader(leader_->binary());
    return message;
  }
  if (peer == dht_.host().id() || followers_.contains(peer)) return message_of(proto::DUPLICATE_PEER_ID);
  if (options_.target_group_size && followers_.size() + 1 >= options_.target_group_size) return message_of(proto::GROUP_IS_FULL);
  return std::nullopt;
}

Task<Result<>> Matchmaking::send(rpc::ServerStream& stream, const proto::MessageFromLeader& message, Deadline deadline) {
  const std::string bytes = message.SerializeAsString();
  co_return co_await stream.send(as_bytes(bytes), deadline);
}

Task<Result<>> Matchmaking::serve(rpc::ServerStream& stream) {
  const PeerId peer = stream.peer();
  auto received = co_await stream.receive(runtime_.after(options_.request_timeout));
  proto::JoinRequest request;
  if (!received || !*received || (*received)->size() > kMaxJoinRequest ||
      !request.ParseFromArray((*received)->data(), static_cast<int>((*received)->size())))
    co_return Error(cohive::Errc::malformed, peer, "join request");
  // A refusal that overtakes the caller's END_OF_STREAM would break Python's pipe while it still writes.
  auto end = co_await stream.receive(runtime_.after(kRequestEnd));
  if (!end && end.error().code() != make_error_code(cohive::Errc::timeout)) co_return end.error();

  auto follower = std::make_shared<Follower>();
  follower->gather = request.gather();
  struct Membership {
    Matchmaking& self;
    PeerId peer;
    std::shared_ptr<Follower> follower;
    ~Membership() {
      const auto at = self.followers_.find(peer);
      if (at != self.followers_.end() && at->second == follower) self.followers_.erase(at);
    }
  } membership{*this, peer, follower};
  {
    auto lock = co_await lock_.lock(runtime_.after(options_.request_timeout * 2));
    if (!lock) co_return co_await send(stream, message_of(proto::NOT_LOOKING_FOR_GROUP), runtime_.after(options_.request_timeout));
    if (const auto refusal = reject(peer, request)) co_return co_await send(stream, *refusal, runtime_.after(options_.request_timeout));
    followers_[peer] = follower;
    auto accepted = co_await send(stream, message_of(proto::ACCEPTED), runtime_.after(options_.request_timeout));
    if (!accepted) co_return accepted;
    if (options_.target_group_size && followers_.size() + 1 >= options_.target_group_size && looking_ && !assembled_) assemble();
  }
  const double expires = declared_expiration_;
  while (!follower->group && !follower->disbanded && now() < expires)
    co_await changed_.wait(runtime_.after(from_seconds(expires - now()) + 1ms));
  if (!follower->group && !follower->disbanded) {
    auto lock = co_await lock_.lock(runtime_.after(options_.request_timeout));
    if (lock && !follower->group && !follower->disbanded && looking_ && !assembled_) {
      if (followers_.size() + 1 >= options_.min_group_size) {
        assemble();
      } else {
        disband();
      }
    }
  }
  auto last = message_of(proto::GROUP_DISBANDED);
  if (follower->group) {
    last = message_of(proto::BEGIN_ALLREDUCE);
    last.set_group_id(follower->group->id);
    for (const auto& member : follower->group->peers) last.add_ordered_peer_ids(member.binary());
    for (const auto& gather : follower->group->gathered) last.add_gathered(gather);
  } else if (leader_) {
    last.set_suggested_leader(leader_->binary());
  }
  co_return co_await send(stream, last, runtime_.after(options_.request_timeout));
}

}  // namespace cohive::averaging
