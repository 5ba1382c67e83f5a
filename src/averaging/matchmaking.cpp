#include "matchmaking.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/transport/errors.hpp"
#include "rpc/parse.hpp"

namespace cohive::averaging {
namespace {

constexpr double kForever = std::numeric_limits<double>::infinity();
constexpr double kClockTolerance = 3.0;    // seconds between peers' clocks
constexpr Duration kRefreshPause = 100ms;  // between two looks at the DHT
constexpr std::size_t kMaxJoinRequest = 1 << 20;
constexpr std::size_t kMaxGroup = 1024;
constexpr std::size_t kMaxGathered = 8 << 20;  // of all followers: it goes into one message to each
constexpr std::size_t kGroupIdSize = 20, kMaxGroupId = 64;
constexpr std::size_t kMaxRedirections = 8;

double seconds_at(Runtime& runtime, Deadline deadline) {
  return deadline.is_never() ? kForever : runtime.wall_time() + to_seconds(deadline.remaining(runtime.now()));
}

/// Ends when the peer has not answered for a while. Every libp2p peer answers pings, Python ones too.
Task<Error> until_silent(p2p::Host& host, PeerId peer, Duration patience) {
  for (;;) {
    co_await host.runtime().sleep_for(patience / 2);
    auto answer = co_await p2p::ping(host, peer, host.runtime().after(patience));
    if (!answer) answer = co_await p2p::ping(host, peer, host.runtime().after(patience));  // a packet may get lost
    if (!answer && !(answer.error() == transport::Errc::protocol_not_supported)) co_return answer.error();
  }
}

Task<Result<proto::MessageFromLeader>> receive_from_leader(rpc::ClientStream& call, Deadline deadline) {
  auto reply = co_await call.receive(deadline);
  if (!reply) co_return reply.error();
  proto::MessageFromLeader message;
  if (!*reply || !rpc::parse(message, (*reply)->view())) co_return Error(cohive::Errc::malformed, "no valid answer");
  co_return message;
}

/// The same when that may take long: a leader that falls silent is given up within seconds.
Task<Result<proto::MessageFromLeader>> await_leader(p2p::Host& host, rpc::ClientStream& call, Deadline deadline,
                                                    Duration patience) {
  auto first =
      co_await race(host.runtime(), receive_from_leader(call, deadline), until_silent(host, call.peer(), patience));
  if (first.index() == 0) co_return std::get<0>(std::move(first));
  co_return std::get<1>(std::move(first));
}

/// Until when a follower waits.
double patience_of(const proto::JoinRequest& request) {
  return request.expiration() == 0 ? kForever : request.expiration();
}

proto::MessageFromLeader message_of(proto::MessageCode code) {
  proto::MessageFromLeader message;
  message.set_code(code);
  return message;
}

}  // namespace

Matchmaking::Matchmaking(Dht& dht, const AveragerOptions& options, const AveragingMetrics& metrics,
                         std::string protocol, std::string schema)
    : dht_(dht),
      runtime_(dht.runtime()),
      options_(options),
      metrics_(metrics),
      protocol_(std::move(protocol)),
      schema_hash_(std::move(schema)),
      bits_(options.initial_group_bits),
      lock_(runtime_, "join requests"),
      changed_(runtime_, "matchmaking"),
      refresh_wanted_(runtime_, "wish to refresh leaders"),
      background_(runtime_, "matchmaking") {}

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
    self.followers_.clear();  // of the last group; they have had their answer
    self.gathered_bytes_ = 0;
    self.max_assured_ = 0;
    self.declarations_ = 0;
    self.story_ = {};
    self.grace_end_ = self.runtime_.now() + self.options_.request_timeout / 2;
  }
  ~Search() {
    tasks.cancel();
    self.looking_ = false;
    self.newcomers_.clear();
    self.hold_end_ = TimePoint::max();
    if (!self.assembled_) self.disband();
    if (self.declared_expiration_ != 0)
      self.background_.spawn(undeclare(self, self.declared_key_, self.declared_expiration_), "undeclare");
    self.declared_expiration_ = 0;
    self.leader_.reset();
    self.changed_.notify_all();
  }
};

