#include "port_mappers.hpp"

namespace cohive::p2p {

PortMappers make_port_mappers([[maybe_unused]] Runtime& runtime) {
  PortMappers result;
#ifdef COHIVE_HAVE_NATPMP
  if (!runtime.simulated()) {
    result.push_back(make_pcp_mapper(runtime, default_gateway));
    result.push_back(make_nat_pmp_mapper(runtime));
  }
#endif
#ifdef COHIVE_HAVE_MINIUPNPC
  if (!runtime.simulated()) result.push_back(make_upnp_mapper(runtime));
#endif
  return result;
}

}  // namespace cohive::p2p
