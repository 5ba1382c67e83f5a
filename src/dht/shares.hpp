// How much room each sender takes up. When all is taken, the sender with the largest share loses what expires
// first; of senders with equal shares the one whose things last longest, so that a crowd of long-lived entries does not
// push out what lives for a minute.
#pragma once

#include <set>
#include <tuple>
#include <unordered_map>

#include "cohive/core/peer_id.hpp"

namespace cohive::dht {

template <class Id>
class Shares {
 public:
  void add(const PeerId& from, double expiration, const Id& id, std::size_t bytes) {
    change(from, [&](Share& share) {
      share.items.emplace(expiration, id);
      share.bytes += bytes;
    });
  }
  /// As it was added.
  void remove(const PeerId& from, double expiration, const Id& id, std::size_t bytes) {
    change(from, [&](Share& share) {
      share.items.erase({expiration, id});
      share.bytes -= bytes;
    });
  }
  /// What goes first when there are too many things, or too many bytes. Only where there is anything.
  Id first_by_count() const { return first_of(by_count_); }
  Id first_by_bytes() const { return first_of(by_bytes_); }
  /// The sender with most bytes.
  PeerId largest() const { return by_bytes_.empty() ? PeerId() : std::get<2>(*by_bytes_.rbegin()); }
  std::size_t senders() const noexcept { return shares_.size(); }

 private:
  struct Share {
    std::set<std::pair<double, Id>> items;
    std::size_t bytes = 0;
  };
  using Order = std::set<std::tuple<std::size_t, double, PeerId>>;  // size, latest expiration, sender

  template <class Change>
  void change(const PeerId& from, Change apply) {
    const auto [at, fresh] = shares_.try_emplace(from);
    Share& share = at->second;
    if (!fresh) unrank(from, share);
    apply(share);
    if (share.items.empty()) {
      shares_.erase(at);
      return;
    }
    const double latest = share.items.rbegin()->first;
    by_count_.emplace(share.items.size(), latest, from);
    by_bytes_.emplace(share.bytes, latest, from);
  }
  void unrank(const PeerId& from, const Share& share) {
    const double latest = share.items.rbegin()->first;
    by_count_.erase({share.items.size(), latest, from});
    by_bytes_.erase({share.bytes, latest, from});
  }
  Id first_of(const Order& order) const { return shares_.at(std::get<2>(*order.rbegin())).items.begin()->second; }

  std::unordered_map<PeerId, Share> shares_;
  Order by_count_, by_bytes_;
};

}  // namespace cohive::dht
