// The addresses at which peers outside see us, and which of them are ours to announce. A peer may report anything, so
// an address counts when peers of several networks report it, or when a dial-back has reached us there.
// Source: docs/wire/libp2p.md, section 5.1.
#pragma once

#include <functional>
#include <initializer_list>
#include <optional>
#include <unordered_map>
#include <vector>

#include "identify.hpp"
#include "inbound.hpp"
#include "own_addresses.hpp"

namespace cohive::p2p {

class ObservedAddresses {
 public:
  ObservedAddresses(Self& self, Identify& identify, const Inbound& inbound, OwnAddresses& own);

  /// Our addresses: reported by peers of enough networks, or reached by a dial-back. They are announced unless
  /// dial-backs fail.
  std::vector<Multiaddr> confirmed() const;
  /// Where a peer that wants to know might reach us: reported addresses, and ports that we listen on at hosts at which
  /// we are seen.
  std::vector<Multiaddr> candidates() const;
  /// A dial-back has reached us at an address, so it says. Counts if it is at the host at which most networks see us.
  /// A few are kept; the oldest gives way.
  void add_reached(const Multiaddr& address);
  /// Dial-backs fail, or do so no longer. What they reached before is forgotten.
  void set_unreachable(bool unreachable);
  /// The host at which most networks see us, as an address without port.
  std::optional<Multiaddr> outside_host() const { return most_seen_host({Multiaddr::ip4, Multiaddr::ip6}); }
  /// Most networks see us at another host than before.
  Signal<>& moved() noexcept { return moved_; }

 private:
  /// What the peers of one network reported last, for each kind of address.
  struct Report {
    Multiaddr address;
    bool of_listen_port;  ///< else only the host means something
    TimePoint at;
    std::weak_ptr<ConnectionEntry> connection;  ///< on which it was made
    bool holds() const;
  };
  void observe(const ConnectionEntryPtr& entry, const Multiaddr& observed);
  void forget(const std::function<bool(const Report&)>& which);
  std::vector<Multiaddr> to_announce() const { return unreachable_ ? std::vector<Multiaddr>() : confirmed(); }
  void announce();
  bool holds_at(const Multiaddr& host) const;
  bool has_moved(const Multiaddr& before) const;
  std::optional<Multiaddr> most_seen_host(std::initializer_list<std::uint32_t> families) const;
  bool of_listen_port(const transport::Connection& connection) const;

  Self& self_;
  const Inbound& inbound_;
  OwnAddresses& own_;
  std::unordered_map<std::uint64_t, std::vector<Report>> reports_;  ///< by the observer's network_block
  std::vector<Multiaddr> reached_;
  bool unreachable_ = false;
  std::vector<Multiaddr> announced_;  ///< when peers were told last
  std::optional<Multiaddr> host_;     ///< outside_host() when a peer reported last
  Signal<> moved_;
  Subscription observed_;
};

}  // namespace cohive::p2p
