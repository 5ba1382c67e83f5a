#include "repeated_downloads.hpp"

#include <algorithm>
#include <cmath>

#include "cohive/core/log.hpp"
#include "cohive/core/status.hpp"

namespace cohive::averaging {
namespace {

constexpr Duration kDownloadMemory = 5min;  // between two downloads that have to do with one another
constexpr Duration kRefusalMemory = 1h;     // a peer that is known for it need not take a state in vain first
constexpr Duration kBetweenWarnings = 10min;
constexpr std::size_t kManyDownloads = 5;

}  // namespace

bool RepeatedDownloads::is_over(const Record& record) const {
  return runtime_.now() - record.last > (record.refused ? kRefusalMemory : kDownloadMemory);
}

bool RepeatedDownloads::asks(const PeerId& peer, double epoch) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return false;
  if (is_over(found->second)) {
    peers_.erase(found);
    return false;
  }
  Record& record = found->second;
  // A peer that takes the state of an epoch needs no other one before that of two epochs later.
  if (epoch > record.epoch + 1) record.in_vain = 0;
  const bool in_vain = record.in_vain >= kTakenInVain;
  if (in_vain && runtime_.now() - record.last <= kAtOnce) record.refused = true;
  if (in_vain || record.taken >= kManyDownloads) warn(peer, record);
  return record.refused;
}

void RepeatedDownloads::took(const PeerId& peer, double epoch) {
  if (peers_.size() >= kMaxPeers && !peers_.contains(peer))
    peers_.erase(std::ranges::min_element(peers_, {}, [](const auto& entry) { return entry.second.last; }));
  Record& record = peers_[peer];
  const TimePoint now = runtime_.now();
  if (record.taken == 0 || now - record.last > kDownloadMemory) {
    record.first = now;
    record.taken = record.in_vain = 0;
  }
  if (record.in_vain == 0) record.epoch = epoch;
  ++record.taken;
  ++record.in_vain;
  record.last = now;
}

void RepeatedDownloads::warn(const PeerId& peer, Record& record) const {
  const TimePoint now = runtime_.now();
  if (record.warned != TimePoint() && now - record.warned < kBetweenWarnings) return;
  record.warned = now;
  Failures::of(runtime_).warn(
      "averaging", "upload", "refused",
      log::format("{} has taken the whole state {} times in {} s and asks for it again: it refuses the state, or "
                  "epochs are shorter than its download. A Python trainer needs an optimizer that is set up as here: "
                  "class, groups of parameters, release of PyTorch, and a scheduler on both sides or on none",
                  peer, record.taken, std::max(1.0, std::round(to_seconds(now - record.first)))));
}

}  // namespace cohive::averaging
