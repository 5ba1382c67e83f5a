// How long a failed address is left alone. Source: docs/wire/libp2p.md, section 10.
#pragma once

#include <deque>
#include <map>
#include <utility>

#include "address_book.hpp"

namespace cohive::p2p {

/// Remembers failed dials per peer and address, so that no peer can spoil another peer's address. Bounded; the oldest
/// memories go first.
class DialBackoff {
 public:
  DialBackoff(Runtime& runtime, Duration base) : runtime_(runtime), base_(base) {}
  enum class Cause {
    other,
    refused,  ///< by the machine: no program listens there
    local,    ///< this machine could not dial, which says little about the address: it rests for half a minute at most
  };
  void failed(const PeerId& peer, const Multiaddr& address, Cause cause = Cause::other);
  void succeeded(const PeerId& peer, const Multiaddr& address);
  bool blocks(const PeerId& peer, const KnownAddress& known) const;
  /// Whether the address blocks because it refused the peer's last dial.
  bool refused(const PeerId& peer, const KnownAddress& known) const;

 private:
  struct Failures {
    int count = 0;
    TimePoint until{};
    bool refused = false;
  };
  using Key = std::pair<PeerId, Multiaddr>;
  Failures& at(const Key& key);
  Runtime& runtime_;
  Duration base_;
  std::map<Key, Failures> failures_;
  std::deque<Key> order_;
};

}  // namespace cohive::p2p
