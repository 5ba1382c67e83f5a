#include "routing.hpp"

#include <algorithm>
#include <bit>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "host_impl.hpp"
#include "lookup.hpp"
#include "network_block.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxMessage = 64 * 1024;
constexpr std::size_t kMaxReply = 16 * 1024;  // what rust-libp2p reads
constexpr std::size_t kMaxKey = 1024;
constexpr int kMaxAddressesTold = 8;
constexpr int kMaxPeersHeard = 32;      // per reply; k and the target are 21
constexpr int kMaxAddressesHeard = 16;  // per peer in a reply
constexpr Duration kQueryTimeout = 10s;
constexpr Duration kIdle = 60s;

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

std::vector<PeerId> Routing::nearest(const Key& key, std::size_t count,
                                     const std::function<bool(const PeerId&)>& wanted) const {
  // The first 64 bits decide: no two of a table's peers agree on them but by chance.
  const auto prefix = [](const Key& of) {
    std::uint64_t bits = 0;
    for (std::size_t i = 0; i < 8; ++i) bits = bits << 8 | of[i];
    return bits;
  };
  const std::uint64_t wanted_prefix = prefix(key);
  std::vector<std::pair<std::uint64_t, const PeerId*>> ranked;
  ranked.reserve(table_.size());
  for (const auto& [peer, entry] : table_) ranked.emplace_back(prefix(entry.key) ^ wanted_prefix, &peer);
  // A heap: only those that are taken out are put in order, and only they are looked at closely.
  const auto farther = [](const auto& a, const auto& b) { return a.first > b.first; };
  std::make_heap(ranked.begin(), ranked.end(), farther);
  std::vector<PeerId> result;
  for (auto end = ranked.end(); end != ranked.begin() && result.size() < count; --end) {
    std::pop_heap(ranked.begin(), end, farther);
    const PeerId& nearest = *std::prev(end)->second;
    if (wanted(nearest)) result.push_back(nearest);
  }
  return result;
}

std::vector<PeerId> Routing::seeds(const Key& key) const {
  auto result = nearest(key, kBucketSize, [](const PeerId&) { return true; });
  // Peers whose table entry is still being checked know about others just as well, and so may those that have not said
  // yet what they serve.
  for (const auto& [id, peer] : host_.peers) {
    if (result.size() >= 2 * kBucketSize) break;
    if (table_.contains(id)) continue;
    if (!peer.identified || peer.serves(kKadProtocol)) result.push_back(id);
  }
  return result;
}

void Routing::remove(const PeerId& peer) {
  const auto found = table_.find(peer);
  if (found == table_.end()) return;
  --bucket_sizes_[bucket_of(found->second.key)];
  table_.erase(found);
}

void Routing::insert(const PeerId& peer) {
  if (peer == host_.id || table_.contains(peer)) return;
  const Key key = key_of(peer);
  const std::size_t bucket = bucket_of(key);
  const auto address = host_.host.remote_address(peer);
  const auto block = address ? network_block(*address) : std::nullopt;
  if (block && !make_room(bucket, *block)) return;
  if (is_full(bucket)) {
    const auto gone = replaceable(bucket, {});
    if (!gone) return;
    remove(*gone);
  }
  ++bucket_sizes_[bucket];
  table_.emplace(peer, Entry{key, block});
}

/// Keeps a block to its share of the table and of the bucket. False when all of its places are in use.
bool Routing::make_room(std::size_t bucket, std::uint64_t block) {
  std::size_t in_table = 0, in_bucket = 0;
  for (const auto& [peer, entry] : table_) {
    if (entry.block != block) continue;
    ++in_table;
    if (bucket_of(entry.key) == bucket) ++in_bucket;
  }
  const auto reached = [](std::size_t count, std::size_t limit) { return limit > 0 && count >= limit; };
  const bool in_bucket_reached = reached(in_bucket, host_.options.max_routing_peers_per_block_in_bucket);
  if (!in_bucket_reached && !reached(in_table, host_.options.max_routing_peers_per_block)) return true;
  const auto gone = replaceable(in_bucket_reached ? std::optional(bucket) : std::nullopt, block);
  if (gone) remove(*gone);
  return gone.has_value();
}

/// Of a bucket or the whole table, and of a block or all: a peer that is no longer connected or that nobody could be
/// told how to reach.
std::optional<PeerId> Routing::replaceable(std::optional<std::size_t> bucket,
                                           std::optional<std::uint64_t> block) const {
  for (const auto& [peer, entry] : table_) {
    if ((bucket && bucket_of(entry.key) != *bucket) || (block && entry.block != block)) continue;
    if (!(host_.link_to(peer) && host_.book.knows(peer))) return peer;
  }
  return std::nullopt;
}

void Routing::consider(const PeerId& peer) {
  if (table_.contains(peer)) return;
  const std::size_t bucket = bucket_of(key_of(peer));
  if (is_full(bucket) && !replaceable(bucket, {})) return;
  if (!checking_.insert(peer).second) return;
  host_.tasks.spawn(check(*this, peer), "routing check");
}

