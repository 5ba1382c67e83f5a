#include "cohive/p2p/probes.hpp"

#include "autonat_client.hpp"
#include "circuit_message.hpp"
#include "cohive/core/try.hpp"
#include "identify.hpp"

namespace cohive::p2p {

const std::string kDialBackProtocol = kAutoNatProtocol;
const std::string kRelayProtocol = kHopProtocol;

Task<Result<PeerDescription>> describe(Host& host, PeerId peer, Deadline deadline) {
  CO_TRY(auto stream, co_await host.open_stream(peer, kIdentifyProtocol, deadline));
  CO_TRY(const auto message, co_await read_identify(*stream, deadline));
  stream->close_write();
  PeerDescription result;
  result.agent = message.agent_version();
  result.protocols.assign(message.protocols().begin(), message.protocols().end());
  for (const auto& binary : message.listen_addrs())
    if (auto address = Multiaddr::from_bytes(as_bytes(binary))) result.addresses.push_back(std::move(*address));
  if (auto observed = Multiaddr::from_bytes(as_bytes(message.observed_addr())); observed && !observed->empty())
    result.observed = std::move(*observed);
  co_return result;
}

Task<Result<DialBack>> ask_dial_back(Host& host, PeerId peer, std::vector<Multiaddr> addresses, Deadline deadline) {
  CO_TRY(auto stream, co_await host.open_stream(peer, kAutoNatProtocol, deadline));
  DialBackRequest request{host.id(), std::move(addresses)};
  CO_TRY(auto response, co_await request_dial_back(*stream, std::move(request), deadline));
  using Outcome = DialBack::Outcome;
  const Outcome outcome = response.status == proto::AutoNat::OK             ? Outcome::reached
                          : response.status == proto::AutoNat::E_DIAL_ERROR ? Outcome::failed
                                                                            : Outcome::refused;
  co_return DialBack{outcome, std::move(response.address), std::move(response.text)};
}

Task<Result<CircuitLimit>> ask_reservation(Host& host, PeerId relay, Deadline deadline) {
  CO_TRY(auto stream, co_await host.open_stream(relay, kHopProtocol, deadline));
  CO_TRY(const auto reply, co_await request_reservation(*stream, deadline));
  co_return limit_of(reply.limit());
}

}  // namespace cohive::p2p
