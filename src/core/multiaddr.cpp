#include "cohive/core/multiaddr.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>
#include <ostream>
#include <utility>

#include "cohive/core/base_encoding.hpp"
#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"
#include "cohive/core/varint.hpp"

namespace cohive {
namespace {

constexpr std::size_t kMaxAddress = 1024;
constexpr int kVariable = -1;

struct Protocol {
  std::uint32_t code;
  std::string_view name;
  int size;  // bytes of the value, or kVariable
};
constexpr Protocol kProtocols[] = {
    {Multiaddr::ip4, "ip4", 4},
    {Multiaddr::tcp, "tcp", 2},
    {Multiaddr::ip6, "ip6", 16},
    {Multiaddr::ip6zone, "ip6zone", kVariable},
    {Multiaddr::ipcidr, "ipcidr", 1},
    {Multiaddr::dns, "dns", kVariable},
    {Multiaddr::dns4, "dns4", kVariable},
    {Multiaddr::dns6, "dns6", kVariable},
    {Multiaddr::dnsaddr, "dnsaddr", kVariable},
    {Multiaddr::udp, "udp", 2},
    {Multiaddr::webrtc_direct, "webrtc-direct", 0},
    {Multiaddr::webrtc, "webrtc", 0},
    {Multiaddr::p2p_circuit, "p2p-circuit", 0},
    {Multiaddr::unix_, "unix", kVariable},
    {Multiaddr::p2p, "p2p", kVariable},
    {Multiaddr::https, "https", 0},
    {Multiaddr::tls, "tls", 0},
    {Multiaddr::sni, "sni", kVariable},
    {Multiaddr::noise, "noise", 0},
    {Multiaddr::quic, "quic", 0},
    {Multiaddr::quic_v1, "quic-v1", 0},
    {Multiaddr::webtransport, "webtransport", 0},
    {Multiaddr::certhash, "certhash", kVariable},
    {Multiaddr::ws, "ws", 0},
    {Multiaddr::wss, "wss", 0},
    {Multiaddr::http, "http", 0},
};

const Protocol* by_code(std::uint64_t code) {
  for (const auto& p : kProtocols)
    if (p.code == code) return &p;
  return nullptr;
}
const Protocol* by_name(std::string_view name) {
  if (name == "ipfs") name = "p2p";
  for (const auto& p : kProtocols)
    if (p.name == name) return &p;
  return nullptr;
}

Error malformed_address(std::string what) {
  return Error(Errc::malformed, std::move(what));
}

template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string ip_text(int family, const std::uint8_t* bytes) {
  char text[INET6_ADDRSTRLEN] = {};
  inet_ntop(family, bytes, text, sizeof text);
  return text;
}

std::optional<Bytes> value_from_text(const Protocol& protocol, std::string_view text) {
  const std::string copy(text);
  if (copy.find('\0') != std::string::npos) return std::nullopt;  // inet_pton would stop there
  switch (protocol.code) {
    case Multiaddr::ip4: {
      Bytes value(4);
      if (inet_pton(AF_INET, copy.c_str(), value.data()) != 1) return std::nullopt;
      return value;
    }
    case Multiaddr::ip6: {
      Bytes value(16);
      if (inet_pton(AF_INET6, copy.c_str(), value.data()) != 1) return std::nullopt;
      return value;
    }
    case Multiaddr::tcp:
    case Multiaddr::udp: {
      const auto port = parse_number<std::uint16_t>(text);
      if (!port) return std::nullopt;
      return Bytes{static_cast<std::uint8_t>(*port >> 8), static_cast<std::uint8_t>(*port)};
    }
    case Multiaddr::ipcidr: {
      const auto bits = parse_number<std::uint8_t>(text);
      if (!bits) return std::nullopt;
      return Bytes{*bits};
    }
    case Multiaddr::p2p: {
      const auto peer = PeerId::from_text(text);
      if (!peer) return std::nullopt;
      return to_bytes(peer->bytes());
    }
    case Multiaddr::certhash:  // multibase base64url is not needed by any peer we dial
      if (text.size() < 2 || text[0] != 'b') return std::nullopt;
      return base32_decode(text.substr(1));
    default:
      if (text.empty()) return std::nullopt;
      return to_bytes(text);
  }
}

std::string value_to_text(std::uint32_t code, ByteView value) {
  switch (code) {
    case Multiaddr::ip4:
      return ip_text(AF_INET, value.data());
    case Multiaddr::ip6:
      return ip_text(AF_INET6, value.data());
    case Multiaddr::tcp:
    case Multiaddr::udp:
      return std::to_string(value[0] << 8 | value[1]);
    case Multiaddr::ipcidr:
      return std::to_string(value[0]);
    case Multiaddr::p2p: {
      const auto peer = PeerId::from_bytes(value);
      return peer ? peer->text() : std::string();
    }
    case Multiaddr::certhash:
      return "b" + base32_encode(value);
    default:
      return to_string(value);
  }
}

bool value_is_valid(std::uint32_t code, ByteView value) {
  switch (code) {
    case Multiaddr::p2p:
      return PeerId::from_bytes(value).has_value();
    case Multiaddr::unix_:
      // Addresses appear in logs and errors as they are: no line ends, no terminal escapes.
      // A slash at the end does not survive the text form.
      return value.size() > 1 && value[0] == '/' && value.back() != '/' &&
             std::none_of(value.begin(), value.end(), [](std::uint8_t c) { return c < 0x20 || c == 0x7f; });
    case Multiaddr::certhash:
      return !value.empty();
    case Multiaddr::dns:
    case Multiaddr::dns4:
    case Multiaddr::dns6:
    case Multiaddr::dnsaddr:
    case Multiaddr::sni:
    case Multiaddr::ip6zone:
      return !value.empty() && value.size() <= 255 &&
             std::all_of(value.begin(), value.end(), [](std::uint8_t c) { return c > 0x20 && c < 0x7f && c != '/'; });
    default:
      return true;
  }
}

void append_component(Bytes& out, const Protocol& protocol, ByteView value) {
  append_varint(out, protocol.code);
  if (protocol.size == kVariable) append_varint(out, value.size());
  out.insert(out.end(), value.begin(), value.end());
}

/// Calls visit(protocol, value, offset) for each component; false when malformed or visit says so.
template <class Visit>
bool walk(ByteView binary, Visit visit) {
  std::size_t at = 0;
  while (at < binary.size()) {
    const std::size_t start = at;
    const Varint code = read_strict_varint(binary.subspan(at));
    if (code.status != VarintStatus::ok) return false;
    at += code.size;
    const Protocol* protocol = by_code(code.value);
    if (!protocol) return false;
    std::uint64_t size = static_cast<std::uint64_t>(protocol->size);
    if (protocol->size == kVariable) {
      const Varint length = read_strict_varint(binary.subspan(at));
      if (length.status != VarintStatus::ok) return false;
      at += length.size;
      size = length.value;
    }
    if (size > binary.size() - at) return false;
    if (!visit(*protocol, binary.subspan(at, size), start)) return false;
    at += size;
  }
  return true;
}

Multiaddr::Scope ip4_scope(ByteView ip) {
  const std::uint32_t a = std::uint32_t{ip[0]} << 24 | ip[1] << 16 | ip[2] << 8 | ip[3];
  const auto in = [a](std::uint32_t net, int bits) { return (a ^ net) >> (32 - bits) == 0; };
  if (in(0x7f000000, 8)) return Multiaddr::Scope::loopback;
  if (in(0x0a000000, 8) || in(0x64400000, 10) || in(0xac100000, 12) || in(0xc0a80000, 16) || in(0xa9fe0000, 16))
    return Multiaddr::Scope::private_;
  if (in(0, 8) || in(0xc0000000, 26) || in(0xc0000200, 24) || in(0xc0586300, 24) || in(0xc6120000, 15) ||
      in(0xc6336400, 24) || in(0xcb007100, 24) || in(0xe0000000, 4) || in(0xf0000000, 4))
    return Multiaddr::Scope::unroutable;
  return Multiaddr::Scope::public_;
}

Multiaddr::Scope ip6_scope(ByteView ip) {
  constexpr std::uint8_t kMapped[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  if (std::equal(std::begin(kMapped), std::end(kMapped), ip.begin())) return ip4_scope(ip.subspan(12));
  const bool zero_head = std::all_of(ip.begin(), ip.begin() + 15, [](std::uint8_t b) { return b == 0; });
  if (zero_head && ip[15] == 1) return Multiaddr::Scope::loopback;
  if (zero_head && ip[15] == 0) return Multiaddr::Scope::unroutable;
  if ((ip[0] & 0xfe) == 0xfc || (ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80)) return Multiaddr::Scope::private_;
  if (ip[0] == 0xff) return Multiaddr::Scope::unroutable;
  return Multiaddr::Scope::public_;
}

}  // namespace

Result<Multiaddr> Multiaddr::from_text(std::string_view text) {
  const std::string_view whole = text;
  const auto fail = [&](std::string why) { return malformed_address("multiaddr " + log::quoted(whole) + ": " + why); };
  if (text.empty() || text[0] != '/') return fail("must begin with /");
  if (text.size() > 2 * kMaxAddress) return fail("too long");
  while (text.size() > 1 && text.back() == '/') text.remove_suffix(1);
  text.remove_prefix(1);
  if (text.empty()) return fail("is empty");
  Multiaddr address;
  const auto next = [&text]() {
    const auto slash = text.find('/');
    const auto part = text.substr(0, slash);
    text = slash == std::string_view::npos ? std::string_view() : text.substr(slash + 1);
    return part;
  };
  while (!text.empty()) {
    const auto name = next();
    const Protocol* protocol = by_name(name);
    if (!protocol) return fail("unknown protocol " + log::quoted(name));
    if (protocol->size == 0) {
      append_component(address.binary_, *protocol, {});
      continue;
    }
    if (protocol->code == unix_) {
      const Bytes path = to_bytes("/" + std::string(text));
      if (text.empty() || !value_is_valid(unix_, path)) return fail("bad unix path");
      append_component(address.binary_, *protocol, path);
      break;
    }
    const auto part = next();
    const auto value = value_from_text(*protocol, part);
    if (!value || !value_is_valid(protocol->code, *value))
      return fail(log::quoted(part) + " is not a valid " + std::string(protocol->name) + " value");
    append_component(address.binary_, *protocol, *value);
  }
  if (address.binary_.size() > kMaxAddress) return fail("too long");
  return address;
}

Result<Multiaddr> Multiaddr::from_bytes(ByteView binary) {
  if (binary.empty() || binary.size() > kMaxAddress) return malformed_address("binary multiaddr: bad size");
  bool path = false;  // nothing may follow one: in text it would be part of it
  const bool valid = walk(binary, [&path](const Protocol& p, ByteView value, std::size_t) {
    return !std::exchange(path, p.code == unix_) && value_is_valid(p.code, value);
  });
  if (!valid) return malformed_address("binary multiaddr: unknown protocol or bad value");
  Multiaddr address;
  address.binary_ = to_bytes(binary);
  return address;
}

Result<Multiaddr> Multiaddr::from_ip_tcp(std::string_view host, std::uint16_t port) {
  if (host.find('/') != std::string_view::npos)
    return malformed_address("IP address " + log::quoted(host) + ": is not one");
  const bool v6 = host.find(':') != std::string_view::npos;
  return from_text((v6 ? "/ip6/" : "/ip4/") + std::string(host) + "/tcp/" + std::to_string(port));
}

std::string Multiaddr::text() const {
  std::string text;
  walk(binary_, [&](const Protocol& protocol, ByteView value, std::size_t) {
    text += '/';
    text += protocol.name;
    if (protocol.code == unix_) {
      text += cohive::to_string(value);
    } else if (protocol.size != 0) {
      text += '/' + value_to_text(protocol.code, value);
    }
    return true;
  });
  return text;
}

std::vector<Multiaddr::Component> Multiaddr::components() const {
  std::vector<Component> result;
  walk(binary_, [&](const Protocol& protocol, ByteView value, std::size_t) {
    result.push_back({protocol.code, to_bytes(value)});
    return true;
  });
  return result;
}

std::uint32_t Multiaddr::first_code() const {
  return binary_.empty() ? 0 : static_cast<std::uint32_t>(read_strict_varint(binary_).value);
}

bool Multiaddr::has(std::uint32_t code) const {
  bool found = false;
  walk(binary_, [&](const Protocol& protocol, ByteView, std::size_t) { return !(found = protocol.code == code); });
  return found;
}

std::optional<std::string> Multiaddr::value(std::uint32_t code) const {
  std::optional<std::string> result;
  walk(binary_, [&](const Protocol& protocol, ByteView value, std::size_t) {
    if (protocol.code == code) result = value_to_text(code, value);
    return !result;
  });
  return result;
}

bool Multiaddr::same_protocols(const Multiaddr& other) const {
  return std::ranges::equal(components(), other.components(), {}, &Component::code, &Component::code);
}

std::optional<PeerId> Multiaddr::peer() const {
  std::optional<PeerId> last;
  walk(binary_, [&](const Protocol& protocol, ByteView value, std::size_t) {
    last = protocol.code == p2p ? PeerId::from_bytes(value) : std::nullopt;
    return true;
  });
  return last;
}

Multiaddr Multiaddr::without_peer() const {
  std::size_t end = binary_.size();
  walk(binary_, [&](const Protocol& protocol, ByteView, std::size_t offset) {
    end = protocol.code == p2p ? offset : binary_.size();
    return true;
  });
  Multiaddr result;
  result.binary_.assign(binary_.begin(), binary_.begin() + static_cast<std::ptrdiff_t>(end));
  return result;
}

Multiaddr Multiaddr::with_peer(const PeerId& peer) const {
  Multiaddr result = without_peer();
  append_component(result.binary_, *by_code(p2p), peer.bytes());
  return result;
}

Multiaddr Multiaddr::encapsulate(const Multiaddr& inner) const {
  Multiaddr result = *this;
  result.binary_.insert(result.binary_.end(), inner.binary_.begin(), inner.binary_.end());
  return result;
}

Multiaddr Multiaddr::with_host_of(const Multiaddr& other) const {
  const auto first_end = [](const Bytes& binary) {
    std::size_t end = binary.size();
    std::size_t count = 0;
    walk(binary, [&](const Protocol&, ByteView, std::size_t offset) {
      if (count++ == 0) return true;
      end = offset;
      return false;
    });
    return static_cast<std::ptrdiff_t>(end);
  };
  Multiaddr result;
  result.binary_.assign(other.binary_.begin(), other.binary_.begin() + first_end(other.binary_));
  result.binary_.insert(result.binary_.end(), binary_.begin() + first_end(binary_), binary_.end());
  return result;
}

std::optional<Multiaddr::TcpEndpoint> Multiaddr::tcp_endpoint() const {
  const auto parts = components();
  if (parts.size() < 2 || parts.size() > 3 || parts[1].code != tcp) return std::nullopt;
  if (parts.size() == 3 && parts[2].code != p2p) return std::nullopt;
  switch (parts[0].code) {
    case ip4:
    case ip6:
    case dns:
    case dns4:
    case dns6:
      break;
    default:
      return std::nullopt;
  }
  const auto port = static_cast<std::uint16_t>(parts[1].value[0] << 8 | parts[1].value[1]);
  return TcpEndpoint{value_to_text(parts[0].code, parts[0].value), port, parts[0].code};
}

Multiaddr::Scope Multiaddr::scope() const {
  Scope result = Scope::other;
  walk(binary_, [&](const Protocol& protocol, ByteView value, std::size_t) {
    switch (protocol.code) {
      case ip4:
        result = ip4_scope(value);
        break;
      case ip6:
        result = ip6_scope(value);
        break;
      case dns:
      case dns4:
      case dns6:
      case dnsaddr:
        result = to_string(value) == "localhost" ? Scope::loopback : Scope::public_;
        break;
      default:
        break;
    }
    return false;
  });
  return result;
}

bool Multiaddr::is_unspecified() const {
  bool result = false;
  walk(binary_, [&](const Protocol& protocol, ByteView value, std::size_t) {
    result = (protocol.code == ip4 || protocol.code == ip6) &&
             std::all_of(value.begin(), value.end(), [](std::uint8_t b) { return b == 0; });
    return false;
  });
  return result;
}

std::ostream& operator<<(std::ostream& out, const Multiaddr& address) {
  return out << address.text();
}

}  // namespace cohive