/// A peer enters the table when it answers, as p2pd has it: a lookup of its own id must return it.
Task<void> Routing::check(Routing& self, PeerId peer) {
  struct Checking {
    Routing& routing;
    const PeerId& peer;
    ~Checking() { routing.checking_.erase(peer); }
  } checking{self, peer};
  auto reply = co_await self.ask(peer, peer.binary(), self.host_.runtime.after(kQueryTimeout));
  if (reply && reply->closer_peers_size() > 0 && self.host_.link_to(peer)) self.insert(peer);
}

Task<void> Routing::look_up_self() {
  walk_again_ = walking_;
  if (std::exchange(walking_, true)) co_return;
  struct Walking {
    bool& flag;
    ~Walking() { flag = false; }
  } walking{walking_};
  do {
    walk_again_ = false;
    Lookup lookup(*this, host_, host_.id, Deadline::never());
    co_await lookup.finish();
    // Whoever we joined through meanwhile may know more than those who could be asked at the start.
  } while (walk_again_ && table_.size() < kBucketSize);
}

// ---- Server

proto::KadMessage Routing::answer(const proto::KadMessage& request, const PeerId& asker,
                                  Multiaddr::Scope asker_scope) const {
  proto::KadMessage reply;
  reply.set_type(request.type());
  reply.set_key(request.key());
  const auto tellable = [&](const PeerId& peer) {
    // An empty answer about ourselves would keep us out of p2pd's table.
    if (peer == host_.id) return host_.addresses();
    // What the asker would refuse to believe from us is not worth telling.
    auto addresses = host_.book.addresses(peer);
    std::erase_if(addresses, [&](const Multiaddr& address) { return !acceptable_address(address, asker_scope); });
    return addresses;
  };
  std::size_t size = reply.ByteSizeLong();
  const auto tell = [&](const PeerId& peer) {
    proto::KadPeer entry;
    entry.set_id(peer.binary());
    for (const auto& address : tellable(peer))
      if (entry.addrs_size() < kMaxAddressesTold) entry.add_addrs(address.binary());
    const std::size_t taken = entry.ByteSizeLong() + 4;  // tag and length
    if (entry.addrs_size() == 0 || size + taken > kMaxReply) return;
    size += taken;
    *reply.add_closer_peers() = std::move(entry);
  };
  const auto target = PeerId::from_bytes(as_bytes(request.key()));
  if (target && *target == host_.id) {
    tell(host_.id);
    return reply;
  }
  if (target && *target != asker) tell(*target);
  const auto others = [&](const PeerId& peer) {
    return peer != asker && !(target && peer == *target) && host_.book.knows(peer);
  };
  for (const auto& peer : nearest(crypto::sha256(as_bytes(request.key())), kBucketSize, others)) tell(peer);
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
      case proto::KadMessage::PING:
        reply = request;
        break;
      case proto::KadMessage::FIND_NODE:
      case proto::KadMessage::GET_VALUE:
      case proto::KadMessage::GET_PROVIDERS:
        if (request.key().empty() || request.key().size() > kMaxKey) co_return;  // resets the stream
        reply = answer(request, stream->peer(), stream->remote_address().scope());
        break;
      default:
        co_return;
    }
    auto sent = co_await transport::write_message(*stream, as_bytes(reply.SerializeAsString()),
                                                  host_.runtime.after(kQueryTimeout));
    if (!sent) co_return;
    co_await host_.runtime.yield();  // who asks without pause does not keep others waiting
  }
  stream->close_write();
}

// ---- Client

Task<Result<proto::KadMessage>> Routing::ask(PeerId peer, std::string key, Deadline deadline) {
  auto stream = co_await host_.open_stream(peer, kKadProtocol, deadline, Reach::in_hand);
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

std::vector<Routing::Told> Routing::learn(const PeerId& teller, const proto::KadMessage& reply) {
  const auto link = host_.link_to(teller);
  const auto scope = link ? link->connection->remote_address().scope() : Multiaddr::Scope::public_;
  std::vector<Told> result;
  for (int i = 0; i < std::min(reply.closer_peers_size(), kMaxPeersHeard); ++i) {
    const auto& entry = reply.closer_peers(i);
    const auto id = PeerId::from_bytes(as_bytes(entry.id()));
    if (!id || *id == host_.id) continue;
    std::vector<Multiaddr> addresses;
    for (int k = 0; k < std::min(entry.addrs_size(), kMaxAddressesHeard); ++k) {
      auto address = Multiaddr::from_bytes(as_bytes(entry.addrs(k)));
      if (address && acceptable_address(*address, scope)) addresses.push_back(address->without_peer());
    }
    host_.book.add_hearsay(*id, addresses, scope);
    result.push_back({*id, std::move(addresses), scope});
  }
  return result;
}

}  // namespace cohive::p2p
