// Leaving: a peer that averages no more says so to those that may wait for it. Between cohive peers only; a peer that
// does not know the protocol (Python) refuses it when the stream is opened.
//   leaver -> empty message, END_OF_STREAM;  member -> END_OF_STREAM
// Who leaves is known by its connection: a peer can leave for itself only.
#pragma once

#include <functional>

#include "cohive/rpc/rpc.hpp"

namespace cohive::averaging {

/// \param protocol_prefix  of the averager: "<prefix>::<class>."
std::string leave_protocol(const std::string& protocol_prefix);
Task<void> tell_leave(p2p::Host& host, PeerId peer, std::string protocol_prefix, Deadline deadline);
Task<Result<>> serve_leave(Runtime& runtime, rpc::ServerStream& stream, std::function<void(const PeerId&)> left);

}  // namespace cohive::averaging
