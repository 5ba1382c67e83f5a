// Bundles: several connections to one cohive peer that carry its bytes together, where one does not fill the link.
//   dialler -> on a new stream of each connection: /cohive/bundle/1.0.0, the bundle's id (16 bytes)
//   the other side -> 1: the stream is a lane of that bundle from here on (bundle.hpp); 0: it is not
// The first lane is on the connection that there is, which one of the two dialled; that side adds and drops lanes. A
// bundle is an entry of the connection table, on which new streams are opened rather than on a single connection.
// Source: docs/wire/extensions.md, section 15.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>

#include "bundle.hpp"
#include "connection_table.hpp"
#include "dialler.hpp"
#include "identify.hpp"
#include "lane_growth.hpp"

namespace cohive::p2p {

inline const std::string kBundleProtocol = "/cohive/bundle/1.0.0";

class Bundles {
 public:
  /// \param limits  caps on what this host carries: under one, several connections carry no more than one does
  Bundles(Self& self, Handlers& handlers, ConnectionTable& table, Dialler& dialler, Identify& identify,
          transport::BandwidthLimits limits);
  /// See Host::spread_streams: a bundle of one connection, to which others may come.
  Task<bool> begin_early(PeerId peer);
  void close() { tasks_.cancel(); }

 private:
  using Id = std::array<std::uint8_t, 16>;
  struct Held {
    Id id{};
    std::weak_ptr<Bundle> bundle;
    std::weak_ptr<ConnectionEntry> entry;
  };
  struct Carried {
    std::uint64_t in = 0, out = 0;  ///< bytes that have come, and that have come to the peer
    std::uint64_t lost = 0;         ///< packets, as the kernel tells
  };
  /// A peer's connections, as they were at the last look.
  struct Measuring {
    Carried before;
    TimePoint looked = TimePoint::min();
    std::optional<TimePoint> lost;         ///< when packets were lost without a queue, the last time
    Duration shortest = Duration::max();   ///< round trip of pings
    TimePoint renewal = TimePoint::min();  ///< no connection is dialled before for the sake of new keys
    transport::PathState path_now(const transport::Connection& connection);
    /// Bytes per second since the last look, of the direction that carried more; 0 where that is not known.
    double rate_since(const Carried& carried, const transport::PathState& path, TimePoint now);
  };

  void begin(const PeerId& peer);
  ConnectionEntryPtr candidate(const PeerId& peer) const;
  static Task<void> tend(Bundles& bundles, PeerId peer);
  Task<std::optional<LaneGrowth::Load>> measure(PeerId peer, Measuring& measuring);
  Carried carried(const PeerId& peer) const;
  std::shared_ptr<Bundle> opened(const PeerId& peer) const;
  std::size_t lanes(const PeerId& peer) const;
  Task<Result<>> grow(PeerId peer, std::size_t wanted);
  Task<Result<>> open(PeerId peer, ConnectionEntryPtr carrier);
  Task<Result<>> extend(PeerId peer, Multiaddr address);
  Task<void> renew_keys(PeerId peer, Measuring& measuring);
  bool has_worn_keys(const ConnectionEntry& entry) const;
  Task<Result<transport::StreamPtr>> ask(PeerId peer, ConnectionEntryPtr carrier, Id id);
  void shrink(const PeerId& peer, std::size_t wanted);
  Task<void> accept(transport::StreamPtr stream);
  Result<> hold(std::map<PeerId, Held>& held, Id id, ConnectionEntryPtr carrier, transport::StreamPtr stream,
                transport::Role role);
  void add_lane(const Held& held, ConnectionEntry& carrier, transport::StreamPtr stream);

  Self& self_;
  ConnectionTable& table_;
  Dialler& dialler_;
  std::map<PeerId, Held> opened_, accepted_;
  std::set<PeerId> tended_, opening_;
  std::vector<Subscription> subscriptions_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
