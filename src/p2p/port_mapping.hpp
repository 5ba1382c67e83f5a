// Has the router forward the ports that the host listens on, so that peers outside can connect: asks each PortMapper
// until one does it, announces the router's address, renews at half of the lifetime, and takes the mapping back at the
// end. A machine that has slept, or come to another network, asks at once. A host that listens on this machine alone,
// or not at all, needs none. Source: docs/wire/libp2p.md, section 6.2.
#pragma once

#include <map>

#include "cohive/core/sync.hpp"
#include "cohive/p2p/port_mapper.hpp"
#include "inbound.hpp"
#include "own_addresses.hpp"

namespace cohive::p2p {

class PortMappings {
 public:
  PortMappings(Self& self, Inbound& inbound, OwnAddresses& own, PortMappers& mappers);
  ~PortMappings();
  /// To be called once the host listens.
  void start();
  /// Ends the mappings; where a router does not answer by the deadline, they end with their lifetime.
  Task<void> close(Deadline deadline);
  std::vector<PortMapping> current() const;
  /// Emitted when the outer addresses have changed.
  Signal<>& changed() noexcept { return changed_; }

 private:
  struct Held {
    PortMapper* mapper;
    PortMapping mapping;
    TimePoint renew_at, expires;
  };
  void on_moved();
  bool has_slept();
  static Task<void> keep(PortMappings& mappings, std::vector<std::uint16_t> ports);
  static Task<bool> map(PortMappings& mappings, std::uint16_t port);
  static Task<void> unmap_all(std::map<std::uint16_t, Held> held);
  std::vector<std::uint16_t> ports_to_map() const;
  std::vector<PortMapper*> order(std::uint16_t port) const;
  void set(std::uint16_t port, std::optional<Held> held);
  Gauge gauge(const PortMapper& mapper) const;
  void failed(const std::string& reasons);

  Self& self_;
  const Inbound& inbound_;
  OwnAddresses& own_;
  PortMappers& mappers_;
  PortMappingMetrics metrics_;
  std::map<std::uint16_t, Held> held_;
  bool told_ = false;   ///< that there is no mapping
  bool moved_ = false;  ///< to another network, so that the ports are to be mapped now
  double ahead_ = 0;    ///< seconds by which the wall clock was ahead of the loop's, when has_slept() was asked last
  Signal<> changed_;
  Condition news_;  ///< we have moved
  Subscription interfaces_;
  TaskGroup tasks_;
};

}  // namespace cohive::p2p
