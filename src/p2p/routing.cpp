#include "routing.hpp"

#include <algorithm>
#include <bit>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/p2p/errors.hpp"
#include "host_impl.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kBucketSize = 20;          // k
constexpr std::size_t kParallel = 10;            // alpha
constexpr std::size_t kMaxMessage = 64 * 1024;
constexpr std::size_t kMaxAddressesTold = 8;
constexpr int kMaxPeersHeard = 64;
constexpr Duration kQueryTimeout = 10s;
constexpr Duration kLookupTimeout = 60s;
constexpr Duration kIdle = 60s;
constexpr std::size_t kMaxQueries = 100;         // per lookup

}  // namespace

Routing::Routing(Host::Impl& host) : host_(host), self_(key_of(host.id)) {}

Routing::Key Routing::distance(const Key& a, const Key& b) {
  Key result;
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = a[i] ^ b[i];
  return result;
}

std::size_t Routing::bucket_of(const Key& key) const {
  const Key gap = distance(key, self_);
  for (std::size_t i = 0; i < gap.size(); ++i)
    if (gap[i]) return i * 8 + static_cast<std::size_t>(std::countl_zero(gap[i]));
  return 256;
}

std::vector<PeerId> Routing::nearest(const Key& key, std::size_t count) const {
  std::vector<std::pair<Key, const PeerId*>> ranked;
  ranked.reserve(table_.size());
  for (const auto& [peer, peer_key] : table_) ranked.emplace_back(distance(peer_key, key), &peer);
  const std::size_t kept = std::min(count, ranked.size());
  std::partial_sort(ranked.begin(), ranked.begin() + static_cast<std::ptrdiff_t>(kept), ranked.end(),
                    [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PeerId> result;
  for (std::size_t i = 0; i < kept; ++i) result.push_back(*ranked[i].second);
  return result;
}

void Routing::remove(const PeerId& peer) {
  const auto found = table_.find(peer);
  if (found == table_.end()) return;
  --bucket_sizes_[bucket_of(found->second)];
  table_.erase(found);
}

/// A peer enters the table when it answers, as p2pd has it: a lookup of its own id must return it.
Task<void> Routing::consider(PeerId peer) {
  if (table_.contains(peer)) co_return;
  auto reply = co_await ask(peer, peer.binary(), host_.runtime.after(kQueryTimeout));
  if (!reply || reply->closer_peers_size() == 0 || table_.contains(peer)) co_return;
  const Key key = key_of(peer);
  auto& size = bucket_sizes_[bucket_of(key)];
  if (size >= kBucketSize) {
    // A full bucket gives up a peer that is no longer connected, never one that still answers.
    const std::size_t bucket = bucket_of(key);
    for (const auto& [other, other_key] : table_) {
      if (bucket_of(other_key) != bucket || host_.link_to(other)) continue;
      remove(PeerId(other));
      break;
    }
    if (size >= kBucketSize) co_return;
  }
  ++size;
  table_.emplace(peer, key);
}

// ---- Server

proto::KadMessage Routing::answer(const proto::KadMessage& request, const PeerId& asker) const {
  proto::KadMessage reply;
  reply.set_type(request.type());
  reply.set_key(request.key());
  const auto tell = [&](const PeerId& peer, const std::vector<Multiaddr>& addresses) {
    if (addresses.empty()) return;
    auto* entry = reply.add_closer_peers();
    entry->set_id(peer.binary());
    for (std::size_t i = 0; i < std::min(addresses.size(), kMaxAddressesTold); ++i) entry->add_addrs(addresses[i].binary());
  };
  const auto target = PeerId::from_bytes(as_bytes(request.key()));
  if (target && *target == host_.id) {
    tell(host_.id, host_.addresses());
    return reply;
  }
  const Key key = crypto::sha256(as_bytes(request.key()));
  bool told_target = false;
  for (const auto& peer : nearest(key, kBucketSize)) {
    if (peer == asker) continue;
    told_target |= target && peer == *target;
    tell(peer, host_.book.addresses(peer));
  }
  if (target && !told_target && *target != asker) tell(*target, host_.book.addresses(*target));
  return reply;
}

Task<void> Routing::serve(transport::StreamPtr stream) {
  transport::StreamReader reader(*stream);
  for (;;) {
    auto bytes = co_await reader.read_message(kMaxMessage, host_.runtime.after(kIdle));
    if (!bytes || !*bytes) break;
    proto::KadMessage request;
    if (!request.ParseFromArray((*bytes)->data(), static_cast<int>((*bytes)->size()))) co_return;
    proto::KadMessage reply;
    switch (request.type()) {
      case proto::KadMessage::PING: reply = request; break;
      case proto::KadMessage::FIND_NODE:
      case proto::KadMessage::GET_VALUE:
      case proto::KadMessage::GET_PROVIDERS:
        if (request.key().empty()) co_return;  // resets the stream
        reply = answer(request, stream->peer());
        break;
      default: co_return;
    }
    auto sent = co_await transport::write_message(*stream, as_bytes(reply.SerializeAsString()), host_.runtime.after(kQueryTimeout));
    if (!sent) co_return;
  }
  stream->close_write();
}

// ---- Client

Task<Result<proto::KadMessage>> Routing::ask(PeerId peer, std::string key, Deadline deadline) {
  auto stream = co_await host_.host.open_stream(peer, kKadProtocol, deadline);
  if (!stream) co_return stream.error();
  proto::KadMessage request;
  request.set_type(proto::KadMessage::FIND_NODE);
  request.set_key(std::move(key));
  auto sent = co_await transport::write_message(**stream, as_bytes(request.SerializeAsString()), deadline);
  if (!sent) co_return sent.error();
  transport::StreamReader reader(**stream);
  auto bytes = co_await reader.read_message(kMaxMessage, deadline);
  if (!bytes) co_return bytes.error();
  proto::KadMessage reply;
  if (!*bytes || !reply.ParseFromArray((*bytes)->data(), static_cast<int>((*bytes)->size())))
    co_return Error(cohive::Errc::malformed, peer, "routing reply");
  (*stream)->close_write();
  co_return reply;
}

struct Routing::Lookup {
  Lookup(Runtime& runtime, PeerId wanted, bool stop, Deadline limit)
      : target(wanted), key(key_of(wanted)), stop_when_found(stop), deadline(limit), changed(runtime, "lookup") {}
  PeerId target;
  Key key;
  bool stop_when_found;
  Deadline deadline;
  Condition changed;
  std::map<Key, PeerId> candidates;  // by distance; everyone heard of
  std::set<PeerId> asked;
  std::size_t active = 0;
  bool found = false;

  void add(const PeerId& peer) { candidates.emplace(distance(key_of(peer), key), peer); }
  /// The nearest peer not asked yet among the k nearest.
  std::optional<PeerId> next() const {
    std::size_t seen = 0;
    for (const auto& [gap, peer] : candidates) {
      if (++seen > kBucketSize) break;
      if (!asked.contains(peer)) return peer;
    }
    return std::nullopt;
  }
};

Task<void> Routing::worker(Routing& self, std::shared_ptr<Lookup> lookup) {
  Host::Impl& host = self.host_;
  while (!lookup->found) {
    const auto peer = lookup->asked.size() < kMaxQueries ? lookup->next() : std::nullopt;
    if (!peer) {
      if (lookup->active == 0) break;
      if (!co_await lookup->changed.wait(lookup->deadline)) break;
      continue;
    }
    lookup->asked.insert(*peer);
    ++lookup->active;
    auto reply = co_await self.ask(*peer, lookup->target.binary(), lookup->deadline.min(host.runtime.after(kQueryTimeout)));
    --lookup->active;
    if (!reply) {
      std::erase_if(lookup->candidates, [&](const auto& item) { return item.second == *peer; });
    } else {
      const auto link = host.link_to(*peer);
      const auto teller = link ? link->connection->remote_address().scope() : Multiaddr::Scope::public_;
      int heard = 0;
      for (const auto& entry : reply->closer_peers()) {
        if (++heard > kMaxPeersHeard) break;
        const auto id = PeerId::from_bytes(as_bytes(entry.id()));
        if (!id || *id == host.id) continue;
        std::vector<Multiaddr> addresses;
        for (const auto& binary : entry.addrs()) {
          auto address = Multiaddr::from_bytes(as_bytes(binary));
          if (address && acceptable_address(*address, teller)) addresses.push_back(std::move(*address));
        }
        host.book.add_hearsay(*id, addresses);
        if (*id == lookup->target && lookup->stop_when_found) {
          lookup->found |= !host.book.addresses(*id).empty();
        } else if (!addresses.empty() || host.link_to(*id)) {
          lookup->add(*id);
        }
      }
    }
    lookup->changed.notify_all();
  }
  lookup->changed.notify_all();
}

Task<void> Routing::walk(PeerId target, bool stop_when_found, Deadline deadline) {
  auto lookup = std::make_shared<Lookup>(host_.runtime, target, stop_when_found, deadline.min(host_.runtime.after(kLookupTimeout)));
  for (const auto& peer : nearest(lookup->key, kBucketSize)) lookup->add(peer);
  // Peers whose table entry is still being checked know about others just as well, and so may those that have not said
  // yet what they serve.
  for (const auto& [id, peer] : host_.peers)
    if (!peer.identified || peer.protocols.contains(kKadProtocol)) lookup->add(id);
  TaskGroup workers(host_.runtime, "lookup");
  for (std::size_t i = 0; i < kParallel; ++i) workers.spawn(worker(*this, lookup), "lookup worker");
  co_await workers.join();
}

Task<Result<std::vector<Multiaddr>>> Routing::find(PeerId target, Deadline deadline) {
  co_await walk(target, true, deadline);
  auto addresses = host_.book.addresses(target);
  if (addresses.empty()) co_return Error(Errc::no_addresses, target);
  co_return addresses;
}

Task<void> Routing::look_up_self() { co_await walk(host_.id, false, host_.runtime.after(kLookupTimeout)); }

}  // namespace cohive::p2p
