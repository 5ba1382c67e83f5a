/// \file
/// multistream-select 1.0 on a stream. Source: docs/wire/libp2p.md, section 2.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cohive/transport/stream.hpp"

namespace cohive::transport {

/// Bytes of a protocol's name.
inline constexpr std::size_t kMaxProtocolLength = 1024;
/// Proposals of one stream that are answered; then it is reset.
inline constexpr int kMaxProposals = 32;

/// Proposes the protocols in order and waits for the answer; returns the one accepted.
Task<Result<std::string>> select_one_of(Stream& stream, std::vector<std::string> protocols, Deadline deadline);

/// Optimistic negotiation: returns a stream whose first write carries header and proposal together with the payload,
/// and whose first read checks the answer (Errc::protocol_not_supported when refused). Use when identify listed the
/// protocol. The negotiation has no deadline of its own: that of the first read counts.
StreamPtr select_lazily(StreamPtr stream, std::string protocol);

/// Answers proposals until `supported(protocol)` says yes; returns that protocol, or an error. Bytes sent right behind
/// the proposal stay readable.
Task<Result<std::string>> answer_selection(Stream& stream, std::function<bool(std::string_view)> supported,
                                           Deadline deadline);

}  // namespace cohive::transport
