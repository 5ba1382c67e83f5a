/// \file
/// PeerID: the name of a libp2p peer, a multihash of its public key. Source: docs/wire/libp2p.md, section 1.4.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>

#include "cohive/core/bytes.hpp"

namespace cohive {

/// A small value type (no allocation). Ordered by bytes, as matchmaking's tie-break wants.
class PeerId {
 public:
  static constexpr std::size_t kMaxSize = 42 + 2;  ///< bytes of the longest one: an inlined key of 42

  PeerId() = default;
  /// From raw multihash bytes: identity (<= 42 bytes) or sha2-256. nullopt if malformed.
  static std::optional<PeerId> from_bytes(ByteView multihash);
  /// From text: base58btc multihash ("12D3Koo...", "Qm...") or CIDv1 ("b...", "z...", "k...").
  static std::optional<PeerId> from_text(std::string_view text);
  /// Of a serialised PublicKey protobuf.
  static PeerId of_public_key(ByteView serialised_public_key);

  /// Returns the multihash, valid as long as this object.
  ByteView bytes() const noexcept { return {data_.data(), size_}; }
  /// Returns a copy of it.
  std::string binary() const { return cohive::to_string(bytes()); }
  /// Tells whether this is no peer.
  bool empty() const noexcept { return size_ == 0; }
  /// base58btc, the form to print.
  std::string text() const;

  friend bool operator==(const PeerId& a, const PeerId& b) noexcept { return as_text(a.bytes()) == as_text(b.bytes()); }
  friend std::strong_ordering operator<=>(const PeerId& a, const PeerId& b) noexcept {
    return as_text(a.bytes()) <=> as_text(b.bytes());
  }

 private:
  std::array<std::uint8_t, kMaxSize> data_{};
  std::uint8_t size_ = 0;
};

/// Prints the base58 form.
std::ostream& operator<<(std::ostream& out, const PeerId& peer);

}  // namespace cohive

template <>
struct std::hash<cohive::PeerId> {
  std::size_t operator()(const cohive::PeerId& peer) const noexcept {
    return std::hash<std::string_view>{}(cohive::as_text(peer.bytes()));
  }
};
