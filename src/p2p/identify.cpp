#include "identify.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/signed_record.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"
#include "cohive/transport/multistream.hpp"
#include "core/detail/bounded_parse.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxPart = 8192;
constexpr int kMaxParts = 10;
constexpr std::size_t kMaxFields = 2000;  // protocols and addresses
constexpr std::size_t kMaxProtocolSets = 16;
constexpr std::size_t kMaxOtherProtocols = 48, kMaxOtherBytes = 2048;  // a run has ten names of 30 bytes
constexpr std::size_t kNameOverhead = 64;                              // bytes of memory beside the name itself
constexpr std::size_t kMaxAgent = 256;
constexpr std::size_t kMaxOwnMessage = 4096;
constexpr std::size_t kMaxIdentifyStreams = 16, kMaxPushStreams = 4;  // of one peer
constexpr Duration kAskAgain = 10s;                                   // then doubled
constexpr int kAsks = 5;
constexpr Duration kPushDelay = 100ms;  // joins bursts of handler registrations
constexpr Duration kPushTimeout = 5s;
constexpr double kPushBurst = 32;  // a peer that registers its handlers one by one
constexpr double kPushesPerSecond = 1;

Task<Result<Bytes>> read_parts(transport::Stream& stream, Deadline deadline, MemoryBudget::Charge charge) {
  transport::StreamReader reader(stream);
  Bytes all;
  for (int part = 0; part < kMaxParts; ++part) {
    if (!charge.add(kMaxPart))
      co_return Error(cohive::Errc::limit_exceeded, stream.peer(), "memory for what peers say of themselves");
    auto message = co_await reader.read_message(kMaxPart, deadline);
    if (!message) co_return message.error();
    if (!*message) co_return all;  // concatenated protobufs merge
    all.insert(all.end(), (*message)->begin(), (*message)->end());
  }
  co_return Error(cohive::Errc::limit_exceeded, stream.peer(), "identify in too many parts");
}

}  // namespace

Task<Result<proto::Identify>> read_identify(transport::Stream& stream, Deadline deadline, MemoryBudget::Charge charge) {
  CO_TRY(const auto bytes, co_await read_parts(stream, deadline, std::move(charge)));
  proto::Identify message;
  if (!parse_bounded(message, bytes, kMaxFields)) co_return Error(cohive::Errc::malformed, stream.peer(), "identify");
  co_return message;
}

Identify::Identify(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, OwnAddresses& own)
    : self_(self), handlers_(handlers), table_(table), book_(book), own_(own), tasks_(self.runtime, "identify") {
  handlers.add(kIdentifyProtocol, [this](transport::StreamPtr s) { return answer(std::move(s)); }, kMaxIdentifyStreams);
  handlers.add(
      kIdentifyPushProtocol, [this](transport::StreamPtr s) { return receive_push(std::move(s)); }, kMaxPushStreams);
  subscriptions_.push_back(table.added_signal().subscribe([this](const ConnectionEntryPtr& entry) {
    if (entry->kind == ConnectionKind::ordinary) entry->tasks.spawn(ask(*this, entry), "identify");
  }));
  subscriptions_.push_back(handlers.changed().subscribe([this] { push_soon(); }));
  subscriptions_.push_back(own.changed().subscribe([this] { push_soon(); }));
}

// ---- What we say

/// A new one only when the addresses have changed. Peers ignore one whose number is not later, and the clock may be
/// set back.
const std::string& Identify::signed_record(const std::vector<Multiaddr>& own) {
  if (record_.empty() || own != record_addresses_) {
    const auto now = static_cast<std::uint64_t>(self_.runtime.wall_time() * 1e9);
    record_number_ = std::max(record_number_ + 1, now);
    record_ = make_signed_peer_record(self_.identity, record_number_, own);
    record_addresses_ = own;
  }
  return record_;
}

