#include "traffic.hpp"

#include <algorithm>

namespace cohive::averaging {
namespace {

constexpr std::uint64_t kEnough = 64 * 1024;  // bytes; fewer say more about latency than about the link
constexpr Duration kLongEnough = 10ms;

}  // namespace

void add_new(std::vector<PeerId>& list, const std::vector<PeerId>& more) {
  for (const PeerId& peer : more)
    if (std::ranges::find(list, peer) == list.end()) list.push_back(peer);
}

void MemberTraffic::sent(std::size_t bytes, TimePoint begin, TimePoint end) {
  if (!out_.begin) out_.begin = begin;
  out_.bytes += bytes;
  out_.end = end;
}

void MemberTraffic::received(std::size_t bytes, TimePoint now) {
  in_.bytes += bytes;
  if (!in_.begin) {
    in_.begin = now;
    in_.before = in_.bytes;  // how long these took is not known
  }
  in_.end = now;
}

std::optional<double> MemberTraffic::Flow::rate() const {
  if (!begin || bytes - before < kEnough || end - *begin < kLongEnough) return std::nullopt;
  return static_cast<double>(bytes - before) / to_seconds(end - *begin);
}

Exchanged MemberTraffic::summary(TimePoint trigger) const {
  Exchanged result;
  if (arrival_) result.arrival = *arrival_ - trigger;
  result.longest_part_wait = part_wait_;
  result.longest_result_wait = result_wait_;
  result.bytes_sent = out_.bytes;
  result.bytes_received = in_.bytes;
  result.send_rate = out_.rate();
  result.receive_rate = in_.rate();
  return result;
}

std::vector<PeerId> RoundReport::lost() const {
  std::vector<PeerId> all = failed_reducers;
  add_new(all, lost_senders);
  return all;
}

double RoundReport::averaged_share() const {
  return parts_total == 0 ? 1 : 1 - static_cast<double>(parts_failed) / static_cast<double>(parts_total);
}

std::vector<PeerId> RoundReport::heard_from() const {
  std::vector<PeerId> heard;
  for (std::size_t i = 0; i < std::min(group.size(), exchanged.size()); ++i)
    if (exchanged[i].bytes_received > 0) heard.push_back(group[i].peer);
  return heard;
}

std::vector<PeerId> RoundReport::contributors() const {
  std::vector<PeerId> members = heard_from();
  if (parts_total <= members.size()) {
    members.clear();
    for (const Member& member : group) members.push_back(member.peer);
  }
  for (const PeerId& peer : lost()) std::erase(members, peer);
  return members;
}

Duration RoundReport::arrival_spread() const {
  std::optional<Duration> first, last;
  for (const Exchanged& one : exchanged) {
    if (!one.arrival) continue;
    first = std::min(first.value_or(Duration::zero()), *one.arrival);
    last = std::max(last.value_or(Duration::zero()), *one.arrival);
  }
  return first ? *last - *first : Duration::zero();
}

}  // namespace cohive::averaging
