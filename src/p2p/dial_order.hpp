// In which order the addresses of a peer are dialled. Source: docs/wire/libp2p.md, section 10; RFC 8305.
#pragma once

#include <vector>

#include "address_book.hpp"

namespace cohive::p2p {

/// The addresses without duplicates in the order of trying: those that worked before; then the kinds of networks in
/// turn, each by IPv6 and IPv4 alternately, so that one kind that leads nowhere costs little time; circuits through
/// relays at last.
std::vector<KnownAddress> dial_order(const std::vector<KnownAddress>& addresses);

/// How long the dial of an address goes on alone before the next one of the peer begins.
Duration head_start(const Multiaddr& address);

}  // namespace cohive::p2p
