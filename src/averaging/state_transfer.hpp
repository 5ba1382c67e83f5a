// State sharing: a newcomer downloads tensors and metadata from a peer that has them.
//   client -> empty request, END_OF_STREAM;  donor -> chunks of 64 KiB; the first one carries the metadata.
// Source: hivemind wire spec, sections 2.4 and 6.9.
#pragma once

#include "cohive/averaging/averager.hpp"
#include "cohive/rpc/rpc.hpp"
#include "wire.hpp"

namespace cohive::averaging {

/// Serves rpc_download_state. `state` empty: nothing is shared.
Task<Result<>> send_state(Runtime& runtime, rpc::ServerStream& stream, std::optional<SharedState> state,
                          codec::Compression compression);

/// What has arrived of a state: complete tensors, and the metadata they belong to.
struct PartialState {
  std::string metadata;
  std::vector<codec::Tensor> tensors;
  std::uint64_t bytes = 0;  ///< in memory
};

/// Downloads from one donor. On an error `partial` holds what had arrived, for the next donor to go on from.
/// \param max_bytes  more is refused  \param chunk_timeout  between two chunks
Task<Result<DownloadedState>> receive_state(p2p::Host& host, PeerId donor, std::string protocol, Duration chunk_timeout,
                                            std::uint64_t max_bytes, PartialState& partial);

}  // namespace cohive::averaging
