#include "rounds.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"
#include "core/detail/assertion.hpp"
#include "core/detail/bounded_parse.hpp"
#include "p2p/detail/peer_account.hpp"
#include "receive_while_moving.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kFirstMessage = 15s;  // of a stream
constexpr Duration kRefusalTimeout = 15s;
constexpr std::size_t kEndedGroups = 8;       // remembered: their late streams need not be held
constexpr Duration kShownFor = 15s;           // what averages were made of, to members that end their round later
constexpr std::size_t kVerdictFields = 4096;  // more than the complaints of a group have

}  // namespace

Rounds::Rounds(p2p::Host& host, Limits limits)
    : host_(host),
      runtime_(host.runtime()),
      limits_(limits),
      arrived_(runtime_, "early senders"),
      drained_(runtime_, "results that members wait for"),
      keeping_(runtime_, "what averages were made of") {}

Rounds::Search::~Search() {
  --rounds_.searches_;
  for (Held& held : rounds_.held_)
    if (!held.entry) held.changed.notify_all();
}

// ---- The round of a group

Rounds::Entry::Entry(Rounds& rounds, std::shared_ptr<const Group> group)
    : rounds_(rounds), group_(std::move(group)), left_changed_(rounds.runtime_, "members that give the round up") {
  for (const Member& member : group_->members) members_.insert(member.peer);
  rounds_.entries_.push_back(this);
  for (Held& held : rounds_.held_)
    if (!held.entry && held.id.starts_with(group_->id) && members_.contains(held.peer)) take(held);
  wake_held();
  rounds_.arrived_.notify_all();
}

Rounds::Entry::~Entry() {
  if (!complete_)
    for (const auto& [id, all_reduce] : running_) all_reduce->cancel();  // senders that wait for us get an answer
  for (const auto& [id, all_reduce] : running_)
    if (auto ledger = all_reduce->ledger()) rounds_.keep({id, std::move(ledger)});
  std::erase(rounds_.entries_, this);
  rounds_.ended_.push_back(group_->id);
  if (rounds_.ended_.size() > kEndedGroups) rounds_.ended_.pop_front();
  for (Held& held : rounds_.held_)
    if (held.entry == this) held.entry = nullptr;
  wake_held();
}

/// A member's stream: it makes room for no stream of an unknown group.
void Rounds::Entry::take(Held& held) {
  COHIVE_ASSERT(!held.entry && members_.contains(held.peer));
  held.entry = this;
  held.of_network.reset();
  ++waiting_[held.peer];
}

void Rounds::Entry::release(const Held& held) {
  const auto waiting = waiting_.find(held.peer);
  COHIVE_ASSERT(waiting != waiting_.end() && waiting->second > 0);
  if (--waiting->second == 0) waiting_.erase(waiting);
}

/// Streams of strangers as well, which are refused.
void Rounds::Entry::wake_held() {
  for (Held& held : rounds_.held_)
    if (held.id.starts_with(group_->id)) held.changed.notify_all();
}

void Rounds::Entry::triggered() {
  rounds_.keeping_.cancel();
  while (!rounds_.kept_.empty()) rounds_.forget_oldest();
  triggered_ = true;
}

bool Rounds::Entry::add(const std::string& id, std::shared_ptr<AllReduce> all_reduce) {
  for (const PeerId& peer : left_) all_reduce->member_left(peer);
  if (!running_.emplace(id, std::move(all_reduce)).second) return false;
  wake_held();
  return true;
}

Task<void> Rounds::Entry::until_alone() {
  while (!is_alone()) co_await left_changed_.wait();
}

void Rounds::member_left(const PeerId& peer, const std::string& group_id) {
  for (Entry* entry : entries_) {
    const bool meant = group_id.empty() || entry->group_->id == group_id;
    if (!meant || !entry->members_.contains(peer) || peer == host_.id()) continue;
    entry->left_.insert(peer);
    for (const auto& [id, all_reduce] : entry->running_) all_reduce->member_left(peer);
    entry->left_changed_.notify_all();
  }
}

Rounds::Entry* Rounds::entry_of(const std::string& id) const {
  const auto at = std::ranges::find_if(entries_, [&](const Entry* entry) { return id.starts_with(entry->group_->id); });
  return at == entries_.end() ? nullptr : *at;
}

std::shared_ptr<AllReduce> Rounds::find(const std::string& id) const {
  const Entry* entry = entry_of(id);
  if (!entry) return nullptr;
  const auto at = entry->running_.find(id);
  return at == entry->running_.end() ? nullptr : at->second;
}

// ---- Streams of senders

