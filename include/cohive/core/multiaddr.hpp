/// \file
/// Multiaddresses, text and binary. Source: docs/wire/libp2p.md, section 1.2.
#pragma once

#include <compare>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohive/core/peer_id.hpp"
#include "cohive/core/result.hpp"

namespace cohive {

/// A validated multiaddress, kept in its binary form.
class Multiaddr {
 public:
  /// Codes of protocols, by the table of multiformats.
  enum Code : std::uint32_t {
    ip4 = 4,
    tcp = 6,
    ip6 = 41,
    ip6zone = 42,
    ipcidr = 43,
    dns = 53,
    dns4 = 54,
    dns6 = 55,
    dnsaddr = 56,
    udp = 273,
    webrtc_direct = 280,
    webrtc = 281,
    p2p_circuit = 290,
    unix_ = 400,
    p2p = 421,
    https = 443,
    tls = 448,
    sni = 449,
    noise = 454,
    quic = 460,
    quic_v1 = 461,
    webtransport = 465,
    certhash = 466,
    ws = 477,
    wss = 478,
    http = 480
  };
  /// One part of an address: its protocol, by the code of multiformats, and its value as on the wire.
  struct Component {
    std::uint32_t code;  ///< of the protocol
    Bytes value;         ///< as on the wire, without its length
  };

  Multiaddr() = default;
  /// Parses text ("/ip4/127.0.0.1/tcp/4001"); the error says which part is wrong.
  static Result<Multiaddr> from_text(std::string_view text);
  /// Reads the binary form; errors for protocols that are not known and for truncated values.
  static Result<Multiaddr> from_bytes(ByteView binary);
  /// "/ip4/../tcp/.." or "/ip6/../tcp/..". `host` is a numeric IP address.
  static Result<Multiaddr> from_ip_tcp(std::string_view host, std::uint16_t port);

  /// Returns the binary form, valid as long as this address.
  ByteView bytes() const noexcept { return binary_; }
  /// Returns a copy of it.
  std::string binary() const { return cohive::to_string(binary_); }
  /// Returns the text form, which from_text() reads.
  std::string text() const;
  /// Tells whether it has no component.
  bool empty() const noexcept { return binary_.empty(); }
  /// Returns all components, in order.
  std::vector<Component> components() const;
  /// Returns the code of the first component; 0 when there is none.
  std::uint32_t first_code() const;
  /// Tells whether both have the same protocols in the same order, so that only values differ.
  bool same_protocols(const Multiaddr& other) const;
  /// Tells whether any component has this code.
  bool has(std::uint32_t code) const;
  /// Value of the first component with this code, as text ("127.0.0.1", "4001", "12D3Koo...").
  std::optional<std::string> value(std::uint32_t code) const;

  /// Returns the peer id at the end; nullopt when the address ends with anything else.
  std::optional<PeerId> peer() const;
  /// Returns the address without the peer id at its end.
  Multiaddr without_peer() const;
  /// Returns the address with this peer id at its end, in place of another one.
  Multiaddr with_peer(const PeerId& peer) const;
  /// Returns the address with `inner` behind it.
  Multiaddr encapsulate(const Multiaddr& inner) const;
  /// Returns this address with its first component, the host, replaced by the one of another address.
  Multiaddr with_host_of(const Multiaddr& other) const;

  /// Host ("127.0.0.1", "::1", "example.com") and port when this is ip4/ip6/dns*+tcp and nothing follows but /p2p.
  struct TcpEndpoint {
    std::string host;         ///< as text
    std::uint16_t port;       ///< of TCP
    std::uint32_t host_code;  ///< ip4, ip6, dns, dns4 or dns6
  };
  /// Returns where TCP connects to; nullopt for addresses of other kinds.
  std::optional<TcpEndpoint> tcp_endpoint() const;
  /// Tells whether the way leads through a relay.
  bool is_circuit() const { return has(p2p_circuit); }

  /// From where an address can be reached; other: it begins with neither an IP address nor a name.
  enum class Scope { loopback, private_, public_, unroutable, other };
  /// Returns the address class as p2pd's filters define it; DNS names but "localhost" count as public.
  Scope scope() const;
  /// 0.0.0.0 or ::, which may be listened on but never dialled.
  bool is_unspecified() const;

  friend bool operator==(const Multiaddr&, const Multiaddr&) = default;
  friend auto operator<=>(const Multiaddr&, const Multiaddr&) = default;

 private:
  Bytes binary_;
};

/// Prints the text form.
std::ostream& operator<<(std::ostream& out, const Multiaddr& address);

}  // namespace cohive

template <>
struct std::hash<cohive::Multiaddr> {
  std::size_t operator()(const cohive::Multiaddr& a) const noexcept {
    return std::hash<std::string_view>{}(cohive::as_text(a.bytes()));
  }
};
