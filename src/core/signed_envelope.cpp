#include "cohive/core/signed_envelope.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/varint.hpp"
#include "cohive/proto/crypto.pb.h"
#include "core/detail/bounded_parse.hpp"

namespace cohive {
namespace {

constexpr std::size_t kMaxEnvelope = 64 * 1024;

std::string signed_text(std::string_view domain, std::string_view type, std::string_view payload) {
  std::string text;
  for (std::string_view part : {domain, type, payload}) {
    append_varint(text, part.size());
    text += part;
  }
  return text;
}

}  // namespace

std::string seal_envelope(const KeyPair& key, std::string_view domain, std::string_view type, std::string payload) {
  proto::Envelope envelope;
  envelope.set_public_key(key.public_key().protobuf());
  envelope.set_payload_type(std::string(type));
  const Bytes signature = key.sign(as_bytes(signed_text(domain, type, payload)));
  envelope.set_payload(std::move(payload));
  envelope.set_signature(signature.data(), signature.size());
  return envelope.SerializeAsString();
}

Result<OpenedEnvelope> open_envelope(ByteView bytes, std::string_view domain, std::string_view type) {
  const std::string what(domain);
  if (bytes.size() > kMaxEnvelope) return Error(Errc::limit_exceeded, what);
  proto::Envelope envelope;
  if (!parse_bounded(envelope, bytes) || envelope.payload_type() != type) return Error(Errc::malformed, what);
  auto key = PublicKey::from_protobuf(as_bytes(envelope.public_key()));
  if (!key) return key.error().with_context(what);
  if (!key->verify(as_bytes(signed_text(domain, type, envelope.payload())), as_bytes(envelope.signature())))
    return Error(Errc::malformed, what + ": bad signature");
  return OpenedEnvelope{std::move(*key), std::move(*envelope.mutable_payload())};
}

}  // namespace cohive
