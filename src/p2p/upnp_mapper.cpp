// Internet gateways of UPnP, by miniupnpc: found by multicast once, then asked over HTTP.
#ifdef COHIVE_HAVE_MINIUPNPC
#include <miniupnpc/miniupnpc.h>
#include <miniupnpc/upnpcommands.h>
#include <miniupnpc/upnperrors.h>

#include <array>
#include <chrono>
#include <mutex>
#include <optional>
#include <random>

#include "cohive/core/errors.hpp"
#include "port_mappers.hpp"

namespace cohive::p2p {
namespace {

constexpr int kDiscovery = 1000;  // milliseconds to wait for gateways
constexpr unsigned char kHops = 2;
constexpr auto kAnotherCall = std::chrono::seconds(10);  // to end
constexpr int kTries = 4;  // of outer ports, where another machine has taken the wanted one
constexpr int kOnlyPermanent = 725, kConflict = 718;
constexpr int kConnected = 1;  // of UPNP_GetValidIGD: a gateway that is connected
constexpr const char* kName = "cohive";

/// A gateway, as miniupnpc knows it. It blocks, so it lives on the threads of the pool.
class Gateway {
 public:
  Gateway() = default;
  ~Gateway() { FreeUPNPUrls(&urls_); }
  Gateway(const Gateway&) = delete;

  bool find() {
    int error = 0;
    UPNPDev* const devices = upnpDiscover(kDiscovery, nullptr, nullptr, UPNP_LOCAL_PORT_ANY, 0, kHops, &error);
    if (!devices) return false;
#if MINIUPNPC_API_VERSION >= 18
    std::array<char, 64> outer{};
    const int found =
        UPNP_GetValidIGD(devices, &urls_, &data_, inner_.data(), inner_.size(), outer.data(), outer.size());
#else
    const int found = UPNP_GetValidIGD(devices, &urls_, &data_, inner_.data(), static_cast<int>(inner_.size()));
#endif
    freeUPNPDevlist(devices);
    return found == kConnected;
  }

  Result<PortMapping> map(std::uint16_t inside, std::uint16_t wanted, Duration lifetime) {
    std::array<char, 64> host{};
    if (const int code = UPNP_GetExternalIPAddress(urls_.controlURL, service(), host.data())) return refused(code);
    const std::string in = std::to_string(inside);
    std::string seconds = std::to_string(static_cast<long>(to_seconds(lifetime)));
    std::uint16_t port = wanted;
    int code = 0;
    for (int attempt = 0; attempt < kTries; ++attempt) {
      const std::string out = std::to_string(port);
      code = UPNP_AddPortMapping(urls_.controlURL, service(), out.c_str(), in.c_str(), inner_.data(), kName, "TCP",
                                 nullptr, seconds.c_str());
      if (code == UPNPCOMMAND_SUCCESS) break;
      if (code == kOnlyPermanent && seconds != "0") {
        seconds = "0";  // taken back at the end
      } else if (code == kConflict) {
        port = other_port();
      } else {
        return refused(code);
      }
    }
    if (code != UPNPCOMMAND_SUCCESS) return refused(code);
    auto outside = Multiaddr::from_ip_tcp(host.data(), port);
    if (!outside) return Error(cohive::Errc::malformed, "the router's address");
    return PortMapping{inside, std::move(*outside), lifetime};
  }

  Result<> unmap(const PortMapping& mapping) {
    const std::string out = mapping.outside.value(Multiaddr::tcp).value();
    const int code = UPNP_DeletePortMapping(urls_.controlURL, service(), out.c_str(), "TCP", nullptr);
    if (code != UPNPCOMMAND_SUCCESS) return refused(code);
    return ok();
  }

 private:
  const char* service() const { return data_.first.servicetype; }
  static Error refused(int code) {
    const char* text = strupnperror(code);
    return Error(cohive::Errc::cancelled, "the router refuses, by code " + std::to_string(code) +
                                              (text ? " (" + std::string(text) + ")" : std::string()));
  }
  static std::uint16_t other_port() {
    std::random_device random;
    return static_cast<std::uint16_t>(std::uniform_int_distribution<int>(20'000, 60'000)(random));
  }
  UPNPUrls urls_{};
  IGDdatas data_{};
  std::array<char, 64> inner_{};
};

/// The gateway that was found, until it fails or the machine has moved.
struct KnownGateway {
  std::timed_mutex mutex;  // a call that was dropped may still run, with a router that never ends its answer
  std::optional<Gateway> gateway;

  template <class Work>
  auto with_gateway(Work work) -> std::invoke_result_t<Work&, Gateway&> {
    const std::unique_lock lock(mutex, kAnotherCall);
    if (!lock) return Error(cohive::Errc::timeout, "the router has not answered the call before");
    const bool known = gateway.has_value();
    if (!known && !gateway.emplace().find()) {
      gateway.reset();
      return Error(cohive::Errc::not_found, "no router answers");
    }
    auto result = work(*gateway);
    if (result) return result;
    gateway.reset();
    if (!known || !gateway.emplace().find()) {
      gateway.reset();
      return result;
    }
    return work(*gateway);  // a router that has started anew listens elsewhere
  }
};

class UpnpMapper final : public PortMapper {
 public:
  explicit UpnpMapper(Runtime& runtime) : runtime_(runtime) {}
  std::string_view protocol() const override { return kUpnp; }
  Task<Result<PortMapping>> map(std::uint16_t inside, std::uint16_t wanted, Duration lifetime) override {
    co_return co_await runtime_.offload_io([known = known_, inside, wanted, lifetime] {
      return known->with_gateway([&](Gateway& gateway) { return gateway.map(inside, wanted, lifetime); });
    });
  }
  Task<Result<>> unmap(PortMapping mapping) override {
    co_return co_await runtime_.offload_io([known = known_, mapping = std::move(mapping)] {
      return known->with_gateway([&](Gateway& gateway) { return gateway.unmap(mapping); });
    });
  }
  /// A gateway goes on forwarding to the address that we had before, and reports no error.
  void moved() override { known_ = std::make_shared<KnownGateway>(); }

 private:
  Runtime& runtime_;
  std::shared_ptr<KnownGateway> known_ = std::make_shared<KnownGateway>();
};

}  // namespace

std::unique_ptr<PortMapper> make_upnp_mapper(Runtime& runtime) {
  return std::make_unique<UpnpMapper>(runtime);
}

}  // namespace cohive::p2p
#endif
