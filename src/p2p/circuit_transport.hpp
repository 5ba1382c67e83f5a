// Dials peers through relays: the transport of circuit addresses. Source: docs/wire/libp2p.md, section 6.3.
#pragma once

#include "dialler.hpp"

namespace cohive::p2p {

/// Handles "<relay address>/p2p/<relay>/p2p-circuit". Connects to the relay by `dialler` where it is not connected.
std::unique_ptr<transport::Transport> make_circuit_transport(Self& self, ConnectionTable& table, Dialler& dialler);

}  // namespace cohive::p2p
