// What tests of hostile peers share: peers whose every byte the test decides, and networks with names.
#pragma once

#include <functional>
#include <map>

#include "cohive/core/errors.hpp"
#include "cohive/proto/p2p.pb.h"
#include "cohive/testing/swarm.hpp"
#include "cohive/transport/multistream.hpp"
#include "cohive/transport/upgrade.hpp"
#include "transport/detail/forwarding_network.hpp"

namespace cohive::p2p {

inline Multiaddr address_of(const Host& host) {
  return host.visible_addresses().front();
}
inline Multiaddr parsed(const std::string& text) {
  return Multiaddr::from_text(text).value();
}

/// An identity of no host.
inline KeyPair nobody(std::uint32_t number) {
  Bytes seed(32, 0xee);
  std::memcpy(seed.data(), &number, sizeof number);
  return KeyPair::ed25519_from_seed(seed);
}

/// An address in the simulated network where nobody is.
inline Multiaddr nowhere(std::uint32_t number = 0) {
  return parsed("/ip4/10.200." + std::to_string(number / 250) + "." + std::to_string(number % 250) + "/tcp/1");
}

/// A connection of which the other side is the test.
inline Task<Result<transport::ConnectionPtr>> knock(transport::Network& network, KeyPair identity, Multiaddr address) {
  auto raw = co_await network.dial(address, network.runtime().after(5s));
  if (!raw) co_return raw.error();
  transport::Upgrader upgrader(network.runtime(), identity, {.plaintext = true});
  co_return co_await transport::upgrade(upgrader, std::move(*raw), transport::Role::initiator, std::nullopt);
}

inline const char* kKad = "/ipfs/kad/1.0.0";

/// One FIND_NODE.
inline Task<Result<proto::KadMessage>> find_node(Host& from, PeerId to, std::string key) {
  const Deadline deadline = from.runtime().after(10s);
  auto stream = co_await from.open_stream(to, kKad, deadline);
  if (!stream) co_return stream.error();
  proto::KadMessage request;
  request.set_type(proto::KadMessage::FIND_NODE);
  request.set_key(std::move(key));
  (void)co_await transport::write_message(**stream, as_bytes(request.SerializeAsString()), deadline);
  transport::StreamReader reader(**stream);
  auto bytes = co_await reader.read_message(1 << 20, deadline);
  if (!bytes) co_return bytes.error();
  proto::KadMessage reply;
  if (!*bytes || !reply.ParseFromString(to_string(**bytes))) co_return Error(cohive::Errc::malformed);
  co_return reply;
}

inline const char* kPush = "/ipfs/id/push/1.0.0";

inline Task<void> push_identify(Host& from, PeerId to, std::string message) {
  auto stream = co_await from.open_stream(to, kPush, from.runtime().after(5s));
  if (!stream) co_return;
  (void)co_await transport::write_message(**stream, as_bytes(message), from.runtime().after(5s));
  (*stream)->close_write();
  (void)co_await (*stream)->read(from.runtime().after(5s));
}

/// Peer routing that answers what the test wants.
using Liar = std::function<proto::KadMessage(const proto::KadMessage& request)>;
inline Task<void> lie(transport::StreamPtr stream, Liar liar) {
  transport::StreamReader reader(*stream);
  for (;;) {
    auto bytes = co_await reader.read_message(1 << 20, stream->runtime().after(1min));
    if (!bytes || !*bytes) co_return;
    proto::KadMessage request;
    request.ParseFromString(to_string(**bytes));
    (void)co_await transport::write_message(*stream, as_bytes(liar(request).SerializeAsString()),
                                            stream->runtime().after(1min));
  }
}
inline Host& add_liar(sim::Swarm& swarm, Liar liar) {
  Host& host = swarm.add_host({.routing_server = false});
  host.set_handler(kKad, [liar](transport::StreamPtr stream) { return lie(std::move(stream), liar); });
  return host;
}
inline void name(proto::KadMessage& reply, const PeerId& peer, const std::vector<Multiaddr>& addresses) {
  auto* entry = reply.add_closer_peers();
  entry->set_id(peer.binary());
  for (const auto& address : addresses) entry->add_addrs(address.binary());
}

/// A resolver that knows a few names.
class FewNames final : public transport::Resolver {
 public:
  using Names = std::map<std::string, std::vector<Multiaddr>>;
  explicit FewNames(Names names) : names_(std::move(names)) {}
  Task<Result<std::vector<Multiaddr>>> resolve(Multiaddr address, Deadline) override {
    const auto found = names_.find(address.without_peer().text());
    if (found == names_.end()) co_return Error(cohive::Errc::not_found, address.text());
    co_return found->second;
  }

 private:
  Names names_;
};

/// A network that notes what is dialled.
class NotingNetwork final : public transport::ForwardingNetwork {
 public:
  using ForwardingNetwork::dial, ForwardingNetwork::ForwardingNetwork;
  Task<Result<std::unique_ptr<transport::RawConnection>>> dial(Multiaddr address, std::optional<Multiaddr> from,
                                                               Deadline deadline) override {
    dialled.push_back(address.text());
    return ForwardingNetwork::dial(std::move(address), std::move(from), deadline);
  }

  std::vector<std::string> dialled;
};

}  // namespace cohive::p2p
