// State sharing as hivemind does it: a newcomer downloads tensors and metadata from one peer that has them.
//   client -> empty request, END_OF_STREAM;  donor -> chunks of 64 KiB; the first one carries the metadata.
// Source: docs/wire/hivemind.md, sections 2.4 and 6.9.
#pragma once

#include "cohive/rpc/rpc.hpp"
#include "state_pieces.hpp"

namespace cohive::averaging {

/// Reads the request of rpc_download_state.
Task<Result<>> read_state_request(Runtime& runtime, rpc::ServerStream& stream);
/// Answers it. `state` empty: nothing is shared.
Task<Result<>> send_state(Runtime& runtime, rpc::ServerStream& stream, std::optional<SharedState> state,
                          codec::Compression compression);

/// Finds a way to a donor that carries so many bytes to us, for the next call. Errc::narrow_path: there is none.
Task<Result<>> find_room(p2p::Host& host, PeerId donor, std::uint64_t bytes);

/// The error of a request that a relay in between carries no more: the donor has done nothing wrong, as it would have
/// by sending too much. Others are left as they are.
Error not_asked(const Error& error);

/// Downloads from one donor, from the first byte to the last.
/// \param max_bytes  more is refused  \param chunk_timeout  between two chunks
Task<Result<DownloadedState>> receive_state(p2p::Host& host, PeerId donor, std::string protocol, Duration chunk_timeout,
                                            std::uint64_t max_bytes, DownloadReport& report);

}  // namespace cohive::averaging
