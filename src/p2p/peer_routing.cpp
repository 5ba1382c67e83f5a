#include "peer_routing.hpp"

#include <algorithm>

#include "cohive/core/combine.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/on_exit.hpp"
#include "cohive/p2p/errors.hpp"
#include "core/detail/bounded_parse.hpp"
#include "core/detail/jitter.hpp"
#include "p2p/detail/network_block.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxReply = 16 * 1024;   // what rust-libp2p reads
constexpr std::size_t kMaxRequest = 4 * 1024;  // a key and little else; longer ones store what we do not keep
constexpr std::size_t kMaxKey = 1024;
constexpr std::size_t kMaxRoutingStreams = 32;    // of one peer
constexpr std::size_t kMaxAddressesOfOthers = 8;  // of each peer in a reply
constexpr Duration kRoutingTimeout = 10s;
constexpr Duration kIdle = 60s;
constexpr Duration kPatience = 3s;      // with the addresses a lookup found, before it goes on
constexpr Duration kPollInterval = 3s;  // after that, while a dial hangs; a peer that needs relays has some in 4 s
constexpr Duration kAfterRefusal = 3s;  // for a lookup of a peer whose process has ended: it may be back elsewhere
constexpr Duration kSelfLookupPeriod = 10min;
constexpr Duration kAlonePeriod = 1min;  // between attempts to come back when no connection is left
constexpr std::size_t kMaxRejoinDials = 8;

}  // namespace

PeerRouting::PeerRouting(Self& self, Handlers& handlers, ConnectionTable& table, AddressBook& book, Dialler& dialler,
                         Identify& identify, const OwnAddresses& own)
    : self_(self),
      table_(table),
      book_(book),
      dialler_(dialler),
      own_(own),
      routes_(self.id, {self.options.max_routing_peers_per_block, self.options.max_routing_peers_per_block_in_bucket},
              [this](const PeerId& peer) { return table_.connected(peer) && book_.knows(peer); }),
      client_(self, table, dialler, book),
      context_{self, table, client_, [this](const RoutingTable::Key& key) { return seeds(key); },
               [this](const PeerId& peer, bool answered) { answered ? insert(peer) : routes_.remove(peer); }},
      described_(identify.described().subscribe([this](const PeerId& peer) { consider(peer); })),
      lookup_slots_(self.runtime, self.options.max_lookups, "lookups"),
      searches_(self.runtime, "connecting"),
      finds_(self.runtime, "looking up a peer"),
      tasks_(self.runtime, "peer routing") {
  table_.set_valued([this](const PeerId& peer) { return routes_.contains(peer); });
  if (self.options.routing_server)
    handlers.add(
        kKadProtocol, [this](transport::StreamPtr stream) { return serve(std::move(stream)); }, kMaxRoutingStreams);
}

void PeerRouting::start() {
  tasks_.spawn(keep_in_touch(*this), "keep in touch");
}

void PeerRouting::close(const Error& reason) {
  finds_.close(reason);
  searches_.close(reason);
  tasks_.cancel();
}

// ---- The table

std::vector<PeerId> PeerRouting::seeds(const RoutingTable::Key& key) const {
  auto result = routes_.nearest(key, RoutingTable::kBucketSize, [](const PeerId&) { return true; });
  // Peers whose table entry is still being checked know other peers just as well, and so may peers that have not
  // said yet what they serve.
  for (const auto& [id, peer] : table_.peers()) {
    if (result.size() >= 2 * RoutingTable::kBucketSize) break;
    if (routes_.contains(id)) continue;
    if (!peer.identified || peer.serves(kKadProtocol)) result.push_back(id);
  }
  return result;
}

/// A peer has said what it serves.
void PeerRouting::consider(const PeerId& peer) {
  const ConnectedPeer* known = table_.find(peer);
  if (!known || !known->serves(kKadProtocol)) return routes_.remove(peer);
  if (routes_.contains(peer) || !routes_.would_take(peer) || !checking_.insert(peer).second) return;
  tasks_.spawn(check(*this, peer), "routing check");
}

/// A peer enters the table when it answers, as p2pd has it: a lookup of its own id must return it.
Task<void> PeerRouting::check(PeerRouting& routing, PeerId peer) {
  const auto checked = on_exit([&routing, &peer] { routing.checking_.erase(peer); });
  auto reply = co_await routing.client_.ask(peer, peer.binary(), routing.self_.runtime.after(kRoutingTimeout));
  if (reply && reply->closer_peers_size() > 0 && routing.table_.connected(peer)) routing.insert(peer);
}

