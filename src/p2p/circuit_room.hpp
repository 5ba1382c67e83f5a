// Room for a transfer that a limited relay may not carry: a direct connection, or a circuit that was not used before.
#pragma once

#include "dialler.hpp"

namespace cohive::p2p {

/// Where a transfer to a connected peer finds room. All must outlive the task.
struct CircuitRoom {
  Self& self;
  ConnectionTable& table;
  AddressBook& book;
  Dialler& dialler;
};

/// See Host::ensure_capacity; the peer is connected.
Task<Result<>> ensure_capacity(CircuitRoom where, PeerId peer, std::uint64_t bytes, Transfer transfer,
                               Deadline deadline);

}  // namespace cohive::p2p
