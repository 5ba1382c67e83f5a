// Identify: on every new connection each side asks the other who it is.
//   asker opens a stream and sends nothing;  answerer -> one Identify message, FIN.
//   push: the sender opens a stream, sends an Identify message, FIN.
// Source: libp2p wire spec, sections 5.1 and 5.2.
#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/signed_record.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/proto/p2p.pb.h"
#include "cohive/transport/multistream.hpp"
#include "host_impl.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxPart = 8192;
constexpr int kMaxParts = 10;
constexpr std::size_t kMaxProtocols = 1000;
constexpr std::size_t kMaxProtocolSets = 16;
constexpr std::size_t kMaxOwnAddresses = 16;  // keeps our own message below 4 KiB
constexpr std::size_t kMaxOwnMessage = 4096;
constexpr Duration kPushDelay = 100ms;  // joins bursts of handler registrations
constexpr Duration kPushTimeout = 5s;
constexpr double kPushBurst = 32;  // a peer that registers its handlers one by one
constexpr double kPushesPerSecond = 1;

Task<Result<Bytes>> read_parts(transport::Stream& stream, Deadline deadline) {
  transport::StreamReader reader(stream);
  Bytes all;
  for (int part = 0; part < kMaxParts; ++part) {
    auto message = co_await reader.read_message(kMaxPart, deadline);
    if (!message) co_return message.error();
    if (!*message) co_return all;  // concatenated protobufs merge
    all.insert(all.end(), (*message)->begin(), (*message)->end());
  }
  co_return Error(cohive::Errc::limit_exceeded, stream.peer(), "identify in too many parts");
}

}  // namespace

/// A new one, with a later number, only when the addresses have changed.
const std::string& Host::Impl::signed_record(const std::vector<Multiaddr>& own) {
  if (record.empty() || own != record_addresses) {
    record = make_signed_peer_record(identity, static_cast<std::uint64_t>(runtime.wall_time() * 1e9), own);
    record_addresses = own;
  }
  return record;
}

std::string Host::Impl::identify_message(const Multiaddr& remote) {
  proto::Identify message;
  message.set_public_key(identity.public_key().protobuf());
  message.set_agent_version(options.agent);
  message.set_protocol_version("");
  message.set_observed_addr(remote.binary());
  std::vector<Multiaddr> own;
  for (const auto& address : addresses()) {
    // Loopback addresses only help those who are on this machine too.
    if (address.scope() == Multiaddr::Scope::loopback && remote.scope() != Multiaddr::Scope::loopback &&
        options.announce.empty())
      continue;
    if (own.size() < kMaxOwnAddresses) own.push_back(address);
  }
  for (const auto& address : own) message.add_listen_addrs(address.binary());
  for (const auto& [protocol, handler] : handlers) message.add_protocols(protocol);
  message.set_signed_peer_record(signed_record(own));
  if (message.ByteSizeLong() > kMaxOwnMessage) message.clear_signed_peer_record();
  return message.SerializeAsString();
}

Task<void> Host::Impl::serve_identify(transport::StreamPtr stream) {
  auto sent = co_await transport::write_message(*stream, as_bytes(identify_message(stream->remote_address())),
                                                runtime.after(options.identify_timeout));
  if (sent) stream->close_write();
}

Task<void> Host::Impl::receive_push(transport::StreamPtr stream) {
  const auto sender = peers.find(stream->peer());
  if (sender == peers.end() || !may_push(sender->second)) {
    metrics.pushes_refused.increment();
    co_return;
  }
  auto message = co_await read_parts(*stream, runtime.after(options.identify_timeout));
  if (!message) co_return;
  stream->close_write();
  auto learned = learn_identify(stream->peer(), stream->remote_address(), *message);
  if (!learned) log::debug("p2p", "bad identify push: {}", learned.error());
}

/// Each push costs us a signature check and may change the routing table.
bool Host::Impl::may_push(Peer& peer) const {
  const TimePoint now = runtime.now();
  if (peer.pushes_counted == TimePoint{}) {
    peer.pushes_left = kPushBurst;
  } else {
    peer.pushes_left =
        std::min(kPushBurst, peer.pushes_left + to_seconds(now - peer.pushes_counted) * kPushesPerSecond);
  }
  peer.pushes_counted = now;
  if (peer.pushes_left < 1) return false;
  --peer.pushes_left;
  return true;
}

