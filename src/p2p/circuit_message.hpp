// The messages of circuit relay v2 and the addresses of circuits. Source: docs/wire/libp2p.md, section 6.3.
#pragma once

#include <optional>
#include <string>

#include "cohive/core/errors.hpp"
#include "cohive/core/keys.hpp"
#include "cohive/core/multiaddr.hpp"
#include "cohive/core/runtime.hpp"
#include "cohive/p2p/relay.hpp"
#include "cohive/proto/relay.pb.h"
#include "cohive/transport/stream.hpp"
#include "core/detail/bounded_parse.hpp"

namespace cohive::p2p {

inline const std::string kHopProtocol = "/libp2p/circuit/relay/0.2.0/hop";
inline const std::string kStopProtocol = "/libp2p/circuit/relay/0.2.0/stop";
inline constexpr std::size_t kMaxRelayMessage = 4096;
inline constexpr std::size_t kMaxRelayFields = 256;  // a reservation names the relay's addresses
inline constexpr Duration kCircuitStall = 1min;      // an end that takes nothing for so long is gone

/// Parses a message whose type is known. Errc::malformed otherwise.
template <class Message>
Result<Message> parse_relay_message(ByteView bytes) {
  Message message;
  if (bytes.size() > kMaxRelayMessage || !parse_bounded(message, bytes, kMaxRelayFields) || !message.has_type())
    return Error(cohive::Errc::malformed, "relay message");
  return message;
}

/// Reads one message; a stream that ends before is Errc::end_of_stream.
template <class Message>
Task<Result<Message>> read_relay_message(transport::Stream& stream, Deadline deadline) {
  transport::StreamReader reader(stream);
  auto bytes = co_await reader.read_message(kMaxRelayMessage, deadline);
  if (!bytes) co_return bytes.error();
  if (!*bytes) co_return Error(cohive::Errc::end_of_stream, stream.peer(), "relay message");
  co_return parse_relay_message<Message>(**bytes);
}

/// Sends a request to a relay and waits for its consent. Errc::relay_refused when it gives none.
Task<Result<proto::Hop>> ask_relay(transport::Stream& stream, proto::Hop request, Deadline deadline);
/// Asks a relay for a reservation on a stream of its own. Errc::relay_refused when it grants none.
Task<Result<proto::Hop>> request_reservation(transport::Stream& stream, Deadline deadline);

CircuitLimit limit_of(const proto::RelayLimit& limit);
/// Writes a limit into a message, unless there is none.
template <class Message>
void set_limit(Message& message, const CircuitLimit& limit) {
  if (limit == CircuitLimit()) return;
  if (limit.duration > 0s)
    message.mutable_limit()->set_duration(static_cast<std::uint32_t>(to_seconds(limit.duration)));
  if (limit.bytes > 0) message.mutable_limit()->set_data(limit.bytes);
}

/// A relay's signed statement that it serves a peer until `expiration`, in Unix seconds.
std::string make_voucher(const KeyPair& relay, const PeerId& peer, std::uint64_t expiration);
/// Verifies that `voucher` is of this relay and for this peer.
Result<> check_voucher(ByteView voucher, const PeerId& relay, const PeerId& peer);

/// The parts of "<relay address>/p2p/<relay>/p2p-circuit[/p2p/<target>]".
struct CircuitAddress {
  Multiaddr relay_address;  ///< empty: not said
  PeerId relay;
  std::optional<PeerId> target;
};
/// nullopt for addresses of other kinds, and for circuits through circuits.
std::optional<CircuitAddress> parse_circuit(const Multiaddr& address);
/// "<relay address>/p2p/<relay>/p2p-circuit".
Multiaddr circuit_through(const Multiaddr& relay_address, const PeerId& relay);

}  // namespace cohive::p2p
