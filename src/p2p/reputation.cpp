#include "cohive/p2p/reputation.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "cohive/core/log.hpp"

namespace cohive::p2p {
namespace {

constexpr int kMostDoublings = 20;
constexpr std::size_t kRoom = Reputation::kMaxPeers / 8;  // that is made at once
constexpr std::array kWhat = {"has lied", "broke a protocol"};
static_assert(kWhat.size() == kOffences.size());

}  // namespace

Duration Reputation::report(const PeerId& peer, Offence offence) {
  const auto reason = static_cast<std::size_t>(offence);
  metrics_.offences[reason].increment();
  acquaintances_.erase(peer);
  if (is_banned(peer)) return 0s;
  if (records_.size() >= kMaxPeers && !records_.contains(peer)) evict();
  Record& record = records_[peer];
  const int before = remembered(record);
  const Duration time = std::min<Duration>(kFirstTime * (1 << std::min(before, kMostDoublings)), kLongestTime);
  record = {runtime_.now() + time, before + 1};
  // Identities cost nothing: what each of many does once is told by the services, which know how often.
  log::write(before > 0 ? log::Level::info : log::Level::debug, "p2p",
             log::format("{} is banned for {:.0f} s: it {}", peer, to_seconds(time), kWhat[reason]));
  return time;
}

bool Reputation::is_banned(const PeerId& peer) const {
  const auto found = records_.find(peer);
  return found != records_.end() && runtime_.now() < found->second.until;
}

int Reputation::remembered(const Record& record) const {
  if (record.offences == 0) return 0;
  const auto passed = std::max<Duration>(runtime_.now() - record.until, Duration::zero());
  return static_cast<int>(std::max<std::int64_t>(0, record.offences - passed / kForgotten));
}

int Reputation::offences(const PeerId& peer) const {
  const auto found = records_.find(peer);
  return found == records_.end() ? 0 : remembered(found->second);
}

void Reputation::record_success(const PeerId& peer) {
  acquaintances_[peer] = runtime_.now();
  if (acquaintances_.size() <= kMaxPeers) return;
  acquaintances_.erase(std::ranges::min_element(acquaintances_, {}, [](const auto& item) { return item.second; }));
}

bool Reputation::has_history(const PeerId& peer) const {
  const auto found = acquaintances_.find(peer);
  return found != acquaintances_.end() && runtime_.now() - found->second < kAcquainted;
}

bool Reputation::has_any_history() const {
  const TimePoint now = runtime_.now();
  return std::ranges::any_of(acquaintances_, [now](const auto& item) { return now - item.second < kAcquainted; });
}

std::size_t Reputation::banned() const {
  const TimePoint now = runtime_.now();
  return static_cast<std::size_t>(
      std::ranges::count_if(records_, [now](const auto& item) { return now < item.second.until; }));
}

/// Many identities that offend once each do not make us forget those that do it again and again. Room is made for many:
/// one look at all records for each new identity would be work that an attacker multiplies.
void Reputation::evict() {
  std::erase_if(records_, [this](const auto& item) { return remembered(item.second) == 0; });
  if (records_.size() + kRoom <= kMaxPeers) return;
  std::vector<std::pair<TimePoint, PeerId>> ends;
  ends.reserve(records_.size());
  for (const auto& [peer, record] : records_) ends.emplace_back(record.until, peer);
  const std::size_t surplus = records_.size() + kRoom - kMaxPeers;
  std::ranges::nth_element(ends, ends.begin() + static_cast<std::ptrdiff_t>(surplus));
  for (std::size_t i = 0; i < surplus; ++i) records_.erase(ends[i].second);
}

}  // namespace cohive::p2p
