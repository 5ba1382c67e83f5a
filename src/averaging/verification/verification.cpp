#include "verification.hpp"

#include <algorithm>
#include <cmath>

#include "averaging/detail/lease.hpp"
#include "averaging/detail/part_math.hpp"
#include "cohive/averaging/errors.hpp"
#include "cohive/core/combine.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/core/try.hpp"
#include "cohive/proto/averaging.pb.h"

namespace cohive::averaging {
namespace {

constexpr std::size_t kChecksAtOnce = 4, kChecksOfAReducer = 1;
constexpr double kSuspiciousNormRatio = 3;                  // times as long as what was sent: seldom by chance
constexpr std::size_t kMostOdd = 8;                         // parts of a reducer: a model may be such that many are
constexpr Duration kTelling = 10s;                          // a verdict to a member
constexpr Duration kLeastHearing = 1s, kMostHearing = 10s;  // of the other members' verdicts, after our own checks

/// What no other peer can foresee, and the same in each simulated run of a seed: Ed25519 signs without randomness.
Digest secret_of(const KeyPair& key, const std::string& round) {
  return crypto::sha256(key.sign(as_bytes("cohive draws parts of " + round)));
}

}  // namespace

Verification::Verification(p2p::Host& host, const AveragingMetrics& metrics, Setup setup)
    : host_(host),
      runtime_(host.runtime()),
      metrics_(metrics),
      setup_(std::move(setup)),
      secret_(secret_of(host.identity(), setup_.id)),
      began_(runtime_.now()),
      changed_(runtime_, "checks of averages"),
      at_once_(runtime_, kChecksAtOnce, "checks of averages"),
      tasks_(runtime_, "checks of averages") {}

// ---- Answers

Task<Result<>> Verification::hold(std::size_t reducer, AnsweredPart part, Digest transcript_digest) {
  Held& held = held_[reducer];
  bool odd = false;
  if (part.answer && held.odd < kMostOdd) {
    CO_TRY(const double times, co_await offload_leased(runtime_, [part] { return norm_ratio(part); }));
    odd = times > kSuspiciousNormRatio;
    held.odd += odd;
  }
  held.parts.push_back(std::move(part));
  held.transcript_digest.push_back(transcript_digest);
  const Place place{reducer, held.parts.size() - 1};
  if (can_be_checked(held.parts.back()) && (odd || is_sampled(place))) begin_check(place);
  co_return ok();
}

/// Where our own values count there is an average, or the reducer can show why there is none.
bool Verification::can_be_checked(const AnsweredPart& part) const {
  return part.answer || (setup_.weight > 0 && part.length > 0);
}

bool Verification::is_sampled(Place place) const {
  const std::string what = std::to_string(place.member) + "/" + std::to_string(place.index);
  const Digest drawn = crypto::sha256({ByteView(secret_), as_bytes(what)});
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < 8; ++i) number = number << 8 | drawn[i];
  return std::ldexp(static_cast<double>(number), -64) < setup_.share;
}

void Verification::begin_check(Place place) {
  if (!begun_.insert(place).second) return;
  pending_.insert(place);
  tasks_.spawn(check(*this, place), "check of an average");
}

Task<void> Verification::check(Verification& self, Place place) {
  const auto done = on_exit([&self, place] {
    self.pending_.erase(place);
    self.changed_.notify_all();
  });
  Semaphore& turns =
      self.turns_.try_emplace(place.member, self.runtime_, kChecksOfAReducer, "checks of a reducer").first->second;
  const auto turn = co_await turns.acquire();
  const auto room = co_await self.at_once_.acquire();
  if (self.objections_.contains(place.member)) co_return;
  const auto examined = co_await self.examine(place);
  if (examined)
    self.metrics_.averages_right.increment();
  else
    self.object(place.member, examined.error().with_peer(self.peer(place.member)), place);
}

void Verification::object(std::size_t reducer, const Error& why, Place place) {
  const bool wrong = is_fault(why.code());
  const auto before = objections_.find(reducer);
  if (before != objections_.end() && (!wrong || is_fault(before->second.code()))) return;  // of two checks at a time
  (wrong ? metrics_.averages_wrong : metrics_.averages_not_shown).increment();
  const auto text = log::format("the averages of {} are not used: part {}: {}", peer(reducer), place.index, why);
  log::write(wrong ? log::Level::warn : log::Level::info, "averaging", text);
  if (wrong) wrong_.push_back(place);
  objections_.insert_or_assign(reducer, why);
}

