#include "dial_backoff.hpp"

#include <algorithm>

namespace cohive::p2p {
namespace {

constexpr Duration kMaxBackoff = 5min;
constexpr std::size_t kMaxRemembered = 4096;
constexpr int kStrikes = 8;  // failures at one address, whichever peer was looked for there, before it rests
constexpr Duration kRest = 30s;

}  // namespace

template <class Key>
DialBackoff::Failures& DialBackoff::Memory<Key>::at(const Key& key) {
  const auto [at, is_new] = failures.try_emplace(key);
  if (is_new) order.push_back(key);
  if (order.size() > kMaxRemembered) {
    if (order.front() != key) failures.erase(order.front());
    order.pop_front();
  }
  return at->second;
}

void DialBackoff::failed(const PeerId& peer, const Multiaddr& address, bool refused) {
  Failures& pair = pairs_.at({peer, address});
  pair.refused = refused;
  const Duration pause = base_ + 1s * (pair.count * pair.count);
  pair.count = std::min(pair.count + 1, 100);
  pair.until = runtime_.now() + std::min<Duration>(pause, kMaxBackoff);
  Failures& all = addresses_.at(address);
  if (all.count >= kStrikes && all.until <= runtime_.now()) all.count = 0;  // it has rested
  if (++all.count >= kStrikes) all.until = runtime_.now() + kRest;
}

void DialBackoff::succeeded(const PeerId& peer, const Multiaddr& address) {
  pairs_.failures.erase({peer, address});
  addresses_.failures.erase(address);
}

bool DialBackoff::refused(const PeerId& peer, const KnownAddress& known) const {
  const auto pair = pairs_.failures.find({peer, known.address.without_peer()});
  return pair != pairs_.failures.end() && pair->second.refused && runtime_.now() < pair->second.until;
}

bool DialBackoff::blocks(const PeerId& peer, const KnownAddress& known) const {
  const Multiaddr address = known.address.without_peer();
  if (const auto pair = pairs_.failures.find({peer, address});
      pair != pairs_.failures.end() && runtime_.now() < pair->second.until)
    return true;
  if (known.source != KnownAddress::Source::announced) return false;
  const auto all = addresses_.failures.find(address);
  return all != addresses_.failures.end() && all->second.count >= kStrikes && runtime_.now() < all->second.until;
}

}  // namespace cohive::p2p
