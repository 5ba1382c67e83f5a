#include "cohive/transport/transport.hpp"

namespace cohive::transport {

Transport* transport_for(const Transports& transports, const Multiaddr& address) {
  for (const auto& transport : transports)
    if (transport->handles(address)) return transport.get();
  return nullptr;
}

std::optional<Endpoint> endpoint_of(const Transports& transports, const Multiaddr& address) {
  for (const auto& transport : transports)
    if (const auto endpoint = transport->endpoint(address)) return endpoint;
  return std::nullopt;
}

}  // namespace cohive::transport
