// The connections of a host and the peers at their other ends: what comes in, what has to go to make room, and which
// connection a stream is opened on. Source: docs/wire/libp2p.md, sections 10 and 13.
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include "address_book.hpp"
#include "bundle.hpp"
#include "cohive/core/signal.hpp"
#include "cohive/core/task_group.hpp"
#include "core/detail/token_bucket.hpp"
#include "handlers.hpp"
#include "p2p/detail/network_shares.hpp"
#include "self.hpp"

namespace cohive::p2p {

using Protocols = std::set<std::string>;

/// A connection to a peer is there for one of these.
enum class ConnectionKind : std::uint8_t {
  ordinary,
  member,  ///< carries a part of a bundle's bytes, and no other streams where there is another connection
  bundle,  ///< a connection over several others: bundles.hpp. It has no socket
};

/// One connection and the tasks that serve its streams.
struct ConnectionEntry {
  ConnectionEntry(Runtime& runtime, transport::ConnectionPtr c, NestedShares::Share s, ConnectionKind k)
      : connection(std::move(c)),
        kind(k),
        share(std::move(s)),
        opened(runtime.now()),
        used(runtime.now()),
        tasks(runtime, "streams") {}
  /// The bundle whose bytes it carries a part of; null: none.
  std::shared_ptr<ConnectionEntry> carried() const { return *lanes > 0 ? bundle_entry.lock() : nullptr; }
  /// Some stream is open that is not of a service every host offers. A lane is used as its bundle is.
  bool in_use() const {
    const auto bundled = carried();
    return connection->open_streams() > auxiliary + *lanes || (bundled && bundled->in_use());
  }
  /// All of a request has come on such a stream: a slow peer may take long for it, but nobody else has to wait for
  /// that.
  bool serves_a_call() const {
    const auto bundled = carried();
    return connection->open_streams() > auxiliary + *begun + *lanes || (bundled && bundled->serves_a_call());
  }
  /// When a stream was opened last, of a bundle that it carries, too.
  TimePoint last_used() const {
    const auto bundled = carried();
    return bundled ? std::max(used, bundled->used) : used;
  }
  transport::ConnectionPtr connection;
  ConnectionKind kind;
  NestedShares::Share share;
  std::size_t auxiliary = 0;  ///< open streams of limited services, see Handlers::serve
  /// Open streams on which no whole request has come yet: transport::Stream::set_begun.
  std::shared_ptr<std::size_t> begun = std::make_shared<std::size_t>(0);
  /// Open streams that are lanes of a bundle.
  std::shared_ptr<std::size_t> lanes = std::make_shared<std::size_t>(0);
  std::weak_ptr<ConnectionEntry> bundle_entry;    ///< that these carry
  std::weak_ptr<Bundle> bundle;                   ///< the same, or of a bundle: itself
  std::uint64_t lane = 0;                         ///< the number of the last of them that was not dropped; 0: none
  std::uint64_t counted_in = 0, counted_out = 0;  ///< bytes that the metrics have
  TimePoint opened;
  TimePoint used;   ///< when a stream was opened on it last
  TaskGroup tasks;  // goes first
};
inline bool is_relayed(const ConnectionEntry& entry) {
  return entry.connection->remote_address().is_circuit();
}
using ConnectionEntryPtr = std::shared_ptr<ConnectionEntry>;

/// A connected peer, and what it said of itself (identify.hpp).
struct ConnectedPeer {
  bool serves(const std::string& protocol) const { return protocols && protocols->contains(protocol); }

  std::vector<ConnectionEntryPtr> connections;  // newest last
  std::shared_ptr<const Protocols> protocols;   ///< those that this host knows, and a few others
  MemoryBudget::Charge charge{};                ///< for what is kept of what it says of itself
  std::string agent;
  std::optional<Multiaddr> observed;  ///< how it sees us
  bool identified = false;            ///< or it failed to do so
  bool parted = false;                ///< one of the two has ended the connection that ended last: it was not lost
  TokenBucket pushes{};               ///< identify pushes it may send
};

/// Tells whether the peer says that it is a cohive peer.
inline bool is_cohive(const ConnectedPeer& peer) {
  return peer.agent.starts_with("cohive/");
}

/// Opens a stream of one protocol on one connection, whichever the peer says that it serves.
Task<Result<transport::StreamPtr>> open_on(ConnectionEntryPtr entry, std::string protocol, Deadline deadline);

/// What peers get to take what they were sent and to end their side.
inline constexpr Duration kFarewell = 2s;

class ConnectionTable {
 public:
  ConnectionTable(Self& self, Handlers& handlers, AddressBook& book);
  ~ConnectionTable();

  // ---- What comes in

  /// Returns whether an inbound connection from this network would find room.
  bool has_room_for(const Networks& networks) const;
  /// Returns whether one more connection that carries a part of a bundle's bytes would find room: none makes room for
  /// it.
  bool has_room_for_member() const { return below_limit(false); }
  /// Takes a connection in and serves its streams. Refused ones are closed.
  /// \param networks  that it counts for; none for connections that we dialled
  Result<ConnectionEntryPtr> add(transport::ConnectionPtr connection, Networks networks = {},
                                 ConnectionKind kind = ConnectionKind::ordinary);

  // ---- What is there

