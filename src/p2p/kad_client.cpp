#include "kad_client.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "core/detail/bounded_parse.hpp"

namespace cohive::p2p {
namespace {

constexpr std::size_t kMaxKadReply = 64 * 1024;
constexpr int kMaxPeersHeard = 32;             // per reply; k and the target are 21
constexpr int kMaxAddressesHeard = 16;         // per peer in a reply
constexpr std::size_t kMaxReplyFields = 4096;  // 21 peers, of which some tell more addresses than we hear

}  // namespace

Task<Result<proto::KadMessage>> KadClient::ask(PeerId peer, std::string key, Deadline deadline) {
  auto stream = co_await dialler_.open_stream(peer, kKadProtocol, deadline);
  if (!stream) co_return stream.error();
  proto::KadMessage request;
  request.set_type(proto::KadMessage::FIND_NODE);
  request.set_key(std::move(key));
  auto sent = co_await transport::write_message(**stream, as_bytes(request.SerializeAsString()), deadline);
  if (!sent) co_return sent.error();
  transport::StreamReader reader(**stream);
  auto bytes = co_await reader.read_message(kMaxKadReply, deadline);
  if (!bytes) co_return bytes.error();
  proto::KadMessage reply;
  if (!*bytes || !parse_bounded(reply, **bytes, kMaxReplyFields))
    co_return Error(cohive::Errc::malformed, peer, "routing reply");
  (*stream)->close_write();
  co_return reply;
}

std::vector<KadClient::Referral> KadClient::learn(const PeerId& referrer, const proto::KadMessage& reply) {
  const auto entry = table_.best(referrer);
  const auto scope = entry ? entry->connection->remote_address().scope() : Multiaddr::Scope::public_;
  std::vector<Referral> result;
  for (int i = 0; i < std::min(reply.closer_peers_size(), kMaxPeersHeard); ++i) {
    const auto& named = reply.closer_peers(i);
    const auto id = PeerId::from_bytes(as_bytes(named.id()));
    if (!id || *id == self_.id) continue;
    std::vector<Multiaddr> addresses;
    for (int k = 0; k < std::min(named.addrs_size(), kMaxAddressesHeard); ++k) {
      auto address = Multiaddr::from_bytes(as_bytes(named.addrs(k)));
      if (address && acceptable_address(*address, scope)) addresses.push_back(address->without_peer());
    }
    book_.add_hearsay(*id, addresses, scope, referrer);
    result.push_back({*id, std::move(addresses), scope});
  }
  return result;
}

}  // namespace cohive::p2p
