#include "address_book.hpp"

#include <algorithm>

namespace cohive::p2p {

namespace {
constexpr Duration kHearsay = 2min;
constexpr Duration kRecentlyConnected = 30min;
constexpr std::size_t kMaxPeers = 20'000;
}  // namespace

bool acceptable_address(const Multiaddr& address, Multiaddr::Scope teller) {
  using Scope = Multiaddr::Scope;
  if (address.is_unspecified() || address.text().starts_with("/ip6/fe80")) return false;
  const Scope scope = address.scope();
  if (teller == Scope::loopback) return true;
  if (teller == Scope::private_) return scope != Scope::loopback;
  return scope == Scope::public_;
}

void AddressBook::add(Book& book, const Multiaddr& address, TimePoint expires) {
  const Multiaddr plain = address.without_peer();
  if (plain.empty()) return;
  for (Entry& entry : book.entries) {
    if (entry.address == plain) {
      entry.expires = std::max(entry.expires, expires);
      return;
    }
  }
  if (book.entries.size() < max_per_peer_) book.entries.push_back({plain, expires});
}

void AddressBook::add_hearsay(const PeerId& peer, const std::vector<Multiaddr>& addresses) {
  prune();
  Book& book = books_[peer];
  if (book.connected) return;
  const TimePoint now = runtime_.now();
  std::erase_if(book.entries, [now](const Entry& entry) { return entry.expires <= now; });
  for (const auto& address : addresses) add(book, address, now + kHearsay);
}

void AddressBook::set_connected(const PeerId& peer, std::vector<Multiaddr> addresses) {
  Book& book = books_[peer];
  book.connected = true;
  if (addresses.empty()) return;
  book.entries.clear();
  for (const auto& address : addresses) add(book, address, TimePoint::max());
}

void AddressBook::add_permanent(const PeerId& peer, const Multiaddr& address) { add(books_[peer], address, TimePoint::max()); }

void AddressBook::on_disconnected(const PeerId& peer) {
  const auto found = books_.find(peer);
  if (found == books_.end()) return;
  found->second.connected = false;
  for (Entry& entry : found->second.entries) entry.expires = runtime_.now() + kRecentlyConnected;
}

std::vector<Multiaddr> AddressBook::addresses(const PeerId& peer) const {
  std::vector<Multiaddr> result;
  const auto found = books_.find(peer);
  if (found == books_.end()) return result;
  for (const Entry& entry : found->second.entries)
    if (entry.expires > runtime_.now()) result.push_back(entry.address);
  return result;
}

std::vector<PeerId> AddressBook::peers() const {
  std::vector<PeerId> result;
  for (const auto& [peer, book] : books_)
    if (!book.entries.empty()) result.push_back(peer);
  return result;
}

/// Drops what has expired, and when that is not enough, hearsay in general: strangers cannot grow the book for ever.
void AddressBook::prune() {
  if (books_.size() < prune_at_) return;
  const TimePoint now = runtime_.now();
  for (auto item = books_.begin(); item != books_.end();) {
    auto& [entries, connected] = item->second;
    std::erase_if(entries, [now](const Entry& entry) { return entry.expires <= now; });
    item = entries.empty() && !connected ? books_.erase(item) : std::next(item);
  }
  if (books_.size() >= kMaxPeers)
    std::erase_if(books_, [now](const auto& item) {
      return !item.second.connected && std::all_of(item.second.entries.begin(), item.second.entries.end(),
                                                   [now](const Entry& e) { return e.expires <= now + kHearsay; });
    });
  prune_at_ = std::max<std::size_t>(1024, books_.size() * 2);
}

}  // namespace cohive::p2p
