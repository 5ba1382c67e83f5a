// The Port Control Protocol (RFC 6887), MAP requests over IPv4: one datagram to the default gateway, one back.
//   client -> version, MAP, lifetime, our address; nonce, TCP, inner port, wanted outer port
//   router -> version, MAP | response, result, lifetime; the same nonce and inner port, outer port, outer address
// A router that knows only NAT-PMP answers with that protocol's version, which ends the attempt at once.
#include <poll.h>

#include <algorithm>
#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/udp.hpp>
#include <boost/endian/conversion.hpp>
#include <chrono>
#include <map>

#include "cohive/core/crypto.hpp"
#include "cohive/core/errors.hpp"
#include "port_mappers.hpp"

namespace cohive::p2p {
namespace {

using boost::asio::ip::udp;
namespace endian = boost::endian;
using std::chrono::steady_clock;

// The standard has a silent router asked for minutes; one in the same network answers at once or not at all.
constexpr auto kFirstWait = std::chrono::milliseconds(250);  // doubled with each datagram that is sent again
constexpr auto kPcpPatience = std::chrono::milliseconds(1500);
constexpr std::size_t kMapSize = 60, kMaxPcpMessage = 1100;
constexpr std::uint8_t kPcpVersion = 2, kMapOpcode = 1, kResponse = 0x80, kTcp = 6;
constexpr std::uint8_t kSuccess = 0, kUnsupportedVersion = 1, kUnsupportedOpcode = 4, kUnsupportedProtocol = 9;
// Where fields begin, in both directions unless noted.
constexpr std::size_t kResultAt = 3 /* of a response */, kLifetimeAt = 4, kOwnAddressAt = 8 /* of a request */,
                      kNonceAt = 24, kProtocolAt = 36, kInsideAt = 40, kOutsideAt = 42, kOuterAddressAt = 44;
constexpr std::array<std::uint8_t, 12> kIpv4Prefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

using Nonce = std::array<std::uint8_t, 12>;  // the maker of a mapping may change it

struct MapRequest {
  std::uint16_t inside, wanted;
  std::uint32_t seconds;  ///< 0: take the mapping back
  Nonce nonce;
};

void put_address(std::uint8_t* at, const boost::asio::ip::address_v4& address) {
  std::ranges::copy(kIpv4Prefix, at);
  std::ranges::copy(address.to_bytes(), at + kIpv4Prefix.size());
}

std::array<std::uint8_t, kMapSize> encode_map(const MapRequest& request, const boost::asio::ip::address_v4& own) {
  std::array<std::uint8_t, kMapSize> bytes{};
  bytes[0] = kPcpVersion;
  bytes[1] = kMapOpcode;
  endian::store_big_u32(&bytes[kLifetimeAt], request.seconds);
  put_address(&bytes[kOwnAddressAt], own);
  std::ranges::copy(request.nonce, &bytes[kNonceAt]);
  bytes[kProtocolAt] = kTcp;
  endian::store_big_u16(&bytes[kInsideAt], request.inside);
  endian::store_big_u16(&bytes[kOutsideAt], request.wanted);
  put_address(&bytes[kOuterAddressAt], boost::asio::ip::address_v4::any());
  return bytes;
}

/// What a datagram of the router says; nullopt when it answers something else.
std::optional<Result<PortMapping>> decode_map(ByteView bytes, const MapRequest& request) {
  if (bytes.size() < 4 || !(bytes[1] & kResponse)) return std::nullopt;
  const std::uint8_t result = bytes[kResultAt];
  if (bytes[0] != kPcpVersion || result == kUnsupportedVersion || result == kUnsupportedOpcode ||
      result == kUnsupportedProtocol)
    return Error(cohive::Errc::not_found, "the gateway does not speak it");
  if (bytes[1] != (kMapOpcode | kResponse) || bytes.size() < kMapSize) return std::nullopt;
  if (!std::ranges::equal(request.nonce, bytes.subspan(kNonceAt, request.nonce.size())) || bytes[kProtocolAt] != kTcp ||
      endian::load_big_u16(&bytes[kInsideAt]) != request.inside)
    return std::nullopt;
  if (result != kSuccess)
    return Error(cohive::Errc::cancelled, "the router refuses, by code " + std::to_string(result));
  const auto outer = bytes.subspan(kOuterAddressAt, 16);
  boost::asio::ip::address_v4::bytes_type host{};
  std::ranges::copy(outer.subspan(kIpv4Prefix.size()), host.begin());
  const std::uint16_t port = endian::load_big_u16(&bytes[kOutsideAt]);
  auto outside = Multiaddr::from_ip_tcp(boost::asio::ip::address_v4(host).to_string(), port);
  const bool usable = outside && port != 0 && std::ranges::equal(kIpv4Prefix, outer.first(kIpv4Prefix.size()));
  if (!usable && request.seconds > 0) return Error(cohive::Errc::malformed, "an answer of the router");
  const auto granted = std::min(endian::load_big_u32(&bytes[kLifetimeAt]), request.seconds);
  return PortMapping{request.inside, outside ? std::move(*outside) : Multiaddr(), std::chrono::seconds(granted)};
}

Result<PortMapping> ask_pcp(const FindGateway& find_gateway, std::uint16_t port, const MapRequest& request) {
  const auto gateway = find_gateway();
  if (!gateway) return gateway.error();
  boost::asio::io_context unused;
  udp::socket socket(unused, udp::v4());
  boost::system::error_code failed;
  // Connected: only the router's datagrams come in, and we learn by which address it knows us.
  socket.connect({*gateway, port}, failed);
  if (failed) return Error(failed, "the gateway");
  const auto own = socket.local_endpoint(failed).address();
  if (failed) return Error(failed, "the gateway");
  const auto message = encode_map(request, own.to_v4());
  const auto until = steady_clock::now() + kPcpPatience;
  auto wait = kFirstWait;
  auto again = steady_clock::now();
  for (auto now = again; now < until; now = steady_clock::now()) {
    if (now >= again) {
      socket.send(boost::asio::buffer(message), 0, failed);
      if (failed) return Error(cohive::Errc::not_found, "the gateway does not speak it");  // the port is closed
      again = now + wait;
      wait *= 2;
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(std::min(again, until) - now);
    pollfd readable{socket.native_handle(), POLLIN, 0};
    if (::poll(&readable, 1, static_cast<int>(left.count())) <= 0) continue;
    std::array<std::uint8_t, kMaxPcpMessage> received{};
    const std::size_t size = socket.receive(boost::asio::buffer(received), 0, failed);
    if (failed) return Error(cohive::Errc::not_found, "the gateway does not speak it");
    if (auto answer = decode_map(ByteView(received).first(size), request)) return *answer;
  }
  return Error(cohive::Errc::not_found, "no answer of the gateway");
}

class PcpMapper final : public PortMapper {
 public:
  PcpMapper(Runtime& runtime, FindGateway find_gateway, std::uint16_t port)
      : runtime_(runtime), find_gateway_(std::move(find_gateway)), port_(port) {}
  std::string_view protocol() const override { return kPcp; }
  Task<Result<PortMapping>> map(std::uint16_t inside, std::uint16_t wanted, Duration lifetime) override {
    return request(MapRequest{inside, wanted, static_cast<std::uint32_t>(to_seconds(lifetime)), nonce_of(inside)});
  }
  Task<Result<>> unmap(PortMapping mapping) override {
    auto gone = co_await request(MapRequest{mapping.inside, 0, 0, nonce_of(mapping.inside)});
    if (!gone) co_return gone.error();
    nonces_.erase(mapping.inside);
    co_return ok();
  }

 private:
  Task<Result<PortMapping>> request(MapRequest request) {
    co_return co_await runtime_.offload_io(
        [find_gateway = find_gateway_, port = port_, request] { return ask_pcp(find_gateway, port, request); });
  }
  const Nonce& nonce_of(std::uint16_t inside) {
    const auto [at, is_new] = nonces_.try_emplace(inside);
    if (is_new) crypto::random_bytes(at->second);
    return at->second;
  }
  Runtime& runtime_;
  const FindGateway find_gateway_;
  const std::uint16_t port_;
  std::map<std::uint16_t, Nonce> nonces_;  ///< by inner port
};

}  // namespace

std::unique_ptr<PortMapper> make_pcp_mapper(Runtime& runtime, FindGateway find_gateway, std::uint16_t port) {
  return std::make_unique<PcpMapper>(runtime, std::move(find_gateway), port);
}

}  // namespace cohive::p2p
