#include "dial_backoff.hpp"

#include <algorithm>

namespace cohive::p2p {
namespace {

constexpr Duration kMaxBackoff = 5min;
// A machine whose network is back finds its peers within a minute, and one that has no IPv6 spares itself most dials.
constexpr Duration kMaxLocalBackoff = 30s;
constexpr std::size_t kMaxRemembered = 4096;

}  // namespace

DialBackoff::Failures& DialBackoff::at(const Key& key) {
  const auto [at, is_new] = failures_.try_emplace(key);
  if (is_new) order_.push_back(key);
  if (order_.size() > kMaxRemembered) {
    if (order_.front() != key) failures_.erase(order_.front());
    order_.pop_front();
  }
  return at->second;
}

void DialBackoff::failed(const PeerId& peer, const Multiaddr& address, Cause cause) {
  Failures& pair = at({peer, address});
  pair.refused = cause == Cause::refused;
  const Duration longest = cause == Cause::local ? kMaxLocalBackoff : kMaxBackoff;
  const Duration pause = base_ + 1s * (pair.count * pair.count);
  if (pause < longest) ++pair.count;
  pair.until = runtime_.now() + std::min(pause, longest);
}

void DialBackoff::succeeded(const PeerId& peer, const Multiaddr& address) {
  failures_.erase({peer, address});
}

bool DialBackoff::refused(const PeerId& peer, const KnownAddress& known) const {
  const auto pair = failures_.find({peer, known.address.without_peer()});
  return pair != failures_.end() && pair->second.refused && runtime_.now() < pair->second.until;
}

bool DialBackoff::blocks(const PeerId& peer, const KnownAddress& known) const {
  const auto pair = failures_.find({peer, known.address.without_peer()});
  return pair != failures_.end() && runtime_.now() < pair->second.until;
}

}  // namespace cohive::p2p
