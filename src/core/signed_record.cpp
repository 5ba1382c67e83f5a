#include "cohive/core/signed_record.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/signed_envelope.hpp"
#include "cohive/proto/crypto.pb.h"
#include "core/detail/bounded_parse.hpp"

namespace cohive {
namespace {

constexpr std::string_view kDomain = "libp2p-peer-record";
constexpr std::string_view kPayloadType{"\x03\x01", 2};
constexpr int kMaxAddresses = 128;
constexpr std::size_t kMaxFields = 4096;  // some peers list more addresses than are kept, each in a message

}  // namespace

std::string make_signed_peer_record(const KeyPair& key, std::uint64_t sequence,
                                    const std::vector<Multiaddr>& addresses) {
  proto::PeerRecord record;
  record.set_peer_id(key.peer_id().binary());
  record.set_seq(sequence);
  for (const auto& address : addresses) record.add_addresses()->set_multiaddr(address.binary());
  return seal_envelope(key, kDomain, kPayloadType, record.SerializeAsString());
}

Result<PeerRecord> open_signed_peer_record(ByteView bytes) {
  const auto envelope = open_envelope(bytes, kDomain, kPayloadType);
  if (!envelope) return envelope.error();
  proto::PeerRecord content;
  if (!parse_bounded(content, as_bytes(envelope->payload), kMaxFields))
    return Error(Errc::malformed, "signed peer record: bad payload");
  const auto peer = PeerId::from_bytes(as_bytes(content.peer_id()));
  if (!peer || *peer != envelope->signer.peer_id())
    return Error(Errc::malformed, "signed peer record: the key belongs to another peer");
  PeerRecord record{*peer, content.seq(), {}};
  for (const auto& info : content.addresses()) {
    if (record.addresses.size() == kMaxAddresses) break;
    if (auto address = Multiaddr::from_bytes(as_bytes(info.multiaddr())))
      record.addresses.push_back(std::move(*address));
  }
  return record;
}

}  // namespace cohive
