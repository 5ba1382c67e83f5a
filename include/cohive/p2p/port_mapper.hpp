/// \file
/// Asking routers to forward a port to this machine. See docs/connectivity.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"

namespace cohive::p2p {

/// A TCP port of a router that is forwarded to one of this machine.
struct PortMapping {
  std::uint16_t inside = 0;  ///< the port of this machine
  Multiaddr outside;         ///< "/ip4/<router>/tcp/<port>"
  Duration lifetime{};       ///< until the router forgets it, unless it is renewed

  friend bool operator==(const PortMapping&, const PortMapping&) = default;
};

/// The name of the Port Control Protocol.
inline constexpr std::string_view kPcp = "pcp";
/// The name of NAT-PMP, its predecessor.
inline constexpr std::string_view kNatPmp = "nat-pmp";
/// The name of UPnP's Internet Gateway Device.
inline constexpr std::string_view kUpnp = "upnp";

/// One way to ask for mappings. Its answers take seconds at most, and never the loop's time. The calls of one mapper
/// come one after the other; one that is dropped goes on unseen.
class PortMapper {
 public:
  virtual ~PortMapper() = default;
  /// Returns kPcp, kNatPmp or kUpnp.
  virtual std::string_view protocol() const = 0;
  /// Asks for a mapping, or renews the one that there is.
  /// \param inside    the port of this machine
  /// \param wanted    the outer port; the router may choose another one
  /// \param lifetime  to be granted; a router may grant less
  /// Errors: Errc::not_found when no router speaks the protocol, Errc::cancelled when one refuses, Errc::malformed.
  virtual Task<Result<PortMapping>> map(std::uint16_t inside, std::uint16_t wanted, Duration lifetime) = 0;
  /// Asks the router to forget a mapping. Errors: as those of map().
  virtual Task<Result<>> unmap(PortMapping mapping) = 0;
  /// The machine has other addresses than before, perhaps in another network: what was found out about routers, and by
  /// which address they know this machine, is to be found out anew.
  virtual void moved() {}
};

/// Ways to ask, best first.
using PortMappers = std::vector<std::unique_ptr<PortMapper>>;

/// Makes the mappers that this build has, in the order in which to try them: PCP, NAT-PMP, UPnP. None in simulations.
PortMappers make_port_mappers(Runtime& runtime);

}  // namespace cohive::p2p
