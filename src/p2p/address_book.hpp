// Where peers can be dialled, and for how long we believe it. Source: libp2p wire spec, sections 5.1 and 9.5.
#pragma once

#include <unordered_map>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::p2p {

class AddressBook {
 public:
  AddressBook(Runtime& runtime, std::size_t max_per_peer) : runtime_(runtime), max_per_peer_(max_per_peer) {}

  /// Hearsay about a peer that is not connected; ignored when it is.
  void add_hearsay(const PeerId& peer, const std::vector<Multiaddr>& addresses);
  /// What a connected peer says of itself: replaces everything and stays until it disconnects.
  void set_connected(const PeerId& peer, std::vector<Multiaddr> addresses);
  void add_permanent(const PeerId& peer, const Multiaddr& address);
  void on_disconnected(const PeerId& peer);
  std::vector<Multiaddr> addresses(const PeerId& peer) const;
  std::vector<PeerId> peers() const;

 private:
  struct Entry {
    Multiaddr address;
    TimePoint expires;
  };
  struct Book {
    std::vector<Entry> entries;
    bool connected = false;
  };
  void add(Book& book, const Multiaddr& address, TimePoint expires);
  void prune();
  Runtime& runtime_;
  std::size_t max_per_peer_;
  std::unordered_map<PeerId, Book> books_;
  std::size_t prune_at_ = 1024;
};

/// False for addresses that nobody should dial: unspecified hosts, link-local IPv6, loopback told by a remote peer.
bool acceptable_address(const Multiaddr& address, Multiaddr::Scope teller);

}  // namespace cohive::p2p