  /// The connection to open streams on; null when there is none.
  ConnectionEntryPtr best(const PeerId& peer) const;
  /// The same without bundles: the connection that a bundle begins with.
  ConnectionEntryPtr best_of_its_own(const PeerId& peer) const;
  /// The same as best() without circuits through relays.
  ConnectionEntryPtr direct(const PeerId& peer) const;
  bool connected(const PeerId& peer) const { return best(peer) != nullptr; }
  /// Null for a peer that is not connected.
  ConnectedPeer* find(const PeerId& peer);
  const ConnectedPeer* find(const PeerId& peer) const;
  const std::unordered_map<PeerId, ConnectedPeer>& peers() const noexcept { return peers_; }
  std::size_t size() const noexcept { return size_; }
  /// Opens a stream, see Host::open_stream.
  /// \param connect  connects to the peer, or finds that it is connected already
  using Connect = std::function<Task<Result<>>()>;
  Task<Result<transport::StreamPtr>> open_stream(PeerId peer, std::string protocol, Deadline deadline, Connect connect);
  Traffic traffic() const;
  void count_bytes();

  /// A peer's first connection has opened, its last one has closed, any one has opened.
  Signal<const PeerId&>& connected_signal() noexcept { return connected_; }
  Signal<const PeerId&>& disconnected_signal() noexcept { return disconnected_; }
  /// A peer's last connection has closed, and neither side has ended it.
  Signal<const PeerId&>& lost_signal() noexcept { return lost_; }
  Signal<const ConnectionEntryPtr&>& added_signal() noexcept { return added_; }

  // ---- What has to go

  /// Keeps the peer's connections open when others are trimmed, while the result lives.
  Subscription protect(const PeerId& peer);
  /// Names more peers that are not trimmed.
  void set_valued(std::function<bool(const PeerId&)> valued) { valued_ = std::move(valued); }
  /// Has a connection carry a part of a bundle's bytes from now on, and no other streams where there is another one.
  void make_member(const ConnectionEntryPtr& entry);
  /// Ends the members of bundles with a peer that we dialled and that carry nothing any more.
  void close_spare_members(const PeerId& peer);
  /// Ends all connections to a peer, in order.
  void disconnect(const PeerId& peer);
  /// Closes them at once, though not in this call.
  void cut_off(const PeerId& peer);
  /// Ends all tasks that serve streams, at once.
  void stop();
  /// Ends all connections in order; they wait for their peers' ends until the deadline.
  Task<void> close(Deadline deadline);

 private:
  using EntryRef = const ConnectionEntryPtr&;
  static Task<void> serve(ConnectionTable& table, ConnectionEntryPtr entry);
  static Task<void> cut(ConnectionTable& table, PeerId peer);
  std::size_t most_of(ConnectionKind kind) const;
  bool below_limit(bool inbound) const;
  bool is_protected(const PeerId& peer) const;
  ConnectionEntryPtr replaceable(const Networks& networks, bool any) const;
  Networks crowd_beside(const Networks& newcomer, std::string largest, std::size_t count) const;
  NetworkCounts counts_within(const Networks& outer, std::string Networks::* level) const;
  bool make_room(ConnectionKind kind, bool inbound, const Networks& networks);
  static Task<void> trim(ConnectionTable& table);
  void trim_once();
  /// \param count  so many of them at most
  void close_longest_unused(std::vector<ConnectionEntryPtr> entries, std::size_t count);
  static Task<void> close_surplus(ConnectionTable& table);
  ConnectionEntryPtr best_below(const PeerId& peer, int rank) const;
  bool may_close(const ConnectionEntry& entry, const ConnectionEntry& kept) const;
  const PeerId& dialler(const ConnectionEntry& entry) const;
  bool is_outdated_by(const ConnectionEntry& bundle, const ConnectionEntry& newer) const;
  static void keep_one_ordinary(const ConnectedPeer& peer);
  bool unregister(EntryRef entry, bool parted);
  void abort(EntryRef entry, const Error& reason);
  void close_gracefully(EntryRef entry, Error reason, Deadline deadline);
  static Task<void> finish(ConnectionTable& table, ConnectionEntryPtr entry, Error reason, Deadline deadline);
  static Task<void> drain(ConnectionTable& table, ConnectionEntryPtr entry, Deadline deadline);
  void count_bytes(ConnectionEntry& entry);

  Self& self_;
  Handlers& handlers_;
  AddressBook& book_;
  NestedShares shares_;  ///< of inbound connections
  std::unordered_map<PeerId, ConnectedPeer> peers_;
  std::size_t size_ = 0;
  Traffic past_traffic_;      ///< of connections that have ended
  std::set<PeerId> cutting_;  ///< peers that are being cut off
  std::set<PeerId> surplus_;  ///< peers with several connections
  using Protected = std::unordered_map<PeerId, std::weak_ptr<void>>;
  std::shared_ptr<Protected> protected_ = std::make_shared<Protected>();  ///< tokens may outlive us
  std::function<bool(const PeerId&)> valued_;
  bool closing_surplus_ = false, trimming_ = false;
  Signal<const PeerId&> connected_, disconnected_, lost_;
  Signal<const ConnectionEntryPtr&> added_;
  TaskGroup tasks_;
  TaskGroup closing_;  ///< connections that are out of the table and wait for the peer's end
};

}  // namespace cohive::p2p
