#include "address_book.hpp"

#include <algorithm>

namespace cohive::p2p {

namespace {
using Source = KnownAddress::Source;
constexpr Duration kHearsay = 2min;
constexpr Duration kRecentlyConnected = 30min;
constexpr std::size_t kMaxAddress = 256;  // bytes; a relayed address with RSA ids has about 100

bool is_link_local(const Multiaddr& address) {
  const ByteView bytes = address.bytes();
  return bytes.size() > 2 && bytes[0] == Multiaddr::ip6 && bytes[1] == 0xfe && (bytes[2] & 0xc0) == 0x80;
}
}  // namespace

bool is_near(const Multiaddr& address) {
  return address.scope() == Multiaddr::Scope::loopback || address.scope() == Multiaddr::Scope::private_;
}

bool is_public_host(const Multiaddr& address) {
  return !address.is_circuit() && address.scope() == Multiaddr::Scope::public_;
}

bool hidden_from_outside(std::vector<Multiaddr> own, const Multiaddr& observed, const Multiaddr& observer) {
  const auto other = observed.first_code() == Multiaddr::ip4 ? Multiaddr::ip6 : Multiaddr::ip4;
  std::erase_if(own, [other](const Multiaddr& address) { return address.first_code() == other; });
  return !own.empty() && !is_near(observer) && !is_near(observed) && std::all_of(own.begin(), own.end(), is_near);
}

bool acceptable_address(const Multiaddr& address, Multiaddr::Scope heard_from) {
  using Scope = Multiaddr::Scope;
  if (address.bytes().size() > kMaxAddress || address.is_unspecified() || is_link_local(address)) return false;
  const Scope scope = address.scope();
  if (heard_from == Scope::loopback) return true;
  // A peer that reaches us from a reserved range (a lab on 198.18.0.0/15, say) uses it as a private network.
  if (heard_from == Scope::private_ || heard_from == Scope::unroutable) return scope != Scope::loopback;
  return scope == Scope::public_;
}

void AddressBook::add(Book& book, KnownAddress known, TimePoint expires) {
  known.address = known.address.without_peer();
  if (known.address.empty()) return;
  const Source source = known.source;
  auto& entries = book.entries;
  auto at = std::find_if(entries.begin(), entries.end(),
                         [&known](const Entry& entry) { return entry.known.address == known.address; });
  if (at != entries.end()) {
    at->expires = std::max(at->expires, expires);
    if (source > at->known.source) at->known = std::move(known);
  } else {
    if (entries.size() >= max_per_peer_ && !make_place(book, source)) return;
    at = entries.insert(entries.end(), {std::move(known), expires});
  }
  if (source == Source::verified) std::rotate(entries.begin(), at, at + 1);  // a peer that moves is where it was last
}

/// What we know ourselves takes the place of what was announced, or else of what worked longest ago.
bool AddressBook::make_place(Book& book, Source newcomer) {
  if (newcomer == Source::announced) return false;
  for (const Source source : {Source::announced, Source::verified}) {
    const auto last = std::find_if(book.entries.rbegin(), book.entries.rend(),
                                   [source](const Entry& entry) { return entry.known.source == source; });
    if (last == book.entries.rend()) continue;
    book.entries.erase(std::prev(last.base()));
    return true;
  }
  return false;
}

void AddressBook::add_hearsay(const PeerId& peer, const std::vector<Multiaddr>& addresses, Multiaddr::Scope heard_from,
                              const std::optional<PeerId>& teller) {
  prune(heard_of_);
  prune(departed_);
  if (const auto found = books_.find(peer); found != books_.end() && found->second.connected) return;
  std::vector<const Multiaddr*> acceptable;
  for (const auto& address : addresses)
    if (acceptable_address(address, heard_from)) acceptable.push_back(&address);
  if (acceptable.empty()) return;
  Book& book = books_[peer];
  std::erase_if(book.entries, [this](const Entry& entry) { return !live(entry); });
  const TimePoint expires = runtime_.now() + kHearsay;
  for (const Multiaddr* address : acceptable) add(book, {*address, Source::announced, heard_from, teller}, expires);
  if (!book.queue || book.queue == &heard_of_) enqueue(peer, book, heard_of_, kHearsay);
}

void AddressBook::on_connected(const PeerId& peer) {
  Book& book = books_[peer];
  book.connected = true;
  dequeue(book);
}

void AddressBook::set_announced(const PeerId& peer, const std::vector<Multiaddr>& addresses,
                                Multiaddr::Scope heard_from) {
  const auto found = books_.find(peer);
  if (found == books_.end() || !found->second.connected) return;
  Book& book = found->second;
  std::erase_if(book.entries, [](const Entry& entry) { return entry.known.source == Source::announced; });
  for (const auto& address : addresses)
    if (acceptable_address(address, heard_from))
      add(book, {address, Source::announced, heard_from, peer}, TimePoint::max());
}

void AddressBook::on_disconnected(const PeerId& peer) {
  const auto found = books_.find(peer);
  if (found == books_.end()) return;
  Book& book = found->second;
  book.connected = false;
  std::erase_if(book.entries, [this](const Entry& entry) { return !live(entry); });
  if (book.entries.empty()) {
    books_.erase(found);
    return;
  }
  for (Entry& entry : book.entries)
    if (entry.known.source != Source::configured) entry.expires = runtime_.now() + kRecentlyConnected;
  enqueue(peer, book, departed_, kRecentlyConnected);
  prune(departed_);
}

void AddressBook::add_verified(const PeerId& peer, const Multiaddr& address) {
  Book& book = books_[peer];
  add(book, {address, Source::verified}, book.connected ? TimePoint::max() : runtime_.now() + kRecentlyConnected);
  if (!book.connected) enqueue(peer, book, departed_, kRecentlyConnected);
}

void AddressBook::add_configured(const PeerId& peer, const Multiaddr& address) {
  Book& book = books_[peer];
  add(book, {address, Source::configured}, TimePoint::max());
  dequeue(book);
}

std::vector<KnownAddress> AddressBook::known(const PeerId& peer) const {
  std::vector<KnownAddress> result;
  const auto found = books_.find(peer);
  if (found == books_.end()) return result;
  for (const Source source : {Source::verified, Source::configured, Source::announced})
    for (const Entry& entry : found->second.entries)
      if (entry.known.source == source && live(entry)) result.push_back(entry.known);
  return result;
}

std::vector<Multiaddr> AddressBook::addresses(const PeerId& peer) const {
  std::vector<Multiaddr> result;
  for (auto& known : known(peer)) result.push_back(std::move(known.address));
  return result;
}

bool AddressBook::knows(const PeerId& peer) const {
  const auto found = books_.find(peer);
  return found != books_.end() && std::any_of(found->second.entries.begin(), found->second.entries.end(),
                                              [this](const Entry& entry) { return live(entry); });
}

std::vector<PeerId> AddressBook::configured() const {
  std::vector<PeerId> result;
  for (const auto& [peer, book] : books_)
    if (std::any_of(book.entries.begin(), book.entries.end(),
                    [](const Entry& entry) { return entry.known.source == Source::configured; }))
      result.push_back(peer);
  return result;
}

void AddressBook::dequeue(Book& book) {
  if (!book.queue) return;
  book.queue->erase(book.place);
  book.queue = nullptr;
}

void AddressBook::enqueue(const PeerId& peer, Book& book, Queue& queue, Duration life) {
  dequeue(book);
  const bool configured = std::any_of(book.entries.begin(), book.entries.end(),
                                      [](const Entry& entry) { return entry.known.source == Source::configured; });
  if (book.connected || configured) return;
  book.queue = &queue;
  book.place = queue.insert(queue.end(), peer);
  book.ends = runtime_.now() + life;
}

void AddressBook::prune(Queue& queue) {
  while (!queue.empty()) {
    const auto first = books_.find(queue.front());
    if (queue.size() <= max_peers_ && first->second.ends > runtime_.now()) return;
    books_.erase(first);
    queue.pop_front();
  }
}

}  // namespace cohive::p2p
