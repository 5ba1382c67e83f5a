// What the parts of a host share: the connection table (connections.cpp), identify (identify.cpp), routing (routing.cpp).
#pragma once

#include <map>
#include <set>
#include <unordered_map>

#include "address_book.hpp"
#include "cohive/core/sync.hpp"
#include "cohive/p2p/host.hpp"
#include "cohive/p2p/metrics.hpp"
#include "routing.hpp"

namespace cohive::p2p {

inline const std::string kIdentifyProtocol = "/ipfs/id/1.0.0";
inline const std::string kIdentifyPushProtocol = "/ipfs/id/push/1.0.0";
inline const std::string kPingProtocol = "/ipfs/ping/1.0.0";

/// One connection and the tasks that serve its streams.
struct Link {
  Link(Runtime& runtime, transport::ConnectionPtr c) : connection(std::move(c)), tasks(runtime, "streams") {}
  transport::ConnectionPtr connection;
  TaskGroup tasks;  // goes before the connection
  transport::ConnectionStats counted;
};
using LinkPtr = std::shared_ptr<Link>;

/// A connected peer.
struct Peer {
  std::vector<LinkPtr> links;  // newest last
  std::set<std::string> protocols;
  std::string agent;
  std::optional<Multiaddr> observed;  // how it sees us
  bool identified = false;
};

/// A dial that several callers may wait for.
struct PendingDial {
  explicit PendingDial(Runtime& runtime) : done(runtime, "dial") {}
  Event done;
  Result<> result;
};

struct Host::Impl {
  Impl(Host& facade, transport::Network& net, KeyPair key, HostOptions opts);

  // connections.cpp
  Result<> listen();
  static Task<void> accept_loop(Impl& self, transport::Listener& listener);
  static Task<void> welcome(Impl& self, std::unique_ptr<transport::RawConnection> raw, std::string ip);
  Result<> adopt(transport::ConnectionPtr connection);
  static Task<void> run_link(Impl& self, LinkPtr link);
  static Task<void> serve_stream(Impl& self, transport::StreamPtr stream);
  static Task<void> close_surplus(Impl& self, PeerId peer);
  void drop_link(const LinkPtr& link);
  LinkPtr link_to(const PeerId& peer) const;
  Task<Result<>> connect(PeerId peer, Deadline deadline);
  static Task<void> run_dial(Impl& self, PeerId peer, std::shared_ptr<PendingDial> pending);
  Task<Result<>> dial_known(PeerId peer, Deadline deadline);
  Task<Result<>> dial_addresses(PeerId peer, std::vector<Multiaddr> addresses, bool respect_backoff, Deadline deadline);
  Task<Result<>> dial_one(PeerId peer, Multiaddr address, Deadline deadline);
  bool in_backoff(const Multiaddr& address) const;
  void note_dial(const Multiaddr& address, bool success);
  void count_bytes(Link& link);
  static Task<void> measure(Impl& self);

  // identify.cpp
  static Task<void> identify_peer(Impl& self, LinkPtr link);
  Task<void> serve_identify(transport::StreamPtr stream);
  Task<void> receive_push(transport::StreamPtr stream);
  static Task<void> push_to(Impl& self, PeerId peer);
  static Task<void> push_later(Impl& self);
  void schedule_push();
  std::string identify_message(const Multiaddr& remote) const;
  Result<> learn_identify(const PeerId& peer, const Multiaddr& remote, ByteView message);
  std::vector<Multiaddr> addresses() const;

  void notify(const PeerId& peer, bool connected);

  Host& host;
  transport::Network& network;
  Runtime& runtime;
  KeyPair identity;
  PeerId id;
  HostOptions options;
  HostMetrics metrics;
  AddressBook book;
  std::vector<std::unique_ptr<transport::Listener>> listeners;
  std::unordered_map<PeerId, Peer> peers;
  std::map<std::string, StreamHandler> handlers;
  std::unordered_map<PeerId, std::shared_ptr<PendingDial>> dials;
  struct Backoff {
    int failures = 0;
    TimePoint until{};
  };
  std::unordered_map<Multiaddr, Backoff> backoffs;
  std::vector<std::weak_ptr<PeerEvent>> subscribers;
  std::size_t link_count = 0;
  std::size_t pending_inbound = 0;
  std::unordered_map<std::string, std::size_t> pending_per_ip;
  bool push_scheduled = false;
  bool closed = false;
  Routing routing;
  TaskGroup tasks;
};

}  // namespace cohive::p2p
