#include "circuit_message.hpp"

#include "cohive/core/signed_envelope.hpp"
#include "cohive/core/try.hpp"
#include "cohive/p2p/errors.hpp"

namespace cohive::p2p {
namespace {

constexpr std::string_view kVoucherDomain = "libp2p-relay-rsvp";
constexpr std::string_view kVoucherType{"\x03\x02", 2};

const Multiaddr& circuit_part() {
  static const Multiaddr part = Multiaddr::from_text("/p2p-circuit").value();
  return part;
}

}  // namespace

Task<Result<proto::Hop>> ask_relay(transport::Stream& stream, proto::Hop request, Deadline deadline) {
  CO_TRY(co_await transport::write_message(stream, as_bytes(request.SerializeAsString()), deadline));
  CO_TRY(auto reply, co_await read_relay_message<proto::Hop>(stream, deadline));
  if (reply.type() != proto::Hop::STATUS || reply.status() != proto::RELAY_OK)
    co_return Error(Errc::relay_refused, stream.peer(),
                    reply.has_status() ? proto::RelayStatus_Name(reply.status()) : "an unknown status");
  co_return reply;
}

Task<Result<proto::Hop>> request_reservation(transport::Stream& stream, Deadline deadline) {
  proto::Hop request;
  request.set_type(proto::Hop::RESERVE);
  auto reply = co_await ask_relay(stream, std::move(request), deadline);
  stream.close_write();
  co_return reply;
}

CircuitLimit limit_of(const proto::RelayLimit& limit) {
  return {std::chrono::seconds(limit.duration()), limit.data()};
}

std::string make_voucher(const KeyPair& relay, const PeerId& peer, std::uint64_t expiration) {
  proto::RelayVoucher voucher;
  voucher.set_relay(relay.peer_id().binary());
  voucher.set_peer(peer.binary());
  voucher.set_expiration(expiration);
  return seal_envelope(relay, kVoucherDomain, kVoucherType, voucher.SerializeAsString());
}

Result<> check_voucher(ByteView bytes, const PeerId& relay, const PeerId& peer) {
  const auto envelope = open_envelope(bytes, kVoucherDomain, kVoucherType);
  if (!envelope) return envelope.error();
  proto::RelayVoucher voucher;
  if (!parse_bounded(voucher, as_bytes(envelope->payload)) || envelope->signer.peer_id() != relay ||
      voucher.relay() != relay.binary() || voucher.peer() != peer.binary())
    return Error(cohive::Errc::malformed, relay, "the voucher is of another relay or for another peer");
  return ok();
}

std::optional<CircuitAddress> parse_circuit(const Multiaddr& address) {
  static const std::string kName = "/p2p-circuit";
  if (!address.is_circuit()) return std::nullopt;
  const std::string text = address.text();
  const std::size_t at = text.find(kName), rest = at + kName.size();
  if (text.find(kName, rest) != std::string::npos) return std::nullopt;
  const auto relay = Multiaddr::from_text(text.substr(0, at));
  if (!relay || !relay->peer()) return std::nullopt;
  CircuitAddress parts{relay->without_peer(), *relay->peer(), std::nullopt};
  if (rest == text.size()) return parts;
  const auto target = Multiaddr::from_text(text.substr(rest));
  if (!target || !target->without_peer().empty()) return std::nullopt;
  parts.target = target->peer();
  return parts;
}

Multiaddr circuit_through(const Multiaddr& relay_address, const PeerId& relay) {
  return relay_address.with_peer(relay).encapsulate(circuit_part());
}

}  // namespace cohive::p2p
