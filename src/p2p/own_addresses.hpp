// The addresses at which a host says it can be reached.
#pragma once

#include <functional>
#include <vector>

#include "cohive/core/signal.hpp"
#include "self.hpp"

namespace cohive::p2p {

class OwnAddresses {
 public:
  explicit OwnAddresses(const Self& self) : self_(self) {}

  using Source = std::function<std::vector<Multiaddr>()>;
  /// Adds addresses that a part of the host knows of: where it listens, what peers see, ports mapped, relays. The part
  /// calls notify() when they have changed, and lives as long as this object is asked.
  void add_source(Source source) { sources_.push_back(std::move(source)); }
  void notify() { changed_.emit(); }

  /// Addresses to announce: what our user wants announced, or else what the sources know.
  std::vector<Multiaddr> announced() const;
  /// Those of them that a peer can use, at most kMaxTold, for messages of ourselves.
  /// \param scope  of the address at which we see the peer
  std::vector<Multiaddr> told_to(Multiaddr::Scope scope) const;
  static constexpr std::size_t kMaxTold = 16;  // keeps our message of identify below 4 KiB
  Signal<>& changed() noexcept { return changed_; }

 private:
  const Self& self_;
  std::vector<Source> sources_;
  Signal<> changed_;
};

}  // namespace cohive::p2p
