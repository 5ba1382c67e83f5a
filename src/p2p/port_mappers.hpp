// The ways of asking a router for a port that this build has.
#pragma once

#include "cohive/p2p/port_mapper.hpp"

namespace cohive::p2p {

std::unique_ptr<PortMapper> make_nat_pmp_mapper(Runtime& runtime);
std::unique_ptr<PortMapper> make_upnp_mapper(Runtime& runtime);

}  // namespace cohive::p2p