Rounds::Verdict Rounds::look_at(const Held& held) const {
  if (held.refused) return Verdict::refuse_unknown;
  if (const Entry* entry = entry_of(held.id))
    return entry->members_.contains(held.peer) ? Verdict::wait : Verdict::refuse_stranger;
  const bool ended = std::ranges::any_of(ended_, [&](const std::string& group) { return held.id.starts_with(group); });
  if (ended) return Verdict::refuse_ended;
  return searches_ > 0 ? Verdict::wait : Verdict::refuse_unknown;
}

Rounds::Held::Held(Rounds& rounds, const PeerId& from, std::string group, std::size_t size, MemoryBudget::Charge charge)
    : peer(from),
      id(std::move(group)),
      bytes(size),
      memory(std::move(charge)),
      of_peer(rounds.peers_.take(from.binary())),
      changed(rounds.runtime_, "the round of an early sender") {}

Rounds::HeldList::iterator Rounds::hold(const PeerId& peer, std::string id, std::size_t bytes,
                                        MemoryBudget::Charge memory) {
  const auto held = held_.emplace(held_.end(), *this, peer, std::move(id), bytes, std::move(memory));
  ++streams_;
  bytes_ += bytes;
  Entry* entry = entry_of(held->id);
  if (entry && entry->members_.contains(peer))
    entry->take(*held);
  else
    held->of_network.emplace(networks_.take(p2p::network_of_peer(host_, peer)));
  make_room();
  arrived_.notify_all();
  return held;
}

void Rounds::release(HeldList::iterator held) {
  if (!held->refused) {
    --streams_;
    bytes_ -= held->bytes;
  }
  if (held->entry) held->entry->release(*held);
  held_.erase(held);
}

void Rounds::refuse(Held& held) {
  COHIVE_ASSERT(!held.refused && streams_ > 0 && bytes_ >= held.bytes);
  held.refused = true;
  held.of_network.reset();
  --streams_;
  bytes_ -= held.bytes;
  held.changed.notify_all();
}

/// Of too many streams one of an unknown group has to go, the oldest of the network that has most: whoever fills all
/// places loses its own. Of too many bytes all streams of the greediest peer go, until there is room for the others.
void Rounds::make_room() {
  if (streams_ > limits_.streams) {
    const std::string largest = networks_.most().first;
    const auto oldest = std::ranges::find_if(
        held_, [&](const Held& held) { return held.of_network && held.of_network->network() == largest; });
    Held& refused = oldest == held_.end() ? held_.back() : *oldest;
    log::debug("averaging", "too many streams are ahead of their rounds: refusing one of {}", refused.peer);
    refuse(refused);
  }
  if (bytes_ <= limits_.bytes) return;
  std::map<PeerId, std::size_t> by_peer;
  for (const Held& held : held_)
    if (!held.refused) by_peer[held.peer] += held.bytes;
  while (bytes_ > limits_.bytes) {
    const auto greediest = std::ranges::max_element(by_peer, {}, [](const auto& one) { return one.second; });
    log::warn("averaging", "too much is sent ahead of its round: refusing {} ({} bytes)", greediest->first,
              greediest->second);
    for (Held& held : held_)
      if (!held.refused && held.peer == greediest->first) refuse(held);
    by_peer.erase(greediest);
  }
}

bool Rounds::is_arriving(const PeerId& peer) const {
  return std::ranges::any_of(arriving_, [&](const rpc::ServerStream* stream) {
    return stream->peer() == peer && stream->received() >= kLeastProgress;
  });
}

/// On a slow link that many streams share, half a megabyte takes its time.
Task<Result<std::optional<Slice>>> Rounds::receive_first(rpc::ServerStream& stream) {
  const auto place = arriving_.insert(arriving_.end(), &stream);
  const auto arrived = on_exit([this, place] { arriving_.erase(place); });
  co_return co_await receive_while_moving(runtime_, stream, kFirstMessage);
}