Task<Result<Group>> Matchmaking::look_for_group(std::string gather, const StepControl& control, Deadline deadline) {
  if (looking_) throw std::logic_error("two searches for a group at once");
  const double search_end = seconds_at(runtime_, deadline);
  Search search(*this, std::move(gather));
  expected_ = control.expected_members;
  if (options_.mode != PeerMode::client) search.tasks.spawn(declare(*this, control, search_end), "declare");
  if (known_ && !leads_known_group()) {
    const double expiration = expiration_for(control, search_end);
    const Candidate leader{expiration, known_->leader};
    if (auto group = co_await follow(leader, expiration, search_end, longest_hold(expiration)))
      assembled_ = std::make_shared<Group>(std::move(*group));
    if (assembled_) co_return *assembled_;
    auto lock = co_await lock_.lock(deadline);
    if (assembled_) co_return *assembled_;
    if (lock && complete()) co_return *assemble();  // of those who came while our request was held
  }
  search.tasks.spawn(refresh_queue(*this), "find leaders");
  while (runtime_.now() < deadline.at()) {
    auto candidate = co_await within(
        runtime_, deadline,
        [](Matchmaking& self, double end) -> Task<Result<std::optional<Candidate>>> {
          co_return co_await self.next_candidate(end);
        }(*this, search_end),
        "matchmaking");
    if (assembled_) co_return *assembled_;
    if (!candidate) break;
    if (!*candidate) {  // our own declaration has run out: lead, if anybody follows
      auto lock = co_await lock_.lock(deadline);
      if (assembled_) co_return *assembled_;
      if (!lock) break;
      if (followers_.size() + 1 >= options_.min_group_size) co_return *assemble();
      disband();
      continue;
    }
    const double expiration = declared_expiration_ != 0 ? declared_expiration_ : expiration_for(control, search_end);
    auto group = co_await follow(**candidate, expiration, search_end);
    if (assembled_) co_return *assembled_;
    if (group) {
      assembled_ = std::make_shared<Group>(std::move(*group));
      co_return *assembled_;
    }
  }
  co_return Error(Errc::no_group, options_.prefix + ": " + story_.text());
}

std::string Matchmaking::Story::text() const {
  std::string result = "met " + std::to_string(candidates.size()) + (candidates.size() == 1 ? " peer" : " peers") +
                       " that wanted to lead";
  const auto add = [&](std::size_t count, const std::string& what) {
    if (count) result += ", " + std::to_string(count) + " " + what;
  };
  add(unreachable, "did not answer");
  for (const auto& [code, count] : refusals) add(count, "refused us (" + code + ")");
  add(lost, "were lost while we followed");
  add(disbanded, "disbanded their group");
  result += "; " + std::to_string(joined) + (joined == 1 ? " peer" : " peers") + " joined us";
  add(left, "of them left");
  return result;
}

void Matchmaking::note(JoinOutcome outcome, const PeerId& leader, const std::string& detail) {
  metrics_.joins[static_cast<std::size_t>(outcome)].increment();
  switch (outcome) {
    case JoinOutcome::grouped:
      return;
    case JoinOutcome::refused:
      ++story_.refusals[detail];
      break;
    case JoinOutcome::unreachable:
      ++story_.unreachable;
      break;
    case JoinOutcome::lost:
      ++story_.lost;
      break;
    case JoinOutcome::disbanded:
      ++story_.disbanded;
      break;
  }
  log::debug("averaging", "no group with {} as leader: {}, {}", leader,
             kJoinOutcomes[static_cast<std::size_t>(outcome)], detail);
}

