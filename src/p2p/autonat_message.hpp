// The messages of AutoNAT, read with the limits that hostile peers call for. Source: docs/wire/libp2p.md, section 6.1.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohive/core/multiaddr.hpp"
#include "cohive/core/result.hpp"
#include "cohive/proto/autonat.pb.h"

namespace cohive::p2p {

inline const std::string kAutoNatProtocol = "/libp2p/autonat/1.0.0";
inline constexpr std::size_t kMaxAutoNatMessage = 4096;
inline constexpr std::size_t kMaxDialBackAddresses = 16;

using DialBackStatus = proto::AutoNat::Status;

/// A request to be dialled back.
struct DialBackRequest {
  PeerId peer;
  std::vector<Multiaddr> addresses;  ///< at most kMaxDialBackAddresses; malformed ones are left out
};
struct DialBackResponse {
  DialBackStatus status = proto::AutoNat::E_INTERNAL_ERROR;
  std::string text;                  ///< of the peer: quote before logging
  std::optional<Multiaddr> address;  ///< at which it reached us
};

std::string encode(const DialBackRequest& request);
std::string encode(const DialBackResponse& response);
/// A missing PeerID is empty. Errc::malformed for what is no request.
Result<DialBackRequest> parse_dial_back_request(ByteView bytes);
Result<DialBackResponse> parse_dial_back_response(ByteView bytes);

/// What a server may dial for a peer that it sees at `observed`: this address first, then the wanted ones with their
/// host replaced by the observed one, so that no peer can aim a server at another machine.
std::vector<Multiaddr> dial_back_candidates(const Multiaddr& observed, const std::vector<Multiaddr>& wanted);

}  // namespace cohive::p2p
