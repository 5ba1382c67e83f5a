// NAT-PMP (RFC 6886), by libnatpmp: two datagrams to the default gateway, one answer to each. Of its successor PCP
// libnatpmp knows nothing: pcp_mapper.cpp.
#ifdef COHIVE_HAVE_NATPMP
#include <arpa/inet.h>
#include <natpmp.h>
#include <poll.h>

#include <algorithm>
#include <chrono>

#include "cohive/core/errors.hpp"
#include "port_mappers.hpp"

namespace cohive::p2p {
namespace {

// The standard has a silent gateway asked for a minute; one in the same network answers at once or not at all.
constexpr auto kGatewayPatience = std::chrono::milliseconds(1500);

Error nat_pmp_error(int code) {
  switch (code) {
    case NATPMP_ERR_CANNOTGETGATEWAY:
      return Error(cohive::Errc::not_found, "no default gateway");
    case NATPMP_TRYAGAIN:
    case NATPMP_ERR_NOGATEWAYSUPPORT:
      return Error(cohive::Errc::not_found, "the gateway does not speak it");
    case NATPMP_ERR_NOTAUTHORIZED:
    case NATPMP_ERR_OUTOFRESOURCES:
    case NATPMP_ERR_NETWORKFAILURE:
      return Error(cohive::Errc::cancelled, "the router refuses, by code " + std::to_string(code));
    default:
      return Error(cohive::Errc::io, "code " + std::to_string(code));
  }
}

class Session {
 public:
  Session() : opened_(initnatpmp(&natpmp_, 0, 0)) {}
  ~Session() {
    if (opened_ == 0) closenatpmp(&natpmp_);
  }
  Session(const Session&) = delete;

  Result<boost::asio::ip::address_v4> gateway() const {
    if (opened_ != 0) return nat_pmp_error(opened_);
    return boost::asio::ip::make_address_v4(ntohl(natpmp_.gateway));
  }
  Result<natpmpresp_t> public_address() {
    if (opened_ != 0) return nat_pmp_error(opened_);
    return answer(sendpublicaddressrequest(&natpmp_));
  }
  Result<natpmpresp_t> map(std::uint16_t inside, std::uint16_t wanted, std::uint32_t seconds) {
    if (opened_ != 0) return nat_pmp_error(opened_);
    return answer(sendnewportmappingrequest(&natpmp_, NATPMP_PROTOCOL_TCP, inside, wanted, seconds));
  }

 private:
  Result<natpmpresp_t> answer(int sent) {
    if (sent < 0) return nat_pmp_error(sent);
    const auto until = std::chrono::steady_clock::now() + kGatewayPatience;
    natpmpresp_t response{};
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now());
      timeval retry{};
      getnatpmprequesttimeout(&natpmp_, &retry);
      const auto next = std::chrono::milliseconds(retry.tv_sec * 1000 + retry.tv_usec / 1000 + 1);
      pollfd readable{natpmp_.s, POLLIN, 0};
      ::poll(&readable, 1, static_cast<int>(std::max(std::chrono::milliseconds(1), std::min(left, next)).count()));
      const int code = readnatpmpresponseorretry(&natpmp_, &response);
      if (code == 0) return response;
      if (code != NATPMP_TRYAGAIN || std::chrono::steady_clock::now() >= until) return nat_pmp_error(code);
    }
  }
  natpmp_t natpmp_{};
  int opened_;
};

Result<PortMapping> ask_nat_pmp(std::uint16_t inside, std::uint16_t wanted, Duration lifetime) {
  Session session;
  const auto address = session.public_address();
  if (!address) return address.error();
  const auto mapped = session.map(inside, wanted, static_cast<std::uint32_t>(to_seconds(lifetime)));
  if (!mapped) return mapped.error();
  char host[INET_ADDRSTRLEN] = {};
  inet_ntop(AF_INET, &address->pnu.publicaddress.addr, host, sizeof host);
  const auto& granted = mapped->pnu.newportmapping;
  auto outside = Multiaddr::from_ip_tcp(host, granted.mappedpublicport);
  if (!outside || granted.mappedpublicport == 0) return Error(cohive::Errc::malformed, "an answer of the router");
  return PortMapping{inside, std::move(*outside), std::chrono::seconds(granted.lifetime)};
}

class NatPmpMapper final : public PortMapper {
 public:
  explicit NatPmpMapper(Runtime& runtime) : runtime_(runtime) {}
  std::string_view protocol() const override { return kNatPmp; }
  Task<Result<PortMapping>> map(std::uint16_t inside, std::uint16_t wanted, Duration lifetime) override {
    co_return co_await runtime_.offload_io([=] { return ask_nat_pmp(inside, wanted, lifetime); });
  }
  Task<Result<>> unmap(PortMapping mapping) override {
    auto gone = co_await runtime_.offload_io([inside = mapping.inside] {
      Session session;
      return session.map(inside, 0, 0);
    });
    if (!gone) co_return gone.error();
    co_return ok();
  }

 private:
  Runtime& runtime_;
};

}  // namespace

Result<boost::asio::ip::address_v4> default_gateway() {
  return Session().gateway();
}

std::unique_ptr<PortMapper> make_nat_pmp_mapper(Runtime& runtime) {
  return std::make_unique<NatPmpMapper>(runtime);
}

}  // namespace cohive::p2p
#endif