double Matchmaking::expiration_for(const StepControl& control, double search_end) const {
  const double soonest = now() + to_seconds(options_.min_matchmaking_time + stretch_);
  return std::min(std::max(control.scheduled_time.value_or(soonest), soonest), search_end);
}

/// Behind slow links, one slow node of the DHT is enough, a declaration would be over before others have found it: a
/// search takes about as long as the storing did. A node that has fallen silent delays the DHT only once.
void Matchmaking::note_storing(Duration took) {
  const Duration usual = std::min(took, std::exchange(last_storing_, took)), time = options_.min_matchmaking_time;
  stretch_ = std::clamp<Duration>(usual * 2 - time / 2, 0s, time * 2);
}

Task<void> Matchmaking::declare(Matchmaking& self, const StepControl& control, double search_end) {
  for (;;) {
    const double expiration = self.expiration_for(control, search_end);
    self.declared_key_ = self.key();
    self.declared_expiration_ = expiration;
    ++self.declarations_;
    self.changed_.notify_all();
    const msgpack::Value own = msgpack::Value::bin(self.dht_.host().id().bytes());
    const TimePoint begin = self.runtime_.now();
    (void)co_await self.dht_.store(self.declared_key_, own, true, expiration);
    self.note_storing(self.runtime_.now() - begin);
    while (self.now() < expiration) co_await self.runtime_.sleep_for(from_seconds(expiration - self.now()));
    if (self.now() >= search_end) co_return;
    while (self.leader_) co_await self.changed_.wait();  // who follows does not offer to lead
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
        self.story_.candidates.insert(*peer);
        if (!self.lost_.contains(*peer)) self.met(*peer);
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
    const auto first =
        std::find_if(queue_.begin(), queue_.end(), [&](const auto& one) { return !will_come(one.peer); });
    const Candidate* head = first == queue_.end() ? nullptr : &*first;
    if (!head || (max_assured_ <= head->expiration && head->expiration <= search_end)) {
      want_refresh_ = true;
      refresh_wanted_.notify_all();
    }
    const Candidate own{own_expiration(), dht_.host().id()};
    if (head && *head < own) {
      const Candidate chosen = *head;
      queue_.erase(first);
      tried_.insert(chosen);
      co_return chosen;
    }
    const auto declarations = declarations_, updates = updates_;
    while (declarations == declarations_ && updates == updates_ && !assembled_) co_await changed_.wait();
    if (updates == updates_ && declarations != declarations_ && declarations > 0) co_return std::nullopt;
  }
}

/// Asks a leader, and whomever it sends us to.
/// \param hold  how long the first one may keep the request before it begins to look for a group itself
Task<std::optional<Group>> Matchmaking::follow(Candidate leader, double expiration, double search_end, Duration hold) {
  std::set<PeerId> asked;
  std::optional<PeerId> next = leader.peer;
  while (next && *next != dht_.host().id() && asked.size() < kMaxRedirections && asked.insert(*next).second &&
         now() < search_end) {
    const PeerId peer = *std::exchange(next, std::nullopt);
    if (auto group = co_await request_to_join(peer, expiration, std::exchange(hold, {}), next)) co_return group;
    if (assembled_) co_return std::nullopt;
  }
  co_return std::nullopt;
}

