// The ways of asking a router for a port that this build has.
#pragma once

#include <boost/asio/ip/address_v4.hpp>
#include <functional>

#include "cohive/p2p/port_mapper.hpp"

namespace cohive::p2p {

/// The machine's router; needs libnatpmp.
Result<boost::asio::ip::address_v4> default_gateway();

/// Finds the router to ask, off the loop.
using FindGateway = std::function<Result<boost::asio::ip::address_v4>()>;
std::unique_ptr<PortMapper> make_pcp_mapper(Runtime& runtime, FindGateway find_gateway, std::uint16_t port = 5351);
std::unique_ptr<PortMapper> make_nat_pmp_mapper(Runtime& runtime);
std::unique_ptr<PortMapper> make_upnp_mapper(Runtime& runtime);

}  // namespace cohive::p2p
