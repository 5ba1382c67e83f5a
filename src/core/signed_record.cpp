#include "cohive/core/signed_record.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/proto/crypto.pb.h"

namespace cohive {
namespace {

constexpr std::string_view kDomain = "libp2p-peer-record";
constexpr std::string_view kPayloadType{"\x03\x01", 2};
constexpr std::size_t kMaxEnvelope = 64 * 1024;
constexpr int kMaxAddresses = 128;

std::string signed_text(std::string_view domain, std::string_view type, std::string_view payload) {
  std::string text;
  for (std::string_view part : {domain, type, payload}) {
    append_varint(text, part.size());
    text += part;
  }
  return text;
}

}  // namespace

std::string make_signed_peer_record(const KeyPair& key, std::uint64_t sequence, const std::vector<Multiaddr>& addresses) {
  proto::PeerRecord record;
  record.set_peer_id(key.peer_id().binary());
  record.set_seq(sequence);
  for (const auto& address : addresses) record.add_addresses()->set_multiaddr(address.binary());
  proto::Envelope envelope;
  envelope.set_public_key(key.public_key().protobuf());
  envelope.set_payload_type(std::string(kPayloadType));
  envelope.set_payload(record.SerializeAsString());
  const Bytes signature = key.sign(as_bytes(signed_text(kDomain, kPayloadType, envelope.payload())));
  envelope.set_signature(signature.data(), signature.size());
  return envelope.SerializeAsString();
}

Result<PeerRecord> open_signed_peer_record(ByteView bytes) {
  if (bytes.size() > kMaxEnvelope) return Error(Errc::limit_exceeded, "signed peer record");
  proto::Envelope envelope;
  if (!envelope.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())) || envelope.payload_type() != kPayloadType)
    return Error(Errc::malformed, "signed peer record");
  const auto key = PublicKey::from_protobuf(as_bytes(envelope.public_key()));
  if (!key) return key.error().with_context("signed peer record");
  const std::string text = signed_text(kDomain, kPayloadType, envelope.payload());
  if (!key->verify(as_bytes(text), as_bytes(envelope.signature()))) return Error(Errc::malformed, "signed peer record: bad signature");
  proto::PeerRecord content;
  if (!content.ParseFromString(envelope.payload())) return Error(Errc::malformed, "signed peer record: bad payload");
  const auto peer = PeerId::from_bytes(as_bytes(content.peer_id()));
  if (!peer || *peer != key->peer_id()) return Error(Errc::malformed, "signed peer record: the key belongs to another peer");
  PeerRecord record{*peer, content.seq(), {}};
  for (const auto& info : content.addresses()) {
    if (record.addresses.size() == kMaxAddresses) break;
    if (auto address = Multiaddr::from_bytes(as_bytes(info.multiaddr()))) record.addresses.push_back(std::move(*address));
  }
  return record;
}

}  // namespace cohive