/// It answered just now.
void PeerRouting::insert(const PeerId& peer) {
  const ConnectionEntryPtr entry = table_.best(peer);
  routes_.insert(peer, entry ? network_block(entry->connection->remote_address()) : std::nullopt);
}

// ---- Searching

Task<Result<>> PeerRouting::connect(PeerId peer, Deadline deadline) {
  if (auto now = dialler_.settled(peer)) co_return *now;
  auto result = co_await searches_.join(peer, deadline, [this, peer] { return search(*this, peer); });
  if (!result) co_return result.error().with_peer(peer);
  co_return ok();
}

/// What becomes of the addresses that are known.
struct KnownDials {
  Event done;
  Result<> result = Error(Errc::no_addresses);
};

Task<void> PeerRouting::dial_known(PeerRouting& routing, PeerId peer, Deadline deadline, KnownDials& dials) {
  dials.result = co_await routing.dialler_.connect(peer, deadline);
  dials.done.set();
}

/// The known addresses first. When they fail or there are none, whatever a lookup finds; also when they take long: a
/// firewall may drop the dials, and the swarm know a relay. A lookup that asks peers which sleep takes all its time:
/// the one for a peer whose process has ended, which is seldom back elsewhere, is short.
Task<Result<>> PeerRouting::search(PeerRouting& routing, PeerId peer) {
  Self& self = routing.self_;
  Deadline deadline = self.runtime.after(self.options.connect_timeout);
  KnownDials known{Event(self.runtime, "known addresses")};
  Nursery dialling(self.runtime, "known addresses");
  dialling.spawn(dial_known(routing, peer, deadline, known), "known addresses");
  const bool over = co_await known.done.wait(deadline.min(self.runtime.after(kPatience)));
  if ((over && known.result) || routing.table_.connected(peer)) co_return ok();
  if (over && routing.dialler_.refuses(peer)) deadline = deadline.min(self.runtime.after(kAfterRefusal));
  auto slot = co_await routing.lookup_slots_.acquire(1, deadline);
  if (!slot) co_return Error(cohive::Errc::timeout, peer, "waiting to look the peer up");
  auto race = routing.dialler_.race(peer);
  race.hold_back([&routing, peer](const KnownAddress& one) { return routing.dialler_.held_back(peer, one); });
  Nursery feeding(self.runtime, "lookup");
  feeding.spawn(feed(routing, race, deadline), "feed the dial race");
  auto result = co_await race.run(deadline);
  if (result) co_return ok();
  (void)co_await known.done.wait(deadline);
  if (known.result || race.tried() == 0) co_return known.result;
  co_return result;
}

/// The lookup waits while what it found is tried. When a dial hangs there is another one: the peer may have just found
/// a relay.
Task<void> PeerRouting::feed(PeerRouting& routing, DialRace& race, Deadline deadline) {
  Runtime& runtime = routing.self_.runtime;
  for (bool again : {false, true}) {
    if (again) co_await race.wait_idle(deadline.min(runtime.after(kPollInterval)));
    if (again && race.idle()) break;
    Lookup lookup(routing.context_, race.peer(), deadline);
    for (;;) {
      auto heard = co_await lookup.next(deadline);
      if (heard.empty()) break;
      routing.dialler_.add_to(race, std::move(heard), deadline);
      co_await race.wait_idle(deadline.min(runtime.after(kPatience)));
    }
  }
  race.complete();
}

Task<Result<transport::StreamPtr>> PeerRouting::open_stream(PeerId peer, std::string protocol, Deadline deadline) {
  return table_.open_stream(peer, std::move(protocol), deadline,
                            [this, peer, deadline] { return connect(peer, deadline); });
}