std::optional<Error> Verification::objection(std::size_t reducer) const {
  const auto at = objections_.find(reducer);
  return at == objections_.end() ? std::nullopt : std::optional(at->second);
}

// ---- A part made again

Task<Result<>> Verification::examine(Place place) {
  const Deadline last = halfway();  // a reducer that takes longer leaves time for the checks of others
  const Deadline end = timeout_after(runtime_, setup_.patience).min(last);
  CO_TRY(auto call, co_await rpc::open_call(host_, peer(place.member), setup_.prefix + "rpc_show_part", end));
  call->hint_bulk_receive();
  proto::ShowPart request;
  request.set_round(setup_.id);
  request.set_part(static_cast<std::uint32_t>(place.index));
  CO_TRY(co_await call->send(as_bytes(request.SerializeAsString()), end));
  CO_TRY(co_await call->finish(end));
  CO_TRY(const auto head, co_await call->receive(end));
  if (!head) co_return Error(cohive::Errc::end_of_stream, "nothing is shown");
  CO_TRY(auto transcript, accept_transcript(*head, place));
  const std::size_t entries = transcript.size();
  const AnsweredPart& part = held_.at(place.member).parts[place.index];
  const auto again = std::make_shared<Recomputation>(setup_.aggregation, std::move(transcript), part.length);
  for (std::size_t entry = 0; entry < entries; ++entry) {
    CO_TRY(auto record, co_await call->receive(timeout_after(runtime_, setup_.patience).min(last)));
    if (!record) co_return Error(cohive::Errc::end_of_stream, "not all contributions are shown");
    CO_TRY(co_await add_contribution(again, place, entry, std::move(*record)));
  }
  CO_TRY(const bool agrees, co_await offload_leased(runtime_, [again, part] { return again->agrees_with(part); }));
  if (!agrees && !part.answer) co_return Error(cohive::Errc::not_found, "why there is no average");
  if (!agrees) co_return Error(Errc::wrong_average);
  co_return ok();
}

/// The transcript that the reducer is bound to, if an honest one can have it. Without an average it is bound to none.
Result<Transcript> Verification::accept_transcript(ByteView bytes, Place place) const {
  const Held& held = held_.at(place.member);
  const AnsweredPart& part = held.parts[place.index];
  if (part.answer && crypto::sha256(bytes) != held.transcript_digest[place.index])
    return Error(Errc::wrong_average, "another transcript than with the average");
  const auto& members = setup_.group->members;
  TRY(auto transcript, parse_transcript(bytes, members.size()));
  const auto own = std::ranges::find(transcript, setup_.own_index, &TranscriptEntry::sender);
  if (own == transcript.end() || own->weight != setup_.weight || own->codec != static_cast<int>(part.sent_codec) ||
      own->digest != crypto::sha256(part.sent.bytes))
    return Error(Errc::wrong_average, "without what this peer has sent");
  if (!std::ranges::all_of(transcript, is_weight, &TranscriptEntry::weight))
    return Error(Errc::wrong_average, "with a weight that cannot be");
  // It may have been cut off from them: that is no lie, and no average of the group either.
  if (2 * transcript.size() < members.size()) return Error(cohive::Errc::timeout, "most members are left out");
  return transcript;
}

Task<Result<>> Verification::add_contribution(std::shared_ptr<Recomputation> again, Place place, std::size_t entry,
                                              Slice record) {
  const TranscriptEntry& told = again->transcript()[entry];
  const AnsweredPart& part = held_.at(place.member).parts[place.index];
  CO_TRY(const auto message, parse_part(record));
  CO_TRY(auto encoded, encoded_part(message, std::move(record), part.length, setup_.group->agreed_codecs));
  // The reducer binds itself to its own contribution with the transcript; others have signed theirs.
  const bool is_signed = told.sender != place.member;
  Commitment commitment{setup_.id, peer(place.member), place.index, told.weight, told.codec, told.digest};
  auto work = [again, encoded = std::move(encoded), is_signed, commitment = std::move(commitment),
               seal = message.commitment, sender = peer(told.sender)]() mutable -> Result<> {
    if (is_signed) TRY(check_commitment(as_bytes(seal), sender, commitment));
    const auto added = again->add(std::move(encoded));
    if (!added && added.error() == Errc::not_finite) return Error(Errc::wrong_average, "made of what is not finite");
    return added;
  };
  co_return co_await runtime_.offload(std::move(work));
}

