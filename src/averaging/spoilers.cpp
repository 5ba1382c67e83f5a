#include "spoilers.hpp"

#include <algorithm>

#include "cohive/core/runtime.hpp"

namespace cohive::averaging {
namespace {

constexpr std::size_t kMaxRecords = 4096;
constexpr std::size_t kRounds = 4;    // that members may still tell of
constexpr std::size_t kForgivenStrangers = 1, kForgivenAcquaintances = 2;  // rounds in a row, about
constexpr std::size_t kDisputed = 1;                                       // rounds in which one member's word stands

/// A member that a round with more than half of the others was spoilt for was most likely cut off itself. In a group of
/// two there is no other peer to go on with.
bool is_plausible(const std::vector<PeerId>& spoilers, std::size_t members) {
  return 2 * spoilers.size() + 1 <= members;
}

}  // namespace

void Spoilers::group_began(const std::string& id, std::set<PeerId> members) {
  rounds_.push_back({id, std::move(members), {}, {}});
  if (rounds_.size() > kRounds) rounds_.pop_front();
}

Spoilers::Round* Spoilers::find(const std::string& id) {
  const auto found = std::ranges::find(rounds_, id, &Round::id);
  return found == rounds_.end() ? nullptr : &*found;
}

bool Spoilers::told(const PeerId& witness, const std::string& id, const std::vector<PeerId>& spoilers) {
  Round* round = find(id);
  if (!round || !round->members.contains(witness) || !round->witnesses.insert(witness).second) return false;
  if ((witness != own_ && spoilers.size() > kMostTold) || !is_plausible(spoilers, round->members.size())) return false;
  for (const PeerId& peer : spoilers)
    if (peer != own_ && peer != witness && round->members.contains(peer)) note(*round, peer, witness);
  return true;
}

void Spoilers::note(Round& round, const PeerId& peer, const PeerId& witness) {
  forget_old();
  round.named.insert(peer);
  if (records_.size() >= kMaxRecords && !records_.contains(peer)) return;
  Record& record = records_[peer];
  record.witnesses.insert(witness);
  record.last = runtime_.now();
  if (witness == own_) ++record.own_rounds;
  if (record.last_round != round.id) {
    record.last_round = round.id;
    ++record.rounds;
  }
  const std::size_t forgiven = reputation_.is_acquainted(peer) ? kForgivenAcquaintances : kForgivenStrangers;
  if (record.rounds <= forgiven) return;
  if (record.own_rounds > forgiven || is_believed(record))
    reputation_.report(peer, p2p::Offence::stalled, kFirstTime);
}

bool Spoilers::worked(const PeerId& peer, const std::string& id) {
  const Round* round = find(id);
  if (round && round->named.contains(peer)) return is_cleared(peer);
  const auto found = records_.find(peer);
  if (found == records_.end()) return true;
  Record& record = found->second;
  record.own_rounds -= std::min<std::size_t>(record.own_rounds, 1);
  if (--record.rounds == 0) records_.erase(found);
  return true;
}

/// A peer that is silent to one member under a new identity each time does not come again; one that is slandered does.
bool Spoilers::is_cleared(const PeerId& peer) {
  const TimePoint now = runtime_.now();
  const auto record = records_.find(peer);
  if (record != records_.end() && is_believed(record->second)) return false;
  std::erase_if(disputes_, [now](const auto& item) { return now - item.second.last > kDisputeMemory; });
  if (disputes_.size() >= kMaxRecords && !disputes_.contains(peer)) return false;
  Dispute& dispute = disputes_[peer];
  dispute.last = now;
  return ++dispute.rounds > kDisputed;
}

/// By the members of the last group: runs grow and shrink, and identities cost nothing.
bool Spoilers::is_believed(const Record& record) const {
  if (rounds_.empty()) return false;
  const std::set<PeerId>& members = rounds_.back().members;
  const auto witnesses = static_cast<std::size_t>(
      std::ranges::count_if(record.witnesses, [&](const PeerId& witness) { return members.contains(witness); }));
  return witnesses > std::max<std::size_t>(1, members.size() / 3);
}

bool Spoilers::has_spoilt(const PeerId& peer) const {
  const auto found = records_.find(peer);
  if (found == records_.end() || runtime_.now() - found->second.last > kMemory) return false;
  return found->second.own_rounds > 0 || is_believed(found->second);
}

/// An honest peer starts anew after a while.
void Spoilers::forget_old() {
  const TimePoint now = runtime_.now();
  std::erase_if(records_, [now](const auto& item) { return now - item.second.last > kMemory; });
}

}  // namespace cohive::averaging