Task<Result<>> PeerRouting::connect_via(PeerId peer, PeerId referrer, Deadline deadline) {
  if (self_.reputation.is_banned(peer) && !table_.connected(peer)) co_return Error(Errc::banned, peer);
  auto connected = co_await dialler_.connect(peer, deadline);
  if (connected || self_.closed || peer == self_.id) co_return connected;
  if (!referrer.empty() && referrer != peer && !deadline.passed(self_.runtime.now())) {
    const auto reply = co_await client_.ask(referrer, peer.binary(), deadline);
    if (reply) client_.learn(referrer, *reply);
    // Addresses that have just failed are not dialled again.
    if (reply && book_.knows(peer)) co_return co_await dialler_.connect(peer, deadline);
  }
  if (book_.knows(peer)) co_return connected;
  co_return co_await connect(peer, deadline);
}

Task<Result<std::vector<Multiaddr>>> PeerRouting::find(PeerId peer, Deadline deadline) {
  if (self_.closed) co_return Error(Errc::host_closed);
  const bool connected = table_.connected(peer);
  std::vector<Multiaddr> known;
  for (auto& one : book_.known(peer))
    if (connected || !dialler_.held_back(peer, one)) known.push_back(std::move(one.address));
  if (!known.empty()) co_return known;
  auto found = co_await finds_.join(peer, deadline, [this, peer] { return look_up(*this, peer); });
  if (!found) co_return found.error().with_peer(peer);
  co_return found;
}

Task<Result<std::vector<Multiaddr>>> PeerRouting::look_up(PeerRouting& routing, PeerId peer) {
  const Deadline deadline = routing.self_.runtime.after(routing.self_.options.connect_timeout);
  auto slot = co_await routing.lookup_slots_.acquire(1, deadline);
  if (!slot) co_return Error(cohive::Errc::timeout, peer, "waiting to look the peer up");
  Lookup lookup(routing.context_, peer, deadline);
  std::vector<Multiaddr> result;
  for (auto& heard : co_await lookup.next(deadline)) result.push_back(std::move(heard.address));
  if (result.empty()) co_return Error(Errc::no_addresses, peer);
  co_return result;
}

// ---- Staying known

/// One walk at a time: a host that joins through several peers at once needs no more.
void PeerRouting::look_up_self() {
  if (walk_ != Walk::none) {
    walk_ = Walk::once_more;
    return;
  }
  walk_ = Walk::under_way;
  tasks_.spawn(walk_to_self(*this), "self lookup");
}

Task<void> PeerRouting::walk_to_self(PeerRouting& routing) {
  do {
    routing.walk_ = Walk::under_way;
    Lookup lookup(routing.context_, routing.self_.id, Deadline::never());
    co_await lookup.finish();
    // A peer that we joined through meanwhile may know more than the peers that could be asked at the start.
  } while (routing.walk_ == Walk::once_more && routing.routes_.size() < RoutingTable::kBucketSize);
  routing.walk_ = Walk::none;
}

Task<void> PeerRouting::refresh_random_bucket() {
  Bytes nobody{0x12, 0x20};  // the id of a peer with a large key: a SHA-256 hash
  nobody.resize(2 + 32);
  self_.runtime.random_bytes(MutableBytes(nobody).subspan(2));
  auto slot = co_await lookup_slots_.acquire(1, self_.runtime.after(kRoutingTimeout));
  if (!slot) co_return;
  Lookup lookup(context_, PeerId::from_bytes(nobody).value(), Deadline::never());
  co_await lookup.finish();
}

/// Dials some of the peers that our user named, different ones every time, unless one of them is connected.
Task<void> PeerRouting::rejoin(PeerRouting& routing) {
  auto configured = routing.book_.configured();
  if (std::any_of(configured.begin(), configured.end(),
                  [&](const PeerId& peer) { return routing.table_.connected(peer); }))
    co_return;
  std::shuffle(configured.begin(), configured.end(), routing.self_.runtime.random());
  std::vector<Task<Result<>>> dials;
  for (const auto& peer : configured)
    if (dials.size() < kMaxRejoinDials)
      dials.push_back(routing.dialler_.connect(peer, routing.self_.runtime.after(kAlonePeriod)));
  if (!dials.empty()) co_await when_all(routing.self_.runtime, std::move(dials));
}