std::string Identify::message_for(const Multiaddr& remote) {
  proto::Identify message;
  message.set_public_key(self_.identity.public_key().protobuf());
  message.set_agent_version(self_.options.agent);
  message.set_protocol_version("");
  message.set_observed_addr(remote.binary());
  const auto own = own_.told_to(remote.scope());
  for (const auto& address : own) message.add_listen_addrs(address.binary());
  for (const auto& protocol : handlers_.protocols()) message.add_protocols(protocol);
  message.set_signed_peer_record(signed_record(own));
  if (message.ByteSizeLong() > kMaxOwnMessage) message.clear_signed_peer_record();
  return message.SerializeAsString();
}

Task<void> Identify::answer(transport::StreamPtr stream) {
  auto sent = co_await transport::write_message(*stream, as_bytes(message_for(stream->remote_address())),
                                                self_.runtime.after(self_.options.identify_timeout));
  if (sent) stream->close_write();
}

void Identify::push_soon() {
  if (push_scheduled_ || table_.peers().empty() || self_.closed) return;
  push_scheduled_ = true;
  tasks_.spawn(push_to_all(*this), "identify push");
}

Task<void> Identify::push_to_all(Identify& identify) {
  co_await identify.self_.runtime.sleep_for(kPushDelay);
  identify.push_scheduled_ = false;
  std::vector<PeerId> targets;
  for (const auto& [id, peer] : identify.table_.peers())
    if (!peer.identified || peer.serves(kIdentifyPushProtocol)) targets.push_back(id);
  for (const auto& id : targets) identify.tasks_.spawn(push_to(identify, id), "identify push");
}

Task<void> Identify::push_to(Identify& identify, PeerId peer) {
  const ConnectionEntryPtr entry = identify.table_.best(peer);
  if (!entry) co_return;
  const Deadline deadline = identify.self_.runtime.after(kPushTimeout);
  auto stream = entry->connection->open_stream();
  if (!stream) co_return;
  (*stream)->count_begun(entry->begun);
  auto agreed = co_await transport::select_one_of(**stream, {kIdentifyPushProtocol}, deadline);
  if (!agreed) co_return;
  auto sent = co_await transport::write_message(**stream, as_bytes(identify.message_for((*stream)->remote_address())),
                                                deadline);
  if (sent) (*stream)->close_write();
}

// ---- What peers say

Task<void> Identify::ask(Identify& identify, ConnectionEntryPtr entry) {
  const PeerId peer = entry->connection->peer();
  auto exchange = [](Identify& self, ConnectionEntryPtr on, Deadline limit) -> Task<Result<>> {
    auto stream = on->connection->open_stream();
    if (!stream) co_return stream.error();
    (*stream)->count_begun(on->begun);  // a peer that does not answer is not in use for that
    auto agreed = co_await transport::select_one_of(**stream, {kIdentifyProtocol}, limit);
    if (!agreed) co_return agreed.error();
    auto message = co_await read_identify(**stream, limit, self.charge_for(**stream));
    if (!message) co_return message.error();
    (*stream)->close_write();
    ConnectedPeer* known = self.table_.find(on->connection->peer());
    if (!known) co_return Error(cohive::Errc::closed, on->connection->peer());
    auto learned = self.learn(*known, on->connection->peer(), on->connection->remote_address(), *message, Said::all);
    known = self.table_.find(on->connection->peer());
    if (learned && known && known->observed) self.observed_.emit(on, Multiaddr(*known->observed));
    co_return learned;
  };
  Runtime& runtime = identify.self_.runtime;
  Duration pause = kAskAgain;
  for (int attempt = 1;; ++attempt) {
    const auto result = co_await exchange(identify, entry, runtime.after(identify.self_.options.identify_timeout));
    if (!result) {
      identify.self_.metrics.identify_failures.increment();
      log::debug("p2p", "identify failed: {}", result.error());
    }
    ConnectedPeer* known = identify.table_.find(peer);
    if (!known) co_return;
    known->identified = true;
    // A machine that was suspended at this very moment serves as much as others do.
    const bool late = !result && result.error() == cohive::Errc::timeout;
    if (!late || known->protocols || entry->connection->closed() || attempt == kAsks) co_return;
    co_await runtime.sleep_for(std::exchange(pause, 2 * pause));
  }
}

