#include "cohive/core/peer_id.hpp"

#include <algorithm>
#include <ostream>

#include "cohive/core/base_encoding.hpp"
#include "cohive/core/crypto.hpp"
#include "cohive/core/varint.hpp"

namespace cohive {
namespace {

constexpr std::uint8_t kIdentity = 0x00;
constexpr std::uint8_t kSha256 = 0x12;
constexpr std::size_t kMaxEmbeddedKey = 42;
constexpr std::uint8_t kCidVersion = 1;
constexpr std::uint8_t kLibp2pKey = 0x72;

std::optional<PeerId> from_cid(const std::optional<Bytes>& cid) {
  if (!cid || cid->size() < 2 || (*cid)[0] != kCidVersion || (*cid)[1] != kLibp2pKey) return std::nullopt;
  return PeerId::from_bytes(ByteView(*cid).subspan(2));
}

}  // namespace

std::optional<PeerId> PeerId::from_bytes(ByteView multihash) {
  if (multihash.size() < 3 || multihash.size() > kMaxSize) return std::nullopt;
  const bool identity = multihash[0] == kIdentity;
  if (!identity && multihash[0] != kSha256) return std::nullopt;
  const std::size_t length = multihash[1];
  if (length != multihash.size() - 2) return std::nullopt;
  if (identity ? length > kMaxEmbeddedKey : length != 32) return std::nullopt;
  PeerId id;
  std::copy(multihash.begin(), multihash.end(), id.data_.begin());
  id.size_ = static_cast<std::uint8_t>(multihash.size());
  return id;
}

std::optional<PeerId> PeerId::from_text(std::string_view text) {
  if (text.size() < 2 || text.size() > 128) return std::nullopt;
  if (text[0] == '1' || text.starts_with("Qm")) {
    const auto bytes = base58_decode(text);
    return bytes ? from_bytes(*bytes) : std::nullopt;
  }
  switch (text[0]) {
    case 'b':
      return from_cid(base32_decode(text.substr(1)));
    case 'z':
      return from_cid(base58_decode(text.substr(1)));
    case 'k':
      return from_cid(base36_decode(text.substr(1)));
    default:
      return std::nullopt;
  }
}

PeerId PeerId::of_public_key(ByteView serialised) {
  PeerId id;
  if (serialised.size() <= kMaxEmbeddedKey) {
    id.data_[0] = kIdentity;
    id.data_[1] = static_cast<std::uint8_t>(serialised.size());
    std::copy(serialised.begin(), serialised.end(), id.data_.begin() + 2);
    id.size_ = static_cast<std::uint8_t>(serialised.size() + 2);
  } else {
    const auto digest = crypto::sha256(serialised);
    id.data_[0] = kSha256;
    id.data_[1] = 32;
    std::copy(digest.begin(), digest.end(), id.data_.begin() + 2);
    id.size_ = 34;
  }
  return id;
}

std::string PeerId::text() const {
  return base58_encode(bytes());
}

std::ostream& operator<<(std::ostream& out, const PeerId& peer) {
  return out << peer.text();
}

}  // namespace cohive
