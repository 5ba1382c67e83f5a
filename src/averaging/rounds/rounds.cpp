#include "rounds.hpp"

#include <algorithm>

#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"
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
      changed_(runtime_, "the round of an early sender"),
      keeping_(runtime_, "what averages were made of") {}

Rounds::Search::~Search() {
  --rounds_.searches_;
  rounds_.changed_.notify_all();
}

// ---- The round of a group

Rounds::Entry::Entry(Rounds& rounds, std::shared_ptr<const Group> group) : rounds_(rounds), group_(std::move(group)) {
  rounds_.entries_.push_back(this);
  rounds_.changed_.notify_all();
}

Rounds::Entry::~Entry() {
  if (!complete_)
    for (const auto& [id, all_reduce] : running_) all_reduce->cancel();  // senders that wait for us get an answer
  for (const auto& [id, all_reduce] : running_)
    if (auto ledger = all_reduce->ledger()) rounds_.keep({id, std::move(ledger)});
  std::erase(rounds_.entries_, this);
  rounds_.ended_.push_back(group_->id);
  if (rounds_.ended_.size() > kEndedGroups) rounds_.ended_.pop_front();
  rounds_.changed_.notify_all();
}

void Rounds::Entry::triggered() {
  rounds_.keeping_.cancel();
  rounds_.kept_.clear();
  triggered_ = true;
}

bool Rounds::Entry::add(const std::string& id, std::shared_ptr<AllReduce> all_reduce) {
  for (const PeerId& peer : left_) all_reduce->member_left(peer);
  if (!running_.emplace(id, std::move(all_reduce)).second) return false;
  rounds_.changed_.notify_all();
  return true;
}

Task<void> Rounds::Entry::until_alone() {
  while (!is_alone()) co_await rounds_.changed_.wait();
}

void Rounds::member_left(const PeerId& peer, const std::string& group_id) {
  for (Entry* entry : entries_) {
    const bool meant = group_id.empty() || entry->group_->id == group_id;
    if (!meant || !entry->group_->index_of(peer) || peer == host_.id()) continue;
    entry->left_.insert(peer);
    for (const auto& [id, all_reduce] : entry->running_) all_reduce->member_left(peer);
  }
  changed_.notify_all();
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
    return entry->group_->index_of(held.peer) ? Verdict::wait : Verdict::refuse_stranger;
  const bool ended = std::ranges::any_of(ended_, [&](const std::string& group) { return held.id.starts_with(group); });
  if (ended) return Verdict::refuse_ended;
  return searches_ > 0 ? Verdict::wait : Verdict::refuse_unknown;
}

bool Rounds::may_hold(const PeerId& peer) const {
  const auto own = static_cast<std::size_t>(std::ranges::count(held_, peer, &Held::peer));
  return held_.size() < limits_.streams && own < limits_.streams_of_a_peer;
}

/// Refuses streams of the greediest peer until there is room for those of the others.
void Rounds::evict() {
  std::size_t total = 0;
  std::map<PeerId, std::size_t> by_peer;
  for (const Held& held : held_) {
    if (held.refused) continue;
    total += held.bytes;
    by_peer[held.peer] += held.bytes;
  }
  while (total > limits_.bytes) {
    const auto greediest = std::ranges::max_element(by_peer, {}, [](const auto& one) { return one.second; });
    log::warn("averaging", "too much is sent ahead of its round: refusing {} ({} bytes)", greediest->first,
              greediest->second);
    for (Held& held : held_) held.refused |= held.peer == greediest->first;
    total -= greediest->second;
    by_peer.erase(greediest);
  }
}

bool Rounds::is_awaited(const Held& held) const {
  const Entry* entry = entry_of(held.id);
  return entry && !entry->triggered_ && entry->group_->index_of(held.peer);
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
  auto memory = p2p::charge_for(host_, stream.peer());  // what waits here counts like what no reader has taken yet
  if (!may_hold(stream.peer()) || !memory.add((*first)->size()))
    co_return Error(cohive::Errc::limit_exceeded, stream.peer(), "streams ahead of rounds");
  const auto held =
      held_.insert(held_.end(), Held{stream.peer(), message->group_id, (*first)->size(), std::move(memory)});
  std::shared_ptr<AllReduce> all_reduce;
  Verdict verdict = Verdict::wait;
  {
    const auto release = on_exit([this, held] { held_.erase(held); });
    evict();
    changed_.notify_all();  // member_waiting
    const Deadline end(arrival + limits_.time);
    while (!(all_reduce = find(held->id)) && (verdict = look_at(*held)) == Verdict::wait)
      if (!co_await changed_.wait(end)) break;
  }
  if (!all_reduce) {
    if (verdict == Verdict::refuse_stranger) co_return Error(Errc::bad_partition, stream.peer(), "not in this group");
    const int code = verdict == Verdict::refuse_ended ? proto::CANCELLED : proto::BAD_GROUP_ID;
    co_return co_await send_code(stream, code, runtime_.after(kRefusalTimeout));
  }
  for (Served& other : served_) other.superseded |= other.peer == stream.peer() && other.group != all_reduce->group();
  const auto served = served_.insert(served_.end(), Served{stream.peer(), all_reduce->group()});
  changed_.notify_all();
  const auto end = on_exit([this, served] {
    served_.erase(served);
    changed_.notify_all();
  });
  auto ended = co_await race(runtime_, AllReduce::serve(std::move(all_reduce), stream, std::move(**first), arrival),
                             until_superseded(*served));
  if (ended.index() == 0) co_return std::get<0>(std::move(ended));
  co_return Error(Errc::round_cancelled, stream.peer(), "it takes part in a later round");
}

/// A member that takes part in another round has no use for what it has not read of an earlier one.
Task<void> Rounds::until_superseded(const Served& served) {
  while (!served.superseded) co_await changed_.wait();
}

// ---- Averages that are checked

/// Until the next round has its tensors, so that no more is kept than of one.
void Rounds::keep(KeptLedger kept) {
  kept_.push_back(std::move(kept));
  keeping_.spawn(forget_first(*this), "what averages were made of");
}

Task<void> Rounds::forget_first(Rounds& rounds) {
  co_await rounds.runtime_.sleep_for(kShownFor);
  rounds.kept_.pop_front();
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
double Rounds::waiting_share() const {
  std::map<const Entry*, std::set<PeerId>> waiting;
  for (const Held& held : held_)
    if (is_awaited(held)) waiting[entry_of(held.id)].insert(held.peer);
  double most = 0;
  for (const auto& [entry, members] : waiting)
    most = std::max(most, static_cast<double>(members.size()) / static_cast<double>(entry->group_->members.size() - 1));
  return most;
}
Task<void> Rounds::member_waiting(double share) {
  while (waiting_share() <= share) co_await changed_.wait();
}

Task<void> Rounds::drain(Deadline deadline) {
  while (!served_.empty())
    if (!co_await changed_.wait(deadline)) co_return;
}

}  // namespace cohive::averaging
