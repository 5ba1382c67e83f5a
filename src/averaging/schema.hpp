// The gather blob of a join request. Source: hivemind wire spec, section 6.4.
#pragma once

#include "cohive/averaging/averager.hpp"

namespace cohive::averaging {

std::string encode_gather(std::optional<double> bandwidth, PeerMode mode, const msgpack::Value& data);
Result<GatheredPeer> decode_gather(const PeerId& peer, std::string_view blob);

}  // namespace cohive::averaging
