#include "circuit_room.hpp"

#include "cohive/core/errors.hpp"
#include "cohive/core/log.hpp"

namespace cohive::p2p {
namespace {

constexpr Duration kPunchingTime = 10s;  // from the beginning of a circuit, until a direct connection is unlikely

std::uint64_t room(const ConnectionTable& table, const PeerId& peer, Transfer transfer) {
  const ConnectionEntryPtr entry = table.best(peer);
  if (!entry) return 0;
  return transfer == Transfer::to_peer ? entry->connection->send_quota() : entry->connection->receive_quota();
}

/// Waits for hole punching to replace a circuit that was opened a moment ago.
Task<void> wait_for_direct(CircuitRoom where, PeerId peer, Deadline deadline) {
  const ConnectionEntryPtr circuit = where.table.best(peer);
  if (!circuit || !where.self.options.hole_punching) co_return;
  Event replaced(where.self.runtime, "a direct connection");
  const auto added = where.table.added_signal().subscribe([&replaced, peer](const ConnectionEntryPtr& entry) {
    if (entry->connection->peer() == peer && !is_relayed(*entry)) replaced.set();
  });
  (void)co_await replaced.wait(deadline.min(Deadline(circuit->opened + kPunchingTime)));
}

}  // namespace

Task<Result<>> ensure_capacity(CircuitRoom where, PeerId peer, std::uint64_t bytes, Transfer transfer,
                               Deadline deadline) {
  if (room(where.table, peer, transfer) >= bytes) co_return ok();
  co_await wait_for_direct(where, peer, deadline);
  // What earlier transfers have taken of a circuit is back with the next one.
  for (const Multiaddr& address : where.book.addresses(peer)) {
    if (room(where.table, peer, transfer) >= bytes) co_return ok();
    if (!address.is_circuit()) continue;
    auto opened =
        co_await where.dialler.dial_in_parallel(peer, address, transport::Role::initiator, SourcePort::any, deadline);
    if (!opened) log::debug("relay", "no further circuit: {}", opened.error());
  }
  const std::uint64_t most = room(where.table, peer, transfer);
  if (most >= bytes) co_return ok();
  co_return Error(cohive::Errc::limit_exceeded, peer,
                  log::format("the relay between us carries {} bytes more, and {} are to be sent", most, bytes));
}

}  // namespace cohive::p2p