Task<void> Identify::receive_push(transport::StreamPtr stream) {
  ConnectedPeer* sender = table_.find(stream->peer());
  if (!sender || !may_push(*sender)) {
    self_.metrics.pushes_refused.increment();
    co_return;
  }
  const auto message =
      co_await read_identify(*stream, self_.runtime.after(self_.options.identify_timeout), charge_for(*stream));
  if (!message) {
    log::debug("p2p", "bad identify push: {}", message.error());
    co_return;
  }
  sender = table_.find(stream->peer());
  if (!sender) co_return;
  auto learned = learn(*sender, stream->peer(), stream->remote_address(), *message, Said::changes);
  if (!learned) log::debug("p2p", "bad identify push: {}", learned.error());
}

/// Each push costs us a signature check and may change the routing table.
bool Identify::may_push(ConnectedPeer& peer) const {
  return peer.pushes.take_one(self_.runtime.now(), kPushesPerSecond, kPushBurst);
}

/// One copy for all peers that serve the same.
std::shared_ptr<const Protocols> Identify::shared(Protocols protocols) {
  std::erase_if(protocol_sets_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : protocol_sets_)
    if (auto same = weak.lock(); *same == protocols) return same;
  auto made = std::make_shared<const Protocols>(std::move(protocols));
  if (protocol_sets_.size() < kMaxProtocolSets) protocol_sets_.push_back(made);
  return made;
}

/// A peer may serve a thousand protocols. Kept are those that this host knows, and of others, for which it may come to
/// ask, a few.
Protocols Identify::kept_of(const proto::Identify& message) const {
  Protocols kept;
  std::size_t others = 0, bytes_of_others = 0;
  for (const auto& protocol : message.protocols()) {
    const bool known = handlers_.knows(protocol);
    if (!known && (others >= kMaxOtherProtocols || bytes_of_others + protocol.size() > kMaxOtherBytes)) continue;
    if (!kept.insert(protocol).second || known) continue;
    ++others;
    bytes_of_others += protocol.size();
  }
  return kept;
}

/// What a push leaves out stays as it was. A peer that has no address any more pushes a signed record without any.
Result<> Identify::learn(ConnectedPeer& peer, const PeerId& id, const Multiaddr& remote, const proto::Identify& message,
                         Said said) {
  if (message.has_public_key()) {
    const auto key = PublicKey::from_protobuf(as_bytes(message.public_key()));
    if (!key || key->peer_id() != id)
      return Error(Errc::identify_failed, id, "its key is not the one of the handshake");
  }
  const bool all = said == Said::all;
  if (all || message.has_agent_version()) peer.agent = message.agent_version().substr(0, kMaxAgent);
  auto protocols = peer.protocols;
  if (message.protocols_size() > 0 || (all && (message.listen_addrs_size() > 0 || message.has_agent_version())))
    protocols = shared(kept_of(message));
  std::size_t bytes = peer.agent.size();
  if (protocols)
    for (const auto& protocol : *protocols) bytes += protocol.size() + kNameOverhead;
  peer.charge = MemoryBudget::Charge(self_.memory.account(id, remote));
  if (!peer.charge.add(bytes))
    return Error(cohive::Errc::limit_exceeded, id, "memory for what peers say of themselves");
  peer.protocols = std::move(protocols);
  if (auto observed = Multiaddr::from_bytes(as_bytes(message.observed_addr()))) peer.observed = std::move(*observed);
  // The peer itself tells us over an authenticated connection: its signature would prove nothing more.
  std::vector<Multiaddr> announced;
  for (const auto& binary : message.listen_addrs())
    if (auto address = Multiaddr::from_bytes(as_bytes(binary))) announced.push_back(std::move(*address));
  bool tells_addresses = all || !announced.empty();
  if (announced.empty() && message.has_signed_peer_record()) {
    auto record = open_signed_peer_record(as_bytes(message.signed_peer_record()));
    if (record && record->peer == id) {
      announced = std::move(record->addresses);
      tells_addresses = true;
    }
  }
  if (tells_addresses) book_.set_announced(id, announced, remote.scope());
  described_.emit(id);
  return ok();
}

}  // namespace cohive::p2p