Task<Result<>> Rounds::serve(rpc::ServerStream& stream) {
  stream.hint_bulk_receive();
  auto first = co_await receive_first(stream);
  if (!first) co_return first.error();
  if (!*first) co_return Error(Errc::bad_partition, stream.peer(), "no part");
  auto message = parse_part(**first);
  if (!message) co_return message.error();
  const TimePoint arrival = runtime_.now();
  std::shared_ptr<AllReduce> all_reduce = find(message->group_id);
  Verdict verdict = Verdict::wait;
  if (!all_reduce) {
    auto memory = p2p::charge_for(host_, stream.peer());  // what waits here counts like what no reader has taken yet
    if (peers_.of(stream.peer().binary()) >= limits_.streams_of_a_peer || !memory.add((*first)->size()))
      co_return Error(cohive::Errc::limit_exceeded, stream.peer(), "streams ahead of rounds");
    const auto held = hold(stream.peer(), std::move(message->group_id), (*first)->size(), std::move(memory));
    const auto ended = on_exit([this, held] { release(held); });
    const Deadline end(arrival + limits_.time);
    while (!(all_reduce = find(held->id)) && (verdict = look_at(*held)) == Verdict::wait)
      if (!co_await held->changed.wait(end)) break;
  }
  if (!all_reduce) {
    if (verdict == Verdict::refuse_stranger) co_return Error(Errc::bad_partition, stream.peer(), "not in this group");
    const int code = verdict == Verdict::refuse_ended ? proto::CANCELLED : proto::BAD_GROUP_ID;
    co_return co_await send_code(stream, code, runtime_.after(kRefusalTimeout));
  }
  for (Served& other : served_)
    if (other.peer == stream.peer() && other.group != all_reduce->group()) other.superseded.set();
  const auto served = served_.emplace(served_.end(), runtime_, stream.peer(), all_reduce->group());
  const auto end = on_exit([this, served] {
    served_.erase(served);
    if (served_.empty()) drained_.notify_all();
  });
  auto ended = co_await race(runtime_, AllReduce::serve(std::move(all_reduce), stream, std::move(**first), arrival),
                             until_superseded(*served));
  if (ended.index() == 0) co_return std::get<0>(std::move(ended));
  co_return Error(Errc::round_cancelled, stream.peer(), "it takes part in a later round");
}

/// A member that takes part in another round has no use for what it has not read of an earlier one.
Task<void> Rounds::until_superseded(Served& served) {
  co_await served.superseded.wait();
}

// ---- Averages that are checked

/// Until the next round has its tensors, so that no more is kept than of one.
void Rounds::keep(KeptLedger kept) {
  kept_.push_back(std::move(kept));
  keeping_.spawn(forget_first(*this), "what averages were made of");
}

Task<void> Rounds::forget_first(Rounds& rounds) {
  co_await rounds.runtime_.sleep_for(kShownFor);
  rounds.forget_oldest();
}

/// Members that are slow to read the averages of a round keep its all-reduce, but not what the averages were made of.
void Rounds::forget_oldest() {
  COHIVE_ASSERT(!kept_.empty());
  kept_.front().ledger->forget();
  kept_.pop_front();
}

std::shared_ptr<AuditLog> Rounds::find_ledger(const std::string& id) const {
  if (const auto running = find(id)) return running->ledger();
  const auto at = std::ranges::find(kept_, id, &KeptLedger::id);
  return at == kept_.end() ? nullptr : at->ledger;
}

Task<Result<>> Rounds::show(rpc::ServerStream& stream) {
  CO_TRY(const auto request, co_await stream.receive(runtime_.after(kFirstMessage)));
  proto::ShowPart message;
  if (!request || !parse_bounded(message, *request))
    co_return Error(cohive::Errc::malformed, stream.peer(), "a request for what an average was made of");
  auto ledger = find_ledger(message.round());
  if (!ledger) co_return Error(Errc::bad_partition, stream.peer(), "a round that is over");
  co_return co_await AuditLog::show(std::move(ledger), stream, message.part());
}

Task<Result<std::string>> Rounds::hear(PeerId caller, std::string request) {
  proto::Verdict verdict;
  if (!parse_bounded(verdict, as_bytes(request), kVerdictFields))
    co_return Error(cohive::Errc::malformed, caller, "a verdict on averages");
  const auto all_reduce = find(verdict.round());
  if (!all_reduce) co_return Error(Errc::bad_partition, caller, "a round that is over");
  CO_TRY(all_reduce->hear(caller, verdict));
  co_return std::string();
}

/// Of the round in which it is largest, the share of the other members that wait for our trigger.
double Rounds::waiting_share(const WhoCounts& who_counts) const {
  double most = 0;
  for (const Entry* entry : entries_) {
    if (entry->triggered_) continue;
    const auto& members = entry->group_->members;
    const std::size_t own = entry->group_->index_of(host_.id()).value();
    const auto waits = [&](const Member& member) {
      return entry->waiting_.contains(member.peer) && (!who_counts || who_counts(member, members[own]));
    };
    const auto waiting = static_cast<double>(std::ranges::count_if(members, waits));
    most = std::max(most, waiting / static_cast<double>(members.size() - 1));
  }
  return most;
}
Task<void> Rounds::member_waiting(double share, WhoCounts who_counts) {
  while (waiting_share(who_counts) <= share) co_await arrived_.wait();
}

Task<void> Rounds::drain(Deadline deadline) {
  while (!served_.empty())
    if (!co_await drained_.wait(deadline)) co_return;
}

}  // namespace cohive::averaging
