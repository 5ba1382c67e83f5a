// What one owner commonly has whole: tables of peers give the addresses of one block a share only, so that an attacker
// needs many blocks instead of many identities.
#pragma once

#include <cstdint>
#include <optional>

#include "cohive/core/multiaddr.hpp"

namespace cohive::p2p {

/// The IPv4 /24 or IPv6 /48 network of a public address. Nothing for others: on a private network or one machine all
/// peers are neighbours.
std::optional<std::uint64_t> network_block(const Multiaddr& address);

}  // namespace cohive::p2p