/// Looks ourselves up now and then, so that the peers near us know us. A host that has lost all connections comes back
/// soon; a group that has lost the rest of the swarm, and knows only itself, with the next lookup.
Task<void> PeerRouting::keep_in_touch(PeerRouting& routing) {
  Runtime& runtime = routing.self_.runtime;
  TimePoint next_lookup = runtime.now() + kSelfLookupPeriod;
  for (;;) {
    // Not all of a swarm at the same moment.
    co_await runtime.sleep_for(detail::jittered(runtime, kAlonePeriod));
    const bool alone = routing.table_.peers().empty();
    if (!alone && runtime.now() < next_lookup) continue;
    co_await rejoin(routing);
    if (routing.table_.peers().empty()) continue;
    next_lookup = runtime.now() + kSelfLookupPeriod;
    routing.look_up_self();
  }
}

// ---- Server

std::vector<Multiaddr> PeerRouting::tellable(const PeerId& peer, Multiaddr::Scope asker_scope) const {
  // An empty answer about ourselves would keep us out of p2pd's table.
  if (peer == self_.id) return own_.told_to(asker_scope);
  // What the asker would refuse to believe from us is not worth telling.
  auto addresses = book_.addresses(peer);
  std::erase_if(addresses, [&](const Multiaddr& address) { return !acceptable_address(address, asker_scope); });
  if (addresses.size() > kMaxAddressesOfOthers) addresses.resize(kMaxAddressesOfOthers);
  return addresses;
}

proto::KadMessage PeerRouting::answer(const proto::KadMessage& request, const PeerId& asker,
                                      Multiaddr::Scope asker_scope) const {
  proto::KadMessage reply;
  reply.set_type(request.type());
  reply.set_key(request.key());
  std::size_t size = reply.ByteSizeLong();
  const auto tell = [&](const PeerId& peer) {
    proto::KadPeer entry;
    entry.set_id(peer.binary());
    for (const auto& address : tellable(peer, asker_scope)) entry.add_addrs(address.binary());
    const std::size_t taken = entry.ByteSizeLong() + 4;  // tag and length
    if (entry.addrs_size() == 0 || size + taken > kMaxReply) return;
    size += taken;
    *reply.add_closer_peers() = std::move(entry);
  };
  const auto target = PeerId::from_bytes(as_bytes(request.key()));
  if (target && *target == self_.id) {
    tell(self_.id);
    return reply;
  }
  if (target && *target != asker) tell(*target);
  const auto others = [&](const PeerId& peer) {
    return peer != asker && !(target && peer == *target) && book_.knows(peer);
  };
  for (const auto& peer : routes_.nearest(crypto::sha256(as_bytes(request.key())), RoutingTable::kBucketSize, others))
    tell(peer);
  return reply;
}

/// The bytes of the reply; nullopt where there is none.
std::optional<std::string> PeerRouting::reply_to(ByteView bytes, const transport::Stream& stream) const {
  proto::KadMessage request;
  if (!parse_bounded(request, bytes)) return std::nullopt;
  switch (request.type()) {
    case proto::KadMessage::PING: {
      proto::KadMessage reply;
      reply.set_type(proto::KadMessage::PING);
      return reply.SerializeAsString();
    }
    case proto::KadMessage::FIND_NODE:
    case proto::KadMessage::GET_VALUE:
    case proto::KadMessage::GET_PROVIDERS:
      if (request.key().empty() || request.key().size() > kMaxKey) return std::nullopt;
      return answer(request, stream.peer(), stream.remote_address().scope()).SerializeAsString();
    default:
      return std::nullopt;
  }
}

/// A peer may send half a request on each of its streams, and take no reply: both are charged to it.
Task<void> PeerRouting::serve(transport::StreamPtr stream) {
  const auto account = self_.memory.account(stream->peer(), stream->remote_address());
  transport::StreamReader reader(*stream);
  for (;;) {
    const Deadline deadline = self_.runtime.after(kIdle);
    const auto length = co_await reader.read_length(kMaxRequest, deadline);
    if (!length || !*length) break;
    MemoryBudget::Charge memory(account);
    if (!memory.add(**length)) co_return;  // dropping the stream resets it
    const auto request = co_await reader.read_message(kMaxRequest, deadline);
    if (!request || !*request) break;
    const auto reply = reply_to(**request, *stream);
    if (!reply || !memory.add(reply->size())) co_return;
    auto sent = co_await transport::write_message(*stream, as_bytes(*reply), self_.runtime.after(kRoutingTimeout));
    if (!sent) co_return;
    co_await self_.runtime.yield();  // a peer that asks without pause does not keep other peers waiting
  }
  stream->close_write();
}

}  // namespace cohive::p2p