Task<std::optional<Group>> Matchmaking::request_to_join(PeerId peer, double expiration, Duration hold,
                                                        std::optional<PeerId>& redirected) {
  // Held until the first reply: meanwhile nobody becomes our follower.
  auto lock = co_await lock_.lock(runtime_.after(options_.request_timeout));
  if (!lock || assembled_) co_return std::nullopt;
  const Duration answer_time = hold > 0s ? options_.request_timeout / 2 : options_.request_timeout;
  const Deadline first_reply = runtime_.after(answer_time);
  auto call = co_await rpc::open_call(dht_.host(), peer, protocol_, first_reply);
  const auto failed = [&](JoinOutcome outcome, const std::string& detail) {
    note(outcome, peer, detail);
    return std::nullopt;
  };
  if (!call) co_return failed(JoinOutcome::unreachable, call.error().message());
  const std::string bytes = join_request(expiration, hold).SerializeAsString();
  auto sent = co_await (*call)->send(as_bytes(bytes), first_reply);
  if (sent) sent = co_await (*call)->finish(first_reply);
  if (!sent) co_return failed(JoinOutcome::unreachable, sent.error().message());
  auto message = co_await receive_from_leader(**call, first_reply);
  if (message && message->code() == proto::NO_CODE && hold > 0s) {
    struct Held {
      bool& flag;
      explicit Held(bool& held) : flag(held) { flag = true; }
      ~Held() { flag = false; }
    } held{held_};
    lock.release();  // whoever joins us meanwhile comes along
    message = co_await await_leader(dht_.host(), **call, runtime_.after(hold + answer_time), options_.request_timeout);
    lock = co_await lock_.lock(runtime_.after(options_.request_timeout));
  }
  if (!lock || assembled_) co_return std::nullopt;
  if (!message)
    co_return failed(message.error() == cohive::Errc::malformed ? JoinOutcome::refused : JoinOutcome::unreachable,
                     message.error().message());
  if (message->code() != proto::ACCEPTED) {
    // It follows somebody itself: no need to wait until we find that one.
    if (message->code() == proto::NOT_A_LEADER) redirected = PeerId::from_bytes(as_bytes(message->suggested_leader()));
    co_return failed(JoinOutcome::refused, proto::MessageCode_Name(message->code()));
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
  message = co_await await_leader(dht_.host(), **call, runtime_.after(patience), options_.request_timeout);
  if (!message) co_return failed(JoinOutcome::lost, message.error().message());
  if (message->code() == proto::BEGIN_ALLREDUCE) {
    auto group = group_from(*message, peer);
    if (!group) co_return failed(JoinOutcome::lost, group.error().message());
    remember(*group, message->reforms());
    note(JoinOutcome::grouped, peer, {});
    co_return std::move(*group);
  }
  if (message->code() == proto::GROUP_DISBANDED || message->code() == proto::CANCELLED)
    redirected = PeerId::from_bytes(as_bytes(message->suggested_leader()));
  co_return failed(JoinOutcome::disbanded, proto::MessageCode_Name(message->code()));
}

proto::JoinRequest Matchmaking::join_request(double expiration, Duration hold) const {
  proto::JoinRequest request;
  request.set_schema_hash(schema_hash_);
  request.set_expiration(expiration);
  request.set_gather(gather_);
  request.set_client_mode(options_.mode == PeerMode::client);
  request.set_group_key(key());
  request.set_codec_extensions(offered_codecs().text());
  request.set_reforms(bits_.empty());  // who draws new bits after every round is meant to meet others
  request.set_hold_ms(static_cast<std::uint32_t>(std::chrono::duration_cast<std::chrono::milliseconds>(hold).count()));
  return request;
}

Result<Group> Matchmaking::group_from(const proto::MessageFromLeader& message, const PeerId& leader) const {
  const auto bad = [&](const char* what) { return Error(cohive::Errc::malformed, leader, what); };
  const auto size = static_cast<std::size_t>(message.ordered_peer_ids_size());
  if (size < 2 || size > kMaxGroup || message.gathered_size() != message.ordered_peer_ids_size())
    return bad("size of the group");
  if (message.group_id().empty() || message.group_id().size() > kMaxGroupId) return bad("group id");
  Group group{message.group_id(), {}, leader, {}};
  std::set<PeerId> members;
  for (int i = 0; i < message.ordered_peer_ids_size(); ++i) {
    const auto peer = PeerId::from_bytes(as_bytes(message.ordered_peer_ids(i)));
    if (!peer || !members.insert(*peer).second) return bad("members of the group");
    auto member = decode_gathered(*peer, message.gathered(i));
    if (!member) return member.error();
    group.members.push_back(std::move(*member));
  }
  if (!members.contains(dht_.host().id())) return bad("a group without us");
  group.agreed_codecs = codec::CodecSet::from_text(message.codec_extension());
  if ((group.agreed_codecs & offered_codecs()).text() != message.codec_extension())
    return bad("a codec that we did not offer");
  return group;
}

// ---- Leading

codec::CodecSet Matchmaking::offered_codecs() const {
  codec::CodecSet offered;
  if (options_.agreed_codec)
    for (const auto& choice : options_.agreed_codec->choices())
      if (codec::info(choice.codec).needs_agreement) offered.insert(choice.codec);
  return offered;
}

codec::CodecSet Matchmaking::agreed_codecs() const {
  codec::CodecSet agreed = offered_codecs();
  for (const auto& [peer, follower] : followers_) agreed = agreed & follower->codecs;
  return agreed;
}

std::shared_ptr<Group> Matchmaking::assemble() {
  auto group = std::make_shared<Group>();
  Bytes id(kGroupIdSize);
  runtime_.random_bytes(id);
  group->id = to_string(id);
  group->leader = dht_.host().id();
  group->agreed_codecs = agreed_codecs();
  group->members.push_back(decode_gathered(dht_.host().id(), gather_).value());
  for (const auto& [peer, follower] : followers_) group->members.push_back(follower->member);
  std::shuffle(group->members.begin(), group->members.end(), runtime_.random());
  const bool reforms = bits_.empty() && std::all_of(followers_.begin(), followers_.end(),
                                                    [](const auto& f) { return f.second->reforms; });
  for (const auto& [peer, follower] : followers_) {
    follower->group = group;
    follower->remember = reforms;
  }
  remember(*group, reforms);
  assembled_ = group;
  changed_.notify_all();
  return group;
}

/// When our group begins with whoever is there: as we declared, or earlier for a follower that came straight to us.
double Matchmaking::own_expiration() const {
  double earliest = declared_expiration_ != 0 ? declared_expiration_ : kForever;
  for (const auto& [peer, follower] : followers_) earliest = std::min(earliest, follower->expiration);
  return earliest;
}

/// Nobody is left to wait for.
bool Matchmaking::complete() const {
  if (!looking_ || assembled_ || held_ || leader_) return false;
  if (options_.target_group_size && followers_.size() + 1 >= options_.target_group_size) return true;
  return known_group_is_here();
}

void Matchmaking::disband() {
  for (const auto& [peer, follower] : followers_) follower->disbanded = true;
  followers_.clear();
  gathered_bytes_ = 0;
  changed_.notify_all();
}

std::optional<proto::MessageFromLeader> Matchmaking::reject(const PeerId& peer,
                                                            const proto::JoinRequest& request) const {
  if (!looking_ || assembled_) return message_of(proto::NOT_LOOKING_FOR_GROUP);
  if (request.schema_hash().empty() || !std::isfinite(request.expiration()) || options_.mode == PeerMode::client)
    return message_of(proto::PROTOCOL_VIOLATION);
  if (request.schema_hash() != schema_hash_) return message_of(proto::BAD_SCHEMA_HASH);
  if (request.group_key() != key()) return message_of(proto::BAD_GROUP_KEY);
  if (declared_expiration_ == 0) return message_of(proto::NOT_DECLARED);
  // Who waits for us less long is not kept longer: see own_expiration.
  const bool may_be_earlier = expects(peer) && request.reforms();
  if (!may_be_earlier && own_expiration() > patience_of(request)) return message_of(proto::BAD_EXPIRATION_TIME);
  if (leader_) {
    auto message = message_of(proto::NOT_A_LEADER);
    message.set_suggested_leader(leader_->binary());
    return message;
  }
  if (peer == dht_.host().id() || followers_.contains(peer)) return message_of(proto::DUPLICATE_PEER_ID);
  const std::size_t most = options_.target_group_size ? std::min(options_.target_group_size, kMaxGroup) : kMaxGroup;
  if (followers_.size() + 1 >= most || gathered_bytes_ + request.gather().size() > kMaxGathered)
    return message_of(proto::GROUP_IS_FULL);
  if (!decode_gathered(peer, request.gather()))
    return message_of(proto::PROTOCOL_VIOLATION);  // it would spoil the group
  return std::nullopt;
}

Task<Result<>> Matchmaking::send(rpc::ServerStream& stream, const proto::MessageFromLeader& message,
                                 Deadline deadline) {
  const std::string bytes = message.SerializeAsString();
  co_return co_await stream.send(as_bytes(bytes), deadline);
}

Task<Result<>> Matchmaking::serve(rpc::ServerStream& stream) {
  const PeerId peer = stream.peer();
  auto received = co_await stream.receive(runtime_.after(options_.request_timeout));
  proto::JoinRequest request;
  if (!received || !*received || (*received)->size() > kMaxJoinRequest || !rpc::parse(request, (*received)->view()))
    co_return Error(cohive::Errc::malformed, peer, "join request");
  if (request.hold_ms() > 0 && request.group_key() == key() && expects(peer)) {
    auto held = co_await hold(stream, peer, std::chrono::milliseconds(request.hold_ms()));
    if (!held) co_return held;
  }
  auto follower = std::make_shared<Follower>();
  if (auto member = decode_gathered(peer, request.gather())) follower->member = std::move(*member);
  follower->gathered_bytes = request.gather().size();
  follower->codecs = codec::CodecSet::from_text(request.codec_extensions());
  follower->expiration = patience_of(request);
  follower->reforms = request.reforms();
  struct Membership {
    Matchmaking& self;
    PeerId peer;
    std::shared_ptr<Follower> follower;
    ~Membership() {
      const auto at = self.followers_.find(peer);
      if (at == self.followers_.end() || at->second != follower) return;
      if (!follower->group) ++self.story_.left;
      self.gathered_bytes_ -= follower->gathered_bytes;
      self.followers_.erase(at);
    }
  } membership{*this, peer, follower};
  {
    auto lock = co_await lock_.lock(runtime_.after(options_.request_timeout * 2));
    if (!lock)
      co_return co_await send(stream, message_of(proto::NOT_LOOKING_FOR_GROUP),
                              runtime_.after(options_.request_timeout));
    if (const auto refusal = reject(peer, request)) {
      if (refusal->code() == proto::NOT_LOOKING_FOR_GROUP && request.schema_hash() == schema_hash_ &&
          request.group_key() == key())
        met(peer);
      co_return co_await send(stream, *refusal, runtime_.after(options_.request_timeout));
    }
    followers_[peer] = follower;
    gathered_bytes_ += follower->gathered_bytes;
    ++story_.joined;
    auto accepted = co_await send(stream, message_of(proto::ACCEPTED), runtime_.after(options_.request_timeout));
    if (!accepted) co_return accepted;
    if (complete()) assemble();
  }
  const double expires = std::min(declared_expiration_, follower->expiration);
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
  co_return co_await send(stream, last_word(*follower), runtime_.after(options_.request_timeout));
}

/// What becomes of a follower: its group, or whom to ask instead.
proto::MessageFromLeader Matchmaking::last_word(const Follower& follower) const {
  auto last = message_of(proto::GROUP_DISBANDED);
  if (follower.group) {
    last = message_of(proto::BEGIN_ALLREDUCE);
    last.set_group_id(follower.group->id);
    last.set_reforms(follower.remember);
    for (const auto& member : follower.group->members) {
      last.add_ordered_peer_ids(member.peer.binary());
      last.add_gathered(encode_gathered(member));
    }
    last.set_codec_extension(follower.group->agreed_codecs.text());
  } else if (leader_) {
    last.set_suggested_leader(leader_->binary());
  }
  return last;
}

}  // namespace cohive::averaging
