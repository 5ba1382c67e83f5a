#include "autonat_message.hpp"

#include <algorithm>

#include "cohive/core/errors.hpp"
#include "core/detail/bounded_parse.hpp"

namespace cohive::p2p {

using proto::AutoNat;

namespace {
constexpr std::size_t kMaxFields = 1024;  // addresses: p2pd names all it has
}  // namespace

std::string encode(const DialBackRequest& request) {
  AutoNat message;
  message.set_type(AutoNat::DIAL);
  auto* peer = message.mutable_dial()->mutable_peer();
  peer->set_id(request.peer.binary());
  for (const auto& address : request.addresses) peer->add_addrs(address.binary());
  return message.SerializeAsString();
}

std::string encode(const DialBackResponse& response) {
  AutoNat message;
  message.set_type(AutoNat::DIAL_RESPONSE);
  auto* answer = message.mutable_dial_response();
  answer->set_status(response.status);
  if (!response.text.empty()) answer->set_status_text(response.text);
  if (response.address) answer->set_addr(response.address->binary());
  return message.SerializeAsString();
}

Result<DialBackRequest> parse_dial_back_request(ByteView bytes) {
  AutoNat message;
  if (!parse_bounded(message, bytes, kMaxFields) || message.type() != AutoNat::DIAL || !message.dial().has_peer())
    return Error(cohive::Errc::malformed, "dial-back request");
  DialBackRequest request;
  const auto& peer = message.dial().peer();
  if (peer.has_id()) {
    const auto id = PeerId::from_bytes(as_bytes(peer.id()));
    if (!id) return Error(cohive::Errc::malformed, "dial-back request: peer id");
    request.peer = *id;
  }
  for (const auto& binary : peer.addrs()) {
    if (request.addresses.size() == kMaxDialBackAddresses) break;
    if (auto address = Multiaddr::from_bytes(as_bytes(binary))) request.addresses.push_back(std::move(*address));
  }
  return request;
}

Result<DialBackResponse> parse_dial_back_response(ByteView bytes) {
  AutoNat message;
  if (!parse_bounded(message, bytes, kMaxFields) || message.type() != AutoNat::DIAL_RESPONSE ||
      !message.dial_response().has_status())
    return Error(cohive::Errc::malformed, "dial-back response");
  const auto& answer = message.dial_response();
  DialBackResponse response{answer.status(), answer.status_text(), std::nullopt};
  if (auto address = Multiaddr::from_bytes(as_bytes(answer.addr()))) response.address = address->without_peer();
  return response;
}

std::vector<Multiaddr> dial_back_candidates(const Multiaddr& observed, const std::vector<Multiaddr>& wanted) {
  std::vector<Multiaddr> result;
  const auto add = [&result](Multiaddr address) {
    if (result.size() < kMaxDialBackAddresses && std::find(result.begin(), result.end(), address) == result.end())
      result.push_back(std::move(address));
  };
  add(observed.without_peer());
  for (const auto& address : wanted) {
    const auto code = address.first_code();
    if ((code != Multiaddr::ip4 && code != Multiaddr::ip6) || address.is_circuit()) continue;
    add(address.with_host_of(observed).without_peer());
  }
  return result;
}

}  // namespace cohive::p2p
