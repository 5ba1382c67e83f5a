/// \file
/// Addresses that a user wants to be told to other peers.
#pragma once

#include <optional>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/transport/transport.hpp"

namespace cohive::p2p {

/// Reads an address as the transports of a host do: transport::Transport::endpoint.
using ReadEndpoint = std::function<std::optional<transport::Endpoint>(const Multiaddr&)>;
/// Reads an address as the transports of a host do that is given a network.
std::optional<transport::Endpoint> endpoint_over_network(const Multiaddr& address);

/// Tells whether other peers can dial the address, as far as the address itself tells: by a transport that there is, at
/// a host that a machine can have, directly or through a relay that it names. Port 0 is that of a listener
/// (fill_ports). Errc::invalid_argument, with a sentence, when they cannot.
/// \param self  of the peer that announces it, where it is known: an id at the end of the address must be that one
Result<> check_announced(const Multiaddr& address, const std::optional<PeerId>& self,
                         const ReadEndpoint& endpoint = endpoint_over_network);

/// Makes what is announced of what the user gave: checked, without the peer's own id at the end, each once, and port 0
/// replaced by the ports that are listened on by the same protocols, those of the same kind of IP address where there
/// are any.
/// \param bound  where this peer listens
/// Errors: those of check_announced; Errc::invalid_argument for port 0 of a peer that does not listen.
Result<std::vector<Multiaddr>> fill_ports(const std::vector<Multiaddr>& given, const PeerId& self,
                                          const std::vector<Multiaddr>& bound,
                                          const ReadEndpoint& endpoint = endpoint_over_network);

}  // namespace cohive::p2p
