// Whom a ProgressTracker knows: the keys that report for a peer, trainers that were met or are absent, whom rounds wait
// for, and whose epoch is that of the run.
#include <algorithm>
#include <cmath>

#include "cohive/train/progress_tracker.hpp"
#include "majority.hpp"
#include "progress_entry.hpp"
#include "strangers.hpp"

namespace cohive::train {
namespace {

// That a stranger which does not come is not expected, four times as long each time: it may be a newcomer that is slow.
constexpr Duration kFirstAbsence = 4s, kLongestAbsence = 10min;
constexpr Duration kDialTime = 10s, kDialAgain = 60s;
constexpr std::size_t kMaxBound = 20'000;
// Seconds since the last report of a member that missed a round: until then it votes on the epoch, and is waited for
// where most members have missed it. Reports of an epoch that has just begun take less than the first.
constexpr double kLately = 30, kJustNow = 3;

}  // namespace

bool ProgressTracker::is_met(const PeerId& peer) const {
  const auto met = met_.find(peer), bound = bound_.find(peer);
  if (met == met_.end() || bound == bound_.end()) return false;
  return met->second == bound->second || bound->second == peer.binary();  // proven by its identity
}

/// Trainers that were not in the last round and have not reported since, and trainers whose process has ended.
bool ProgressTracker::is_absent(const PeerId& peer) const {
  if (dht_.host().refuses(peer)) return true;
  const auto absence = absent_.find(peer);
  if (absence == absent_.end()) return false;
  const auto report = reports_.find(peer);
  const bool silent = report == reports_.end() || report->second.time <= absence->second.reported;
  return silent || (!is_met(peer) && runtime_.now() < absence->second.until);
}

/// Whether a peer has a connection, and has reported in the last seconds: whatever it has missed.
bool ProgressTracker::is_there(const PeerId& peer, double reported, double seconds) const {
  return dht_.host().connected(peer) && dht_.now() - reported < seconds;
}

/// Whether a trainer seems to have ended since it reported, without a word: what it reports is kept for
/// metadata_expiration, and its samples come to no round.
bool ProgressTracker::is_gone(const PeerId& peer, double reported) const {
  const auto lost = lost_.find(peer);
  if (lost != lost_.end() && reported <= lost->second && !dht_.host().connected(peer)) return true;
  return is_absent(peer) && !is_there(peer, reported, kLately);
}

/// Each of them may hold a round up, so an invented one must not be among them. Where some trainers were drawn, their
/// share counts.
void ProgressTracker::count_expected(GlobalProgress& progress) const {
  progress.expected = progress.in_sight = 0;
  if (progress.peers == 0) return;
  const p2p::Host& host = dht_.host();
  std::size_t known = 0, strangers = 0, unreached = 0, clients = 0, absent = 0, late = 0;
  for (const auto& [peer, report] : reports_) {
    if (peer == host.id()) continue;
    if (is_absent(peer)) {
      ++absent;
      if (is_met(peer) && is_there(peer, report.time, kJustNow)) ++late;
    } else if (is_met(peer)) {
      ++known;
    } else {
      ++(host.connected(peer) ? strangers : options_.auxiliary && report.client ? clients : unreached);
    }
  }
  // Nobody dials a client: it comes to the group of an auxiliary peer, which has no other sign of it before.
  strangers += std::min(clients, kFewStrangers);
  if (drawn_) {
    progress.expected = progress.in_sight = progress.peers - std::min(progress.peers, absent);
    return;
  }
  progress.in_sight = 1 + known + strangers + credible_strangers(unreached, known + strangers);
  progress.expected = 1 + known + (known > 0 ? credible_strangers(strangers, known) : strangers);
  // Where most have missed a round and are there, they are waited for once more. Whoever kept them out would else have
  // the few that were in it step with their own samples, again and again, while the others find together.
  if (late > known) progress.expected += late;
}

/// A report may be all that there is of its peer: whether it can be reached is tried, one after another.
void ProgressTracker::dial_strangers() {
  if (dialling_ || drawn_) return;
  const TimePoint now = runtime_.now();
  std::erase_if(dialled_, [&](const auto& one) { return now >= one.second && !reports_.contains(one.first); });
  for (const auto& [peer, report] : reports_) {
    if (report.client || peer == dht_.host().id() || is_met(peer) || dht_.host().connected(peer)) continue;
    TimePoint& again = dialled_[peer];
    if (now < again) continue;
    again = now + kDialAgain;
    dialling_ = true;
    return tasks_.spawn(dial(*this, peer), "dial a trainer");
  }
}

Task<void> ProgressTracker::dial(ProgressTracker& self, PeerId stranger) {
  const bool reached = (co_await self.dht_.host().connect(stranger, self.runtime_.after(kDialTime))).has_value();
  self.dialling_ = false;
  if (reached) self.set(self.snapshot());
}

std::vector<ProgressTracker::Trainer> ProgressTracker::trainers() const {
  std::vector<Trainer> all;
  for (const auto& [peer, report] : reports_)
    if (peer != dht_.host().id() && !report.client) all.push_back({peer, report.epoch});
  std::ranges::partition(all, [this](const Trainer& one) { return dht_.host().connected(one.peer); });
  return all;
}

std::uint64_t ProgressTracker::epoch_of_most() const {
  std::vector<std::uint64_t> all, met;
  for (const auto& [peer, report] : reports_) {
    if (peer == dht_.host().id()) continue;
    all.push_back(report.epoch);
    if (!is_met(peer) || !dht_.host().reputation().has_history(peer)) continue;
    if (is_there(peer, report.time, kLately) || !is_absent(peer)) met.push_back(report.epoch);
  }
  if (all.empty()) return epoch_;
  return reached_by_most(met.empty() ? all : met);
}

std::vector<PeerId> ProgressTracker::absent() const {
  std::vector<PeerId> peers;
  for (const auto& [peer, report] : reports_)
    if (is_absent(peer)) peers.push_back(peer);
  return peers;
}

bool ProgressTracker::someone_is_behind() const {
  return std::ranges::any_of(reports_, [this](const auto& one) {
    return one.second.epoch < epoch_ && one.first != dht_.host().id() && is_met(one.first) && !is_absent(one.first);
  });
}

void ProgressTracker::met(const std::vector<PeerId>& peers) {
  if (met_.size() + peers.size() > kMaxBound) met_.clear();
  for (const PeerId& peer : peers) {
    const auto bound = bound_.find(peer);
    met_[peer] = bound == bound_.end() ? std::string() : bound->second;
    absent_.erase(peer);
  }
}

void ProgressTracker::took_part(const std::vector<PeerId>& members, const std::vector<PeerId>& lost) {
  for (const PeerId& peer : members) absent_.erase(peer);
  members_ = members;
  const bool says_nothing_of_others = members.size() < 2 && !lost.empty();
  for (const auto& [peer, report] : reports_) {
    if (peer == dht_.host().id() || std::ranges::find(members, peer) != members.end()) continue;
    if (says_nothing_of_others && std::ranges::find(lost, peer) == lost.end()) continue;
    Absence& absence = absent_[peer];
    if (absence.rounds > 0 && report.time <= absence.reported) continue;
    const int doublings = std::min(2 * absence.rounds++, 20);
    absence.until = runtime_.now() + std::min<Duration>(kFirstAbsence * (1 << doublings), kLongestAbsence);
    absence.reported = report.time;
  }
  set(snapshot());
}

void ProgressTracker::doubt_claims_above(std::uint64_t proven) {
  std::erase_if(met_, [&](const auto& one) {
    const auto report = reports_.find(one.first);
    return report != reports_.end() && report->second.epoch > proven;
  });
  fetch_soon();
}

/// Of keys that claim one peer id, the one that was there first has it.
void ProgressTracker::bind_peers(std::vector<Entry>& entries) {
  std::unordered_map<PeerId, std::string> bound;
  if (drawn_ && bound_.size() < kMaxBound) bound = bound_;  // a claim that was not drawn need not have expired
  for (const Entry& entry : entries) {
    const auto before = entry.peer ? bound_.find(*entry.peer) : bound_.end();
    if (before != bound_.end() && before->second == entry.marker) bound.insert(*before);
  }
  for (Entry& entry : entries) {
    if (!entry.peer) continue;
    std::string& marker = bound.try_emplace(*entry.peer, entry.marker).first->second;
    if (entry.marker == entry.peer->binary()) marker = entry.marker;  // proven by its identity
    if (marker != entry.marker) entry.peer.reset();
  }
  bound_ = std::move(bound);
}

void ProgressTracker::note_reports(const std::vector<Entry>& entries) {
  reports_.clear();
  for (const Entry& entry : entries) {
    if (!entry.peer) continue;
    reports_[*entry.peer] = {entry.time, entry.epoch, entry.client};
    const auto met = met_.find(*entry.peer);
    if (met != met_.end() && met->second.empty()) met->second = entry.marker;
  }
  std::erase_if(lost_, [this](const auto& one) { return !reports_.contains(one.first); });
  std::erase_if(absent_, [this](const auto& one) {
    return !reports_.contains(one.first) && (absent_.size() > kMaxBound || (!drawn_ && is_met(one.first)));
  });
}

/// The members of a round reach an epoch together. Of many trainers, from whose reports some are drawn, few are
/// connected.
void ProgressTracker::agree_on_epoch(const std::vector<Entry>& entries, GlobalProgress& global) {
  std::vector<std::uint64_t> all, met, connected;
  bool reaches_one = drawn_;
  for (const Entry& entry : entries) {
    if (entry.client || entry.marker == key_->ownership_marker()) continue;
    const bool is_connected = entry.peer && dht_.host().connected(*entry.peer);
    if (!entry.peer || !is_met(*entry.peer)) {
      if (is_connected) connected.push_back(entry.epoch);
    } else if (is_there(*entry.peer, entry.time, kLately) || !is_absent(*entry.peer)) {
      // Who has missed a round is there all the same: of the others a liar might be the only one.
      met.push_back(entry.epoch);
      reaches_one = reaches_one || is_connected;
    } else {
      continue;
    }
    all.push_back(entry.epoch);
  }
  heard_ = reached_by_most(connected);
  global.met = met.size();
  global.in_touch = !met.empty() && reaches_one;
  global.epoch = global.in_touch ? std::max(epoch_, reached_by_most(met)) : epoch_;
  const auto& claims = global.in_touch ? met : all;
  std::uint64_t claimed = claims.empty() ? 0 : std::ranges::max(claims);
  // Those that were drawn may all be strangers by chance. They may end the epoch first, as those may that were met.
  if (drawn_ && met.empty() && !met_.empty() && claimed == epoch_ + 1) claimed = epoch_;
  global.claimed = std::max(global.epoch, claimed);
  if (!options_.auxiliary) return;
  // It comes back, too, from an epoch that liars have named. That which it has just entered with the others is not in
  // their reports yet.
  const std::uint64_t most = epoch_of_most();
  const bool just_entered = most + 1 == epoch_ && runtime_.now() - entered_ < from_seconds(kLately);
  global.epoch = heard_ = just_entered ? epoch_ : most;
}

/// How many of so many reporting trainers there may be: this one, those that were met or are connected, and as many
/// others at most.
std::size_t ProgressTracker::credible(std::size_t peers) const {
  std::size_t there = 0, others = 0;
  for (const auto& [peer, report] : reports_) {
    if (peer == dht_.host().id()) continue;
    ++(is_met(peer) || dht_.host().connected(peer) ? there : others);
  }
  if (drawn_ && there + others > 0) {
    const double share = static_cast<double>(there) / static_cast<double>(there + others);
    there = static_cast<std::size_t>(std::lround(share * static_cast<double>(peers)));
    others = peers - std::min(peers, there);
  }
  return 1 + there + credible_strangers(others, there);
}

/// Once this peer has averaged with some, what is claimed of peers that are not there must not make all look less
/// often, or at fewer replicas.
std::size_t ProgressTracker::readers_of(const GlobalProgress& progress) const {
  return drawn_ || progress.met == 0 ? progress.peers : credible(progress.peers);
}

}  // namespace cohive::train