// ---- What members tell each other

/// Half of the time that is left for the checks is over.
Deadline Verification::halfway() const {
  return runtime_.after(setup_.end.remaining(runtime_.now()) / 2);
}

Task<void> Verification::await_checks(Deadline end) {
  while (!pending_.empty())
    if (!co_await changed_.wait(end)) break;
}

/// The first half of the time is for our own checks, so that what they find reaches the other members and what those
/// find can be looked at.
Task<void> Verification::await_verdicts(std::function<bool(std::size_t)> is_expected) {
  co_await await_checks(halfway());
  const std::string verdict = own_verdict();
  for (std::size_t member = 0; member < setup_.group->members.size(); ++member) {
    if (member == setup_.own_index || !is_expected(member)) continue;
    if (setup_.group->members[member].mode == PeerMode::client) continue;
    ++telling_;
    tasks_.spawn(tell(*this, member, verdict), "verdict");
  }
  const Duration hearing = std::clamp<Duration>((runtime_.now() - began_) / 4, kLeastHearing, kMostHearing);
  const Deadline end = runtime_.after(hearing).min(halfway());
  // A member that reads no verdict holds the round up no longer than one that sends none.
  while (telling_ > 0 || !all_heard(is_expected))
    if (!co_await changed_.wait(end)) break;
  follow_complaints();
  co_await await_checks(setup_.end);
  for (const Place& place : pending_)
    object(place.member, Error(cohive::Errc::timeout, peer(place.member), "its averages could not be checked"), place);
}

std::string Verification::own_verdict() const {
  proto::Verdict message;
  message.set_round(setup_.id);
  for (const Place& place : wrong_) {
    auto& complaint = *message.add_complaints();
    complaint.set_reducer(static_cast<std::uint32_t>(place.member));
    complaint.set_part(static_cast<std::uint32_t>(place.index));
  }
  return message.SerializeAsString();
}

Task<void> Verification::tell(Verification& self, std::size_t member, std::string verdict) {
  const auto done = on_exit([&self] {
    --self.telling_;
    self.changed_.notify_all();
  });
  const Deadline end = self.runtime_.after(kTelling).min(self.setup_.end);
  auto told = co_await rpc::call_unary(self.host_, self.peer(member), self.setup_.prefix + "rpc_verdict",
                                       std::move(verdict), end);
  if (!told) log::debug("averaging", "{} has not heard what was checked: {}", self.peer(member), told.error());
}

Result<> Verification::hear(const PeerId& from, const proto::Verdict& verdict) {
  const auto member = setup_.group->index_of(from);
  if (!member || *member == setup_.own_index) return Error(Errc::bad_partition, from, "not in this group");
  std::vector<Place> complaints;
  for (const auto& complaint : verdict.complaints()) complaints.emplace_back(complaint.reducer(), complaint.part());
  verdicts_.emplace(*member, std::move(complaints));
  changed_.notify_all();
  return ok();
}

bool Verification::all_heard(const std::function<bool(std::size_t)>& is_expected) const {
  for (std::size_t member = 0; member < setup_.group->members.size(); ++member)
    if (member != setup_.own_index && !verdicts_.contains(member) && is_expected(member)) return false;
  return true;
}

/// Of each member the first complaint that there is something to check of: what one can make others do is bounded.
void Verification::follow_complaints() {
  for (const auto& [member, complaints] : verdicts_) {
    const auto at = std::ranges::find_if(complaints, [this](const Place& place) {
      const auto held = held_.find(place.member);
      return held != held_.end() && place.index < held->second.parts.size() &&
             can_be_checked(held->second.parts[place.index]) && !objections_.contains(place.member);
    });
    if (at != complaints.end()) begin_check(*at);
  }
}

}  // namespace cohive::averaging
