// Where peers can be dialled, and for how long we believe it. Source: docs/wire/libp2p.md, sections 5.1 and 9.5.
//
// Unknown peers fill this book, so everything in it is bounded: addresses by length and per peer, peers by number
// (those heard of longest ago go first), and all of it ends by itself.
#pragma once

#include <list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::p2p {

/// An address and why we believe in it.
struct KnownAddress {
  enum class Source {
    announced,   ///< by the peer itself or by another one
    verified,    ///< we dialled it and the peer answered
    configured,  ///< by our user: never forgotten
  };
  Multiaddr address;  ///< without /p2p
  Source source = Source::announced;
  /// From where the announcing peer speaks: a name may only lead to addresses that this peer could have announced.
  Multiaddr::Scope heard_from = Multiaddr::Scope::loopback;
  std::optional<PeerId> teller = {};  ///< who announced it, where that is known
};

class AddressBook {
 public:
  /// \param max_peers  bounds peers that are only heard of, and peers that were connected lately, each
  AddressBook(Runtime& runtime, std::size_t max_per_peer, std::size_t max_peers)
      : runtime_(runtime), max_per_peer_(max_per_peer), max_peers_(max_peers) {}

  /// Hearsay about a peer; ignored while it is connected. Unacceptable addresses are skipped.
  void add_hearsay(const PeerId& peer, const std::vector<Multiaddr>& addresses, Multiaddr::Scope heard_from,
                   const std::optional<PeerId>& teller = {});
  void on_connected(const PeerId& peer);
  /// What a connected peer says of itself: replaces what was announced about it, not what is verified or configured.
  void set_announced(const PeerId& peer, const std::vector<Multiaddr>& addresses, Multiaddr::Scope heard_from);
  void on_disconnected(const PeerId& peer);
  void add_verified(const PeerId& peer, const Multiaddr& address);
  void add_configured(const PeerId& peer, const Multiaddr& address);

  /// The surest first; of addresses that worked, the latest.
  std::vector<KnownAddress> known(const PeerId& peer) const;
  std::vector<Multiaddr> addresses(const PeerId& peer) const;
  bool knows(const PeerId& peer) const;
  /// Peers with an address that our user configured.
  std::vector<PeerId> configured() const;
  std::size_t size() const noexcept { return books_.size(); }

 private:
  struct Entry {
    KnownAddress known;
    TimePoint expires;
  };
  /// Books in the order in which they end: all in one queue live equally long.
  using Queue = std::list<PeerId>;
  struct Book {
    std::vector<Entry> entries;  ///< verified ones first, the latest at the front
    bool connected = false;
    Queue* queue = nullptr;  ///< none while connected or holding a configured address
    Queue::iterator place;
    TimePoint ends;
  };
  void add(Book& book, KnownAddress known, TimePoint expires);
  static bool make_place(Book& book, KnownAddress::Source newcomer);
  void enqueue(const PeerId& peer, Book& book, Queue& queue, Duration life);
  void dequeue(Book& book);
  void prune(Queue& queue);
  bool live(const Entry& entry) const { return entry.expires > runtime_.now(); }

  Runtime& runtime_;
  std::size_t max_per_peer_;
  std::size_t max_peers_;
  std::unordered_map<PeerId, Book> books_;
  Queue heard_of_, departed_;
};

/// On this machine or a private network.
bool is_near(const Multiaddr& address);
/// Of a public host itself, without a relay in between.
bool is_public_host(const Multiaddr& address);

/// False for what must not be dialled because a peer that speaks from `heard_from` said so: unspecified and link-local
/// hosts, loopback announced from elsewhere, private and reserved networks announced from outside, absurdly long
/// addresses.
bool acceptable_address(const Multiaddr& address, Multiaddr::Scope heard_from);

/// True when a node that announces `own` can be reached from its own network alone, by the kind of IP address that
/// `observed` is: a peer outside, at `observer`, sees it come from that outside address. Addresses of the other kind
/// say nothing: IPv6 is often open where IPv4 is translated.
bool hidden_from_outside(std::vector<Multiaddr> own, const Multiaddr& observed, const Multiaddr& observer);

}  // namespace cohive::p2p
