/// \file
/// DHTID: a 160-bit number, the name of nodes and keys in hivemind's DHT. Source: docs/wire/hivemind.md, section 3.2.
///
/// Which id a node takes, and what that means for security: hivemind's nodes choose random ids that nothing ties to
/// their PeerID, and no check of an id would be passed by them. So an attacker can place nodes next to a key and hide
/// or drop its records (an eclipse). What compatibility leaves room for, and this module does:
///  - one PeerID has one place in a table, and is asked once per search under however many ids it is announced. Its
///    place is that of the id which it tells with its answers, whatever others say;
///  - an id belongs to the PeerID that had it first, and a full bucket keeps nodes that still answer, so that nodes
///    which were there before an attack stay in the tables;
///  - nodes of one network block (IPv4 /24, IPv6 /48) get half of a bucket and a hundred places in a table, by the
///    address that their connection comes from: an attacker with one block has a voice in a table, and not the table.
///    Where a whole swarm lives in one block, buckets split sooner instead, so that near nodes know each other all the
///    same. DhtOptions::max_nodes_per_block. The table of libp2p's peer routing does the same, HostOptions;
///  - a search goes on past nodes that do not answer, merges what all nodes near the key tell, and looks at records on
///    ten nodes, twice the number that hold them: an attacker must take all of those places;
///  - what is stored under an owner's subkey carries the owner's signature, so a record can be hidden but not forged.
#pragma once

#include <array>
#include <compare>
#include <optional>
#include <string>
#include <string_view>

#include "cohive/core/bytes.hpp"
#include "cohive/core/msgpack.hpp"

namespace cohive {
class Runtime;
}

namespace cohive::dht {

/// Big-endian bytes; the order is numeric.
struct DhtId {
  static constexpr std::size_t kSize = 20;  ///< bytes
  std::array<std::uint8_t, kSize> bytes{};  ///< the most significant one first

  /// SHA-1 of the msgpack encoding (strings, numbers, tuples...); of the raw bytes for Bin.
  static DhtId of(const msgpack::Value& source);
  /// As of(Value) with the text as a msgpack string.
  static DhtId of(std::string_view text) { return of(msgpack::Value(text)); }
  /// The same.
  static DhtId of(const std::string& text) { return of(msgpack::Value(text)); }
  /// The same.
  static DhtId of(const char* text) { return of(msgpack::Value(text)); }
  /// Draws an id, every one as likely.
  static DhtId random(Runtime& runtime);
  /// Exactly 20 bytes, else nullopt.
  static std::optional<DhtId> from_bytes(ByteView bytes);

  DhtId distance(const DhtId& other) const;  ///< XOR
  /// Returns the id that differs in the last bit alone: it has the same nearest nodes.
  DhtId sibling() const {
    DhtId result = *this;
    result.bytes.back() ^= 1;
    return result;
  }
  /// Returns the 20 bytes, as they are on the wire.
  std::string binary() const { return {reinterpret_cast<const char*>(bytes.data()), bytes.size()}; }
  /// Returns 40 hexadecimal digits.
  std::string hex() const;
  friend bool operator==(const DhtId&, const DhtId&) = default;
  friend std::strong_ordering operator<=>(const DhtId& a, const DhtId& b) {
    // The first eight bytes nearly always decide.
    const std::uint64_t high_a = a.high(), high_b = b.high();
    if (high_a != high_b) return high_a <=> high_b;
    return a.bytes <=> b.bytes;
  }

 private:
  std::uint64_t high() const {
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < 8; ++i) value = value << 8 | bytes[i];
    return value;
  }
};

}  // namespace cohive::dht

template <>
struct std::hash<cohive::dht::DhtId> {
  std::size_t operator()(const cohive::dht::DhtId& id) const noexcept {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(id.bytes.data()), id.bytes.size()});
  }
};