Task<void> Host::Impl::identify_peer(Impl& self, LinkPtr link) {
  const PeerId peer = link->connection->peer();
  const Deadline deadline = self.runtime.after(self.options.identify_timeout);
  auto exchange = [](Impl& host, LinkPtr on, Deadline limit) -> Task<Result<>> {
    auto stream = on->connection->open_stream();
    if (!stream) co_return stream.error();
    auto agreed = co_await transport::select_one_of(**stream, {kIdentifyProtocol}, limit);
    if (!agreed) co_return agreed.error();
    auto message = co_await read_parts(**stream, limit);
    if (!message) co_return message.error();
    (*stream)->close_write();
    co_return host.learn_identify(on->connection->peer(), on->connection->remote_address(), *message);
  };
  auto result = co_await exchange(self, link, deadline);
  if (!result) {
    self.metrics.identify_failures.increment();
    log::debug("p2p", "identify failed: {}", result.error());
  }
  const auto found = self.peers.find(peer);
  if (found == self.peers.end() || found->second.identified) co_return;
  found->second.identified = true;
  self.notify(peer, true);
}

/// One copy for all peers that serve the same.
std::shared_ptr<const Protocols> Host::Impl::shared(Protocols protocols) {
  std::erase_if(protocol_sets, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : protocol_sets)
    if (auto same = weak.lock(); *same == protocols) return same;
  auto made = std::make_shared<const Protocols>(std::move(protocols));
  if (protocol_sets.size() < kMaxProtocolSets) protocol_sets.push_back(made);
  return made;
}

Result<> Host::Impl::learn_identify(const PeerId& peer, const Multiaddr& remote, ByteView bytes) {
  const auto found = peers.find(peer);
  if (found == peers.end()) return Error(cohive::Errc::closed, peer);
  proto::Identify message;
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return Error(cohive::Errc::malformed, peer, "identify");
  Peer& known = found->second;
  if (message.has_public_key()) {
    const auto key = PublicKey::from_protobuf(as_bytes(message.public_key()));
    if (!key || key->peer_id() != peer)
      return Error(Errc::identify_failed, peer, "its key is not the one of the handshake");
  }
  if (message.protocols_size() > 0 || message.listen_addrs_size() > 0 || message.has_agent_version()) {
    Protocols protocols;
    for (const auto& protocol : message.protocols())
      if (protocols.size() < kMaxProtocols && protocol.size() <= transport::kMaxProtocolLength)
        protocols.insert(protocol);
    known.protocols = shared(std::move(protocols));
  }
  known.agent = message.agent_version().substr(0, 256);
  if (message.has_observed_addr()) {
    auto observed = Multiaddr::from_bytes(as_bytes(message.observed_addr()));
    if (observed) {
      warn_if_hidden(*observed, remote);
      known.observed = std::move(*observed);
    }
  }
  // The peer itself tells us over an authenticated connection: its signature would prove nothing more.
  std::vector<Multiaddr> told;
  for (const auto& binary : message.listen_addrs())
    if (auto address = Multiaddr::from_bytes(as_bytes(binary))) told.push_back(std::move(*address));
  if (told.empty() && message.has_signed_peer_record()) {
    auto record = open_signed_peer_record(as_bytes(message.signed_peer_record()));
    if (record && record->peer == peer) told = std::move(record->addresses);
  }
  book.set_told(peer, told, remote.scope());
  if (known.serves(kKadProtocol)) {
    routing.consider(peer);
  } else {
    routing.remove(peer);
  }
  return ok();
}

/// Nobody outside finds such a node, and rounds that need it fail for reasons that only the node itself can explain.
void Host::Impl::warn_if_hidden(const Multiaddr& observed, const Multiaddr& teller) {
  if (warned_hidden || listeners.empty() || !hidden_from_outside(addresses(), observed, teller)) return;
  warned_hidden = true;
  log::warn("p2p",
            "peers outside see this node at {}, but it announces only addresses of its own network, where they cannot "
            "connect: announce its public address if its port is open there or forwarded, else run it as a client",
            observed.value(Multiaddr::ip4).value_or(observed.text()));
}

void Host::Impl::schedule_push() {
  if (push_scheduled || peers.empty() || closed) return;
  push_scheduled = true;
  tasks.spawn(push_later(*this), "identify push");
}

Task<void> Host::Impl::push_later(Impl& self) {
  co_await self.runtime.sleep_for(kPushDelay);
  self.push_scheduled = false;
  std::vector<PeerId> targets;
  for (const auto& [id, peer] : self.peers)
    if (!peer.identified || peer.serves(kIdentifyPushProtocol)) targets.push_back(id);
  for (const auto& id : targets) self.tasks.spawn(push_to(self, id), "identify push");
}

Task<void> Host::Impl::push_to(Impl& self, PeerId peer) {
  const LinkPtr link = self.link_to(peer);
  if (!link) co_return;
  const Deadline deadline = self.runtime.after(kPushTimeout);
  auto stream = link->connection->open_stream();
  if (!stream) co_return;
  auto agreed = co_await transport::select_one_of(**stream, {kIdentifyPushProtocol}, deadline);
  if (!agreed) co_return;
  auto sent = co_await transport::write_message(**stream, as_bytes(self.identify_message((*stream)->remote_address())),
                                                deadline);
  if (sent) (*stream)->close_write();
}

}  // namespace cohive::p2p
